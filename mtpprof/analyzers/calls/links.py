"""Which event belongs to which: kernel to launch, launch to operation, time to the range around it.

The decision: ranges of one thread are strictly nested, so the innermost one around a time is an ancestor of the last
one that started before it. `Nest` keeps each range's parent once; a query is a bisection and a walk up that chain,
for all times at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.classify import Classification, Classifier
from mtpprof.analyzers.calls.rules import Scope
from mtpprof.analyzers.numeric.arrays import I64, Bools
from mtpprof.analyzers.traces.table import MISSING, Category, EventTable

GRAPH_LAUNCHES = frozenset(
    {"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch", "cudaGraphLaunch_ptsz", "cuGraphLaunch_ptsz"}
)
"""Runtime calls that replay a whole graph: all its kernels carry the correlation of the launch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nest:
    """Ranges of the threads of one table, given by their rows."""

    rows: I64
    """Ordered by thread, then start, then longest first."""
    track: I64
    start: I64
    end: I64
    parent: I64
    """Position (in `rows`) of the innermost range around each; -1: none."""

    @staticmethod
    def of(table: EventTable, rows: NDArray[np.int64]) -> Nest:
        """The nest of `rows`; of ranges that are equal to the nanosecond, the first in `rows` is the outer one."""
        track, start, end = table.track[rows].astype(np.int64), table.ts_ns[rows], table.end_ns[rows]
        order = np.lexsort((-end, start, track))
        rows, track, start, end = rows[order], track[order], start[order], end[order]
        return Nest(rows=rows, track=track, start=start, end=end, parent=_parents(track, start, end))

    @property
    def outermost(self) -> Bools:
        """Which ranges lie in no other."""
        return np.asarray(self.parent == MISSING)

    def innermost(self, track: NDArray[Any], time: I64) -> I64:
        """For each time on a thread, the position of the innermost range around it, or -1; both ends belong to a range."""
        found = np.full(len(time), MISSING, np.int64)
        if not len(self.rows):
            return found
        for thread in np.unique(track):
            low, high = np.searchsorted(self.track, [thread, thread + 1])
            asked = track == thread
            place = np.searchsorted(self.start[low:high], time[asked], side="right") - 1
            found[asked] = np.where(place >= 0, place + low, MISSING)
        while len(outside := np.flatnonzero((found != MISSING) & (self.end[found] < time))):
            found[outside] = self.parent[found[outside]]
        return found

    def row_of(self, position: I64) -> I64:
        """Row of the table behind positions; -1 stays -1."""
        if not len(self.rows):
            return np.full(len(position), MISSING, np.int64)
        return np.where(position != MISSING, self.rows[position], MISSING)


def _parents(track: I64, start: I64, end: I64) -> I64:
    parent = np.full(len(start), MISSING, np.int64)
    stack: list[int] = []
    ends, starts, tracks = end.tolist(), start.tolist(), track.tolist()
    for index in range(len(starts)):
        while stack and (tracks[stack[-1]] != tracks[index] or ends[stack[-1]] <= starts[index]):
            stack.pop()
        if stack:
            parent[index] = stack[-1]
        stack.append(index)
    return parent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launches:
    """Runtime calls of a table by correlation."""

    correlation: I64
    """Increasing."""
    rows: I64

    @staticmethod
    def of(table: EventTable) -> Launches:
        """All runtime calls that carry a correlation; of several with the same, the first."""
        rows = table.rows(Category.RUNTIME)
        rows = rows[table.correlation[rows] != MISSING]
        correlation, first = np.unique(table.correlation[rows], return_index=True)
        return Launches(correlation=correlation, rows=rows[first])

    def row_of(self, correlation: I64) -> I64:
        """Row of the launch of each correlation; -1: not in the file."""
        if not len(self.correlation):
            return np.full(len(correlation), MISSING, np.int64)
        place = np.minimum(np.searchsorted(self.correlation, correlation), len(self.correlation) - 1)
        return np.where(self.correlation[place] == correlation, self.rows[place], MISSING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """Rows of a table whose names the rules know."""

    rows: I64
    kind: I64
    """Index into `classifications`."""
    classifications: tuple[Classification, ...]

    def only(self, keep: Sequence[bool] | Bools) -> Named:
        """The rows whose classification is marked in `keep` (one flag per classification)."""
        flags = np.asarray(keep, np.bool_)
        chosen = flags[self.kind] if len(flags) else np.zeros(len(self.rows), np.bool_)
        return Named(rows=self.rows[chosen], kind=self.kind[chosen], classifications=self.classifications)


def named(table: EventTable, rows: I64, scope: Scope, classifier: Classifier) -> Named:
    """The rows of `rows` that a rule of `scope` knows; each distinct name is asked once."""
    codes, inverse = np.unique(table.name[rows], return_inverse=True)
    known = [classifier.classify(table.names[code], scope) for code in codes]
    classifications = tuple(dict.fromkeys(item for item in known if item is not None))
    place = {item: index for index, item in enumerate(classifications)}
    kind = np.array([MISSING if item is None else place[item] for item in known], np.int64)[inverse]
    return Named(rows=rows[kind != MISSING], kind=kind[kind != MISSING], classifications=classifications)
