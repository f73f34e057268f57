"""What records a run: the choice, the environment and command line that follow from it, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpprof.errors import ExitCode, MissingEnvironmentError, RunError, UsageError
from mtpprof.nvtxformat import DIRECTORY_VARIABLE, INJECTION_VARIABLE
from mtpprof.profilers import recording
from mtpprof.profilers.process import Command, Nodes
from mtpprof.profilers.recording import choose_recording, keep_reports, recorded
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.records import RunRecord
from tests.runs import Recipe, write_run

COMMAND = Command(argv=("python", "-m", "launcher"), environment={"KEPT": "1"}, shared_memory_prefix="")
STUB = """#!/bin/sh
for word in "$@"; do case "$word" in --output=*) output="${word#--output=}" ;; esac; done
"""


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(INJECTION_VARIABLE, raising=False)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A library that needs no compiler."""
    path = tmp_path / "libmtpprof-nvtx-0.so"
    monkeypatch.setattr("mtpprof.profilers.nvtx.env.injection_library", lambda: path)
    monkeypatch.delenv(INJECTION_VARIABLE, raising=False)
    return path


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nsys on the PATH that exports by copying."""
    folder = tmp_path / "stub"
    folder.mkdir()
    path = folder / "nsys"
    path.write_text(STUB + 'for report in "$@"; do :; done\ncp "$report" "$output"')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return path


def run_with(directory: RunDirectory, *capture: str) -> RunRecord:
    import msgspec

    return msgspec.structs.replace(directory.run(), capture=list(capture))


def test_both_by_default_where_the_library_can_be_had(library: Path) -> None:
    assert choose_recording(None).capture == ("torch", "nvtx")
    assert choose_recording(" nvtx, torch").capture == ("nvtx", "torch")
    assert choose_recording("torch").capture == ("torch",)
    assert not choose_recording(None).without


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_torch_alone_and_one_sentence_unless_nvtx_was_asked_for() -> None:
    chosen = choose_recording(None)
    assert chosen.capture == ("torch",)
    assert "torch's profiler records alone: NVTX capture needs a C compiler" in chosen.without
    with pytest.raises(MissingEnvironmentError, match="needs a C compiler") as caught:
        choose_recording("torch,nvtx")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert choose_recording("torch").capture == ("torch",)


@pytest.mark.usefixtures("library")
def test_another_nvtx_tool_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INJECTION_VARIABLE, "/opt/other/libtool.so")
    assert choose_recording(None).capture == ("torch",)
    assert "/opt/other/libtool.so" in choose_recording(None).without
    with pytest.raises(UsageError, match="another NVTX tool"):
        choose_recording("torch,nvtx")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("torch,nvvp", "choose from torch, nvtx, nsys"),
        ("", "choose from"),
        ("nsys,torch", "nsys and torch cannot run together"),
        ("nvtx,nsys", "nsys and nvtx cannot run together"),
        ("nvtx", "needs torch's trace beside it"),
    ],
)
def test_what_cannot_be_asked_for(asked: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        choose_recording(asked)


def test_nsys_has_to_be_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingEnvironmentError, match="no nsys is on the PATH") as caught:
        choose_recording("nsys")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_nvtx_is_set_up_through_the_environment(library: Path, tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Recipe(models=("nemotron-3-super",)))
    found = recorded(COMMAND, run_with(directory, "torch", "nvtx"), directory, Nodes())
    assert found.argv == COMMAND.argv
    assert found.environment["KEPT"] == "1"
    assert found.environment[INJECTION_VARIABLE] == str(library)
    assert found.environment[DIRECTORY_VARIABLE] == str(directory.root / "nvtx")
    assert directory.nvtx.is_dir()
    assert recorded(COMMAND, run_with(directory, "torch"), directory, Nodes()) == COMMAND


def test_under_nsys_a_report_for_every_window(nsys: Path, tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Recipe(models=("nemotron-3-super",)))
    run = run_with(directory, "nsys")
    found = recorded(COMMAND, run, directory, Nodes(rank=1))
    assert found.argv[:2] == (str(nsys), "profile")
    assert found.argv[-3:] == COMMAND.argv
    for word in (
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",
        "--trace-fork-before-exec=true",
        "--capture-range=nvtx",
        "--capture-range-end=repeat",
        "--nvtx-capture=mtpprof-window@mtpprof",
        f"--output={directory.root}/nsys/host1-{run.id}",
    ):
        assert word in found.argv
    assert found.environment["NSYS_NVTX_PROFILER_REGISTER_ONLY"] == "0"
    assert INJECTION_VARIABLE not in found.environment


@pytest.mark.usefixtures("nsys")
def test_reports_go_to_the_arms_in_the_order_of_their_windows(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    written = write_run(directory.root, Recipe(models=("nemotron-3-super",)))
    run, nodes = run_with(written, "nsys"), Nodes()
    windows = [("case", f"arm{number}") for number in range(1, 12)]
    folder = directory.root / "nsys"
    folder.mkdir()
    for number, (case, arm) in enumerate(windows, start=1):
        (folder / f"host0-{run.id}.{number}.nsys-rep").write_text(f"[{number}]")
        directory.arm(case, arm).mkdir(parents=True)
    (folder / "host0-earlier.1.nsys-rep").write_text("of a run before")
    assert not directory.has_traces("case", "arm1", 2)
    keep_reports(run, directory, nodes, windows)
    for number, (case, arm) in enumerate(windows, start=1):
        assert directory.nsys_database(case, arm, 0).read_text() == f"[{number}]"
        assert directory.captured(case, arm, 2) == [directory.nsys_database(case, arm, 0)]
        assert directory.has_traces(case, arm, 2)
    with pytest.raises(RunError, match="nsys left 11 reports of 12 profiled windows"):
        keep_reports(run, directory, nodes, [*windows, ("case", "arm12")])


def test_every_capture_is_named_in_the_refusal() -> None:
    with pytest.raises(UsageError) as caught:
        choose_recording("perf")
    assert all(name in str(caught.value) for name in recording.CHOICES)
