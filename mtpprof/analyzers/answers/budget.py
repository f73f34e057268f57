"""Holding a run against a budget: what a step may cost, by a file or by its model's ledger.

Calls and bytes are deterministic, so one too many exceeds. Time is not: it exceeds only where the confidence interval of the rounds
lies above the budget by more than the tolerance (what one machine differs by from day to day) *and* the excess is larger than the
A/A noise of both the run that wrote the budget and the one that is checked; on another machine it is not checked at all.

A limit that could not be checked never passes in silence: it is a row of the answer, and an arm of which nothing could be checked fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from statistics import fmean

from mtpprof.analyzers.answers.budget_file import BUDGET_SCHEMA_VERSION, ArmBudget, Budget, Limit
from mtpprof.analyzers.compare.difference import engagement_of_side
from mtpprof.analyzers.compare.engagement import Engaged
from mtpprof.analyzers.compare.side import Side
from mtpprof.analyzers.compare.step_time import noise_of
from mtpprof.analyzers.compare.targets import side_ledger
from mtpprof.analyzers.ledger.excess import MISSING_CALL, REDUNDANT
from mtpprof.analyzers.measures.batches import Stratum, Sum, by_phase_and_kind, rate_of
from mtpprof.analyzers.numeric.stats import mean_interval
from mtpprof.rundir.directory import TIMING_FILE
from mtpprof.rundir.records import Record

LOWER_BOUND = "a lower bound, see uncounted"


class Status(StrEnum):
    """What became of one limit."""

    OK = "ok"
    OVER = "over"
    UNCHECKED = "not checked"
    """Could not be; the note says why."""


class BudgetRow(Record, frozen=True, kw_only=True):
    """One limit and what was measured."""

    case: str
    arm: str
    batch: str
    phase: str
    kind: str
    what: str
    """`calls`, `payload bytes`, `wire bytes`, `step time`, `<optimization> engaged`, `uncounted`; `redundant`, `missing`, `oversized` and
    `ledger` of a ledger check; `arm`: the arm as a whole."""
    limit: float | None
    measured: float | None
    status: str
    note: str = ""


class BudgetReport(Record, frozen=True, kw_only=True):
    """The answer of `check`."""

    schema_version: int
    rows: list[BudgetRow]

    @property
    def over(self) -> list[BudgetRow]:
        """Rows that exceed."""
        return [row for row in self.rows if row.status == Status.OVER]

    @property
    def passed(self) -> bool:
        """Nothing exceeds."""
        return not self.over


def check_budget(budget: Budget, sides: Iterable[Side]) -> BudgetReport:
    """Hold sides against a budget, arm by arm."""
    by_name = {(side.case, side.label if side.case else ""): side for side in sides}
    rows: list[BudgetRow] = []
    for arm in budget.arm:
        side = by_name.get((arm.case, arm.arm))
        if side is None:
            rows.append(_row(arm, "arm", Status.OVER, note="the arm is not in what is checked"))
            continue
        limits = list(_check_limits(arm, side))
        # Calls that went while something unknown came may be the same under another name: that is not within the budget.
        undercut = any(row.note == LOWER_BOUND for row in limits)
        found = [
            *limits,
            *_uncounted(arm, side, Status.OVER if undercut else Status.UNCHECKED),
            *_check_engaged(arm, side),
            *_check_time(arm, side, budget),
        ]
        rows += found
        if all(row.status == Status.UNCHECKED for row in found):
            rows.append(_row(arm, "arm", Status.OVER, note="nothing of its budget could be checked"))
    return BudgetReport(schema_version=BUDGET_SCHEMA_VERSION, rows=rows)


def _row(
    arm: ArmBudget,
    what: str,
    status: Status,
    *,
    limit: float | None = None,
    measured: float | None = None,
    place: Limit | None = None,
    note: str = "",
) -> BudgetRow:
    return BudgetRow(
        case=arm.case,
        arm=arm.arm,
        batch=place.batch if place else "",
        phase=place.phase if place else "",
        kind=place.kind if place else "",
        what=what,
        limit=limit,
        measured=measured,
        status=status,
        note=note,
    )


def _check_limits(arm: ArmBudget, side: Side) -> Iterator[BudgetRow]:
    strata = {stratum.batch.text: stratum for stratum in (side.traces.strata if side.traces else ())}
    for limit in arm.limit:
        stratum = strata.get(limit.batch)
        if stratum is None:
            apart = side.traces.apart if side.traces else ""
            reason = side.missing or apart or f"no steps of the batch {limit.batch!r}"
            yield _row(arm, "calls", Status.UNCHECKED, limit=limit.calls, place=limit, note=reason)
            continue
        total = by_phase_and_kind(stratum).get(
            (limit.phase, limit.kind), Sum(calls=0, payload_bytes=0, wire_bytes=0, time_ns=0)
        )
        yield _count_row(
            arm, limit, "calls", limit.calls, total.calls / stratum.pairs, least=bool(side.doubt)
        )
        for what, most, value in (
            ("payload bytes", limit.payload_bytes, rate_of(total.payload_bytes, stratum)),
            ("wire bytes", limit.wire_bytes, rate_of(total.wire_bytes, stratum)),
        ):
            if most is not None:
                yield _count_row(arm, limit, what, most, value, least=bool(side.doubt))
    yield from _unbudgeted(arm, strata)


def _uncounted(arm: ArmBudget, side: Side, status: Status) -> Iterator[BudgetRow]:
    if side.doubt:
        yield _row(arm, "uncounted", status, note=f"{side.doubt}; teach it with --rules")


def _count_row(
    arm: ArmBudget, place: Limit, what: str, limit: float, measured: float | None, *, least: bool
) -> BudgetRow:
    """One limit and what was counted; `least`: it is a lower bound."""
    if least and measured is not None and measured < limit:
        return _row(
            arm, what, Status.UNCHECKED, limit=limit, measured=measured, place=place, note=LOWER_BOUND
        )
    if measured is None:
        return _row(arm, what, Status.UNCHECKED, limit=limit, place=place, note="not known of every call")
    status = Status.OVER if measured > limit else Status.OK
    note = "below the budget, which could be tightened" if measured < limit else ""
    return _row(arm, what, status, limit=limit, measured=measured, place=place, note=note)


def _unbudgeted(arm: ArmBudget, strata: dict[str, Stratum]) -> Iterator[BudgetRow]:
    """Collectives of a kind and phase that the budget of a batch does not have at all."""
    batches = {limit.batch for limit in arm.limit}
    known = {(limit.batch, limit.phase, limit.kind) for limit in arm.limit}
    for batch, stratum in strata.items():
        if batch not in batches:
            continue
        for (phase, kind), total in by_phase_and_kind(stratum).items():
            if (batch, phase, kind) not in known:
                place = Limit(batch=batch, phase=phase, kind=kind, calls=0)
                yield _count_row(arm, place, "calls", 0, total.calls / stratum.pairs, least=False)


def _check_engaged(arm: ArmBudget, side: Side) -> Iterator[BudgetRow]:
    found = engagement_of_side(side)
    for name in arm.engaged:
        engagement = found.get(name)
        if engagement is None or engagement.verdict == Engaged.UNKNOWN:
            reason = engagement.reason if engagement else "no such optimization"
            yield _row(arm, f"{name} engaged", Status.UNCHECKED, note=reason)
        else:
            fine = engagement.verdict == Engaged.ENGAGED
            yield _row(
                arm,
                f"{name} engaged",
                Status.OK if fine else Status.OVER,
                limit=float(engagement.opportunities),
                measured=float(engagement.engaged_calls),
                note="" if fine else f"{engagement.verdict}: {engagement.reason}",
            )


def _check_time(arm: ArmBudget, side: Side, budget: Budget) -> Iterator[BudgetRow]:
    if arm.step_ns is None:
        return
    confidence = budget.confidence
    medians = list(side.medians.values())
    interval = mean_interval([value - arm.step_ns for value in medians], confidence)
    reason = ""
    if (side.setting.get("machine", ""), side.device) != (arm.machine, arm.device):
        reason = f"the budget was measured on another machine ({arm.machine}, {arm.device})"
    elif interval is None:
        reason = side.unreadable.get(TIMING_FILE, "fewer than two rounds")
    if reason or interval is None:
        yield _row(arm, "step time", Status.UNCHECKED, limit=arm.step_ns, note=reason)
        return
    noise = noise_of(side, confidence)
    floor = max(arm.step_noise_ns or 0, noise.floor if noise else 0)
    over = interval.low > budget.tolerance * arm.step_ns and interval.estimate > floor
    note = ""
    if not over and interval.estimate > 0:
        note = (
            f"above the budget by {interval.estimate / arm.step_ns:.1%}, which is within noise and tolerance"
        )
    elif over:
        note = (
            f"above the budget by {interval.estimate / arm.step_ns:.1%}, {confidence:.0%} interval "
            f"{interval.low / arm.step_ns:+.1%} to {interval.high / arm.step_ns:+.1%}"
        )
    yield _row(
        arm,
        "step time",
        Status.OVER if over else Status.OK,
        limit=arm.step_ns,
        measured=fmean(medians),
        note=note,
    )


def ledger_rows(side: Side) -> Iterator[BudgetRow]:
    """What a side issues beyond its model's ledger, or lacks, as rows of a check.

    Raises:
        UsageError: the model cannot be run at the side's tensor-parallel size.
    """
    checked = side_ledger(side)
    arm = ArmBudget(case=side.case, arm=side.label if side.case else "")
    for entry in checked.excess:
        fails = entry.what in (REDUNDANT, MISSING_CALL)
        place = Limit(batch=entry.batch, phase="", kind=entry.kind, calls=0)
        saviour = f"; {entry.avoided_by} avoids it" if entry.avoided_by else ""
        yield _row(
            arm,
            entry.what,
            Status.OVER if fails else Status.OK,
            limit=0,
            measured=entry.calls,
            place=place,
            note=f"{entry.sentence}{saviour}",
        )
    yield from _uncounted(arm, side, Status.UNCHECKED)
    for sentence in checked.skipped:
        yield _row(arm, "ledger", Status.UNCHECKED, note=sentence)
    if side.traces is None:
        yield _row(arm, "ledger", Status.OVER, note=side.missing)
    elif not checked.excess and len(checked.skipped) < len(side.traces.strata):
        for batch, enabled in checked.enabled.items():
            place = Limit(batch=batch, phase="", kind="", calls=0)
            names = ", ".join(enabled) or "nothing"
            yield _row(
                arm, "ledger", Status.OK, place=place, note=f"equal with {names} switched on, call for call"
            )
    elif not checked.excess:
        yield _row(arm, "ledger", Status.OVER, note="no batch of it could be checked")
