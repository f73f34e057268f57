"""Budgets: what a step may cost, written from a run that is good and held against one that might not be.

Calls and bytes are deterministic, so one too many exceeds. Time is not: it exceeds only where the confidence interval of the rounds
lies above the budget by more than the tolerance (what one machine differs by from day to day) *and* the excess is larger than the
A/A noise of both the run that wrote the budget and the one that is checked; on another machine it is not checked at all.

A limit that could not be checked never passes in silence: it is a row of the answer, and an arm of which nothing could be checked fails.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec

from mtpprof.analyzers.comparison import side_ledger
from mtpprof.analyzers.engagement import Engaged
from mtpprof.analyzers.redundant import MISSING_CALL, REDUNDANT
from mtpprof.analyzers.savings import engagement_of_side, noise_of
from mtpprof.analyzers.sides import Side
from mtpprof.analyzers.stats import CONFIDENCE, mean_interval
from mtpprof.analyzers.strata import Form, Stratum, Sum, added
from mtpprof.errors import InputError
from mtpprof.filekind import no_regular_file
from mtpprof.rundir import TIMING_FILE, Record

BUDGET_SCHEMA_VERSION = 1
LOWER_BOUND = "a lower bound, see uncounted"
TOLERANCE = 0.05
"""Part of a step that two runs on one machine may differ by without any cause in the code."""


Confidence = Annotated[float, msgspec.Meta(gt=0, le=0.999999)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Duration = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Step = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
# TOML has nan and inf, which pass for anything in a comparison; of bounds on both sides neither holds.


class Limit(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that the collectives of one kind, phase and batch may be, per step and rank."""

    calls: Amount
    batch: str = ""
    phase: str = ""
    """Empty: the trace does not tell."""
    kind: str = ""
    payload_bytes: Amount | None = None
    wire_bytes: Amount | None = None


class ArmBudget(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Budget of one arm, or of a capture (`case` and `arm` empty)."""

    case: str = ""
    arm: str = ""
    engaged: tuple[str, ...] = ()
    """Optimizations that must show in the trace."""
    step_ns: Step | None = None
    step_noise_ns: Duration | None = None
    """A/A floor of the run that wrote the budget."""
    machine: str = ""
    device: str = ""
    limit: tuple[Limit, ...] = ()


class Budget(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A budget file."""

    schema_version: int
    confidence: Confidence = CONFIDENCE
    tolerance: Amount = TOLERANCE
    """Of step times: part of the budget that may be exceeded."""
    arm: list[ArmBudget]


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


def load_budget(path: Path) -> Budget:
    """Read a budget file.

    Raises:
        InputError: not readable, not TOML, of a newer format, or of another shape; names the file and the place.
    """
    if kind := no_regular_file(path):
        raise InputError(f"{path}: is no regular file but {kind}; give a budget file.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: the budget cannot be read ({error.strerror}); check the path.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{path}: not a TOML file ({error}); write one with mtpprof check RUN --write-budget FILE."
        ) from error
    version = content.get("schema_version")
    if isinstance(version, int) and version > BUDGET_SCHEMA_VERSION:
        raise InputError(f"{path}: written in format {version} by a newer mtpprof; update mtpprof.")
    try:
        budget = msgspec.convert(content, Budget, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: not a budget ({error}); correct it, or write a new one.") from error
    if not budget.arm:
        raise InputError(f"{path}: holds no [[arm]], so nothing would be checked; write a new one.")
    return budget


def make_budget(sides: Iterable[Side], *, time: bool, confidence: float = CONFIDENCE) -> Budget:
    """The budget that these sides just meet.

    Args:
        sides: Arms of a run, or a capture.
        time: Whether to write step times into it.
        confidence: With which step times are held against it.

    Raises:
        InputError: no side has anything to write a budget from.
    """
    arms = [_arm_budget(side, time, confidence) for side in sides]
    arms = [arm for arm in arms if arm.limit or arm.step_ns is not None]
    if not arms:
        raise InputError(
            "nothing of it has collectives in steps, or step times that were asked for (--time): there is nothing to write a "
            "budget from."
        )
    return Budget(schema_version=BUDGET_SCHEMA_VERSION, confidence=confidence, arm=arms)


def _arm_budget(side: Side, time: bool, confidence: float) -> ArmBudget:
    time = time and bool(side.windows)
    noise = noise_of(side, confidence) if time else None
    engaged = engagement_of_side(side)
    return ArmBudget(
        case=side.case,
        arm=side.label if side.case else "",
        engaged=tuple(
            name
            for name, found in engaged.items()
            if found.verdict == Engaged.ENGAGED and found.requested is not False
        ),
        step_ns=round(fmean(side.medians.values())) if time else None,
        step_noise_ns=round(noise.floor) if noise else None,
        machine=side.setting.get("machine", "") if time else "",
        device=side.device if time else "",
        limit=tuple(limit for stratum in _strata(side) for limit in _limits(stratum)),
    )


def _strata(side: Side) -> list[Stratum]:
    return side.traces.strata if side.traces else []


def _limits(stratum: Stratum) -> Iterator[Limit]:
    for (phase, kind), total in _by_phase_and_kind(stratum).items():
        yield Limit(
            batch=stratum.batch.text,
            phase=phase,
            kind=kind,
            calls=total.calls / stratum.pairs,
            payload_bytes=_rate(total.payload_bytes, stratum),
            wire_bytes=_rate(total.wire_bytes, stratum),
        )


def _by_phase_and_kind(stratum: Stratum) -> dict[tuple[str, str], Sum]:
    parts: dict[tuple[str, str], list[Sum]] = {}
    for form, found in stratum.forms.items():
        parts.setdefault(_place(form), []).append(found)
    return {place: added(sums) for place, sums in parts.items()}


def _place(form: Form) -> tuple[str, str]:
    return form.phase, form.kind


def _rate(total: int | None, stratum: Stratum) -> float | None:
    return None if total is None else total / stratum.pairs


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
    strata = {stratum.batch.text: stratum for stratum in _strata(side)}
    for limit in arm.limit:
        stratum = strata.get(limit.batch)
        if stratum is None:
            apart = side.traces.apart if side.traces else ""
            reason = side.missing or apart or f"no steps of the batch {limit.batch!r}"
            yield _row(arm, "calls", Status.UNCHECKED, limit=limit.calls, place=limit, note=reason)
            continue
        total = _by_phase_and_kind(stratum).get(
            (limit.phase, limit.kind), Sum(calls=0, payload_bytes=0, wire_bytes=0, time_ns=0)
        )
        yield _count_row(
            arm, limit, "calls", limit.calls, total.calls / stratum.pairs, least=bool(side.doubt)
        )
        for what, most, value in (
            ("payload bytes", limit.payload_bytes, _rate(total.payload_bytes, stratum)),
            ("wire bytes", limit.wire_bytes, _rate(total.wire_bytes, stratum)),
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
        for (phase, kind), total in _by_phase_and_kind(stratum).items():
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


def budget_toml(budget: Budget, source: str) -> str:
    """A budget as the text of a TOML file that `load_budget` reads."""
    lines = [
        f"# What a step may cost, per rank: written from {' '.join(source.split())}.",
        "# Calls and bytes exceed by one; step_ns only beyond noise and tolerance, with this confidence, on one machine.",
        f"schema_version = {budget.schema_version}",
        f"confidence = {budget.confidence}",
        f"tolerance = {budget.tolerance}",
    ]
    for arm in budget.arm:
        lines += ["", "[[arm]]", *_toml_lines(arm)]
        for limit in arm.limit:
            lines += ["", "[[arm.limit]]", *_toml_lines(limit)]
    return "\n".join(lines) + "\n"


def _toml_lines(record: Record) -> Iterator[str]:
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name == "limit" or value is None or value in ("", ()):
            continue
        yield f"{name} = {_toml_value(value)}"


def _toml_value(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    # JSON's strings, integers and lists of strings are TOML's, but for DEL, which TOML wants escaped.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
