from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mtpprof import ranges
from mtpprof.analyzers.traces.nvtx.attach import SLACK_NS, join
from mtpprof.analyzers.traces.nvtx.table import event_table
from mtpprof.analyzers.traces.table import Category, EventTable
from tests.unit.analyzers.traces.nvtx.written import Written, WrittenEvent, pop, push

PHASE = ranges.phase_name("target")
US = 1000


def table(spans: list[tuple[str, int, int]]) -> EventTable:
    """(name, start, length) as an NVTX table; a trace differs in the category alone."""
    events: list[WrittenEvent] = []
    for thread, (name, start, length) in enumerate(spans, start=1):
        events += [push(start, name, thread=thread), pop(start + length, thread=thread)]
    return event_table(Written(events=events).capture())


def trace(spans: list[tuple[str, int, int]]) -> EventTable:
    found = table(spans)
    return replace(found, category=np.full(len(found), Category.USER_ANNOTATION, np.int8))


def collective(sequence: int) -> str:
    return f"mtpprof::all_reduce site=embed seq={sequence}"


def test_ranges_are_paired_and_the_clocks_bracketed() -> None:
    nvtx = table([(collective(1), 1000, 100), (collective(2), 2000, 100), ("theirs", 1500, 10)])
    torch = trace([(collective(1), 1005, 80), (collective(2), 2050, 45), ("theirs", 1505, 1)])
    joined = join(nvtx, torch)
    assert len(joined) == 2
    assert (joined.only_nvtx, joined.only_trace) == (0, 0)
    assert joined.shift_ns == (-5, 5)
    assert joined.residual_ns == 5


def test_what_is_in_one_only_is_counted_within_the_window() -> None:
    far = 10 * SLACK_NS
    nvtx = table([(collective(n), far + n * US, 10) for n in range(5)] + [(collective(9), 5, 10)])
    torch = trace([(collective(n), far + n * US + 1, 5) for n in (0, 2, 4)] + [("mtpprof::x", far + US, 1)])
    joined = join(nvtx, torch)
    assert len(joined) == 3
    assert (joined.only_nvtx, joined.only_trace) == (2, 1)


def test_repeated_names_are_paired_in_order_of_time() -> None:
    nvtx = table([(PHASE, n * 100 * US, 50 * US) for n in range(1, 6)])
    torch = trace([(PHASE, n * 100 * US + 3 * US, 40 * US) for n in (2, 3, 5)])
    joined = join(nvtx, torch)
    assert joined.nvtx_row.tolist() == [1, 2, 4]
    assert joined.trace_row.tolist() == [0, 1, 2]


def test_clocks_that_moved_show_a_crossed_bracket() -> None:
    nvtx = table([(collective(1), 1 * US, 100), (collective(2), 900 * US, 100)])
    torch = trace([(collective(1), 1 * US + 10, 80), (collective(2), 930 * US + 10, 80)])
    low, high = join(nvtx, torch).shift_ns or (0, 0)
    assert low > high


def test_nothing_in_common() -> None:
    joined = join(table([(PHASE, 1, 1)]), trace([]))
    assert (len(joined), joined.shift_ns, joined.residual_ns, joined.only_nvtx) == (0, None, None, 0)
    assert len(join(table([]), trace([(PHASE, 1, 1)]))) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from([PHASE, collective(1), collective(2)]), st.integers(1, 40)), max_size=25
    ),
    st.integers(-300, 300),
)
def test_what_was_emitted_to_both_is_found_whole(items: list[tuple[str, int]], shift: int) -> None:
    """Whatever the names, and a shift of the clocks smaller than the distance of ranges."""
    spans = [(name, (n + 1) * US, length + 200) for n, (name, length) in enumerate(items)]
    inner = [(name, start + 100 + shift, length - 150) for name, start, length in spans]
    joined = join(table(spans), trace(inner))
    assert len(joined) == len(spans)
    assert joined.nvtx_row.tolist() == joined.trace_row.tolist() == list(range(len(spans)))
    if spans:
        low, high = joined.shift_ns or (1, 0)
        assert low <= shift <= high
