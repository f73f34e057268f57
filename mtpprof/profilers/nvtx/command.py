"""Runs any command under the injection: in a process group of its own, as a shell would, with its exit code.

The decision: on a terminal the command gets the foreground, so that it can read it and gets Ctrl-C itself; elsewhere the
signals that we are sent are passed on. A second Ctrl-C, or one that is not obeyed, ends the whole group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import IO

from mtpprof.errors import UsageError

GRACE_S = 5.0
"""From the first passed-on signal to SIGTERM for the group, and from there to SIGKILL."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNALLED = 128


def run_command(
    command: Sequence[str], *, environment: Mapping[str, str], stdout: IO[bytes] | int | None = None
) -> int:
    """Run `command` to its end.

    Args:
        command: Program and arguments.
        environment: Added to our own.
        stdout: Where its output goes; None: where ours goes.

    Returns:
        Its exit code; 128 + the signal's number where a signal ended it, as shells have it.

    Raises:
        UsageError: the program does not exist or cannot be started.
    """
    try:
        child = subprocess.Popen(command, env={**os.environ, **environment}, stdout=stdout, process_group=0)
    except FileNotFoundError as error:
        raise UsageError(f"{command[0]}: no such program; check the command after `--`.") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{command[0]} cannot be started: {error}; check the command after `--`.") from error
    with _foreground(child.pid), _signals_passed_on(child):
        code = child.wait()
    return code if code >= 0 else SIGNALLED - code


@contextlib.contextmanager
def _signals_passed_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals to the child's group; then SIGTERM after a grace, then SIGKILL, by our own alarm clock."""
    escalation = iter((signal.SIGTERM, signal.SIGKILL))
    sent = 0

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal sent
        sent += 1
        send(number if sent == 1 else next(escalation, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    def on_alarm(number: int, frame: FrameType | None) -> None:
        send(next(escalation, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    before = {number: signal.signal(number, on_signal) for number in PASSED_ON}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, on_alarm)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        if sent:
            send(signal.SIGKILL)  # the leader is gone; whatever it left behind goes too


@contextlib.contextmanager
def _foreground(group: int) -> Iterator[None]:
    """Hand the terminal to a process group meanwhile, where we have one and are in its foreground."""
    try:
        terminal = sys.stdin.fileno()
        ours = os.tcgetpgrp(terminal)
    except (OSError, ValueError, AttributeError):
        yield
        return
    if ours != os.getpgrp():
        yield
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else taking the terminal back would stop us
    try:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(terminal, group)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(terminal, ours)
        signal.signal(signal.SIGTTOU, before)
