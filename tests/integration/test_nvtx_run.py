"""`mtpprof run --capture`: NVTX and torch's trace of the same ranks agree, call for call; Nsight Systems in their place."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtpprof.analyzers.discovery import open_traces
from mtpprof.analyzers.nvtxjoin import join
from mtpprof.analyzers.readers.nvtx import NvtxCapture, load_captures
from mtpprof.analyzers.readers.nvtxtable import event_table
from mtpprof.analyzers.table import Category, EventTable
from mtpprof.errors import MissingEnvironmentError
from mtpprof.profilers.nvtx import injection_library
from mtpprof.ranges import CollectiveRange, parse_collective
from mtpprof.rundir import RunDirectory
from tests.integration.conftest import SMALL, Started

Start = Callable[..., Started]
QUICK = ("--model", "deepseek-v3.2", "--steps", "1", "--rounds", "1", "--format", "json", *SMALL)
TP = 4
RESIDUAL_MAX_NS = 1_000_000
"""Microseconds on a quiet machine; a clock that is slewed meanwhile is still far from this."""


@pytest.fixture
def _buildable() -> None:
    try:
        injection_library()
    except MissingEnvironmentError as error:
        pytest.skip(str(error))


def calls_of(
    table: EventTable, category: Category
) -> dict[tuple[int, int], tuple[CollectiveRange, int, int]]:
    """Collectives by number, and by how many of that number came before (a window each starts anew): the range, start, end."""
    base = table.meta.base_time_ns or 0
    found = {}
    seen: Counter[int] = Counter()
    for row in table.rows(category).tolist():
        item = parse_collective(table.names[table.name[row]])
        if item is not None:
            key = item.sequence, seen[item.sequence]
            seen[item.sequence] += 1
            found[key] = item, int(table.ts_ns[row]) + base, int(table.end_ns[row]) + base
    return found


def within(capture: NvtxCapture, table: EventTable) -> EventTable:
    """The capture as a table, cut to a trace's window."""
    nvtx = event_table(capture)
    starts, base = nvtx.absolute_ns(), table.meta.base_time_ns
    assert starts is not None
    assert base is not None
    first, last = int(table.ts_ns.min()) + base, int(table.end_ns.max()) + base
    return nvtx.select(np.flatnonzero((starts >= first) & (starts <= last)))


@pytest.mark.usefixtures("_buildable")
def test_every_collective_is_in_nvtx_and_in_torchs_trace_once_and_they_agree(start: Start) -> None:
    run = start("--tp", str(TP), *QUICK)
    code, out, err = run.finish(200)
    assert code == 0, err
    report = json.loads(out)
    record = run.directory.run()
    assert record.capture == ["torch", "nvtx"]
    captures = {capture.rank: capture for capture in load_captures(run.directory.nvtx)}
    assert sorted(captures, key=str) == list(range(TP))
    (case,) = record.cases
    for arm in case.arms:
        if arm.repeats is None:
            for rank in range(TP):
                check_rank(run.directory.trace(case.id, arm.name, rank), captures[rank])
    assert any(
        "are in NVTX and in torch's traces (0 in NVTX alone, 0 in the traces alone)" in note
        for note in report["notes"]
    )


def check_rank(path: Path, capture: NvtxCapture) -> None:
    (traces,) = open_traces([path])
    (table,) = traces.tables
    beside = table.nvtx
    assert beside is not None
    assert beside.only_nvtx == beside.only_trace == 0
    assert table.count(Category.NVTX) == 0, "what is in both is in the table once"
    nvtx = within(capture, table)
    residual = join(nvtx, table).residual_ns
    assert residual is not None
    assert beside.shift_ns is not None
    assert residual == max(map(abs, beside.shift_ns)) < RESIDUAL_MAX_NS
    in_nvtx, in_trace = calls_of(nvtx, Category.NVTX), calls_of(table, Category.USER_ANNOTATION)
    assert len(in_trace) > 0
    assert in_nvtx.keys() == in_trace.keys()
    for key, (item, begin, end) in in_trace.items():
        other, nvtx_begin, nvtx_end = in_nvtx[key]
        assert other == item
        assert nvtx_begin - residual <= begin
        assert end <= nvtx_end + residual


@pytest.mark.usefixtures("_buildable")
def test_torch_alone_leaves_no_nvtx(start: Start) -> None:
    run = start("--tp", "2", "--capture", "torch", *QUICK)
    code, out, err = run.finish(120)
    assert code == 0, err
    assert run.directory.run().capture == ["torch"]
    assert not run.directory.nvtx.exists()
    assert not any("NVTX" in note for note in json.loads(out)["notes"])


def test_without_a_compiler_the_run_says_so_and_goes_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = start("--tp", "1", *QUICK)
    code, out, err = run.finish(120)
    assert code == 0, err
    sentence = "torch's profiler records alone: NVTX capture needs a C compiler"
    assert sentence in " ".join(err.split())
    assert any(sentence in note for note in json.loads(out)["notes"])
    code, _, err = start("--tp", "1", "--capture", "torch,nvtx", *QUICK, out=tmp_path / "other").finish(30)
    assert code == 5
    assert "needs a C compiler" in err
    assert not (tmp_path / "other").exists()


NSYS = """#!/usr/bin/env python3
import os, pathlib, subprocess, sys
words = sys.argv[1:]
with open(os.environ["STUB_LOG"], "a") as log:
    print(*words, file=log)
output = next(word for word in words if word.startswith("--output=")).removeprefix("--output=")
if words[0] == "export":
    pathlib.Path(output).write_text("exported from " + words[-1])
    sys.exit(0)
command = words[1:]
while command[0].startswith("--"):
    command.pop(0)
code = subprocess.run(command).returncode
for number in range(1, int(os.environ["STUB_REPORTS"]) + 1):
    pathlib.Path(f"{output}.{number}.nsys-rep").write_text("report")
sys.exit(code)
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nsys on the PATH that runs the command and leaves as many reports as `STUB_REPORTS` says; its log."""
    folder = tmp_path / "stub"
    folder.mkdir()
    (folder / "nsys").write_text(NSYS)
    (folder / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STUB_LOG", str(folder / "log"))
    monkeypatch.setenv("STUB_REPORTS", "4")
    return folder / "log"


def test_workers_run_under_nsys_and_every_window_has_its_export(start: Start, stub: Path) -> None:
    run = start("--tp", "2", "--capture", "nsys", *QUICK)
    code, _, err = run.finish(120)
    assert code == 0, err
    profile, *exports = stub.read_text().splitlines()
    assert profile.startswith("profile --trace=cuda,nvtx --cuda-graph-trace=node ")
    assert "--capture-range=nvtx --capture-range-end=repeat --nvtx-capture=mtpprof-window@mtpprof" in profile
    assert f"-m mtpprof.profilers.engines.launcher {run.directory.root}" in profile
    record = run.directory.run()
    (case,) = record.cases
    arms = [arm.name for arm in case.arms if arm.repeats is None]
    assert len(exports) == len(arms) == 4
    for number, arm in enumerate(arms, start=1):
        text = run.directory.nsys_database(case.id, arm, 0).read_text()
        assert text.endswith(f".{number}.nsys-rep")
        assert not run.directory.trace(case.id, arm, 0).exists()
        timing = run.directory.timing(case.id, arm)
        assert timing is not None
        assert len(timing.profiled_step_ns) == 2


def test_missing_reports_of_nsys_are_named(start: Start, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_REPORTS", "0")
    run = start("--tp", "1", "--capture", "nsys", *QUICK)
    code, _, err = run.finish(120)
    assert code == 4
    assert "nsys left 0 reports of 1 profiled windows" in " ".join(err.split())
    assert run.directory.run().status == "failed"


def test_nsys_and_torch_are_refused_before_anything_starts(start: Start, tmp_path: Path) -> None:
    code, _, err = start("--tp", "2", "--capture", "torch,nsys", *QUICK).finish(30)
    assert code == 2
    assert "cannot run together" in err
    code, _, err = start("--tp", "2", "--capture", "nsys", *QUICK, out=tmp_path / "other").finish(30)
    assert code == 5
    assert "no nsys is on the PATH" in " ".join(err.split())
    assert not RunDirectory(tmp_path / "other").root.exists()
