"""Interval arithmetic against an oracle that counts nanosecond by nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.numeric import intervals
from mtpprof.analyzers.numeric.arrays import I64

Spans = list[tuple[int, int]]

LIMIT = 40
spans = st.lists(
    st.tuples(st.integers(0, LIMIT), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=12,
)


def arrays(items: Spans) -> tuple[I64, I64]:
    return np.array([s for s, _ in items], np.int64), np.array([e for _, e in items], np.int64)


def depth_at(items: Spans, time: int) -> int:
    return sum(start <= time < end for start, end in items)


@given(spans, st.integers(1, 3), st.integers(-5, LIMIT + 20))
def test_coverage_counts_the_time_at_which_enough_are_open(items: Spans, depth: int, time: int) -> None:
    found = intervals.coverage(*arrays(items), depth=depth).at(np.array([time], np.int64))
    assert found.tolist() == [sum(depth_at(items, t) >= depth for t in range(time))]


@given(spans, spans)
def test_within_counts_what_a_set_covers_of_other_intervals(items: Spans, asked: Spans) -> None:
    found = intervals.coverage(*arrays(items)).within(*arrays(asked))
    expected = [sum(depth_at(items, t) >= 1 for t in range(start, end)) for start, end in asked]
    assert found.tolist() == expected


@given(spans)
def test_exposed_is_what_no_other_interval_of_the_set_covers(items: Spans) -> None:
    expected = [
        sum(depth_at(items[:i] + items[i + 1 :], t) == 0 for t in range(start, end))
        for i, (start, end) in enumerate(items)
    ]
    assert intervals.exposed(*arrays(items)).tolist() == expected


@given(spans)
def test_busy_is_the_length_of_the_union(items: Spans) -> None:
    covered = sum(depth_at(items, t) >= 1 for t in range(LIMIT + 20))
    start, end = intervals.union(*arrays(items))
    assert intervals.busy(*arrays(items)) == covered == int((end - start).sum())


@given(spans)
def test_union_is_disjoint_sorted_and_the_same_set(items: Spans) -> None:
    start, end = intervals.union(*arrays(items))
    assert (end > start).all()
    assert (start[1:] > end[:-1]).all()
    for time in range(LIMIT + 15):
        assert bool(((start <= time) & (time < end)).any()) == (depth_at(items, time) > 0)


@given(spans)
def test_exposed_of_a_set_never_exceeds_its_union(items: Spans) -> None:
    start, end = arrays(items)
    assert 0 <= int(intervals.exposed(start, end).sum()) <= intervals.busy(start, end)


def test_times_near_the_limit_of_int64_stay_exact() -> None:
    base = 1_767_189_312_000_000_000
    start, end = np.array([base, base + 5]), np.array([base + 10, base + 20])
    assert intervals.exposed(start, end).tolist() == [5, 10]
    assert intervals.busy(start, end) == 20


def test_nothing_covers_nothing() -> None:
    empty = np.empty(0, np.int64)
    assert intervals.busy(empty, empty) == 0
    assert intervals.union(empty, empty)[0].tolist() == []
