"""How a run stands, reduced from its events: which windows are done, what each rank does, what steps took so far.

The decision: an immutable state and a pure function from state and events to the next state, so that attaching late, attaching twice
and following from the start all end in the same picture. Step times come with the events; traces are not read while a run is in
progress, since that would take cores away from what is being measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, Literal

from mtpprof.analyzers.numeric.stats import Interval as StatsInterval
from mtpprof.analyzers.numeric.stats import Judgement, judge, noise_floor, paired_interval
from mtpprof.rundir.directory import WORKER_FAILED
from mtpprof.rundir.records import CaseRecord, RunRecord

State = Literal["waiting", "running", "done"]
PROFILE = -1
"""Stands for the round of the profiled window."""
Window = tuple[str, str, int]
"""case, arm, round"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One window of an arm."""

    state: State
    step_ns: tuple[int, ...] = ()
    """Slowest rank of each step; empty: not finished, or a profiled window."""
    start_ns: int = 0
    """When it began, since the epoch."""
    end_ns: int = 0
    """When it ended; 0: it has not."""


@dataclass(frozen=True, slots=True)
class RankState:
    """The last word of a rank."""

    doing: str
    since_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """What the events of a run say up to now."""

    cells: Mapping[Window, Cell] = field(default_factory=dict)
    ranks: Mapping[int, RankState] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    first_ns: int | None = None
    """When the first event was written; None: there is none."""
    last_ns: int | None = None
    session_ns: int | None = None
    """When the workers that run now were started; differs from `first_ns` after a resume."""
    session_done: int = 0
    """Windows finished since then."""
    unreadable: int = 0
    """Lines of the events that could not be read."""

    @property
    def damage(self) -> str:
        """What cannot be said for that; empty: nothing."""
        if not self.unreadable:
            return ""
        lines = "1 line" if self.unreadable == 1 else f"{self.unreadable:,} lines"
        return (
            f"{lines} of events.jsonl could not be read: windows may be finished that are not shown as such."
        )

    def cell(self, case: str, arm: str, round_index: int) -> Cell:
        """One window; waiting where no event names it."""
        return self.cells.get((case, arm, round_index), Cell("waiting"))

    def profiled(self) -> list[tuple[str, str, int, int]]:
        """Case, arm, start and end of every profiled window that has ended."""
        return [
            (case, arm, cell.start_ns, cell.end_ns)
            for (case, arm, number), cell in self.cells.items()
            if number == PROFILE and cell.state == "done" and cell.start_ns
        ]

    @property
    def done(self) -> int:
        """Windows finished."""
        return sum(cell.state == "done" for cell in self.cells.values())


def advance(state: LiveState, events: Iterable[dict[str, Any]], unreadable: int = 0) -> LiveState:
    """The state after more events; an event that is damaged or not known changes nothing."""
    cells, ranks = dict(state.cells), dict(state.ranks)
    failures = list(state.failures)
    first, last = state.first_ns, state.last_ns
    session, session_done = state.session_ns, state.session_done
    for event in events:
        time_ns = event.get("t_ns")
        if not isinstance(time_ns, int):
            continue
        first, last = first if first is not None else time_ns, time_ns
        kind = event.get("event")
        if kind == "workers_ready":
            session, session_done, failures = time_ns, 0, []
            cells = {key: cell for key, cell in cells.items() if cell.state == "done"}
        elif kind == "rank" and isinstance(event.get("rank"), int):
            ranks[event["rank"]] = RankState(str(event.get("doing", "")), time_ns)
        elif kind == WORKER_FAILED:
            failures.append(_failure(event))
        elif isinstance(kind, str) and (window := _window(event, kind)) is not None:
            finished, before = kind.endswith("_finished"), cells.get(window, Cell("waiting"))
            session_done += finished and before.state != "done"
            cells[window] = (
                Cell("done", _steps(event), before.start_ns, time_ns)
                if finished
                else Cell("running", start_ns=time_ns)
            )
    return replace(
        state,
        cells=MappingProxyType(cells),
        ranks=MappingProxyType(ranks),
        failures=tuple(failures),
        first_ns=first,
        last_ns=last,
        session_ns=session,
        session_done=session_done,
        unreadable=state.unreadable + unreadable,
    )


def _failure(event: dict[str, Any]) -> str:
    rank, message = event.get("rank"), str(event.get("message") or "")
    how = f"signal {event['signal']}" if event.get("signal") else f"exit code {event.get('exit_code', '?')}"
    return f"rank {rank} failed ({how}){': ' + message if message else ''}"


def _window(event: dict[str, Any], kind: str) -> Window | None:
    case, arm = event.get("case"), event.get("arm")
    if not isinstance(case, str) or not isinstance(arm, str):
        return None
    if kind in ("profile_started", "profile_finished"):
        return case, arm, PROFILE
    number = event.get("round")
    if kind in ("visit_started", "visit_finished") and isinstance(number, int):
        return case, arm, number
    return None


def _steps(event: dict[str, Any]) -> tuple[int, ...]:
    steps = event.get("step_ns")
    return tuple(step for step in steps if isinstance(step, int)) if isinstance(steps, list) else ()


def total_windows(run: RunRecord) -> int:
    """Windows that a run has: a timed one per arm and round, a profiled one per arm that is no repeat."""
    return sum(
        len(case.order) * len(case.arms) + sum(arm.repeats is None for arm in case.arms) for case in run.cases
    )


def remaining_s(state: LiveState, run: RunRecord, now_ns: int) -> float | None:
    """Time left at the pace of this session's windows; None: no window has finished yet."""
    if state.session_ns is None or not state.session_done:
        return None
    per_window_s = (now_ns - state.session_ns) / 1e9 / state.session_done
    return per_window_s * max(0, total_windows(run) - state.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoFar:
    """Step times of one arm out of the rounds finished up to now."""

    step_ns: tuple[int, ...]
    mean_ns: float | None
    """Mean of each round's median step; None: no round finished."""
    difference: StatsInterval | None
    """Against the baseline, paired by round; None: fewer than two rounds in common."""
    judgement: Judgement | None
    """None: this is the baseline or its repeat."""


def so_far(state: LiveState, case: CaseRecord, arm: str) -> SoFar:
    """First results of an arm, as soon as it has any."""
    mine = _medians(state, case, arm)
    base = next((item.name for item in case.arms if item.repeats is None), arm)
    repeat = next((item for item in case.arms if item.repeats == base), None)
    own = next((item for item in case.arms if item.name == arm), None)
    compared = own is not None and own.repeats is None and arm != base
    theirs = _medians(state, case, base)
    rounds = sorted(mine.keys() & theirs.keys())
    difference = paired_interval([mine[n] for n in rounds], [theirs[n] for n in rounds]) if compared else None
    judgement = None
    if compared and rounds:
        noise = None
        if repeat is not None:
            again = _medians(state, case, repeat.name)
            both = sorted(again.keys() & theirs.keys())
            noise = noise_floor([again[n] for n in both], [theirs[n] for n in both])
        judgement = judge(difference, noise)
    steps = tuple(
        step for number in range(len(case.order)) for step in state.cell(case.id, arm, number).step_ns
    )
    return SoFar(
        step_ns=steps,
        mean_ns=fmean(mine.values()) if mine else None,
        difference=difference,
        judgement=judgement,
    )


def _medians(state: LiveState, case: CaseRecord, arm: str) -> dict[int, float]:
    found = {number: state.cell(case.id, arm, number).step_ns for number in range(len(case.order))}
    return {number: float(median(steps)) for number, steps in found.items() if steps}
