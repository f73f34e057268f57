"""Supervision of a child: its failures become one sentence, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from mtpprof.errors import RunError
from mtpprof.models.reference.collectives.shm_limits import SHM_DIR
from mtpprof.profilers import supervise as supervision
from mtpprof.profilers.lifetime import group_alive
from mtpprof.profilers.process import Command
from mtpprof.profilers.supervise import describe_failure, orderly_signals, root_cause, supervise
from mtpprof.rundir.directory import SCHEMA_VERSION, RunDirectory
from mtpprof.rundir.records import RunRecord


def record(timeout_s: float = 30.0) -> RunRecord:
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        id="test",
        name="test",
        mtpprof_version="0",
        created_utc="",
        argv=[],
        status="running",
        engine="reference",
        engine_reason="",
        device="cpu",
        transport="shm",
        seed=0,
        steps=1,
        warmup=0,
        rounds=1,
        profile_steps=1,
        timeout_s=timeout_s,
        acceptance_length=None,
        machine={},
        versions={},
        cases=[],
    )


def child(script: str, prefix: str = "") -> Command:
    return Command(
        argv=(sys.executable, "-c", textwrap.dedent(script)),
        environment=dict(os.environ),
        shared_memory_prefix=prefix,
    )


def run_child(
    script: str, folder: Path, *, prefix: str = "", timeout_s: float = 30.0
) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    supervise(child(script, prefix), record(timeout_s), RunDirectory(folder), seen.append)
    return seen


def test_events_are_passed_on_up_to_the_last(tmp_path: Path) -> None:
    script = f"""
        from pathlib import Path
        from mtpprof.rundir.directory import RunDirectory
        for index in range(20):
            RunDirectory(Path({str(tmp_path)!r})).append_event("tick", index=index)
    """
    assert [event["index"] for event in run_child(script, tmp_path)] == list(range(20))


def test_a_killed_launcher_is_said_to_be_killed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"killed by SIGKILL \(was memory short\?\)"):
        run_child("import os; os.kill(os.getpid(), 9)", tmp_path)


def test_a_child_that_fails_is_described_by_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"status 3 \(out of cheese\).*launcher\.log"):
        run_child("import sys; print('out of cheese'); sys.exit(3)", tmp_path)


def test_a_child_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "STALL_MARGIN_S", 0.0)
    marker = tmp_path / "pid"
    script = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    with pytest.raises(RunError, match="no progress for 3 s; the run was ended"):
        run_child(script, tmp_path, timeout_s=3.0)
    assert not group_alive(int(marker.read_text()))


@pytest.mark.parametrize(
    ("event", "log", "said"),
    [
        ({"rank": 2, "signal": "SIGKILL", "exit_code": -9}, "", "rank 2 was killed by SIGKILL"),
        (
            {"rank": 1, "exit_code": 1, "message": "RunError: rank 3 did not arrive"},
            "",
            "rank 3 did not arrive",
        ),
        (
            {"rank": 1, "exit_code": 1, "message": ""},
            "Timeout (0:00:05)!\nThread 0x",
            "no progress within --timeout",
        ),
        (
            {"rank": 0, "exit_code": 1, "message": "OSError: [Errno 28] No space left on device"},
            "",
            "could not write its results",
        ),
        ({"rank": 0, "exit_code": 1, "message": "KeyError: 'x'"}, "", "rank 0 failed with KeyError: 'x'"),
        ({"rank": 0, "exit_code": 7, "message": ""}, "Bus error\n", r"ended with status 7 \(Bus error\)"),
    ],
)
def test_worker_failures_name_the_rank_and_the_reason(
    tmp_path: Path, event: dict[str, Any], log: str, said: str
) -> None:
    directory = RunDirectory(tmp_path)
    path = directory.log(event["rank"])
    path.parent.mkdir(parents=True)
    path.write_text(log)
    with pytest.raises(RunError, match=said):
        raise describe_failure(event, directory, 1)


def test_the_root_cause_is_the_killed_rank_then_whoever_does_not_blame_a_peer() -> None:
    peer = {"rank": 0, "message": "RuntimeError: Connection closed by peer [127.0.0.1]:3", "signal": None}
    own = {"rank": 1, "message": "ValueError: bad", "signal": None}
    killed = {"rank": 2, "message": "", "signal": "SIGKILL"}
    assert root_cause([]) is None
    assert root_cause([peer]) is peer
    assert root_cause([peer, own]) is own
    assert root_cause([peer, own, killed]) is killed


def test_a_rank_that_failed_ends_the_run_though_another_hangs(tmp_path: Path) -> None:
    script = f"""
        import time
        from pathlib import Path
        from mtpprof.rundir.directory import WORKER_FAILED, RunDirectory
        RunDirectory(Path({str(tmp_path)!r})).append_event(
            WORKER_FAILED, rank=0, exit_code=1, signal=None, message="RunError: rank 1 did not arrive"
        )
        time.sleep(99)
    """
    with pytest.raises(RunError, match="rank 1 did not arrive"):
        run_child(script, tmp_path)


def test_a_silent_child_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtpprof.profilers.supervise.STALL_MARGIN_S", 0.5)
    with pytest.raises(RunError, match="no progress"):
        run_child("import time; time.sleep(60)", tmp_path, timeout_s=0.5)


STUBBORN = """
    import os, signal, subprocess, sys, time
    from pathlib import Path
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"])
    Path({marker!r}).write_text(str(os.getpgrp()))
    Path({segment!r}).write_bytes(b"x")
    time.sleep(99)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_whole_group_and_its_shared_memory(tmp_path: Path, number: int) -> None:
    marker, segment = tmp_path / "group", SHM_DIR / f"mtpprof-test-{os.getpid()}-x"
    script = STUBBORN.format(marker=str(marker), segment=str(segment))
    poker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os, time, pathlib\nwhile not pathlib.Path({str(segment)!r}).exists(): time.sleep(0.05)\n"
            f"time.sleep(0.2)\nfor _ in range(5): os.kill({os.getpid()}, {int(number)}); time.sleep(0.1)",
        ]
    )
    with orderly_signals(), pytest.raises(KeyboardInterrupt):
        run_child(script, tmp_path, prefix=f"mtpprof-test-{os.getpid()}-")
    poker.wait()
    assert not group_alive(int(marker.read_text()))
    assert not segment.exists()
