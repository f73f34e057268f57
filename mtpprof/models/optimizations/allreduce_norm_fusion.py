"""The last all-reduce of a draft pass, the residual add and the final RMSNorm as one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mtpprof.models.ledger import MOE_FINAL, MTP_PREFIX, LedgerEntry, Workload, is_draft_phase
from mtpprof.models.optimizations.base import (
    FUSED_RESIDUAL_RMSNORM,
    CallsSeen,
    ChangeSeen,
    Eligibility,
    KernelWork,
    Ledger,
    Optimization,
    Proof,
    fused_among,
    needs_drafts,
    needs_no_sequence_parallel,
    needs_ranks,
    unless,
)
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import DTYPE_BYTES, Kind

NORM = "norm kernels"
"""Term of a prediction."""
PASSES_OF_NORM = 4
"""Residual add + RMSNorm reads the sum and the residual and writes both: passes over [rows, hidden]."""


def _eligible(spec: ModelSpec, workload: Workload) -> Eligibility:
    return unless(
        *needs_drafts(spec, workload),
        (
            not spec.traits.draft_ends_in_sum,
            f"the draft module of {spec.title} does not end in an all-reduce that its final norm follows directly",
        ),
        needs_no_sequence_parallel(spec),
        needs_ranks(workload),
    )


def _rewrite(entries: Ledger, spec: ModelSpec, workload: Workload) -> Ledger:
    assert spec.mtp is not None
    last = f"{spec.block_path(len(spec.mtp.blocks) - 1, MTP_PREFIX)}.{MOE_FINAL}"
    return tuple(
        replace(entry, fused=FUSED_RESIDUAL_RMSNORM) if entry.site == last else entry for entry in entries
    )


def _by_site(entries: Ledger) -> Proof:
    """The last all-reduces of the draft passes: fused ones among all."""
    return fused_among(
        entry
        for entry in entries
        if is_draft_phase(entry.phase)
        and entry.kind == Kind.ALL_REDUCE
        and entry.site.startswith(MTP_PREFIX)
        and entry.site.endswith(f".{MOE_FINAL}")
    )


def _by_change(changed: Sequence[ChangeSeen], after: Sequence[CallsSeen]) -> Proof:
    """All-reduces that are plain on the first side and carry the norm on the second."""
    fused = sum(
        change.calls
        for change in changed
        if change.what == "fused"
        and change.after is not None
        and FUSED_RESIDUAL_RMSNORM in change.after.fused
    )
    return Proof(engaged_calls=round(fused), opportunities=round(fused))


def _kernels(entries: Ledger, spec: ModelSpec, workload: Workload) -> Iterator[tuple[str, KernelWork]]:
    """The norm after each draft pass whose last all-reduce does not carry it."""
    last: dict[str, LedgerEntry] = {
        entry.phase: entry
        for entry in entries
        if entry.kind == Kind.ALL_REDUCE and is_draft_phase(entry.phase)
    }
    for entry in last.values():
        if not entry.fused:
            passed = entry.shape[0] * entry.shape[-1] * DTYPE_BYTES[workload.dtype]
            yield (
                NORM,
                KernelWork(kernels=entry.count, moved_bytes=entry.count * PASSES_OF_NORM * passed),
            )


ALLREDUCE_NORM_FUSION = Optimization(
    id="allreduce-norm-fusion",
    title="Fused all-reduce + residual + RMSNorm at the end of a draft pass",
    source="vLLM pull request 49793",
    summary="The all-reduce of the draft module's MoE output, the residual add and the final RMSNorm run as one kernel.",
    changes="Neither calls nor payload: one RMSNorm kernel and one round trip of [rows, hidden] through memory "
    "per draft pass.",
    proof="The trailing all-reduces of the draft passes carry the norm; where the fused kernel does not apply, "
    "they are plain.",
    switches={
        "reference": "the draft module asks the communicator for its fused kernel; without one it falls back",
        "vllm": "no official switch: the plugin replaces fused_allreduce_rms_norm in the draft module",
    },
    eligible=_eligible,
    rewrite=_rewrite,
    proof_by_site=_by_site,
    proof_by_change=_by_change,
    kernels=_kernels,
)
