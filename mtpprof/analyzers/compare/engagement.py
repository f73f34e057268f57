"""Did a switch change what ran? Proved from the collectives that were seen, never from the flag.

Two kinds of proof. Where the trace names the sites of its collectives, the catalogue's own evidence decides, arm by arm. Where it
does not (an engine's own trace), what changed between two captures is held against the `SIGNATURES` of the optimizations: the one
table to extend for a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from mtpprof.analyzers.compare.changes import Change
from mtpprof.analyzers.measures.batches import Form, Pairing
from mtpprof.models.ledger import LedgerEntry
from mtpprof.models.optimizations.catalogue import (
    FUSED_RESIDUAL_RMSNORM,
    PAIR_DTYPE,
    PAIR_WIDTH,
    Evidence,
    Optimization,
    find_optimization,
)
from mtpprof.models.traffic import Kind
from mtpprof.rundir.records import Record


class Engaged(StrEnum):
    """The verdict on one optimization."""

    ENGAGED = "ENGAGED"
    PARTLY = "PARTLY"
    """Some calls have the optimized form, some fell back."""
    NOT_ENGAGED = "NOT ENGAGED"
    UNSUPPORTED = "UNSUPPORTED"
    """The engine cannot switch it for this model."""
    NOT_APPLICABLE = "NOT APPLICABLE"
    UNKNOWN = "UNKNOWN"
    """The trace can say nothing about it."""


class SizeEvidence(Record, frozen=True, kw_only=True):
    """Engagement at one batch size: where a fused kernel has a size limit, this is where it shows."""

    rows: int
    engaged_calls: int
    opportunities: int


class Engagement(Record, frozen=True, kw_only=True):
    """Whether an optimization did what it is for, proved from the trace."""

    requested: bool | None
    """What the flag said; None: the trace is not from a run of ours."""
    verdict: str
    """An `Engaged`."""
    engaged_calls: int
    opportunities: int
    by_rows: tuple[SizeEvidence, ...] = ()
    """Where it is PARTLY engaged."""
    reason: str = ""
    """Evidence in words, or why there is none."""

    @property
    def idle(self) -> bool:
        """Whether it is known to have changed nothing."""
        return self.verdict in (Engaged.NOT_ENGAGED, Engaged.UNSUPPORTED, Engaged.NOT_APPLICABLE)


def engagement_of(entries: Sequence[LedgerEntry], name: str, *, requested: bool | None) -> Engagement:
    """The verdict on one arm by the catalogue's evidence, which needs the sites of the collectives."""
    optimization = find_optimization(name)
    evidence = optimization.evidence(tuple(entries))
    verdict, reason = _verdict(evidence)
    return Engagement(
        requested=requested,
        verdict=verdict,
        engaged_calls=evidence.engaged_calls,
        opportunities=evidence.opportunities,
        by_rows=tuple(_by_rows(optimization, entries)) if verdict is Engaged.PARTLY else (),
        reason=reason,
    )


def doubted(found: Mapping[str, Engagement], doubt: str) -> dict[str, Engagement]:
    """Verdicts of which none is given where collectives may be uncounted, which may be those that it is about.

    Args:
        found: By optimization.
        doubt: Why they may be; empty: they are not.
    """
    if not doubt:
        return dict(found)
    sure = (Engaged.UNSUPPORTED, Engaged.NOT_APPLICABLE)
    return {
        name: item
        if item.verdict in sure
        else withheld_engagement(Engaged.UNKNOWN, doubt, requested=item.requested)
        for name, item in found.items()
    }


def withheld_engagement(verdict: Engaged, reason: str, *, requested: bool | None) -> Engagement:
    """A verdict that no trace was needed for."""
    return Engagement(requested=requested, verdict=verdict, engaged_calls=0, opportunities=0, reason=reason)


def _verdict(evidence: Evidence) -> tuple[Engaged, str]:
    share = f"{evidence.engaged_calls} of {evidence.opportunities} calls have its form"
    if not evidence.opportunities:
        return Engaged.UNKNOWN, "the trace shows no collective that it concerns"
    if evidence.engaged:
        return Engaged.ENGAGED, share
    return (Engaged.PARTLY if evidence.partial else Engaged.NOT_ENGAGED), share


def _by_rows(optimization: Optimization, entries: Sequence[LedgerEntry]) -> Iterable[SizeEvidence]:
    for rows in sorted({entry.shape[0] for entry in entries if entry.shape}):
        part = tuple(entry for entry in entries if entry.shape[:1] == (rows,))
        evidence = optimization.evidence(part)
        if evidence.opportunities:
            yield SizeEvidence(
                rows=rows, engaged_calls=evidence.engaged_calls, opportunities=evidence.opportunities
            )


Signature = Callable[[Pairing, Sequence[Change]], Evidence]


def _fused(pairing: Pairing, changed: Sequence[Change]) -> Evidence:
    """All-reduces that are plain on the first side and carry the norm on the second; plain ones there stay opportunities."""
    fused = sum(
        change.calls
        for change in changed
        if change.what == "fused"
        and change.after is not None
        and FUSED_RESIDUAL_RMSNORM in change.after.fused
    )
    return Evidence(engaged_calls=round(fused), opportunities=round(fused))


def _gathers_pairs(pairing: Pairing, changed: Sequence[Change]) -> Evidence:
    """All-gathers of logits that became all-gathers of (value, index) pairs."""
    pairs = sum(
        change.calls
        for change in changed
        if change.what == "replaced"
        and change.kind == Kind.ALL_GATHER
        and change.after is not None
        and change.after.shape is not None
        and change.after.shape[-1:] == [PAIR_WIDTH]
        and change.after.dtype == PAIR_DTYPE
    )
    return Evidence(engaged_calls=round(pairs), opportunities=round(pairs))


def _latent_reduces_gone(pairing: Pairing, changed: Sequence[Change]) -> Evidence:
    """All-reduces narrower than the hidden width that are gone, with none added: those of the latent routed output.

    The hidden width is that of the widest all-reduce on the second side, which the embedding and every attention block issue.
    """
    hidden = max((width for width in map(_reduce_width, pairing.arm.forms) if width), default=0)
    gone = sum(
        change.calls
        for change in changed
        if change.what == "removed"
        and change.kind == Kind.ALL_REDUCE
        and change.before is not None
        and change.before.shape is not None
        and change.before.shape[-1] < hidden
    )
    added = any(change.net_calls > 0 for change in changed)
    if not gone:
        # A narrow all-reduce may be any: only that it went shows that it was the latent one.
        return Evidence(engaged_calls=0, opportunities=0)
    left = sum(
        pairing.arm.rate(form)
        for form in pairing.arm.forms
        if (width := _reduce_width(form)) is not None and width < hidden
    )
    return Evidence(engaged_calls=0 if added else round(gone), opportunities=round(gone + left))


def _reduce_width(form: Form) -> int | None:
    return int(form.shape.split("x")[-1]) if form.kind == Kind.ALL_REDUCE and form.shape else None


SIGNATURES: dict[str, Signature] = {
    "allreduce-norm-fusion": _fused,
    "local-argmax": _gathers_pairs,
    "commutative-reduce": _latent_reduces_gone,
}
"""What an optimization does to the collectives of a step, told from two captures without sites, by catalogue id. One that is not here has
evidence that needs no sites, such as who carries the calls."""


def engagement_by_change(pairing: Pairing, changed: Sequence[Change], name: str) -> Engagement:
    """The verdict on the second side of a pair, by what changed; counts are per step and rank. `name` is of `SIGNATURES`."""
    evidence = SIGNATURES[name](pairing, changed)
    verdict, _ = _verdict(evidence)
    reason = "what changed between the two does not have its form"
    if evidence.opportunities:
        reason = f"{evidence.engaged_calls} of {evidence.opportunities} calls per step took its form between the two"
    return Engagement(
        requested=None,
        verdict=verdict,
        engaged_calls=evidence.engaged_calls,
        opportunities=evidence.opportunities,
        reason=reason,
    )
