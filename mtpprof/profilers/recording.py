"""What records the profiled windows of a run: torch's profiler, NVTX, or Nsight Systems; and its set-up by the environment.

    torch   every rank's trace, by torch's profiler
    nvtx    the NVTX of every process of the run, by mtpprof's own library; beside torch's
    nsys    everything, by Nsight Systems, in place of both

The decision: NVTX is recorded per process and not per window. A communicator's size is told once, when it is made, and
NCCL's payloads need it; who reads cuts the window out by time. Ranges of ours are emitted in profiled windows only, so that timed
windows record nothing of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mtpprof.errors import MissingEnvironmentError, UsageError
from mtpprof.profilers.engines.base import Command
from mtpprof.profilers.nsys import check_exclusive
from mtpprof.profilers.nvtx import capture_environment
from mtpprof.rundir import RunDirectory, RunRecord

TORCH, NVTX, NSYS = "torch", "nvtx", "nsys"
CHOICES = (TORCH, NVTX, NSYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What will record."""

    capture: tuple[str, ...]
    without: str = ""
    """Why NVTX is not among it although nothing else was asked for; empty: it is, or was not wanted."""


def choose_recording(asked: str | None) -> Recording:
    """What records, from the text of `--capture`; None: torch and, where it can be built, NVTX.

    Raises:
        UsageError: no such capture, captures that exclude each other, or another NVTX tool is attached.
        MissingEnvironmentError: one that was asked for is not to be had here.
    """
    if asked is None:
        try:
            capture_environment(Path())
        except (MissingEnvironmentError, UsageError) as error:
            return Recording(capture=(TORCH,), without=f"torch's profiler records alone: {error}")
        return Recording(capture=(TORCH, NVTX))
    capture = tuple(dict.fromkeys(word.strip() for word in asked.split(",")))
    for word in capture:
        if word not in CHOICES:
            raise UsageError(f"--capture {asked}: choose from {', '.join(CHOICES)}, or torch,nvtx.")
    check_exclusive(capture)
    if capture == (NVTX,):
        raise UsageError("--capture nvtx: a run needs torch's trace beside it; ask for torch,nvtx.")
    if NVTX in capture:
        capture_environment(Path())
    return Recording(capture=capture)


def recorded(command: Command, run: RunRecord, directory: RunDirectory) -> Command:
    """`command` so that its processes record what the run asks for.

    Raises:
        MissingEnvironmentError: the capture library is not to be had here.
        UsageError: another NVTX tool is attached to this environment already.
        OSError: the folder of the captures cannot be made.
    """
    if NVTX not in run.capture:
        return command
    directory.nvtx.mkdir(parents=True, exist_ok=True)
    variables = capture_environment(directory.nvtx, inherited=command.environment)
    return replace(command, environment={**command.environment, **variables})
