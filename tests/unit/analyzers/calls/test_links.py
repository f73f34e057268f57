"""Which range is around a time: against a search through all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.calls.links import Launches, Nest
from mtpprof.analyzers.traces.table import Category
from tests.unit.analyzers.tables import MAIN, WORKER, Trace


@st.composite
def nested_ranges(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Ranges (thread, start, end) that are nested on each thread."""
    found: list[tuple[int, int, int]] = []

    def fill(track: int, start: int, end: int, depth: int) -> None:
        at = start
        while depth and end - at > 2 and draw(st.booleans()):
            low = draw(st.integers(at, end - 2))
            high = draw(st.integers(low + 1, end))
            found.append((track, low, high))
            fill(track, low, high, depth - 1)
            at = high

    for track in (MAIN, WORKER):
        fill(track, 0, 40, 3)
    return found


@given(nested_ranges(), st.integers(0, 42), st.sampled_from([MAIN, WORKER]))
def test_innermost_is_the_shortest_range_around(
    ranges: list[tuple[int, int, int]], time: int, track: int
) -> None:
    trace = Trace()
    for index, (where, start, end) in enumerate(ranges):
        trace.note(str(index), start, end - start, track=where)
    table = trace.table()
    nest = Nest.of(table, table.rows(Category.USER_ANNOTATION))
    (position,) = nest.innermost(np.array([track]), np.array([time])).tolist()
    (row,) = nest.row_of(np.array([position])).tolist()
    around = [end - start for where, start, end in ranges if where == track and start <= time <= end]
    if not around:
        assert row == -1
    else:
        start, end = int(table.ts_ns[row]), int(table.end_ns[row])
        assert table.track[row] == track
        assert start <= time <= end
        assert end - start == min(around) or any(e == time for w, _, e in ranges if w == track)


@given(nested_ranges())
def test_outermost_ranges_lie_in_no_other(ranges: list[tuple[int, int, int]]) -> None:
    trace = Trace()
    for index, (where, start, end) in enumerate(ranges):
        trace.note(str(index), start, end - start, track=where)
    table = trace.table()
    nest = Nest.of(table, table.rows(Category.USER_ANNOTATION))
    for row, outermost in zip(nest.rows.tolist(), nest.outermost.tolist(), strict=True):
        mine = (int(table.track[row]), int(table.ts_ns[row]), int(table.end_ns[row]))
        inside = any(
            other[0] == mine[0] and other != mine and other[1] <= mine[1] and mine[2] <= other[2]
            for other in ranges
        )
        assert outermost != inside or ranges.count(mine) > 1


def test_an_empty_nest_holds_nothing() -> None:
    table = Trace().table()
    nest = Nest.of(table, np.empty(0, np.int64))
    assert nest.innermost(np.array([0]), np.array([5])).tolist() == [-1]
    assert nest.row_of(np.array([-1])).tolist() == [-1]


def test_launches_are_found_by_correlation_the_first_of_several() -> None:
    trace = Trace()
    trace.add("cudaLaunchKernel", 10, 2, Category.RUNTIME, correlation=5)
    trace.add("cudaLaunchKernel", 20, 2, Category.RUNTIME, correlation=3)
    trace.add("cudaLaunchKernelExC", 30, 2, Category.RUNTIME, correlation=5)
    trace.add("cudaStreamSynchronize", 40, 2, Category.RUNTIME)
    table = trace.table()
    found = Launches.of(table).row_of(np.array([5, 3, 4, -1])).tolist()
    assert found == [0, 1, -1, -1]
