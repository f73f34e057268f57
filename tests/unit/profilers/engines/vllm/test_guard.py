"""What the driver says when vLLM dies, hangs or fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtpprof.profilers.engines.vllm.guard import Guard, root_cause
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.follow import EventFollower

LOG = """\
(Worker_TP0 pid=7) WARNING 11-29 14:40:13 [base.py:380] ValueError: a warning that quotes an error
(Worker_TP1 pid=8) ERROR 11-29 14:40:14 [multiproc_executor.py:999] Traceback (most recent call last):
(Worker_TP1 pid=8) ERROR 11-29 14:40:14 [multiproc_executor.py:999] torch.OutOfMemoryError: CUDA out of memory.
(EngineCore pid=6) ERROR 11-29 14:40:15 [core.py:1] RuntimeError: Worker failed with error 'x', see the root cause above
(EngineCore pid=6) INFO 11-29 14:40:16 [core.py:2] shutting down
"""


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "logs").mkdir()
    return RunDirectory(tmp_path)


@pytest.fixture
def guard(directory: RunDirectory) -> Iterator[Guard]:
    made = Guard(directory, 60.0)
    yield made
    made.stop()


def messages(directory: RunDirectory) -> list[Any]:
    return [event["message"] for event in EventFollower(directory).new() if event["event"] == "worker_failed"]


def test_the_cause_is_the_last_error_that_does_not_point_to_another(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    assert root_cause(tmp_path / "log") == "torch.OutOfMemoryError: CUDA out of memory."


def test_a_log_without_errors_has_no_cause(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG.splitlines()[0])
    assert root_cause(tmp_path / "log") is None
    assert root_cause(tmp_path / "none") is None


def test_an_error_of_vllm_is_told_with_what_its_log_said(guard: Guard, directory: RunDirectory) -> None:
    directory.launcher_log.write_text(LOG)
    guard.feed("c/baseline: round 0")
    text = guard.describe(RuntimeError("Executor failed."))
    assert text.startswith("vLLM failed while c/baseline: round 0: torch.OutOfMemoryError: ")
    assert "CUDA out of memory" in text
    assert str(directory.launcher_log) in text


def test_what_a_worker_printed_goes_before_the_launchers_log(guard: Guard, directory: RunDirectory) -> None:
    directory.launcher_log.write_text(LOG)
    quiet, telling = directory.root / "rank0.log", directory.root / "rank1.log"
    quiet.write_text("fine\n")
    telling.write_text("ERROR ValueError: no such block\nValueError: no such block\n")
    guard.logs = [quiet, telling]
    assert f"ValueError: no such block; see {telling}" in guard.describe(RuntimeError("Worker failed"))


def test_an_error_that_the_log_does_not_know_is_told_by_its_own_words(guard: Guard) -> None:
    assert "RuntimeError: first line;" in guard.describe(RuntimeError("first line\nsecond"))
    assert "AssertionError: ;" in guard.describe(AssertionError())


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        ((None, -signal.SIGKILL), "rank 1: vLLM's worker was killed by SIGKILL"),
        ((-signal.SIGTERM, -signal.SIGABRT), "rank 1: vLLM's worker was killed by SIGABRT"),
        ((-signal.SIGTERM, 3), "rank 1: vLLM's worker ended with status 3"),
        ((0, -signal.SIGTERM), "rank 1: vLLM's worker was killed by SIGTERM"),
    ],
)
def test_of_dead_workers_the_one_that_was_not_ended_by_vllm_is_named(
    guard: Guard, codes: tuple[int | None, ...], text: str
) -> None:
    guard.watch([SimpleNamespace(exitcode=code) for code in codes])
    assert guard.describe(RuntimeError("x")).startswith(text)


def test_only_the_first_word_counts(guard: Guard, directory: RunDirectory) -> None:
    guard.report("first")
    guard.report("second")
    assert messages(directory) == ["first"]


PROGRAM = """
import sys, time
from pathlib import Path
from multiprocessing import Process
from mtpprof.profilers.engines.vllm import guard as module
from mtpprof.profilers.engines.vllm.guard import Guard
from mtpprof.rundir.directory import RunDirectory
module.DEATH_GRACE_S = 0.2
guard = Guard(RunDirectory(Path(sys.argv[1])), float(sys.argv[2]))
if sys.argv[3] == "worker":
    worker = Process(target=time.sleep, args=(60,), daemon=True)
    worker.start()
    guard.watch([worker])
    guard.feed("x/baseline: round 1")
    print(worker.pid, flush=True)
if sys.argv[3] == "patient":
    with guard.patience("starting vLLM", 1.5):
        time.sleep(1.0)
    print("survived", flush=True)
time.sleep(30)
"""


def run_guarded(directory: RunDirectory, timeout_s: float, what: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM, str(directory.root), str(timeout_s), what]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_worker_that_is_killed_ends_the_driver_and_is_named(directory: RunDirectory) -> None:
    driver = run_guarded(directory, 60, "worker")
    assert driver.stdout is not None
    os.kill(int(driver.stdout.readline()), signal.SIGKILL)
    driver.communicate(timeout=15)
    assert driver.returncode == 1
    (message,) = messages(directory)
    assert message.startswith(
        "RunError: rank 0: vLLM's worker was killed by SIGKILL while x/baseline: round 1"
    )


def test_no_progress_ends_the_driver_with_its_stacks_and_the_logs_last_words(directory: RunDirectory) -> None:
    directory.launcher_log.write_text("loading\nwaiting for a peer\n")
    driver = run_guarded(directory, 0.5, "hang")
    _, err = driver.communicate(timeout=15)
    assert driver.returncode == 1
    (message,) = messages(directory)
    assert "no progress for 0.5 s while starting" in message
    assert "'waiting for a peer'" in message
    assert "Thread 0x" in err or "Current thread" in err


def test_what_may_take_long_has_its_own_limit(directory: RunDirectory) -> None:
    driver = run_guarded(directory, 0.5, "patient")
    out, _ = driver.communicate(timeout=15)
    assert out == "survived\n"
    assert "no progress for 0.5 s" in messages(directory)[0]


def test_a_guard_that_is_fed_stays_quiet(guard: Guard, directory: RunDirectory) -> None:
    idle = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    guard.watch([idle])
    time.sleep(0.6)
    assert messages(directory) == []
