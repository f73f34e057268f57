from __future__ import annotations

from dataclasses import replace

import pytest

from mtpprof.errors import UsageError
from mtpprof.models.reference.model import ReferenceModel
from mtpprof.models.reference.stack import BLOCKS
from mtpprof.models.reference.switches import COMMUTATIVE_REDUCE, LOCAL_ARGMAX, SWITCHES
from mtpprof.models.spec import BLOCK_KINDS, ModelSpec, MtpSpec
from tests.unit.models.reference.cases import ALL, build, tiny
from tests.unit.models.reference.thread_ranks import run_ranks, solo


def model(spec: ModelSpec) -> ReferenceModel:
    return build(spec, solo())


def test_every_kind_of_block_is_there() -> None:
    assert set(BLOCKS) == set(BLOCK_KINDS)


@pytest.mark.parametrize("name", ALL)
def test_sites_are_those_of_the_spec(name: str) -> None:
    spec = tiny(name)
    built = model(spec)
    assert [block.site.rsplit(".", 2)[0] for block in built.stack.blocks] == [
        spec.block_path(index) for index in range(len(spec.blocks))
    ]


def test_kimi_k3_refuses_to_project_partial_sums() -> None:
    with pytest.raises(UsageError, match=r"kimi-k3: commutative-reduce would give wrong outputs: an RMSNorm"):
        model(tiny("kimi-k3")).set_arm(frozenset({COMMUTATIVE_REDUCE}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"latent_bias": True}, "bias"), ({"latent_quantization": "fp8"}, r"quantized \(fp8\)")],
)
def test_what_does_not_commute_is_refused(changes: dict[str, object], reason: str) -> None:
    spec = tiny("nemotron-3-super")
    assert spec.moe is not None
    flawed = replace(spec, moe=replace(spec.moe, **changes))  # type: ignore[arg-type]
    built = model(flawed)
    with pytest.raises(UsageError, match=reason):
        built.set_arm(frozenset({COMMUTATIVE_REDUCE}))
    assert built.switches.enabled == frozenset(), "a refused arm changes nothing"
    built.set_arm(frozenset({COMMUTATIVE_REDUCE}), force=frozenset({COMMUTATIVE_REDUCE}))


def test_a_quantized_model_whose_latent_projection_is_not_may_commute() -> None:
    spec = replace(tiny("nemotron-3-super"), quantization="nvfp4")
    model(spec).set_arm(frozenset({COMMUTATIVE_REDUCE}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"logit_scale": 0.0}, "its logit scale 0 is not positive"),
        ({"logit_scale": -1.5}, "its logit scale -1.5 is not positive"),
        ({"vocab_size": 2**24 + 1}, "token ids of a vocabulary of 16777217 are not exact in fp32"),
    ],
)
def test_local_argmax_is_refused_where_it_would_choose_wrongly(
    changes: dict[str, float], reason: str
) -> None:
    built = model(tiny("deepseek-v3.2", vocab=64))
    built.spec = replace(built.spec, **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=reason):
        built.set_arm(frozenset({LOCAL_ARGMAX}))


def test_unknown_switches_are_refused() -> None:
    with pytest.raises(UsageError, match="has no switch warp-drive; it has allreduce-norm-fusion"):
        model(tiny("deepseek-v3.2")).set_arm(frozenset({"warp-drive"}))


def test_switches_with_nothing_to_act_on_are_accepted() -> None:
    built = model(tiny("kimi-k2"))
    built.set_arm(frozenset(SWITCHES))
    assert built.switches.enabled == frozenset(SWITCHES)


def test_a_tp_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="--tp 3 does not divide"):
        run_ranks(3, lambda comm: build(tiny("deepseek-v3.2"), comm))


def test_recurrent_draft_blocks_are_refused() -> None:
    spec = replace(tiny("nemotron-3-super"), mtp=MtpSpec(blocks="ME", gathered_eh_proj=True))
    with pytest.raises(UsageError, match=r"nemotron-3-super: the draft module has recurrent blocks \(M\)"):
        model(spec)
