"""The promise that everything else rests on: every TP size and every arm computes the same function."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from mtpprof.models.reference.collectives.comm import Communicator
from mtpprof.models.reference.model import ReferenceModel
from mtpprof.models.reference.switches import COMMUTATIVE_REDUCE
from mtpprof.models.spec import ModelSpec
from tests.unit.models.reference.cases import ALL, LATENT, SEQUENCES, all_arms, build, prompts, rows_at, tiny
from tests.unit.models.reference.thread_ranks import run_ranks

TOLERANCE = 1e-9
"""Relative, in float64."""

Outputs = dict[str, Tensor]


@torch.inference_mode()
def outputs(model: ReferenceModel) -> Outputs:
    """Hidden states, logits and draft outputs of a prefill, and of a verification that rejects one row of three."""
    length = 11
    tokens = prompts(length=length + 3)
    caches = model.new_caches(SEQUENCES, length + 3)
    prefill = rows_at(0, length, keep_states=False)
    hidden = model(tokens[:, :length], prefill, caches)
    for cache in caches:
        cache.commit(torch.full((SEQUENCES,), length - 1))
    verify = rows_at(length, 3)
    verified = model(tokens[:, length:], verify, caches)
    for cache in caches:
        cache.commit(torch.ones(SEQUENCES, dtype=torch.int64))
    after = model(tokens[:, -1:], rows_at(length + 2, 1), caches)
    found = {"prefill": hidden, "verified": verified, "after": after, "logits": model.logits(after)}
    if model.draft:
        draft_caches = model.draft.new_caches(SEQUENCES, length + 3)
        drafted = model.draft(tokens[:, 1 : length + 1], hidden, prefill, draft_caches)
        again = model.draft(tokens[:, length:], verified, verify, draft_caches)
        found |= {"drafted": drafted, "again": again, "tokens": model.draft.next_tokens(again)}
    return found


def outputs_in(spec: ModelSpec, dtype: torch.dtype, comm: Communicator) -> Outputs:
    return outputs(build(spec, comm, dtype))


def outputs_of_arms(spec: ModelSpec, comm: Communicator) -> dict[frozenset[str], Outputs]:
    model = build(spec, comm)
    found = {}
    for arm in all_arms(spec):
        model.set_arm(arm)
        found[arm] = outputs(model)
    return found


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", ALL)
def test_every_tp_size_and_arm_computes_the_same_function(name: str) -> None:
    spec = tiny(name)
    expected = run_ranks(1, lambda comm: outputs(build(spec, comm)))[0]
    for size in (1, 2, 4):
        for rank, by_arm in enumerate(
            run_ranks(size, lambda comm: outputs_of_arms(spec, comm), fused=size == 4)
        ):
            for arm, actual in by_arm.items():
                for key, tensor in actual.items():
                    error = relative_error(tensor, expected[key])
                    assert error < TOLERANCE, f"TP {size} rank {rank} arm {sorted(arm)} {key}: {error:.2e}"


@pytest.mark.parametrize("name", ["deepseek-v3.2", "nemotron-3-super"])
def test_eight_ranks_compute_the_same_function(name: str) -> None:
    spec = tiny(name)
    expected = run_ranks(1, lambda comm: outputs(build(spec, comm)))[0]
    for actual in run_ranks(8, lambda comm: outputs(build(spec, comm))):
        assert relative_error(actual["logits"], expected["logits"]) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["deepseek-v3.2", "nemotron-3-super", "kimi-k3"])
def test_ranks_agree_to_the_bit(name: str, dtype: torch.dtype) -> None:
    spec = tiny(name)
    first, *others = run_ranks(4, lambda comm: outputs(build(spec, comm, dtype)))
    for other in others:
        assert all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "nemotron-3-super"])
def test_the_fused_tail_changes_no_bit_in_bf16(name: str) -> None:
    spec = tiny(name)

    def drafted(comm: Communicator) -> list[Tensor]:
        model = build(spec, comm, torch.bfloat16)
        found = []
        for arm in (frozenset[str](), frozenset({"allreduce-norm-fusion"})):
            model.set_arm(arm)
            found.append(outputs(model)["again"])
        return found

    for fused in (False, True):
        for off, on in run_ranks(2, drafted, fused=fused):
            assert torch.equal(off, on)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "nemotron-3-super"])
def test_low_precision_is_near_double_precision(name: str) -> None:
    spec = tiny(name)
    exact = run_ranks(1, lambda comm: outputs(build(spec, comm)))[0]
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        actual = run_ranks(2, partial(outputs_in, spec, dtype))[0]
        assert relative_error(actual["logits"].double(), exact["logits"]) < tolerance


@pytest.mark.parametrize("flaw", ["norm", "bias"])
def test_forcing_a_transform_that_does_not_commute_gives_wrong_outputs(flaw: str) -> None:
    spec = tiny("kimi-k3")
    assert spec.moe is not None
    if flaw == "bias":
        spec = replace(spec, moe=replace(spec.moe, latent_norm=False, latent_bias=True))
    enabled = frozenset({COMMUTATIVE_REDUCE})

    def right_and_forced(comm: Communicator) -> tuple[Tensor, Tensor]:
        model = build(spec, comm)
        right = outputs(model)["logits"]
        model.set_arm(enabled, force=enabled)
        return right, outputs(model)["logits"]

    for right, forced in run_ranks(2, right_and_forced):
        assert relative_error(forced, right) > 0.01
    for right, forced in run_ranks(1, right_and_forced):
        assert relative_error(forced, right) < TOLERANCE


@pytest.mark.parametrize("name", LATENT)
def test_latent_models_without_a_shared_expert_agree_too(name: str) -> None:
    spec = tiny(name)
    assert spec.moe is not None
    spec = replace(spec, moe=replace(spec.moe, shared_intermediate_size=0))
    expected = run_ranks(1, lambda comm: outputs(build(spec, comm)))[0]["logits"]
    for by_arm in run_ranks(2, lambda comm: outputs_of_arms(spec, comm)):
        for actual in by_arm.values():
            assert relative_error(actual["logits"], expected) < TOLERANCE
