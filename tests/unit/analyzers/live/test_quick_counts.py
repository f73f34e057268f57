"""Calls and bytes of a window as the seam told them, against what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpprof.analyzers.compare.side import spec_of, workload_of
from mtpprof.analyzers.live import quick_counts as seam
from mtpprof.analyzers.live.quick_counts import (
    PerStep,
    cheap_captures,
    expected_per_step,
    seen_per_step,
    windows_seen,
)
from mtpprof.models.optimizations.catalogue import expected_collectives
from mtpprof.ranges import CollectiveRange, phase_name, step_name
from mtpprof.rundir.directory import RunDirectory
from tests.runs import Recipe, write_run
from tests.unit.analyzers.traces.nvtx.written import REALTIME_OFFSET, Written, WrittenEvent, pop, push

STEP_NS = 1000


def call(sequence: int, payload: int) -> str:
    return CollectiveRange(
        kind="all_gather",
        site="mtp.lm_head",
        phase="draft[0]",
        shape=(4, 8),
        dtype="bf16",
        payload_bytes=payload,
        group="tp",
        group_size=2,
        implementation="shm",
        sequence=sequence,
    ).name()


def window(start: int, steps: int, payloads: tuple[int, ...]) -> list[WrittenEvent]:
    """A step before the window's own, which has no range but calls; then the steps."""
    events = [push(start + 1, call(0, 7)), pop(start + 2)]
    for step in range(steps):
        begin = start + (step + 1) * STEP_NS
        events += [push(begin, step_name(step)), push(begin + 1, phase_name("draft[0]"))]
        for index, payload in enumerate(payloads):
            events += [push(begin + 10 + 2 * index, call(index, payload)), pop(begin + 11 + 2 * index)]
        events += [pop(begin + 500), pop(begin + 501)]
    return events


def test_calls_and_bytes_of_each_window_are_its_own() -> None:
    capture = Written(events=[*window(0, 3, (64, 32)), *window(100_000, 2, (64,))]).capture()
    at = REALTIME_OFFSET
    assert seen_per_step([capture], at, at + 50_000) == PerStep(calls=2, payload_bytes=96)
    assert seen_per_step([capture], at + 90_000, at + 150_000) == PerStep(calls=1, payload_bytes=64)
    assert seen_per_step([capture], at + 200_000, at + 300_000) is None


def test_steps_without_a_collective_are_a_measured_nothing() -> None:
    capture = Written(events=window(0, 2, ())).capture()
    assert seen_per_step([capture], REALTIME_OFFSET, REALTIME_OFFSET + 50_000) == PerStep(
        calls=0, payload_bytes=0
    )


def test_a_capture_that_is_empty_or_lost_events_says_nothing() -> None:
    lost = Written(events=window(0, 2, (64,)), dropped=1).capture()
    empty = Written().capture()
    assert seen_per_step([empty, lost], REALTIME_OFFSET, REALTIME_OFFSET + 50_000) is None


def test_a_step_that_is_not_over_does_not_count() -> None:
    events = [*window(0, 2, (64,)), push(90_000, step_name(2)), push(90_010, call(5, 64)), pop(90_020)]
    capture = Written(events=events, closed=False).capture()
    assert seen_per_step([capture], REALTIME_OFFSET, REALTIME_OFFSET + 95_000) == PerStep(
        calls=1, payload_bytes=64
    )


def test_the_first_ranks_captures_are_read_if_they_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path)
    assert cheap_captures(directory) == []
    directory.nvtx.mkdir()
    data = Written(events=window(0, 2, (64,)), rank=0).data()
    for name in ("rank0.pid7.nvtx", "rank1.pid8.nvtx"):
        (directory.nvtx / name).write_bytes(data)
    (directory.nvtx / "rank0.pid9.nvtx").write_bytes(b"nothing of ours")
    assert [Path(capture.path).name for capture in cheap_captures(directory)] == ["rank0.pid7.nvtx"]
    wanted = [("case", "arm", REALTIME_OFFSET, REALTIME_OFFSET + 50_000), ("case", "other", 1, 2)]
    assert windows_seen(directory, wanted) == {("case", "arm"): PerStep(calls=1, payload_bytes=64)}
    monkeypatch.setattr(seam, "MAX_BYTES", len(data) - 1)
    assert windows_seen(directory, wanted) == {}


def test_of_processes_without_a_rank_whichever_has_the_window_speaks(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.nvtx.mkdir()
    (directory.nvtx / "pid7.nvtx").write_bytes(Written(events=[], rank=-1).data())
    (directory.nvtx / "pid8.nvtx").write_bytes(Written(events=window(0, 2, (64,)), rank=-1).data())
    wanted = [("case", "arm", REALTIME_OFFSET, REALTIME_OFFSET + 50_000)]
    assert windows_seen(directory, wanted) == {("case", "arm"): PerStep(calls=1, payload_bytes=64)}


def test_the_expectation_is_the_ledgers(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Recipe(models=("deepseek-v3.2",), rounds=1, steps=1))
    case = directory.run().cases[0]
    spec, workload = spec_of(directory, case), workload_of(case)
    plain = expected_per_step(spec, workload, frozenset())
    local = expected_per_step(spec, workload, frozenset({"local-argmax"}))
    assert plain.calls == sum(entry.count for entry in expected_collectives(spec, workload, frozenset()))
    assert local.payload_bytes < plain.payload_bytes
