"""Lanes hold every slice once, at its place, and never two that collide."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.perfetto import lanes

Span = tuple[int, int]
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=40)


def columns(items: Iterable[Span]) -> tuple[I64, I64]:
    ts, dur = zip(*items, strict=True) if items else ((), ())
    return np.array(ts, np.int64), np.array(dur, np.int64)


def as_spans(items: list[Span], rows: I64) -> list[Span]:
    return [(items[row][0], items[row][0] + items[row][1]) for row in rows.tolist()]


def depths_of_a_nest(lane: list[Span]) -> list[int] | None:
    """Depth of each slice as a viewer that keeps a stack draws them; None: one crosses another."""
    stack: list[Span] = []
    depths = []
    for start, end in lane:
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack and end > stack[-1][1]:
            return None
        depths.append(len(stack))
        stack.append((start, end))
    return depths


@pytest.mark.parametrize("split", [lanes.following, lanes.nested])
@settings(deadline=None)
@given(items=spans)
def test_every_slice_is_in_one_lane(split: Callable[[I64, I64], list[I64]], items: list[Span]) -> None:
    found = split(*columns(items))
    assert sorted(row for lane in found for row in lane.tolist()) == list(range(len(items)))
    assert all(len(lane) for lane in found)


@settings(deadline=None)
@given(items=spans)
def test_slices_of_a_following_lane_do_not_overlap(items: list[Span]) -> None:
    for rows in lanes.following(*columns(items)):
        lane = as_spans(items, rows)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(lane))


@settings(deadline=None)
@given(items=spans)
def test_slices_of_a_nested_lane_nest(items: list[Span]) -> None:
    for rows in lanes.nested(*columns(items)):
        assert depths_of_a_nest(as_spans(items, rows)) is not None


@settings(deadline=None)
@given(items=spans)
def test_as_few_following_lanes_as_slices_at_once(items: list[Span]) -> None:
    busy = [(start, start + dur) for start, dur in items if dur]
    most = max((sum(start <= time < end for start, end in busy) for time, _ in busy), default=0)
    assert len(lanes.following(*columns([item for item in items if item[1]]))) == most


@settings(deadline=None)
@given(items=spans)
def test_what_nests_stays_on_one_lane(items: list[Span]) -> None:
    in_order = sorted(((s, s + d) for s, d in items), key=lambda span: (span[0], -span[1]))
    if depths_of_a_nest(in_order) is not None:
        assert len(lanes.nested(*columns(items))) == min(len(items), 1)


@settings(deadline=None)
@given(items=spans)
def test_begins_and_ends_of_a_nest_are_in_order(items: list[Span]) -> None:
    ts, dur = columns(items)
    for rows in lanes.nested(ts, dur):
        tree = lanes.nesting(ts[rows], dur[rows])
        places = np.concatenate([tree.opens_at, tree.closes_at])
        times = np.concatenate([ts[rows], ts[rows] + dur[rows]])
        assert sorted(places.tolist()) == list(range(2 * len(rows)))
        assert (np.diff(times[np.argsort(places)]) >= 0).all()
        assert (tree.closes_at - tree.opens_at == 2 * tree.size - 1).all()
        assert tree.depth.tolist() == depths_of_a_nest(as_spans(items, rows))


def test_deep_nests_are_cut_before_the_engine_drops_them() -> None:
    count = 3 * lanes.MAX_DEPTH
    index = np.arange(count)
    found = lanes.nested(index, 2 * (count - index))
    assert [len(lane) for lane in found] == [lanes.MAX_DEPTH] * 3


def test_more_crossing_slices_than_lanes_that_nest() -> None:
    count = 200
    found = lanes.nested(np.arange(count), np.full(count, count))
    assert len(found) == count
    assert all(len(lane) == 1 for lane in found)


def test_a_collision_moves_only_what_collides() -> None:
    ts = np.array([0, 10, 20, 100, 110, 115])
    dur = np.array([50, 60, 10, 30, 10, 3])
    assert [lane.tolist() for lane in lanes.nested(ts, dur)] == [[0, 2, 3, 4, 5], [1]]
    assert [lane.tolist() for lane in lanes.following(ts, dur)] == [[0, 3], [1, 4], [2, 5]]


def test_equal_slices_lie_inside_each_other() -> None:
    (lane,) = lanes.nested(np.zeros(3, np.int64), np.full(3, 5))
    assert lanes.nesting(np.zeros(3, np.int64), np.full(3, 5)).depth.tolist() == [0, 1, 2]
    assert lane.tolist() == [0, 1, 2]


def test_no_slices_no_lanes() -> None:
    empty = np.empty(0, np.int64)
    assert lanes.nested(empty, empty) == lanes.following(empty, empty) == []
