"""Clocks of ranks and steps of arms on one time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.perfetto.timeline import (
    FIRST_EVENT,
    ONE_CLOCK,
    REFERENCE,
    Arm,
    StepPair,
    side_by_side,
)
from mtpprof.analyzers.traces.table import EventTable
from tests.unit.analyzers.perfetto.runs import arm, collective, reference_table
from tests.unit.analyzers.tables import NCCL_AR, Trace, record

CALLS = [[(collective("moe", seq=10 * step + n), 100 + 200 * n, 150) for n in range(3)] for step in range(4)]
HOST_GAP_NS = 11_560_000_000


def device_table(rank: int, shift_ns: int, *, base: int | None, host: str | None = None) -> EventTable:
    trace = Trace()
    for n in range(20):
        start = shift_ns + 1000 * n + (300 if rank else 0)
        trace.kernel(
            NCCL_AR, start, 500 - (300 if rank else 0), record=record(in_elems=64, out_elems=64, seq=n)
        )
    return trace.table(rank, base=base, host=host)


def ends(found: Arm, table: int) -> list[int]:
    calls = found.found.calls
    mine = calls.take(calls.table == table)
    times: list[int] = (found.placed(found.own(mine.table, mine.ts_ns)) + mine.dur_ns).tolist()
    return times


def test_first_event_of_an_arm_is_at_zero() -> None:
    found = arm("a", reference_table(0, CALLS), reference_table(1, CALLS, late_ns=40))
    starts = [int(found.moved(index, table.ts_ns)[0]) for index, table in enumerate(found.traces.tables)]
    assert min(starts) == 0
    assert found.zero_ns == 10**18 + 100


def test_hosts_whose_clocks_differ_are_aligned_on_the_ends_of_collectives() -> None:
    one = device_table(0, 0, base=10**18, host="a")
    other = device_table(1, HOST_GAP_NS, base=10**18, host="b")
    found = arm("a", one, other)
    reference, moved = found.alignments
    assert reference.method == REFERENCE
    assert moved.method == "ends of the collectives"
    assert moved.offset_ns == HOST_GAP_NS
    assert moved.residual_ns == 0
    assert ends(found, 0) == ends(found, 1)
    assert "-11,560.000 ms" in moved.sentence()


def test_files_without_a_common_base_are_aligned_too() -> None:
    found = arm("a", device_table(0, 0, base=None), device_table(1, 5_000_000, base=None))
    assert ends(found, 0) == ends(found, 1)
    assert found.zero_ns is None


def test_ranks_that_cannot_be_matched_start_together_and_say_so() -> None:
    lone = Trace()
    lone.op("aten::mm", 777_000, 10)
    found = arm("a", reference_table(0, CALLS), lone.table(1, base=None))
    assert found.alignments[1].method == FIRST_EVENT
    assert found.moved(1, found.traces.tables[1].ts_ns).tolist() == [0]
    assert "first events" in found.alignments[1].sentence()


def test_files_of_different_days_do_not_stretch_the_picture() -> None:
    early, late = Trace(), Trace()
    early.op("aten::mm", 0, 10)
    late.op("aten::mm", 0, 10)
    found = arm("a", early.table(0, base=10**18), late.table(1, base=10**18 + 86_400 * 10**9))
    assert [int(found.moved(index, table.ts_ns)[0]) for index, table in enumerate(found.traces.tables)] == [
        0,
        0,
    ]


def test_one_clock_is_taken_as_it_is() -> None:
    lone = Trace()
    lone.op("aten::mm", 350, 10)
    found = arm("a", reference_table(0, CALLS, start_ns=100), lone.table(1, base=10**18))
    assert found.alignments[1].method == ONE_CLOCK
    assert found.moved(1, found.traces.tables[1].ts_ns).tolist() == [250]


def test_steps_of_two_arms_start_together() -> None:
    slow = arm("slow", reference_table(0, CALLS, step_ns=1000))
    fast = arm("fast", reference_table(0, CALLS, step_ns=700, start_ns=5000))
    first, second, pairs = side_by_side(slow, fast)
    assert pairs == tuple(StepPair(first=n, second=n) for n in range(4))
    starts = [
        found.placed(found.own(found.found.steps.table, found.found.steps.start_ns)).tolist()
        for found in (first, second)
    ]
    assert starts[0] == starts[1] == [0, 1000, 2000, 3000]


def test_a_slower_step_of_either_arm_makes_room_for_itself() -> None:
    calls = CALLS[:2]
    one = arm("one", reference_table(0, calls, step_ns=1000))
    other = arm("other", reference_table(0, calls, step_ns=1500))
    first, second, _ = side_by_side(one, other)
    for found in (first, second):
        steps = found.found.steps
        assert found.placed(found.own(steps.table, steps.start_ns)).tolist() == [0, 1500]


def test_arms_without_steps_start_together() -> None:
    trace = Trace()
    trace.op("aten::mm", 50, 10)
    one, other = arm("one", trace.table(0)), arm("other", reference_table(0, CALLS))
    first, second, pairs = side_by_side(one, other)
    assert (first, second, pairs) == (one, other, ())


@settings(deadline=None)
@given(
    st.lists(st.integers(500, 3000), min_size=1, max_size=6),
    st.lists(st.integers(500, 3000), min_size=1, max_size=6),
)
def test_order_within_an_arm_is_kept_and_only_gaps_are_added(ours: list[int], theirs: list[int]) -> None:
    arms = []
    for lengths in (ours, theirs):
        trace = Trace()
        at = 10
        for index, length in enumerate(lengths):
            trace.note(f"mtpprof::step index={index}", at, length)
            at += length
        arms.append(arm("x", trace.table(0)))
    for found in side_by_side(*arms)[:2]:
        times = np.arange(0, 20_000, 7)
        placed = found.placed(times)
        assert (np.diff(placed) >= np.diff(times)).all()
        assert (found.step_shift_ns >= 0).all()


@pytest.mark.parametrize(("count", "other"), [(4, 2), (2, 4)])
def test_steps_beyond_the_common_ones_have_no_partner(count: int, other: int) -> None:
    one = arm("one", reference_table(0, CALLS[:count]))
    two = arm("two", reference_table(0, CALLS[:other]))
    pairs = side_by_side(one, two)[2]
    assert [pair for pair in pairs if pair.first is not None and pair.second is not None] == [
        StepPair(first=n, second=n) for n in range(2)
    ]
    assert len(pairs) == 4


def test_steps_of_unlike_phases_are_not_paired() -> None:
    def table(*names: str) -> EventTable:
        trace = Trace()
        for index, name in enumerate(names):
            trace.note(name, 1000 * index, 900)
        return trace.table(0)

    prefill, decode = "step[EXTEND bs=1 toks=128]", "step[DECODE bs=4]"
    one, two = arm("one", table(decode, decode)), arm("two", table(prefill, decode, decode))
    assert side_by_side(one, two)[2] == (
        StepPair(first=None, second=0),
        StepPair(first=0, second=1),
        StepPair(first=1, second=2),
    )
