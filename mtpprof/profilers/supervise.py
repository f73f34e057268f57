"""Runs an engine's process to its end, whatever the end is: follows its events, watches it, stops it, cleans up after it.

Whoever calls gets either a normal return or one sentence about what failed; afterwards no process and no shared-memory segment of the
run is left.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from mtpprof.errors import MtpprofError, RunError
from mtpprof.profilers import lifetime, watchdog
from mtpprof.profilers.process import Command
from mtpprof.rundir import logs
from mtpprof.rundir.directory import WORKER_FAILED, RunDirectory
from mtpprof.rundir.follow import EventFollower
from mtpprof.rundir.records import RunRecord

POLL_S = 0.1
STOP_GRACE_S = 3.0
STALL_MARGIN_S = 30.0
"""Workers' own watchdogs come first; this one is for a launcher that hangs."""
FAILURE_GRACE_S = 2.0
FULL_BYTES = 1_000_000
EMPTY_LOG = "its log is empty"
PEER_IS_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "did not arrive")
"""What a healthy rank says of one that has died (gloo, and our own transport)."""

OnEvent = Callable[[dict[str, Any]], None]


def supervise(command: Command, run: RunRecord, directory: RunDirectory, on_event: OnEvent) -> None:
    """Start `command`, pass on the run's new events until it ends.

    Raises:
        RunError: it failed, or hung.
        KeyboardInterrupt: a signal asked for the end (`orderly_signals`).
        MissingEnvironmentError: the engine could not be started.
    """
    follower = EventFollower(directory, from_end=True)
    directory.launcher_log.parent.mkdir(parents=True, exist_ok=True)
    segments = lifetime.segments(command.leftovers)
    failures: list[dict[str, Any]] = []
    with directory.launcher_log.open("ab") as log:
        process = subprocess.Popen(
            command.argv,
            env=command.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            last_s = time.monotonic()
            while True:
                ended = process.poll() is not None
                for event in follower.new():
                    last_s = time.monotonic()
                    if event.get("event") == WORKER_FAILED:
                        failures.append(event)
                    on_event(event)
                quiet_s = time.monotonic() - last_s
                # A rank has failed: the launcher may say more (which one was killed), but it may also wait for a rank that hangs.
                if ended or (failures and quiet_s > FAILURE_GRACE_S):
                    break
                if quiet_s > run.timeout_s + STALL_MARGIN_S:
                    raise RunError(
                        f"{directory.root}: no progress for {run.timeout_s + STALL_MARGIN_S:.0f} s; the run was ended. "
                        f"See {directory.launcher_log}, or raise --timeout."
                    )
                time.sleep(POLL_S)
        finally:
            lifetime.end_group(process, STOP_GRACE_S)
            lifetime.remove_segments(command.shared_memory_prefix)
            lifetime.remove_leftovers(command.leftovers, segments)
            for folder in command.scratch:
                shutil.rmtree(folder, ignore_errors=True)
    if process.returncode or failures:
        raise describe_failure(root_cause(failures), directory, process.returncode)


def root_cause(failures: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The failure that came first in substance: a killed rank, then the first that does not complain about its peers."""

    def rank(failure: dict[str, Any]) -> tuple[bool, bool]:
        message = str(failure.get("message"))
        return not failure.get("signal"), any(words in message for words in PEER_IS_GONE)

    return min(failures, key=rank, default=None)


def describe_failure(
    failure: dict[str, Any] | None, directory: RunDirectory, returncode: int
) -> MtpprofError:
    """One sentence on why the engine's process ended, from the launcher's report and the logs."""
    if failure is None:
        if shutil.disk_usage(directory.root).free < FULL_BYTES:
            return RunError(
                f"{directory.root}: no space left on the device; make room and go on with --resume."
            )
        if returncode < 0:
            name = signal.Signals(-returncode).name
            hint = " (was memory short?)" if returncode == -signal.SIGKILL else ""
            return RunError(f"the launcher was killed by {name}{hint}; see {directory.launcher_log}.")
        tail = logs.last_line(directory.launcher_log) or EMPTY_LOG
        return RunError(
            f"the launcher ended with status {returncode} ({tail}); see {directory.launcher_log}."
        )
    rank, log = int(failure["rank"]), directory.log(int(failure["rank"]))
    message = str(failure.get("message") or "")
    name, _, text = message.partition(": ")
    if failure.get("signal"):
        reason = f"was killed by {failure['signal']}"
    elif watchdog.MARK in logs.tail(log):
        reason = "made no progress within --timeout and was ended, its stack is in its log"
    elif name in ("RunError", "MissingEnvironmentError", "UsageError", "InputError"):
        return RunError(text)
    elif name == "OSError":
        reason = f"could not write its results ({text})"
    elif message and "error-file: <N/A>" not in message:
        reason = f"failed with {message.splitlines()[0]}"
    else:
        reason = f"ended with status {failure.get('exit_code')} ({logs.last_line(log) or EMPTY_LOG})"
    return RunError(f"rank {rank} {reason}; see {log}.")


@contextlib.contextmanager
def orderly_signals() -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt; further ones are ignored, so that what it starts (ending the workers,
    marking the run) is not cut short. It is bounded in time.
    """
    asked = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:
            asked = True
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
