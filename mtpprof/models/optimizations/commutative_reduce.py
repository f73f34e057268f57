"""One all-reduce per latent MoE layer in place of two: partial sums are projected out of the latent width before they are reduced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mtpprof.models.ledger import MOE_FINAL, MOE_LATENT, MOE_SHARED, LedgerEntry, Workload, moe_paths
from mtpprof.models.optimizations.base import (
    CallsSeen,
    ChangeSeen,
    Eligibility,
    Ledger,
    Optimization,
    Proof,
    count,
    needs_no_sequence_parallel,
    needs_ranks,
    unless,
)
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import Kind


def _eligible(spec: ModelSpec, workload: Workload) -> Eligibility:
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
        needs_no_sequence_parallel(spec),
        needs_ranks(workload),
        note="; ".join(notes),
    )


def _rewrite(entries: Ledger, spec: ModelSpec, workload: Workload) -> Ledger:
    return tuple(_commuted(entries, spec))


def _commuted(entries: Ledger, spec: ModelSpec) -> Iterator[LedgerEntry]:
    for entry in entries:
        path, _, site = entry.site.rpartition(".moe.")
        block_site = f"moe.{site}"
        if block_site not in (MOE_LATENT, MOE_SHARED) or not spec.latent_sum_commutes(path):
            yield entry
        elif block_site == MOE_LATENT:
            yield replace(entry, site=f"{path}.{MOE_FINAL}", shape=(entry.shape[0], spec.hidden_size))


def _by_site(entries: Ledger) -> Proof:
    """All-reduces of final outputs among those of final and of latent outputs."""
    reduces = [entry for entry in entries if entry.kind == Kind.ALL_REDUCE]
    once = count(entry for entry in reduces if entry.site.endswith(f".{MOE_FINAL}"))
    twice = count(entry for entry in reduces if entry.site.endswith(f".{MOE_LATENT}"))
    return Proof(engaged_calls=once, opportunities=once + twice)


def _by_change(changed: Sequence[ChangeSeen], after: Sequence[CallsSeen]) -> Proof:
    """All-reduces narrower than the hidden width that are gone, with none added: those of the latent routed output.

    The hidden width is that of the widest all-reduce on the second side, which the embedding and every attention block issue.
    """
    reduces = [seen for seen in after if seen.kind == Kind.ALL_REDUCE and seen.width is not None]
    hidden = max((seen.width or 0 for seen in reduces), default=0)
    gone = sum(
        change.calls
        for change in changed
        if change.what == "removed"
        and change.kind == Kind.ALL_REDUCE
        and change.before is not None
        and change.before.shape is not None
        and change.before.shape[-1] < hidden
    )
    if not gone:
        # A narrow all-reduce may be any: only that it went shows that it was the latent one.
        return Proof(engaged_calls=0, opportunities=0)
    added = any(change.net_calls > 0 for change in changed)
    left = sum(seen.calls for seen in reduces if (seen.width or 0) < hidden)
    return Proof(engaged_calls=0 if added else round(gone), opportunities=round(gone + left))


COMMUTATIVE_REDUCE = Optimization(
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
    eligible=_eligible,
    rewrite=_rewrite,
    proof_by_site=_by_site,
    proof_by_change=_by_change,
)
