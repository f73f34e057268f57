"""The timeline's data: lanes per rank and side, drawn out of an index that costs the same for ten events and for a million.

A rank has a lane of its collectives and one of what it computed. The decision: for each mark (wait, transfer, compute, …) the lane holds
the coverage function of its intervals. What a column of the screen shows is the difference of that function at the column's two edges:
exact at every zoom, found by bisection, no list of events walked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.table import Calls, Provenance
from mtpprof.analyzers.compare.side import Side, Traces
from mtpprof.analyzers.measures.step_parts import ARGMAX, COMPUTE, COPY, COUNTED, NORM, Work
from mtpprof.analyzers.numeric.arrays import I8, I32, I64
from mtpprof.analyzers.numeric.intervals import Coverage, coverage
from mtpprof.analyzers.traces.table import MISSING

WAIT, TRANSFER, FUSED, UNSPLIT, STEP = "wait", "transfer", "fused", "collective", "step"
MARKS = (WAIT, TRANSFER, FUSED, UNSPLIT)
"""Of collectives, in the order in which they win a tie."""
WORK_MARKS = (COMPUTE, NORM, COPY, ARGMAX)
"""Of what was computed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lane:
    """Events of one rank on one side, on the clock of that side's first step."""

    order: ClassVar[tuple[str, ...]]
    """Marks in the order in which they win a tie."""

    side: str
    """`A` or `B`."""
    arm: str
    rank: int
    """-1: not known."""
    start_ns: I64
    """Start of each event, from the side's origin, with the rank's clock corrected; not decreasing."""
    end_ns: I64
    reach_ns: I64
    """Latest end of this event and of all before it: bounds the search for what is open at a time."""
    steps: I64
    """`[step, 2]`: start and end of each step of this rank."""
    numbers: tuple[int, ...]
    """Number of each step."""
    marks: dict[str, Coverage]

    def columns(self, edges: I64) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
        """For each column between neighbouring edges: the mark that covers most of it, and the part covered by any mark."""
        widths = np.maximum(1, np.diff(edges))
        parts = np.stack([np.diff(self.marks[name].at(edges)) for name in self.order])
        names = np.array(self.order)[np.argmax(parts, axis=0)]
        share = parts.sum(axis=0) / widths
        in_step = np.diff(self.marks[STEP].at(edges)) > 0
        names = np.where(parts.sum(axis=0) > 0, names, np.where(in_step, STEP, ""))
        return names, np.minimum(1.0, share)

    def event_in(self, start_ns: int, end_ns: int) -> int | None:
        """The event that covers most of a stretch of time; None: there is none."""
        low = int(np.searchsorted(self.reach_ns, start_ns, side="right"))
        high = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        if high <= low:
            return None
        begin = np.maximum(self.start_ns[low:high], start_ns)
        covered = np.minimum(self.end_ns[low:high], end_ns) - begin
        best = int(np.argmax(covered))
        return low + best if covered[best] >= 0 else None

    def neighbour(self, time_ns: int, direction: int) -> int | None:
        """The next event that starts after a time (1), or the last one that starts before it (-1)."""
        if direction > 0:
            index = int(np.searchsorted(self.start_ns, time_ns, side="right"))
        else:
            index = int(np.searchsorted(self.start_ns, time_ns, side="left")) - 1
        return index if 0 <= index < len(self.start_ns) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """One collective. None, and an empty text: the trace does not tell."""

    kind: str
    implementation: str
    fused: str
    phase: str
    site: str
    shape: str
    dtype: str
    dur_ns: int
    wait_ns: int | None
    transfer_ns: int | None
    payload_bytes: int | None
    provenance: str
    """Where the payload is from: `measured`, `derived` or `unknown`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallLane(Lane):
    """Collectives."""

    order: ClassVar[tuple[str, ...]] = MARKS
    calls: Calls
    """Of this rank, by start."""

    def facts(self, event: int) -> CallFacts:
        """What is known of one of them."""
        calls = self.calls
        return CallFacts(
            kind=calls.text("kind", event),
            implementation=calls.text("implementation", event),
            fused=calls.text("fused", event),
            phase=calls.text("phase", event),
            site=calls.text("site", event),
            shape=calls.text("shape", event),
            dtype=calls.text("dtype", event),
            dur_ns=int(calls.dur_ns[event]),
            wait_ns=_known(calls.wait_ns[event]),
            transfer_ns=_known(calls.transfer_ns[event]),
            payload_bytes=_known(calls.payload_bytes[event]),
            provenance=Provenance(int(calls.provenance[event])).name.lower(),
        )


def _known(value: np.int64) -> int | None:
    return None if value == MISSING else int(value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkLane(Lane):
    """What was computed: kernels, or operations."""

    order: ClassVar[tuple[str, ...]] = WORK_MARKS
    on_device: bool
    names: tuple[str, ...]
    name: I32
    """Code into `names`."""
    part: I8
    """Place in `COUNTED`."""
    beside: Coverage
    """The rank's collectives, which kernels may run beside."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Place:
    """Whose lane it is."""

    side: str
    arm: str
    rank: int
    shift_ns: int
    """Of the rank's clock against the side's."""
    steps: I64
    numbers: tuple[int, ...]


def make_lanes(side: Side, letter: str) -> list[Lane]:
    """The lanes of every rank of a side, of collectives and then of work; times from the start of its first step (or event) on."""
    traces = side.traces
    if traces is None:
        return []
    calls, steps = traces.calls, traces.steps
    ranks = sorted({*np.unique(calls.rank).tolist(), *(work.rank for work in traces.work if len(work))})
    if not ranks:
        return []
    offsets: dict[int, int] = {}
    for clock in traces.found.clocks:
        offsets.setdefault(clock.rank, clock.offset_ns)
    origin = _origin(traces)
    lanes: list[Lane] = []
    for rank in ranks:
        shift = origin + offsets.get(rank, 0)
        chosen = steps.rank == rank
        place = _Place(
            side=letter,
            arm=side.label,
            rank=rank,
            shift_ns=shift,
            steps=np.stack([steps.start_ns[chosen], steps.end_ns[chosen]], axis=1) - shift,
            numbers=tuple(steps.number[chosen].tolist()),
        )
        mine = calls.take(calls.rank == rank)
        mine = mine.take(np.argsort(mine.ts_ns, kind="stable"))
        lanes.append(_call_lane(place, mine))
        work = [part for part in traces.work if part.rank == rank and len(part)]
        if work:
            lanes.append(_work_lane(place, work, mine))
    return lanes


def _origin(traces: Traces) -> int:
    if len(traces.steps):
        return int(traces.steps.start_ns.min())
    starts = [traces.calls.ts_ns, *(work.start_ns for work in traces.work)]
    return min(int(times.min()) for times in starts if len(times))


def _call_lane(place: _Place, calls: Calls) -> CallLane:
    start, end = calls.ts_ns - place.shift_ns, calls.end_ns - place.shift_ns
    fused, known = calls.fused != 0, calls.wait_ns != MISSING
    arrived = start + np.where(known, calls.wait_ns, 0)
    plain = ~fused & known
    return CallLane(
        side=place.side,
        arm=place.arm,
        rank=place.rank,
        calls=calls,
        start_ns=start,
        end_ns=end,
        reach_ns=_reach(end),
        steps=place.steps,
        numbers=place.numbers,
        marks={
            WAIT: coverage(start[known], np.minimum(arrived, end)[known]),
            TRANSFER: coverage(np.minimum(arrived, end)[plain], end[plain]),
            FUSED: coverage(np.minimum(arrived, end)[fused], end[fused]),
            UNSPLIT: coverage(start[~fused & ~known], end[~fused & ~known]),
            STEP: coverage(place.steps[:, 0], place.steps[:, 1]),
        },
    )


def _work_lane(place: _Place, work: Sequence[Work], calls: Calls) -> WorkLane:
    first = np.cumsum([0, *(len(item.names) for item in work)])
    start = np.concatenate([item.start_ns for item in work]) - place.shift_ns
    order = np.argsort(start, kind="stable")
    start = start[order]
    end = (np.concatenate([item.end_ns for item in work]) - place.shift_ns)[order]
    part = np.concatenate([item.part for item in work])[order]
    name = np.concatenate([item.name + base for item, base in zip(work, first.tolist(), strict=False)])[order]
    return WorkLane(
        side=place.side,
        arm=place.arm,
        rank=place.rank,
        on_device=any(item.on_device for item in work),
        names=tuple(text for item in work for text in item.names),
        name=name.astype(np.int32),
        part=part,
        start_ns=start,
        end_ns=end,
        reach_ns=_reach(end),
        steps=place.steps,
        numbers=place.numbers,
        beside=coverage(calls.ts_ns - place.shift_ns, calls.end_ns - place.shift_ns),
        marks={
            **{mark: _covered(start, end, part == COUNTED.index(mark)) for mark in WORK_MARKS},
            STEP: coverage(place.steps[:, 0], place.steps[:, 1]),
        },
    )


def _covered(start: I64, end: I64, chosen: NDArray[np.bool_]) -> Coverage:
    return coverage(start[chosen], end[chosen])


def _reach(end: I64) -> I64:
    return np.maximum.accumulate(end) if len(end) else end
