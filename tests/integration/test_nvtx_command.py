"""`mtpprof nvtx -- COMMAND…` as a user runs it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtpprof.errors import MissingEnvironmentError
from mtpprof.profilers.nvtx import injection_library, loaded_files

PROGRAM = """
import nvtx, subprocess, sys
for _ in range(3):
    with nvtx.annotate("outer"):
        with nvtx.annotate("inner", domain="other"):
            nvtx.mark("mark")
print("the program's own words", sys.argv[1:])
if sys.argv[1:] == ["parent"]:
    subprocess.run([sys.executable, __file__, "child"], check=True)
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def _buildable() -> None:
    try:
        injection_library()
    except MissingEnvironmentError as error:
        pytest.skip(f"cannot build the NVTX injection here: {error}")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "mtpprof", "nvtx", *map(str, words)]


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


def test_table_trace_raw_files_and_exit_code(script: Path, tmp_path: Path) -> None:
    trace, raw = tmp_path / "trace.json.gz", tmp_path / "raw"
    done = run("-o", trace, "--keep", raw, "--", sys.executable, script, "--debug", "-o", "x")
    assert done.returncode == 7
    assert "the program's own words ['--debug', '-o', 'x']" in done.stdout
    assert "NVTX of 1 process " in done.stdout
    assert "other" in done.stdout
    assert "3 marks" in done.stdout
    assert f"9 ranges and marks written to {trace}" in done.stderr
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event["ph"] != "M" for event in events) == 9
    assert len(loaded_files(raw)) == 1


def test_json_is_data_alone_and_children_are_recorded(script: Path) -> None:
    done = run("--format", "json", sys.executable, script, "child")
    assert done.returncode == 7
    result = json.loads(done.stdout)
    assert "the program's own words" in done.stderr
    counts = {(row["domain"], row["name"]): row["count"] for row in result["ranges"]}
    assert counts == {("", "outer"): 3, ("other", "inner"): 3, ("", "mark"): 3}
    assert [process["closed"] for process in result["processes"]] == [True]


def test_children_are_recorded(script: Path) -> None:
    done = run("--format", "csv", "--", sys.executable, script, "parent")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(done.stdout))}
    assert rows["outer"]["count"] == "6"
    assert int(rows["outer"]["min_ns"]) <= float(rows["outer"]["mean_ns"]) <= int(rows["outer"]["max_ns"])
    assert rows["mark"]["kind"] == "mark"
    assert rows["mark"]["total_ns"] == ""


def test_a_program_without_nvtx_is_said() -> None:
    done = run("--", "true")
    assert (done.returncode, done.stdout) == (0, "")
    assert "No process of the command loaded the NVTX library" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--", "nosuchprogram"), 2, "nosuchprogram: no such program"),
        (("-o", "missing/folder/x.json", "--", "true"), 2, "there is no folder"),
        (("--keep", "/proc/x", "--", "true"), 2, "--keep /proc/x cannot be created"),
        (("--", "sh", "-c", "kill -TERM $$"), 128 + signal.SIGTERM, ""),
    ],
)
def test_exit_codes_and_sentences(words: tuple[str, ...], code: int, sentence: str) -> None:
    done = run(*words)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_compiler_it_says_what_is_missing(tmp_path: Path) -> None:
    done = run("--", "true", PATH="/nonexistent", XDG_CACHE_HOME=str(tmp_path), CC="")
    assert done.returncode == 5
    assert "needs a C compiler" in done.stderr


WAITS = """
import nvtx, signal, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
with nvtx.annotate("waiting"):
    print("ready", flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["obedient", "stubborn"])
def test_an_interrupt_ends_the_command_and_shows_what_there_was(tmp_path: Path, how: str) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    process = subprocess.Popen(
        command("--format", "csv", "--", sys.executable, script, how),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    if how == "stubborn":
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + (signal.SIGINT if how == "obedient" else signal.SIGTERM)
    assert ",waiting,range,1," in out


def test_the_command_has_the_terminal(tmp_path: Path) -> None:
    """It can read from it, and Ctrl-C reaches it: it is in the foreground."""
    script = tmp_path / "reads.py"
    script.write_text("print('got', input())\nprint('again', flush=True)\ninput()\n")
    pid, terminal = pty.fork()
    if pid == 0:
        words = command("--", sys.executable, script)
        os.execv(words[0], words)
    os.write(terminal, b"a line\n")
    assert b"got a line" in _read_until(terminal, b"again")
    os.write(terminal, b"\x03")
    _read_until(terminal, b"KeyboardInterrupt")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (1, 128 + signal.SIGINT)
    os.close(terminal)


def _read_until(terminal: int, wanted: bytes) -> bytes:
    """Everything up to the piece of output that completes `wanted`."""
    seen = b""
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, f"only {seen!r} came"
        seen += os.read(terminal, 4096)
    return seen
