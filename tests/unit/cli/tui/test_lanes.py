"""The timeline's index against a count by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.compare.side import Side, run_side
from mtpprof.analyzers.measures.step_parts import COMPUTE, COUNTED
from mtpprof.cli.tui.lanes import (
    MARKS,
    STEP,
    TRANSFER,
    WAIT,
    WORK_MARKS,
    CallLane,
    Lane,
    WorkLane,
    make_lanes,
)
from tests.runs import Recipe, write_run


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Side:
    directory = write_run(
        tmp_path_factory.mktemp("lanes") / "run", Recipe(models=("deepseek-v3.2",), rounds=1, steps=1)
    )
    run = directory.run()
    case = run.cases[0]
    return run_side(directory, run, case, next(arm for arm in case.arms if arm.name == "all-on"))


@pytest.fixture(scope="module")
def every(side: Side) -> list[Lane]:
    return make_lanes(side, "A")


@pytest.fixture(scope="module")
def lanes(every: list[Lane]) -> list[CallLane]:
    return [lane for lane in every if isinstance(lane, CallLane)]


@pytest.fixture(scope="module")
def work(every: list[Lane]) -> list[WorkLane]:
    return [lane for lane in every if isinstance(lane, WorkLane)]


def test_two_lanes_for_every_rank(every: list[Lane]) -> None:
    assert [(type(lane), lane.rank) for lane in every] == [
        (CallLane, 0),
        (WorkLane, 0),
        (CallLane, 1),
        (WorkLane, 1),
    ]
    assert {(lane.side, lane.arm) for lane in every} == {("A", "all-on")}
    assert all(lane.numbers == (0, 1, 2) for lane in every)
    assert min(int(lane.steps[0, 0]) for lane in every) == 0


def test_work_is_drawn_where_it_runs(work: list[WorkLane]) -> None:
    lane = work[1]
    index = int(np.argmax(lane.end_ns - lane.start_ns))
    start, end = int(lane.start_ns[index]), int(lane.end_ns[index])
    names, share = lane.columns(np.array([start, (start + end) // 2, end]))
    assert set(names.tolist()) == {COUNTED[lane.part[index]]}
    assert share.tolist() == [1, 1]
    assert lane.event_in(start, end) == index
    assert lane.names[lane.name[index]]


def test_work_of_traces_without_collectives_has_its_lanes(side: Side) -> None:
    assert side.traces is not None
    calls = side.traces.calls
    bare = replace(side, traces=replace(side.traces, calls=calls.take(np.zeros(len(calls), np.bool_))))
    found = make_lanes(bare, "B")
    assert [type(lane) for lane in found] == [CallLane, WorkLane, CallLane, WorkLane]
    assert found[0].event_in(0, 10**9) is None
    assert COMPUTE in found[1].columns(np.arange(0, 10**7, 10**5))[0]


def test_marks_are_known_to_every_lane_of_work(work: list[WorkLane]) -> None:
    assert set(WORK_MARKS) == set(COUNTED)
    assert set(WORK_MARKS) < set(work[0].marks)


@given(st.integers(-1_000_000, 40_000_000), st.integers(100, 45_000_000), st.integers(1, 120))
def test_columns_are_what_the_calls_cover(lanes: list[CallLane], start: int, span: int, columns: int) -> None:
    lane = lanes[1]
    edges = np.linspace(start, start + span, columns + 1).astype(np.int64)
    names, share = lane.columns(edges)
    wait = np.where(lane.calls.wait_ns >= 0, lane.calls.wait_ns, 0)
    fused = lane.calls.fused != 0
    for column in range(columns):
        low, high = int(edges[column]), int(edges[column + 1])

        def covered(begin: np.ndarray, end: np.ndarray, low: int = low, high: int = high) -> int:
            return int(np.clip(np.minimum(end, high) - np.maximum(begin, low), 0, None).sum())

        waiting = covered(lane.start_ns, lane.start_ns + wait)
        rest = covered((lane.start_ns + wait)[~fused], lane.end_ns[~fused])
        both = covered((lane.start_ns + wait)[fused], lane.end_ns[fused])
        parts = {WAIT: waiting, TRANSFER: rest, "fused": both, "collective": 0}
        if not any(parts.values()):
            assert names[column] in (STEP, "")
            assert share[column] == 0
        else:
            assert parts[str(names[column])] == max(parts.values())
            assert share[column] == pytest.approx(min(1, sum(parts.values()) / max(1, high - low)))


def test_the_call_under_the_cursor_and_its_neighbours(lanes: list[CallLane]) -> None:
    lane = lanes[0]
    middle = int(lane.start_ns[5] + (lane.end_ns[5] - lane.start_ns[5]) // 2)
    assert lane.event_in(middle, middle + 1) == 5
    assert lane.event_in(int(lane.end_ns[5]) + 1, int(lane.end_ns[5]) + 2) is None
    assert lane.neighbour(middle, 1) == 6
    assert lane.neighbour(middle, -1) == 5
    assert lane.neighbour(int(lane.start_ns[0]), -1) is None
    assert lane.neighbour(int(lane.start_ns[-1]), 1) is None


def test_a_side_without_traces_has_no_lane(side: Side, tmp_path: Path) -> None:
    assert make_lanes(replace(side, traces=None, missing="no trace"), "B") == []


def test_marks_are_known_to_every_lane(lanes: list[CallLane]) -> None:
    assert set(MARKS) < set(lanes[0].marks)
