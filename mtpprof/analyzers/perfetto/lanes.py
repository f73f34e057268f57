"""Lanes for slices that a track cannot hold together, since Perfetto silently drops or cuts what overlaps halfway.

The decision: nothing is dropped and nothing is moved in time; a slice that does not fit goes to a sibling lane. On a
stream, slices of one lane follow each other (a kernel is not the child of a kernel). On a thread they may nest. Both
are found with array operations; only groups of slices that really collide, which are few in real traces, are walked
one by one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from mtpprof.analyzers.numeric.arrays import I64, Bools

MAX_DEPTH = 500
"""Slices inside each other on one lane; Perfetto's engine drops what lies deeper than 512."""
_NESTING_LANES = 32
"""How many lanes are asked whether a colliding slice fits into their nest; bounds the cost of hostile input."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nesting:
    """Slices of one lane as a tree, in the order of a walk that visits parents before children."""

    size: I64
    """Slices of the subtree, itself included."""
    depth: I64

    @property
    def opens_at(self) -> I64:
        """Place of each slice's begin among all begins and ends."""
        return np.asarray(2 * np.arange(len(self.size)) - self.depth)

    @property
    def closes_at(self) -> I64:
        """Place of each slice's end among all begins and ends."""
        return np.asarray(self.opens_at + 2 * self.size - 1)


def nesting(ts_ns: I64, dur_ns: I64) -> Nesting:
    """The tree of slices that nest; they must be ordered by start, then longest first."""
    index = np.arange(len(ts_ns))
    after = np.searchsorted(ts_ns, ts_ns + dur_ns, side="left")
    size = np.where(dur_ns > 0, after - index, 1)
    closed = np.bincount(index + size, minlength=len(ts_ns) + 1)[:-1]
    return Nesting(size=size, depth=index - np.cumsum(closed))


def following(ts_ns: I64, dur_ns: I64) -> list[I64]:
    """Lanes in which slices follow each other.

    Args:
        ts_ns: Starts, in any order.
        dur_ns: Lengths, not negative.

    Returns:
        For each lane the indices of its slices in order of time; the first lane is the fullest.
    """
    order = np.lexsort((dur_ns, ts_ns))
    start, end = ts_ns[order], (ts_ns + dur_ns)[order]
    group = _groups(start, end)
    colliding = np.flatnonzero((np.bincount(group) > 1)[group])
    lane = np.zeros(len(order), np.int64)
    free = _Free()
    lane[colliding] = [
        free.take(*span) for span in zip(start[colliding].tolist(), end[colliding].tolist(), strict=True)
    ]
    return _by_lane(order, lane)


def nested(ts_ns: I64, dur_ns: I64) -> list[I64]:
    """Lanes in which slices follow each other or lie inside each other.

    Args:
        ts_ns: Starts, in any order.
        dur_ns: Lengths, not negative.

    Returns:
        For each lane the indices of its slices, ordered by start, then longest first, as `nesting` wants them.
    """
    order = np.lexsort((-dur_ns, ts_ns))
    start, end = ts_ns[order], (ts_ns + dur_ns)[order]
    tree, group = nesting(start, dur_ns[order]), _groups(start, end)
    too_deep = _groups_with(group, tree.depth >= MAX_DEPTH)
    colliding = np.flatnonzero(too_deep | _groups_with(group, _overhung(end, tree, ~too_deep)))
    lane = np.zeros(len(order), np.int64)
    lane[colliding] = _nests(list(zip(start[colliding].tolist(), end[colliding].tolist(), strict=True)))
    return _by_lane(order, lane)


def _groups(start: I64, end: I64) -> I64:
    """Number of the group of each slice: groups do not overlap each other."""
    reach = np.maximum.accumulate(end)
    return np.concatenate([np.zeros(min(len(start), 1), np.int64), np.cumsum(start[1:] >= reach[:-1])])


def _groups_with(group: I64, marked: Bools) -> Bools:
    """Which slices are of a group that has a marked one."""
    hit = np.zeros(len(group), np.bool_)
    hit[group[marked]] = True
    return np.asarray(hit[group])


def _overhung(end: I64, tree: Nesting, asked: Bools) -> Bools:
    """Which of the slices asked for have one that starts inside them and ends after them.

    Costs the sum of the sizes of the subtrees, that is at most `MAX_DEPTH` per slice.
    """
    found = np.zeros(len(end), np.bool_)
    rows = np.flatnonzero(asked & (tree.size > 1))
    if len(rows):
        bounds = np.stack([rows, rows + tree.size[rows]], axis=1).ravel()
        latest = np.maximum.reduceat(np.append(end, np.iinfo(np.int64).min), bounds)[::2]
        found[rows] = latest > end[rows]
    return found


def _by_lane(order: I64, lane: I64) -> list[I64]:
    if not len(order):
        return []
    if not lane.any():
        return [order]
    by_lane = np.argsort(lane, kind="stable")
    return np.split(order[by_lane], np.cumsum(np.bincount(lane))[:-1])


class _Free:
    """Gives each slice, in order of start, the lowest lane in which nothing runs."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._free: list[int] = []
        self._running: list[tuple[int, int]] = []

    def take(self, start: int, end: int) -> int:
        """A lane for the next slice."""
        while self._running and self._running[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._running)[1])
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane, self._next = self._next, self._next + 1
        heapq.heappush(self._running, (end, lane))
        return lane


def _nests(spans: list[tuple[int, int]]) -> list[int]:
    """For each slice, in order of start and longest first, the lowest lane in whose nest it fits."""
    open_ends: list[list[int]] = [[] for _ in range(_NESTING_LANES)]
    rest = _Free(first=_NESTING_LANES)
    lanes = []
    for start, end in spans:
        lane = next((lane for lane, ends in enumerate(open_ends) if _fits(ends, start, end)), None)
        if lane is None:
            lanes.append(rest.take(start, end))
        else:
            open_ends[lane].append(end)
            lanes.append(lane)
    return lanes


def _fits(open_ends: list[int], start: int, end: int) -> bool:
    """Whether a slice fits into the nest of a lane, of which the slices that have ended are taken off."""
    while open_ends and open_ends[-1] <= start:
        open_ends.pop()
    return not open_ends or (end <= open_ends[-1] and len(open_ends) < MAX_DEPTH)
