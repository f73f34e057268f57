"""The timeline's index against a count by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.sides import Side, run_side
from mtpprof.cli.tui.lanes import MARKS, STEP, TRANSFER, WAIT, Lane, make_lanes
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
def lanes(side: Side) -> list[Lane]:
    return make_lanes(side, "A")


def test_a_lane_for_every_rank(lanes: list[Lane]) -> None:
    assert [(lane.side, lane.rank, lane.arm) for lane in lanes] == [("A", 0, "all-on"), ("A", 1, "all-on")]
    assert all(lane.numbers == (0, 1, 2) for lane in lanes)
    assert min(int(lane.steps[0, 0]) for lane in lanes) == 0


@given(st.integers(-1_000_000, 40_000_000), st.integers(100, 45_000_000), st.integers(1, 120))
def test_columns_are_what_the_calls_cover(lanes: list[Lane], start: int, span: int, columns: int) -> None:
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


def test_the_call_under_the_cursor_and_its_neighbours(lanes: list[Lane]) -> None:
    lane = lanes[0]
    middle = int(lane.start_ns[5] + (lane.end_ns[5] - lane.start_ns[5]) // 2)
    assert lane.call_in(middle, middle + 1) == 5
    assert lane.call_in(int(lane.end_ns[5]) + 1, int(lane.end_ns[5]) + 2) is None
    assert lane.neighbour(middle, 1) == 6
    assert lane.neighbour(middle, -1) == 5
    assert lane.neighbour(int(lane.start_ns[0]), -1) is None
    assert lane.neighbour(int(lane.start_ns[-1]), 1) is None


def test_a_side_without_traces_has_no_lane(side: Side, tmp_path: Path) -> None:
    from dataclasses import replace

    assert make_lanes(replace(side, traces=None, missing="no trace"), "B") == []


def test_marks_are_known_to_every_lane(lanes: list[Lane]) -> None:
    assert set(MARKS) < set(lanes[0].marks)
