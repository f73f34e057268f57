"""The timeline's data: a lane per rank and side, drawn out of an index that costs the same for ten events and for a million.

The decision: for each mark (wait, transfer, …) the lane holds the coverage function of its intervals. What a column of the screen shows
is the difference of that function at the column's two edges: exact at every zoom, found by bisection, no list of events walked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls import Calls
from mtpprof.analyzers.intervals import Coverage, coverage
from mtpprof.analyzers.sides import Side
from mtpprof.analyzers.table import MISSING

I64 = NDArray[np.int64]

WAIT, TRANSFER, FUSED, UNSPLIT, STEP = "wait", "transfer", "fused", "collective", "step"
MARKS = (WAIT, TRANSFER, FUSED, UNSPLIT)
"""In the order in which they win a tie."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lane:
    """Collectives of one rank on one side, on the clock of that side's first step."""

    side: str
    """`A` or `B`."""
    arm: str
    rank: int
    calls: Calls
    """Of this rank, by start."""
    start_ns: I64
    """Start of each call, from the side's origin, with the rank's clock corrected."""
    end_ns: I64
    reach_ns: I64
    """Latest end of this call and of all before it: bounds the search for what is open at a time."""
    steps: I64
    """`[step, 2]`: start and end of each step of this rank."""
    numbers: tuple[int, ...]
    """Number of each step."""
    marks: dict[str, Coverage]

    def columns(self, edges: I64) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
        """For each column between neighbouring edges: the mark that covers most of it, and the part covered by any mark."""
        widths = np.maximum(1, np.diff(edges))
        parts = np.stack([np.diff(self.marks[name].at(edges)) for name in MARKS])
        names = np.array(MARKS)[np.argmax(parts, axis=0)]
        share = parts.sum(axis=0) / widths
        in_step = np.diff(self.marks[STEP].at(edges)) > 0
        names = np.where(parts.sum(axis=0) > 0, names, np.where(in_step, STEP, ""))
        return names, np.minimum(1.0, share)

    def call_in(self, start_ns: int, end_ns: int) -> int | None:
        """The call that covers most of a stretch of time; None: there is none."""
        low = int(np.searchsorted(self.reach_ns, start_ns, side="right"))
        high = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        if high <= low:
            return None
        begin = np.maximum(self.start_ns[low:high], start_ns)
        covered = np.minimum(self.end_ns[low:high], end_ns) - begin
        best = int(np.argmax(covered))
        return low + best if covered[best] >= 0 else None

    def neighbour(self, time_ns: int, direction: int) -> int | None:
        """The next call that starts after a time (1), or the last one that starts before it (-1)."""
        if direction > 0:
            index = int(np.searchsorted(self.start_ns, time_ns, side="right"))
        else:
            index = int(np.searchsorted(self.start_ns, time_ns, side="left")) - 1
        return index if 0 <= index < len(self.start_ns) else None


def make_lanes(side: Side, letter: str) -> list[Lane]:
    """A lane for every rank of a side; times from the start of its first step (or call) on."""
    traces = side.traces
    if traces is None or not len(traces.calls):
        return []
    calls, steps = traces.calls, traces.steps
    offsets: dict[int, int] = {}
    for clock in traces.found.clocks:
        offsets.setdefault(clock.rank, clock.offset_ns)
    origin = int(steps.start_ns.min()) if len(steps) else int(calls.ts_ns.min())
    lanes = []
    for rank in np.unique(calls.rank).tolist():
        shift = origin + offsets.get(rank, 0)
        mine = calls.take(calls.rank == rank)
        mine = mine.take(np.argsort(mine.ts_ns, kind="stable"))
        chosen = steps.rank == rank
        bounds = np.stack([steps.start_ns[chosen], steps.end_ns[chosen]], axis=1) - shift
        lanes.append(
            _lane(side.label, letter, rank, mine, bounds, tuple(steps.number[chosen].tolist()), shift)
        )
    return lanes


def _lane(
    arm: str, letter: str, rank: int, calls: Calls, steps: I64, numbers: tuple[int, ...], shift: int
) -> Lane:
    start, end = calls.ts_ns - shift, calls.end_ns - shift
    fused, known = calls.fused != 0, calls.wait_ns != MISSING
    arrived = start + np.where(known, calls.wait_ns, 0)
    plain = ~fused & known
    return Lane(
        side=letter,
        arm=arm,
        rank=rank,
        calls=calls,
        start_ns=start,
        end_ns=end,
        reach_ns=np.maximum.accumulate(end) if len(end) else end,
        steps=steps,
        numbers=numbers,
        marks={
            WAIT: coverage(start[known], np.minimum(arrived, end)[known]),
            TRANSFER: coverage(np.minimum(arrived, end)[plain], end[plain]),
            FUSED: coverage(np.minimum(arrived, end)[fused], end[fused]),
            UNSPLIT: coverage(start[~fused & ~known], end[~fused & ~known]),
            STEP: coverage(steps[:, 0], steps[:, 1]),
        },
    )
