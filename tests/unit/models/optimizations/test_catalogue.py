from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.errors import UsageError
from mtpprof.models.ledger import LedgerEntry, Workload, base_ledger
from mtpprof.models.optimizations import catalogue as optimizations
from mtpprof.models.optimizations.base import Eligibility, Optimization, Proof
from mtpprof.models.optimizations.catalogue import (
    CATALOGUE,
    eligible_optimizations,
    expected_collectives,
    find_optimization,
)
from mtpprof.models.presets import PRESETS, load_preset
from mtpprof.models.spec import ModelSpec, MtpSpec, Scale
from mtpprof.models.traffic import Kind

FUSION, ARGMAX, COMMUTE = "allreduce-norm-fusion", "local-argmax", "commutative-reduce"
DEEPSEEK = load_preset("deepseek-v3.2", Scale.TINY)
SUPER = load_preset("nemotron-3-super", Scale.TINY)
LOAD = Workload(concurrency=2, draft_tokens=3, tp=4)
NO_DRAFTS = replace(LOAD, draft_tokens=0)


def with_moe(spec: ModelSpec, **fields: object) -> ModelSpec:
    assert spec.moe is not None
    return replace(spec, moe=replace(spec.moe, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "fusion", "argmax", "commute"),
    [
        ("deepseek-v3.2", True, True, False),
        ("glm-5.2", True, True, False),
        ("nemotron-3-nano", False, False, False),
        ("nemotron-3-super", False, True, True),
        ("nemotron-3-ultra", False, True, True),
        ("kimi-k2", False, False, False),
        ("kimi-k3", False, False, False),
    ],
)
@pytest.mark.parametrize("scale", Scale)
def test_eligibility_of_every_preset(
    name: str, scale: Scale, fusion: bool, argmax: bool, commute: bool
) -> None:
    answers = eligible_optimizations(load_preset(name, scale), LOAD)
    assert {key: answer.ok for key, answer in answers.items()} == {
        FUSION: fusion,
        ARGMAX: argmax,
        COMMUTE: commute,
    }
    assert all(answer.ok or answer.reason for answer in answers.values())


@pytest.mark.parametrize(
    ("optimization", "spec", "load", "reason"),
    [
        (FUSION, PRESETS["kimi-k2"], LOAD, "Kimi-K2 has no multi-token-prediction module"),
        (FUSION, DEEPSEEK, NO_DRAFTS, "no draft tokens are asked for"),
        (FUSION, SUPER, LOAD, "does not end in an all-reduce that its final norm follows directly"),
        (FUSION, replace(DEEPSEEK, sequence_parallel=True), LOAD, "sequence parallelism"),
        (FUSION, DEEPSEEK, replace(LOAD, tp=1), "TP 1 has no collectives"),
        (ARGMAX, PRESETS["kimi-k3"], LOAD, "Kimi-K3 has no multi-token-prediction module"),
        (ARGMAX, SUPER, NO_DRAFTS, "no draft tokens are asked for"),
        (ARGMAX, replace(DEEPSEEK, logit_scale=0.0), LOAD, "a scale that is not positive moves the maximum"),
        (ARGMAX, replace(DEEPSEEK, logit_scale=-1.5), LOAD, "scales its logits by -1.5"),
        (ARGMAX, replace(DEEPSEEK, vocab_size=2**24 + 8), LOAD, "are not exact in fp32"),
        (ARGMAX, DEEPSEEK, replace(LOAD, tp=1), "TP 1 has no collectives"),
        (COMMUTE, PRESETS["nemotron-3-nano"], NO_DRAFTS, "no latent width"),
        (COMMUTE, replace(SUPER, moe=None), NO_DRAFTS, "no latent width"),
        (
            COMMUTE,
            PRESETS["kimi-k3"],
            NO_DRAFTS,
            "an RMSNorm inside the transform does not commute with the sum",
        ),
        (COMMUTE, with_moe(SUPER, latent_bias=True), LOAD, "has a bias"),
        (COMMUTE, with_moe(SUPER, latent_quantization="fp8"), LOAD, "projection itself is quantized (fp8)"),
        (
            COMMUTE,
            with_moe(SUPER, latent_quantized_layers=("layers.1", "layers.4", "layers.6", "mtp.layers.1")),
            LOAD,
            "the output projection of every layer is quantized",
        ),
        (COMMUTE, replace(SUPER, sequence_parallel=True), LOAD, "sequence parallelism"),
        (COMMUTE, SUPER, replace(LOAD, tp=1), "TP 1 has no collectives"),
    ],
)
def test_what_is_refused_and_why(optimization: str, spec: ModelSpec, load: Workload, reason: str) -> None:
    answer = CATALOGUE[optimization].eligible(spec, load)
    assert not answer.ok
    assert reason in answer.reason


@pytest.mark.parametrize(
    ("optimization", "spec", "load", "note"),
    [
        (FUSION, DEEPSEEK, LOAD, ""),
        (ARGMAX, replace(DEEPSEEK, sequence_parallel=True), LOAD, ""),
        (ARGMAX, replace(DEEPSEEK, logit_scale=0.1), LOAD, ""),
        (COMMUTE, SUPER, NO_DRAFTS, ""),
        (COMMUTE, replace(SUPER, quantization="nvfp4"), LOAD, ""),
        (COMMUTE, with_moe(SUPER, latent_quantized_layers=("layers.4",)), LOAD, "only 3 of 4 layers"),
        (COMMUTE, with_moe(SUPER, shared_intermediate_size=0), LOAD, "moves more bytes than it saves"),
    ],
)
def test_what_is_accepted_and_with_what_limitation(
    optimization: str, spec: ModelSpec, load: Workload, note: str
) -> None:
    answer = CATALOGUE[optimization].eligible(spec, load)
    assert answer.ok
    assert note in answer.reason
    assert bool(note) == bool(answer.reason)


def test_fusion_marks_the_last_all_reduce_of_each_draft_pass_and_changes_nothing_else() -> None:
    off, on = base_ledger(DEEPSEEK, LOAD), expected_collectives(DEEPSEEK, LOAD, frozenset({FUSION}))
    assert [replace(entry, fused="") for entry in on] == list(off)
    fused = [(entry.phase, entry.site, entry.fused) for entry in on if entry.fused]
    assert fused == [(f"draft[{k}]", "mtp.layers.0.moe.final", "residual_rmsnorm") for k in range(3)]


def test_local_argmax_gathers_pairs_in_the_draft_passes_alone() -> None:
    off, on = base_ledger(DEEPSEEK, LOAD), expected_collectives(DEEPSEEK, LOAD, frozenset({ARGMAX}))
    changed = [(before, after) for before, after in zip(off, on, strict=True) if before != after]
    assert len(changed) == 3
    for before, after in changed:
        assert before.site == after.site == "mtp.lm_head"
        assert (after.shape, after.dtype, after.payload_bytes) == ((2, 2), "fp32", 2 * 8 * 4)
        assert before.payload_bytes == 2 * 129280 * 2


def test_commutative_reduce_makes_one_all_reduce_of_two() -> None:
    off, on = base_ledger(SUPER, LOAD), expected_collectives(SUPER, LOAD, frozenset({COMMUTE}))
    latent = [entry for entry in off if entry.site.endswith(".moe.latent")]
    assert len(off) - len(on) == len(latent) == 3 + 3
    kept = [entry for entry in off if ".moe." not in entry.site]
    assert [entry for entry in on if ".moe." not in entry.site] == kept
    assert [entry.site for entry in on if ".moe." in entry.site] == [
        entry.site.replace(".latent", ".final") for entry in latent
    ]
    assert {entry.shape for entry in on if ".moe." in entry.site} == {(8, 256), (2, 256)}


def test_commutative_reduce_leaves_layers_whose_own_projection_is_quantized() -> None:
    spec = with_moe(SUPER, latent_quantized_layers=("layers.4", "mtp.layers.1"))
    on = expected_collectives(spec, NO_DRAFTS, frozenset({COMMUTE}))
    sites = [entry.site for entry in on if ".moe." in entry.site]
    assert sites == ["layers.1.moe.final", "layers.4.moe.latent", "layers.4.moe.shared", "layers.6.moe.final"]


def test_optimizations_compose() -> None:
    on = expected_collectives(DEEPSEEK, LOAD, frozenset({FUSION, ARGMAX}))
    assert sum(bool(entry.fused) for entry in on) == 3
    assert sum(entry.dtype == "fp32" for entry in on) == 3
    assert expected_collectives(DEEPSEEK, LOAD, frozenset()) == base_ledger(DEEPSEEK, LOAD)


@pytest.mark.parametrize(
    ("spec", "optimization", "opportunities"),
    [(DEEPSEEK, FUSION, 3), (DEEPSEEK, ARGMAX, 3), (SUPER, ARGMAX, 3), (SUPER, COMMUTE, 6)],
)
def test_evidence_tells_off_from_on_and_from_half_on(
    spec: ModelSpec, optimization: str, opportunities: int
) -> None:
    judge = CATALOGUE[optimization].proof_by_site
    off, on = base_ledger(spec, LOAD), expected_collectives(spec, LOAD, frozenset({optimization}))
    assert judge(off) == Proof(engaged_calls=0, opportunities=opportunities)
    assert judge(on) == Proof(engaged_calls=opportunities, opportunities=opportunities)
    assert not judge(off).engaged
    assert judge(on).engaged
    assert not judge(on).partial
    both = judge(off + on)
    assert both.partial
    assert not both.engaged
    assert judge(()) == Proof(engaged_calls=0, opportunities=0)
    assert not judge(()).engaged


@given(st.permutations(base_ledger(SUPER, LOAD)), st.integers(1, 9))
def test_evidence_depends_on_counts_and_not_on_order(entries: list[LedgerEntry], steps: int) -> None:
    counted = tuple(replace(entry, count=steps) for entry in entries)
    for optimization in CATALOGUE.values():
        once, many = optimization.proof_by_site(base_ledger(SUPER, LOAD)), optimization.proof_by_site(counted)
        assert (many.engaged_calls, many.opportunities) == (
            once.engaged_calls * steps,
            once.opportunities * steps,
        )


def test_evidence_of_pairs_is_not_taken_in_by_a_gather_of_another_kind() -> None:
    eh_proj = next(entry for entry in base_ledger(SUPER, LOAD) if entry.site == "mtp.eh_proj")
    target = replace(eh_proj, site="lm_head", phase="target", shape=(8, 2), dtype="fp32")
    assert (
        CATALOGUE[ARGMAX].proof_by_site((replace(eh_proj, shape=(8, 2), dtype="fp32"), target)).opportunities
        == 0
    )
    narrow = replace(eh_proj, site="mtp.lm_head", shape=(8, 2))
    assert CATALOGUE[ARGMAX].proof_by_site((narrow,)) == Proof(engaged_calls=0, opportunities=1)


def test_what_is_not_eligible_cannot_be_enabled() -> None:
    with pytest.raises(
        UsageError, match="commutative-reduce cannot be used: an RMSNorm inside the transform"
    ):
        expected_collectives(PRESETS["kimi-k3"], NO_DRAFTS, frozenset({COMMUTE}))
    with pytest.raises(UsageError, match=r"did you mean local-argmax\? Known: allreduce-norm-fusion"):
        expected_collectives(DEEPSEEK, LOAD, frozenset({"local-argmx"}))
    with pytest.raises(UsageError, match="'x' is not known; Known"):
        find_optimization("x")


def test_every_entry_explains_itself() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.id == name
        assert all((entry.title, entry.source, entry.summary, entry.changes, entry.proof))
        assert set(entry.switches) == {"reference", "vllm"}


def test_an_entry_is_all_that_a_new_optimization_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def embeddings(entries: tuple[LedgerEntry, ...]) -> int:
        return sum(entry.count for entry in entries if entry.site.endswith("embed"))

    replicated = Optimization(
        id="free-embedding",
        title="Embedding on every rank",
        source="VLLM_REPLICATE_EMBED",
        summary="",
        changes="",
        proof="",
        switches={},
        eligible=lambda spec, workload: Eligibility(
            ok=workload.tp > 1, reason="" if workload.tp > 1 else "TP 1"
        ),
        rewrite=lambda entries, spec, workload: tuple(e for e in entries if not e.site.endswith("embed")),
        proof_by_site=lambda entries: Proof(engaged_calls=0, opportunities=embeddings(entries)),
    )
    monkeypatch.setitem(optimizations.CATALOGUE, replicated.id, replicated)
    assert eligible_optimizations(DEEPSEEK, LOAD)[replicated.id].ok
    on = expected_collectives(DEEPSEEK, LOAD, frozenset({replicated.id, ARGMAX}))
    removed = Counter(entry.kind for entry in base_ledger(DEEPSEEK, LOAD)) - Counter(
        entry.kind for entry in on
    )
    assert removed == {Kind.ALL_REDUCE: 4}
    assert find_optimization(replicated.id).proof_by_site(on).opportunities == 0
    with pytest.raises(UsageError, match="free-embedding cannot be used: TP 1"):
        expected_collectives(DEEPSEEK, replace(LOAD, tp=1), frozenset({replicated.id}))


def test_a_draft_module_of_grouped_query_attention_is_fused_alike() -> None:
    spec = replace(
        DEEPSEEK,
        blocks="*D*E",
        mla=None,
        gqa=SUPER.gqa,
        mtp=MtpSpec(blocks="*E", gathered_eh_proj=False),
    )
    on = expected_collectives(spec, LOAD, frozenset({FUSION}))
    assert CATALOGUE[FUSION].proof_by_site(on).engaged
