from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtpprof.analyzers.traces.checks import diagnose, diagnose_set
from mtpprof.analyzers.traces.table import EventTable, TraceSet
from mtpprof.analyzers.traces.verdicts import Verdict
from tests.traces import json_traces, needs_traces
from tests.unit.analyzers.chrome import Event, complete, kernel, read_one, read_text, some_events, text


def window(start: float, end: float) -> Event:
    return complete("PyTorch Profiler (0)", start, end - start, "Trace", pid="Spans", tid="x")


def verdicts(
    folder: Path, events: list[Event], metadata: dict[str, Any] | None = None
) -> dict[Verdict, int | None]:
    table = read_text(folder, text(events, metadata))
    return {problem.verdict: problem.count for problem in diagnose(table)}


def test_a_healthy_trace(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [*some_events(200), window(900, 5000)]) == {}


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ([], Verdict.NO_EVENTS),
        ([{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}], Verdict.METADATA_ONLY),
        ([complete("op", 1.5)], Verdict.NO_KERNELS),
    ],
)
def test_nothing_to_see(tmp_path: Path, events: list[Event], verdict: Verdict) -> None:
    assert set(verdicts(tmp_path, events)) == {verdict}


def test_events_outside_the_window(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [*some_events(40), window(9_000_000, 9_040_000)]) == {Verdict.OUT_OF_RANGE: 40}


def test_an_idle_window(tmp_path: Path) -> None:
    assert set(verdicts(tmp_path, [*some_events(40), window(900, 900 + 600_000)])) == {Verdict.IDLE_WINDOW}


def test_a_short_window_is_not_idle(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [kernel("k", 1000.5), window(900, 40_000)]) == {}


def test_launches_without_kernels(tmp_path: Path) -> None:
    events = [
        event for index, event in enumerate(some_events(400)) if event["cat"] != "kernel" or index % 10 > 1
    ]
    assert verdicts(tmp_path, events) == {Verdict.DROPPED_EVENTS: 40}


def test_a_few_launches_without_kernels_at_the_edge_are_normal(tmp_path: Path) -> None:
    events = some_events(400)
    late = [
        complete("cudaLaunchKernel", 90000.5 + index, 1.0, "cuda_runtime", args={"correlation": 900 + index})
        for index in range(3)
    ]
    assert verdicts(tmp_path, events + late) == {}


def test_a_trace_whose_device_side_is_missing(tmp_path: Path) -> None:
    events = [event for event in some_events(400) if event["cat"] != "kernel"]
    assert verdicts(tmp_path, events) == {Verdict.DROPPED_EVENTS: 200}


def test_a_graph_launch_without_kernels(tmp_path: Path) -> None:
    graphs = [
        complete("cudaGraphLaunch", at, 3.0, "cuda_runtime", args={"correlation": at}) for at in (5001, 5101)
    ]
    events = [
        *some_events(40),
        *graphs,
        *(kernel("in graph", 5120.5 + index, 0.5, correlation=5101) for index in range(9)),
    ]
    assert verdicts(tmp_path, events) == {Verdict.DROPPED_EVENTS: 1}


def test_a_trace_cut_at_a_million_events(tmp_path: Path) -> None:
    table = read_text(tmp_path, text(some_events(40)))
    table = replace(table, meta=replace(table.meta, events_total=1_000_000))
    assert [problem.verdict for problem in diagnose(table)] == [Verdict.DROPPED_EVENTS]


def test_overlapping_kernels_of_one_stream(tmp_path: Path) -> None:
    events = [
        kernel("a", 1.5, 10.0),
        kernel("b", 8.5, 10.0),
        kernel("c", 9.5, 10.0, stream=20),
        kernel("d", 18.5),
    ]
    assert verdicts(tmp_path, events) == {Verdict.OVERLAPPING_LANES: 1}


def test_events_longer_than_an_hour(tmp_path: Path) -> None:
    events = [*some_events(40), kernel("k", 99_000.5, 7.2e9)]
    assert verdicts(tmp_path, events)[Verdict.CORRUPT_DURATIONS] == 1


def test_a_capture_of_graphs(tmp_path: Path) -> None:
    events = [complete(f"capture_{size}_FULL", 1000.5 * size, 900.0, "user_annotation") for size in (1, 2, 4)]
    assert Verdict.CAPTURE_TRACE in verdicts(tmp_path, [*events, *some_events(40)])


def ranks(folder: Path, *starts: float | None, world_size: int | None = None) -> TraceSet:
    tables: list[EventTable] = []
    for rank, start in enumerate(starts):
        metadata = {} if start is None else {"baseTimeNanoseconds": 10**18}
        table = read_text(folder, text([complete("x", (start or 0) + 0.5)], metadata), f"{rank}.json")
        tables.append(table.with_rank(rank))
    return TraceSet(label="run", tables=tuple(tables), world_size=world_size)


def set_verdicts(traces: TraceSet) -> dict[Verdict, int | None]:
    return {problem.verdict: problem.count for problem in diagnose_set(traces)}


def test_a_whole_set(tmp_path: Path) -> None:
    assert set_verdicts(ranks(tmp_path, 0.0, 1e6, world_size=2)) == {}


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    traces = ranks(tmp_path, 0.0, 1.0, world_size=300)
    (problem,) = diagnose_set(traces)
    assert (problem.verdict, problem.count) == (Verdict.MISSING_RANKS, 298)
    assert "2, 3, 4, 5, 6, 7, 8, 9 and 290 more" in problem.sentence


def test_unknown_world(tmp_path: Path) -> None:
    assert set_verdicts(ranks(tmp_path, 0.0, 1.0)) == {Verdict.UNKNOWN_WORLD: None}


@pytest.mark.parametrize("starts", [(0.0, None), (0.0, 60e6)])
def test_clocks_that_do_not_compare(tmp_path: Path, starts: tuple[float | None, ...]) -> None:
    assert set_verdicts(ranks(tmp_path, *starts, world_size=2)) == {Verdict.UNALIGNED_CLOCKS: None}


@needs_traces
def test_real_traces_get_no_false_alarm() -> None:
    allowed = {Verdict.NO_KERNELS, Verdict.OVERLAPPING_LANES}
    for path in json_traces():
        table = replace(read_one(path), problems=())
        assert {problem.verdict for problem in diagnose(table)} <= allowed, path
