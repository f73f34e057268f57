"""`mtpprof run --capture`: NVTX and torch's trace of the same ranks agree, call for call; Nsight Systems in their place."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtpprof.analyzers.traces.discover import open_traces
from mtpprof.analyzers.traces.nvtx.attach import join
from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture, load_captures
from mtpprof.analyzers.traces.nvtx.table import event_table
from mtpprof.analyzers.traces.table import Category, EventTable
from mtpprof.errors import MissingEnvironmentError
from mtpprof.profilers.nvtx import injection_library
from mtpprof.ranges import CollectiveRange, parse_collective
from mtpprof.rundir.directory import RunDirectory
from tests.integration.conftest import SMALL, Started
from tests.standin.vllm_standin import install

Start = Callable[..., Started]
FEW = ("--steps", "1", "--rounds", "1", "--warmup", "1", "--format", "json")
QUICK = ("--model", "deepseek-v3.2", *FEW, *SMALL)
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


@pytest.mark.usefixtures("_buildable")
def test_vllms_workers_are_told_by_their_process(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path / "site")))
    monkeypatch.setenv("STANDIN_FAIL", "")
    stands_for = ("--model", "deepseek-v3.2", "--vocab", "512", "--concurrency", "2", "--profile-steps", "2")
    run = start("--tp", "2", "--engine", "vllm", "--opt", "local-argmax=both", *stands_for, *FEW)
    code, out, err = run.finish(120)
    assert code == 0, err
    (case,) = run.directory.run().cases
    for rank in range(2):
        (traces,) = open_traces([run.directory.trace(case.id, "local-argmax", rank)])
        nvtx = traces.tables[0].nvtx
        assert nvtx is not None
        assert Path(nvtx.path).name.startswith("pid")
        assert nvtx.joined > 0 == nvtx.only_nvtx == nvtx.only_trace
    assert any("are in NVTX and in torch's traces" in note for note in json.loads(out)["notes"])


NSYS = """#!{python}
# Records with mtpprof's own library, and exports what lay in the window of each report.
import os, pathlib, sqlite3, subprocess, sys
sys.path.insert(0, {root!r})
from mtpprof.analyzers.traces.nvtx.capture import load_captures
from mtpprof.profilers.nvtx import capture_environment

folder, words = pathlib.Path({folder!r}), sys.argv[1:]
with (folder / "log").open("a") as log:
    print(*words, file=log)
output = next(word for word in words if word.startswith("--output=")).removeprefix("--output=")
if words[0] == "profile":
    command = words[1:]
    while command[0].startswith("--"):
        command.pop(0)
    code = subprocess.run(command, env=os.environ | capture_environment(folder)).returncode
    windows = [
        (int(start), int(start + dur))
        for capture in load_captures(folder)
        for start, dur, name in zip(capture.ts_ns, capture.dur_ns, capture.name)
        if capture.names[name] == "mtpprof-window"
    ]
    for number, window in enumerate(sorted(windows)[{lost}:], start=1):
        pathlib.Path(f"{{output}}.{{number}}.nsys-rep").write_text("%d %d" % window)
    sys.exit(code)
first, last = map(int, pathlib.Path(words[-1]).read_text().split())
database = sqlite3.connect(output)
database.execute("create table NVTX_EVENTS (start, end, eventType, globalTid, text, textId)")
for capture in load_captures(folder):
    owner = (1 << 48) + (capture.pid << 24)
    database.executemany(
        "insert into NVTX_EVENTS values (?, ?, 59, ?, ?, null)",
        [
            (int(start) - first, int(start + dur) - first, owner + (int(thread) & 0xFFFFFF), capture.names[name])
            for start, dur, thread, name in zip(capture.ts_ns, capture.dur_ns, capture.thread, capture.name)
            if first <= start and start + dur <= last
        ],
    )
database.commit()
"""


def put_nsys(folder: Path, monkeypatch: pytest.MonkeyPatch, *, lost: int = 0) -> Path:
    """An nsys on the PATH that loses the first `lost` reports; its log."""
    folder.mkdir()
    root = str(Path(__file__).resolve().parents[2])
    (folder / "nsys").write_text(NSYS.format(python=sys.executable, root=root, folder=str(folder), lost=lost))
    (folder / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "log"


@pytest.mark.usefixtures("_buildable")
def test_workers_run_under_nsys_and_every_window_is_read(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = put_nsys(tmp_path / "stub", monkeypatch)
    run = start("--tp", "2", "--capture", "nsys", *QUICK)
    code, out, err = run.finish(120)
    assert code == 0, err
    profile, *exports = log.read_text().splitlines()
    assert profile.startswith("profile --trace=cuda,nvtx --cuda-graph-trace=node ")
    assert "--capture-range=nvtx --capture-range-end=repeat --nvtx-capture=mtpprof-window@mtpprof" in profile
    assert f"-m mtpprof.profilers.engines.launcher {run.directory.root}" in profile
    assert len(exports) == 4
    (case,) = run.directory.run().cases
    (entry,) = json.loads(out)["cases"]
    for arm in entry["arms"]:
        if arm["repeats"] is None:
            assert arm["as_expected"], arm["mismatches"]
            assert run.directory.nsys_database(case.id, arm["name"], 0).is_file()
            assert not run.directory.trace(case.id, arm["name"], 0).exists()


@pytest.mark.usefixtures("_buildable")
def test_missing_reports_of_nsys_are_named(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_nsys(tmp_path / "stub", monkeypatch, lost=1)
    run = start("--tp", "1", "--capture", "nsys", *QUICK)
    code, _, err = run.finish(120)
    assert code == 4
    assert "nsys left 0 reports of 1 profiled windows" in " ".join(err.split())
    assert run.directory.run().status == "failed"


def test_an_nsys_that_fails_is_quoted(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "nsys").write_text("#!/bin/sh\necho 'Illegal --trace argument.' >&2\nexit 3\n")
    (stub / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub}{os.pathsep}{os.environ['PATH']}")
    run = start("--tp", "1", "--capture", "nsys", *QUICK)
    code, _, err = run.finish(60)
    assert code == 4
    assert "ended with status 3 (Illegal --trace argument.)" in " ".join(err.split())
    assert run.directory.run().status == "failed"


def test_nsys_and_torch_are_refused_before_anything_starts(start: Start, tmp_path: Path) -> None:
    code, _, err = start("--tp", "2", "--capture", "torch,nsys", *QUICK).finish(30)
    assert code == 2
    assert "cannot run together" in err
    code, _, err = start("--tp", "2", "--capture", "nsys", *QUICK, out=tmp_path / "other").finish(30)
    assert code == 5
    assert "no nsys is on the PATH" in " ".join(err.split())
    assert not RunDirectory(tmp_path / "other").root.exists()
