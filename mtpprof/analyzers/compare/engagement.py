"""Did a switch change what ran? Proved from the collectives that were seen, never from the flag.

Two kinds of proof, both of the catalogue. Where the trace names the sites of its collectives, `proof_by_site` decides, arm by arm. Where
it does not (an engine's own trace), `proof_by_change` judges what changed between two captures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from mtpprof.analyzers.compare.changes import Change
from mtpprof.analyzers.measures.batches import Pairing, Stratum
from mtpprof.models.ledger import LedgerEntry
from mtpprof.models.optimizations.base import CallsSeen, Optimization, Proof
from mtpprof.models.optimizations.catalogue import find_optimization
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


def engagement_of(
    entries: Sequence[LedgerEntry], name: str, *, requested: bool | None, fallback: str = ""
) -> Engagement:
    """The verdict on one arm by the catalogue's evidence, which needs the sites of the collectives.

    Args:
        entries: What was seen.
        name: Of the optimization.
        requested: Whether it was switched on.
        fallback: Why the engine was known to fall back before the run; empty: it was not.
    """
    optimization = find_optimization(name)
    evidence = optimization.proof_by_site(tuple(entries))
    verdict, reason = _verdict(evidence)
    if fallback and requested and verdict is Engaged.NOT_ENGAGED:
        reason = f"{reason}: {fallback}"
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


def _verdict(evidence: Proof) -> tuple[Engaged, str]:
    share = f"{evidence.engaged_calls} of {evidence.opportunities} calls have its form"
    if not evidence.opportunities:
        return Engaged.UNKNOWN, "the trace shows no collective that it concerns"
    if evidence.engaged:
        return Engaged.ENGAGED, share
    return (Engaged.PARTLY if evidence.partial else Engaged.NOT_ENGAGED), share


def _by_rows(optimization: Optimization, entries: Sequence[LedgerEntry]) -> Iterable[SizeEvidence]:
    for rows in sorted({entry.shape[0] for entry in entries if entry.shape}):
        part = tuple(entry for entry in entries if entry.shape[:1] == (rows,))
        evidence = optimization.proof_by_site(part)
        if evidence.opportunities:
            yield SizeEvidence(
                rows=rows, engaged_calls=evidence.engaged_calls, opportunities=evidence.opportunities
            )


def engagement_by_change(pairing: Pairing, changed: Sequence[Change], name: str) -> Engagement | None:
    """The verdict on the second side of a pair, by what changed; counts are per step and rank.

    None: the optimization has no such proof, since its proof by site needs no sites.
    """
    prove = find_optimization(name).proof_by_change
    if prove is None:
        return None
    proof = prove(changed, calls_seen(pairing.arm))
    verdict, _ = _verdict(proof)
    reason = "what changed between the two does not have its form"
    if proof.opportunities:
        reason = (
            f"{proof.engaged_calls} of {proof.opportunities} calls per step took its form between the two"
        )
    return Engagement(
        requested=None,
        verdict=verdict,
        engaged_calls=proof.engaged_calls,
        opportunities=proof.opportunities,
        reason=reason,
    )


def calls_seen(stratum: Stratum) -> list[CallsSeen]:
    """The calls of one side as the catalogue's proofs take them."""
    return [
        CallsSeen(
            kind=form.kind,
            width=int(form.shape.split("x")[-1]) if form.shape else None,
            calls=stratum.rate(form),
        )
        for form in stratum.forms
    ]
