"""The catalogue of communication optimizations. No torch here.

An optimization is one frozen entry of `CATALOGUE`: who may use it and why not, what it makes of the ledger, how a trace proves
that it ran, and how each engine switches it. Everything else in mtpprof (arms, eligibility tables, the comparison with the
ledger, the verdict "engaged") works off these entries, so a new optimization is a new entry and nothing else.

Engagement is read off observed collectives, never off the flag: a switch that was set and changed nothing must show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

from mtpprof.errors import UsageError
from mtpprof.models.ledger import (
    DRAFT_LM_HEAD,
    MOE_FINAL,
    MOE_LATENT,
    MOE_SHARED,
    MTP_PREFIX,
    LedgerEntry,
    Workload,
    base_ledger,
    is_draft_phase,
    moe_paths,
    prefill_ledger,
)
from mtpprof.models.optimizations.base import (
    FUSED_RESIDUAL_RMSNORM,
    Eligibility,
    Evidence,
    Ledger,
    Optimization,
    needs_ranks,
    unless,
)
from mtpprof.models.optimizations.vllm_only import BACKENDS
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import Kind

__all__ = [
    "CATALOGUE",
    "EXACT_IN_PAIR",
    "FUSED_RESIDUAL_RMSNORM",
    "OPT_IN",
    "PAIR_DTYPE",
    "PAIR_WIDTH",
    "Eligibility",
    "Evidence",
    "Ledger",
    "Optimization",
    "all_optimizations",
    "apply_optimizations",
    "eligible_optimizations",
    "expected_collectives",
    "expected_prefill_collectives",
    "find_optimization",
]

PAIR_WIDTH = 2
"""A draft row's best token on one rank: its value and its index."""
PAIR_DTYPE = "fp32"
EXACT_IN_PAIR = 2**24
"""Token ids up to this number are exact in fp32."""


def _needs_drafts(spec: ModelSpec, workload: Workload) -> Iterator[tuple[bool, str]]:
    yield spec.mtp is None, f"{spec.title} has no multi-token-prediction module"
    yield workload.draft_tokens == 0, "no draft tokens are asked for"


def _needs_no_sequence_parallel(spec: ModelSpec) -> tuple[bool, str]:
    return (
        spec.sequence_parallel,
        "sequence parallelism has reduce-scatters and all-gathers in place of this all-reduce",
    )


def _fusion_eligible(spec: ModelSpec, workload: Workload) -> Eligibility:
    return unless(
        *_needs_drafts(spec, workload),
        (
            spec.family != "deepseek",
            f"the draft module of {spec.title} does not end in an all-reduce that its final norm follows directly",
        ),
        _needs_no_sequence_parallel(spec),
        needs_ranks(workload),
    )


def _trailing_site(spec: ModelSpec) -> str:
    assert spec.mtp is not None
    return f"{spec.block_path(len(spec.mtp.blocks) - 1, MTP_PREFIX)}.{MOE_FINAL}"


def _fusion_rewrite(entries: Ledger, spec: ModelSpec, workload: Workload) -> Ledger:
    site = _trailing_site(spec)
    return tuple(
        replace(entry, fused=FUSED_RESIDUAL_RMSNORM) if entry.site == site else entry for entry in entries
    )


def _fusion_evidence(entries: Ledger) -> Evidence:
    trailing = [
        entry
        for entry in entries
        if is_draft_phase(entry.phase)
        and entry.kind == Kind.ALL_REDUCE
        and entry.site.startswith(MTP_PREFIX)
        and entry.site.endswith(f".{MOE_FINAL}")
    ]
    return Evidence(
        engaged_calls=sum(entry.count for entry in trailing if entry.fused),
        opportunities=sum(entry.count for entry in trailing),
    )


def _argmax_eligible(spec: ModelSpec, workload: Workload) -> Eligibility:
    return unless(
        *_needs_drafts(spec, workload),
        (
            spec.logit_scale <= 0,
            f"{spec.title} scales its logits by {spec.logit_scale:g}, and a scale that is not positive moves the maximum",
        ),
        (
            spec.vocab_size > EXACT_IN_PAIR,
            f"token ids of a vocabulary of {spec.vocab_size} are not exact in fp32",
        ),
        needs_ranks(workload),
    )


def _argmax_rewrite(entries: Ledger, spec: ModelSpec, workload: Workload) -> Ledger:
    return tuple(
        replace(entry, shape=(entry.shape[0], PAIR_WIDTH), dtype=PAIR_DTYPE)
        if entry.site == DRAFT_LM_HEAD
        else entry
        for entry in entries
    )


def _argmax_evidence(entries: Ledger) -> Evidence:
    gathers = [
        entry
        for entry in entries
        if is_draft_phase(entry.phase) and entry.kind == Kind.ALL_GATHER and entry.site == DRAFT_LM_HEAD
    ]
    return Evidence(
        engaged_calls=sum(
            entry.count for entry in gathers if entry.shape[-1] == PAIR_WIDTH and entry.dtype == PAIR_DTYPE
        ),
        opportunities=sum(entry.count for entry in gathers),
    )


def _commutative_eligible(spec: ModelSpec, workload: Workload) -> Eligibility:
    moe = spec.moe
    if moe is None or moe.latent_size is None:
        return Eligibility(ok=False, reason=f"{spec.title} has no latent width around its experts")
    layers = moe_paths(spec)
    commuting = sum(map(spec.latent_sum_commutes, layers))
    notes = []
    if commuting < len(layers):
        notes.append(f"only {commuting} of {len(layers)} layers: the others' output projection is quantized")
    if not moe.shared_intermediate_size:
        notes.append("without a shared expert it moves more bytes than it saves")
    return unless(
        (moe.latent_norm, "an RMSNorm inside the transform does not commute with the sum over ranks"),
        (moe.latent_bias, "the output projection has a bias, which every rank would add"),
        (
            moe.latent_quantization is not None,
            f"the output projection itself is quantized ({moe.latent_quantization}), so projecting partial sums "
            f"gives another result",
        ),
        (commuting == 0, "the output projection of every layer is quantized"),
        _needs_no_sequence_parallel(spec),
        needs_ranks(workload),
        note="; ".join(notes),
    )


def _commutative_rewrite(entries: Ledger, spec: ModelSpec, workload: Workload) -> Ledger:
    return tuple(_commuted(entries, spec))


def _commuted(entries: Ledger, spec: ModelSpec) -> Iterator[LedgerEntry]:
    for entry in entries:
        path, _, site = entry.site.rpartition(".moe.")
        block_site = f"moe.{site}"
        if block_site not in (MOE_LATENT, MOE_SHARED) or not spec.latent_sum_commutes(path):
            yield entry
        elif block_site == MOE_LATENT:
            yield replace(entry, site=f"{path}.{MOE_FINAL}", shape=(entry.shape[0], spec.hidden_size))


def _commutative_evidence(entries: Ledger) -> Evidence:
    reduces = [entry for entry in entries if entry.kind == Kind.ALL_REDUCE]
    once = sum(entry.count for entry in reduces if entry.site.endswith(f".{MOE_FINAL}"))
    twice = sum(entry.count for entry in reduces if entry.site.endswith(f".{MOE_LATENT}"))
    return Evidence(engaged_calls=once, opportunities=once + twice)


CATALOGUE: dict[str, Optimization] = {
    entry.id: entry
    for entry in (
        Optimization(
            id="allreduce-norm-fusion",
            title="Fused all-reduce + residual + RMSNorm at the end of a draft pass",
            source="vLLM pull request 49793",
            summary="The all-reduce of the draft module's MoE output, the residual add and the final RMSNorm run as one kernel.",
            changes="Neither calls nor payload: one RMSNorm kernel and one round trip of [rows, hidden] through memory "
            "per draft pass.",
            proof="The trailing all-reduces of the draft passes carry the norm; where the fused kernel does not apply, "
            "they are plain.",
            switches={
                "reference": "the draft module calls the communicator's fused form, which says so in the range",
                "vllm": "no official switch: the plugin replaces fused_allreduce_rms_norm in the draft module",
            },
            eligible=_fusion_eligible,
            rewrite=_fusion_rewrite,
            evidence=_fusion_evidence,
        ),
        Optimization(
            id="local-argmax",
            title="Vocabulary-local argmax of draft tokens",
            source="vLLM pull request 49793",
            summary="Each rank takes the argmax over its vocabulary shard; (value, index) pairs are gathered in place of "
            "the logits. Greedy drafts only, and not with adaptive verification.",
            changes="Each draft pass's gather of [rows, vocabulary] becomes one of [rows, 2] fp32; the target's own "
            "gather stays.",
            proof="The draft passes gather pairs, not logits.",
            switches={
                "reference": "the draft head computes pairs",
                "vllm": "speculative_config use_local_argmax_reduction; the plugin adds get_top_tokens where a draft "
                "model lacks it",
            },
            eligible=_argmax_eligible,
            rewrite=_argmax_rewrite,
            evidence=_argmax_evidence,
        ),
        Optimization(
            id="commutative-reduce",
            title="One all-reduce per latent MoE layer",
            source="vLLM pull request 52301",
            summary="The latent output projection is applied to each rank's partial sum, so that routed and shared output "
            "are summed over the ranks together.",
            changes="Two all-reduces per latent MoE layer, [rows, latent] and [rows, hidden], become one of "
            "[rows, hidden]: half the calls, 20 % fewer bytes where latent is a quarter of hidden.",
            proof="Latent MoE layers issue one all-reduce of their final output and none of the latent one.",
            switches={
                "reference": "the MoE layer projects before it reduces",
                "vllm": "reduce_commutative on fc2_latent_proj, set by the plugin; on by default",
            },
            eligible=_commutative_eligible,
            rewrite=_commutative_rewrite,
            evidence=_commutative_evidence,
        ),
    )
}
"""The optimizations that are compared by default, by id, in the order in which they are shown and applied."""

OPT_IN = BACKENDS
"""Those that are compared only where they are asked for; else the engine's own default holds."""


def all_optimizations() -> dict[str, Optimization]:
    """Both, by id."""
    return CATALOGUE | OPT_IN


def find_optimization(name: str) -> Optimization:
    """The catalogue's entry of this id.

    Raises:
        UsageError: there is none; the sentence lists the known ones.
    """
    known = all_optimizations()
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"optimization {name!r} is not known; {hint}Known: {', '.join(known)}.")


def eligible_optimizations(spec: ModelSpec, workload: Workload) -> dict[str, Eligibility]:
    """Eligibility for every optimization of the catalogue, by id."""
    return {name: entry.eligible(spec, workload) for name, entry in CATALOGUE.items()}


def apply_optimizations(
    entries: Ledger, spec: ModelSpec, workload: Workload, enabled: frozenset[str]
) -> Ledger:
    """The ledger `entries` with the enabled optimizations on, applied in the catalogue's order.

    Raises:
        UsageError: an enabled optimization is unknown or not eligible; names it and the reason.
    """
    for name in sorted(enabled):
        eligibility = find_optimization(name).eligible(spec, workload)
        if not eligibility.ok:
            raise UsageError(f"{name} cannot be used: {eligibility.reason}; leave it out.")
    for name, optimization in all_optimizations().items():
        if name in enabled:
            entries = optimization.rewrite(entries, spec, workload)
    return entries


def expected_collectives(spec: ModelSpec, workload: Workload, enabled: frozenset[str]) -> Ledger:
    """Expected collectives of one decode step with the enabled optimizations on, in the order in which they run.

    Raises:
        UsageError: as `base_ledger` and `apply_optimizations`.
    """
    return apply_optimizations(base_ledger(spec, workload), spec, workload, enabled)


def expected_prefill_collectives(
    spec: ModelSpec, workload: Workload, enabled: frozenset[str], prompt_len: int
) -> Ledger:
    """Expected collectives of one prefill with the enabled optimizations on.

    Raises:
        UsageError: as `prefill_ledger` and `apply_optimizations`.
    """
    return apply_optimizations(prefill_ledger(spec, workload, prompt_len), spec, workload, enabled)
