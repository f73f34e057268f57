"""Nsight Systems is not to be had from a package registry: a stub on the PATH shows command line, failures and limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpprof.errors import ExitCode, MissingEnvironmentError, RunError, UsageError
from mtpprof.profilers.lifetime import group_alive
from mtpprof.profilers.nsys import check_exclusive, export_sqlite, find_nsys, nsys_command

HEAD = """#!/bin/sh
echo "$@" > "$STUB/arguments"
for word in "$@"; do case "$word" in --output=*) output="${word#--output=}" ;; esac; done
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH; `write` puts an nsys there."""
    folder = tmp_path / "stub"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("STUB", str(folder))
    return folder


def write(stub: Path, body: str) -> None:
    path = stub / "nsys"
    path.write_text(HEAD + body)
    path.chmod(0o755)


def test_the_command_line(tmp_path: Path) -> None:
    words = nsys_command(
        "/bin/nsys", ["python", "-m", "worker"], output=tmp_path / "host0", window="w@mtpprof"
    )
    assert words == [
        "/bin/nsys",
        "profile",
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",
        "--sample=none",
        "--cpuctxsw=none",
        "--trace-fork-before-exec=true",
        "--force-overwrite=true",
        f"--output={tmp_path}/host0",
        "--capture-range=nvtx",
        "--capture-range-end=repeat",
        "--nvtx-capture=w@mtpprof",
        "python",
        "-m",
        "worker",
    ]


def test_what_excludes_what() -> None:
    check_exclusive({"torch", "nvtx"})
    check_exclusive({"nsys"})
    with pytest.raises(UsageError, match=r"nsys and torch cannot run together.*CUPTI"):
        check_exclusive({"nsys", "torch"})
    with pytest.raises(UsageError, match="nsys and nvtx cannot run together"):
        check_exclusive({"nsys", "nvtx"})


def test_without_nsys_there_is_one_sentence_and_exit_code_5(stub: Path) -> None:
    with pytest.raises(MissingEnvironmentError, match="no nsys is on the PATH") as caught:
        find_nsys()
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert str(caught.value).count(".") == 1


def test_the_export(stub: Path, tmp_path: Path) -> None:
    write(stub, 'touch "$output"')
    report = tmp_path / "rank0.nsys-rep"
    assert export_sqlite(report) == tmp_path / "rank0.sqlite"
    assert (stub / "arguments").read_text() == (
        f"export --type=sqlite --force-overwrite=true --output={tmp_path}/rank0.sqlite {report}\n"
    )
    write(stub, "echo 'cannot read' >&2; exit 1")
    with pytest.raises(RunError, match=r"export of .*rank0\.nsys-rep failed \(exit code 1: cannot read\)"):
        export_sqlite(report)
    write(stub, "trap '' INT TERM\necho $$ > \"$STUB/pid\"\nsleep 1000")
    with pytest.raises(RunError, match=r"took longer than 0\.2 s"):
        export_sqlite(report, timeout_s=0.2)
    assert not group_alive(int((stub / "pid").read_text()))
