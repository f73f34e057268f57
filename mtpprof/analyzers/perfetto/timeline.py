"""One time for everything in an export: clocks of ranks brought together, and steps of two arms side by side.

The decision: every event is moved by a shift that only depends on its rank and, when arms are compared, on its step;
nothing is scaled. Within an arm the shift of a rank is its clock's offset. Between arms, steps that correspond start
at the same place: the place of a step is the larger of what either arm needs for the ones before it, so that shifts
never decrease, order within an arm is kept, and what the faster arm saves shows as empty space. Ranges on the CPU
that reach over the start of a step are stretched by the gap, or they would no longer enclose what they enclosed; they
say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.attribution import Attribution
from mtpprof.analyzers.calls.match_ranks import Clock
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.traces.table import TraceSet

ONE_CLOCK = "the files' common time base"
FIRST_EVENT = "first events (the files share no time base)"
REFERENCE = "reference of the others"
_MAX_MATCHED_STEPS = 2000
"""More steps than these are paired by their position alone."""
_ONE_RUN_NS = 3600 * 10**9
"""Ranks of one run do not start further apart than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How one rank's clock was brought to the arm's."""

    method: str
    offset_ns: int
    """Taken off its times."""
    residual_ns: int | None
    """90 % of the ends of matched collectives agree to this much; None: nothing to compare."""

    def sentence(self) -> str:
        """For people."""
        agreed = (
            "" if self.residual_ns is None else f", collectives end within {self.residual_ns / 1000:,.1f} µs"
        )
        moved = f", moved by {-self.offset_ns / 1e6:+,.3f} ms" if self.offset_ns else ""
        return f"clock: {self.method}{moved}{agreed}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arm:
    """One run of a model: its traces, what was found in them, and where they stand on the export's time."""

    name: str
    traces: TraceSet
    found: Attribution
    alignments: tuple[Alignment, ...]
    """By table."""
    shift_ns: tuple[int, ...]
    """By table: what is added to its `ts_ns`; the first event of the arm is then at 0."""
    zero_ns: int | None
    """The arm's zero in nanoseconds since the epoch; None: not known."""
    bounds_ns: I64
    """Starts of the steps that are moved on their own, increasing; empty: none is."""
    step_shift_ns: I64
    """What is added from each of `bounds_ns` on; never decreasing. What precedes the first is moved with it."""

    def moved(self, table: int, ts_ns: I64) -> I64:
        """Times of a table (as in its column `ts_ns`) on the export's time."""
        return self.placed(ts_ns + self.shift_ns[table])

    def own(self, tables: NDArray[np.integer[Any]], ts_ns: I64) -> I64:
        """Times of calls or steps (which carry the base of their table) on the arm's own clock."""
        bases = [table.meta.base_time_ns or 0 for table in self.traces.tables]
        shift = np.array(self.shift_ns, np.int64) - np.array(bases, np.int64)
        return np.asarray(ts_ns + shift[tables])

    def placed(self, ts_ns: I64) -> I64:
        """Times on the arm's own clock on the export's time."""
        if not len(self.bounds_ns):
            return ts_ns
        return ts_ns + self.step_shift_ns[self.step_of(ts_ns)]

    def step_of(self, ts_ns: I64) -> I64:
        """Index into `bounds_ns` for times on the arm's own clock."""
        return np.maximum(np.searchsorted(self.bounds_ns, ts_ns, side="right") - 1, 0)


def place(name: str, traces: TraceSet, found: Attribution) -> Arm:
    """An arm on a time of its own."""
    alignments = _alignments(traces, found)
    firsts = [
        (int(table.ts_ns[0]) if len(table) else 0) + (table.meta.base_time_ns or 0) - alignment.offset_ns
        for table, alignment in zip(traces.tables, alignments, strict=True)
    ]
    zero = min(firsts, default=0)
    return Arm(
        name=name,
        traces=traces,
        found=found,
        alignments=alignments,
        shift_ns=tuple(
            (table.meta.base_time_ns or 0) - alignment.offset_ns - zero
            for table, alignment in zip(traces.tables, alignments, strict=True)
        ),
        zero_ns=zero if all(table.meta.base_time_ns is not None for table in traces.tables) else None,
        bounds_ns=np.empty(0, np.int64),
        step_shift_ns=np.empty(0, np.int64),
    )


def side_by_side(first: Arm, second: Arm) -> tuple[Arm, Arm, tuple[StepPair, ...]]:
    """Both arms with every pair of corresponding steps starting together, and the pairs in order of time.

    Arms in which no step can be told start together as a whole; there are no pairs then.
    """
    ours, theirs = _step_starts(first), _step_starts(second)
    pairs = tuple(_pairs(ours.phases, theirs.phases))
    if not len(ours.start) or not len(theirs.start):
        return first, second, ()
    places = {0: np.zeros(len(ours.start), np.int64), 1: np.zeros(len(theirs.start), np.int64)}
    now = max(int(ours.start[0]), int(theirs.start[0]))
    for pair in pairs:
        needed = 0
        for side, (index, steps) in enumerate(((pair.first, ours), (pair.second, theirs))):
            if index is not None:
                places[side][index] = now
                needed = max(needed, int(steps.length[index]))
        now += needed
    return (
        replace(first, bounds_ns=ours.start, step_shift_ns=places[0] - ours.start),
        replace(second, bounds_ns=theirs.start, step_shift_ns=places[1] - theirs.start),
        pairs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPair:
    """Steps of two arms that correspond, as positions in their arms; None: the other arm has one more."""

    first: int | None
    second: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Starts:
    """Steps of an arm by position, on its own clock."""

    start: I64
    length: I64
    """From start to start; of the last to its end."""
    phases: list[str]


def _step_starts(arm: Arm) -> _Starts:
    """The steps that all ranks have, each from the first rank's start."""
    steps = arm.found.steps
    tables = np.unique(steps.table).tolist()
    count = min((int(np.count_nonzero(steps.table == table)) for table in tables), default=0)
    if not count:
        return _Starts(start=np.empty(0, np.int64), length=np.empty(0, np.int64), phases=[])
    rows = np.stack([np.flatnonzero(steps.table == table)[:count] for table in tables])
    start = arm.own(steps.table[rows], steps.start_ns[rows]).min(axis=0)
    end = arm.own(steps.table[rows], steps.end_ns[rows]).max(axis=0)
    return _Starts(
        start=start,
        length=np.append(np.diff(start), end[-1] - start[-1]),
        phases=[steps.texts[code] for code in steps.phase[rows[0]].tolist()],
    )


def _pairs(ours: list[str], theirs: list[str]) -> Iterator[StepPair]:
    """Steps in order of time: those of equal phase that keep the order are pairs."""
    common = min(len(ours), len(theirs))
    if ours[:common] == theirs[:common] or common > _MAX_MATCHED_STEPS:
        blocks: Sequence[tuple[int, int, int]] = [(0, 0, common), (len(ours), len(theirs), 0)]
    else:
        blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    i = j = 0
    for here, there, size in blocks:
        yield from (StepPair(first=index, second=None) for index in range(i, here))
        yield from (StepPair(first=None, second=index) for index in range(j, there))
        yield from (StepPair(first=here + index, second=there + index) for index in range(size))
        i, j = here + size, there + size


def _alignments(traces: TraceSet, found: Attribution) -> tuple[Alignment, ...]:
    """The alignment of every table, from the group in which most of its calls were matched."""
    best: dict[int, Clock] = {}
    for clock in found.clocks:
        if clock.rank not in best or clock.matched > best[clock.rank].matched:
            best[clock.rank] = clock
    references = {clock.reference for clock in found.clocks}
    aligned: list[Alignment | None] = []
    for table in traces.tables:
        rank = table.meta.rank
        if rank is not None and rank in best:
            clock = best[rank]
            offset = _offset(clock, best)
            aligned.append(Alignment(method=clock.method, offset_ns=offset, residual_ns=clock.residual_ns))
        else:
            aligned.append(
                Alignment(method=REFERENCE, offset_ns=0, residual_ns=None) if rank in references else None
            )
    return _unmatched(traces, aligned)


def _offset(clock: Clock, best: Mapping[int, Clock]) -> int:
    """Offset over all references on the way: the reference of one group may be aligned in another."""
    total, seen = clock.offset_ns, {clock.rank}
    while clock.reference in best and clock.reference not in seen:
        clock = best[clock.reference]
        seen.add(clock.rank)
        total += clock.offset_ns
    return total


def _unmatched(traces: TraceSet, aligned: list[Alignment | None]) -> tuple[Alignment, ...]:
    """Fills in ranks that were matched with none: by the common base where there is one, else by their first event."""
    bases = [table.meta.base_time_ns for table in traces.tables]
    firsts = [
        (int(table.ts_ns[0]) if len(table) else 0) + (base or 0)
        for table, base in zip(traces.tables, bases, strict=True)
    ]
    anchors = [
        first - alignment.offset_ns
        for first, alignment in zip(firsts, aligned, strict=True)
        if alignment is not None
    ]
    based = [first for first, base in zip(firsts, bases, strict=True) if base is not None]
    anchor = min(anchors or based or [0])
    found = []
    for alignment, first, base in zip(aligned, firsts, bases, strict=True):
        if alignment is not None:
            found.append(alignment)
        elif base is not None and abs(first - anchor) < _ONE_RUN_NS:
            found.append(Alignment(method=ONE_CLOCK, offset_ns=0, residual_ns=None))
        else:
            found.append(Alignment(method=FIRST_EVENT, offset_ns=first - anchor, residual_ns=None))
    return tuple(found)
