"""What records the profiled windows of a run: torch's profiler, NVTX, or Nsight Systems; and its set-up by the environment.

    torch   every rank's trace, by torch's profiler
    nvtx    the NVTX of every process of the run, by mtpprof's own library; beside torch's
    nsys    everything, by Nsight Systems, in place of both

The decision: NVTX is recorded per process and not per window. A communicator's size is told once, when it is made, and
NCCL's payloads need it; who reads cuts the window out by time. Ranges of ours are emitted in profiled windows only, so that timed
windows record nothing of them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mtpprof.errors import MissingEnvironmentError, RunError, UsageError
from mtpprof.profilers import nsys
from mtpprof.profilers.annotate import NVTX_DOMAIN
from mtpprof.profilers.nvtx import capture_environment
from mtpprof.profilers.process import Command, Nodes
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.records import RunRecord

TORCH, NVTX, NSYS = "torch", "nvtx", "nsys"
CHOICES = (TORCH, NVTX, NSYS)
NSYS_WINDOW = "mtpprof-window"
"""NVTX range of one process of a host around each profiled window: Nsight Systems records while it is open."""


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
    nsys.check_exclusive(capture)
    if NSYS in capture:
        nsys.find_nsys()
    if capture == (NVTX,):
        raise UsageError("--capture nvtx: a run needs torch's trace beside it; ask for torch,nvtx.")
    if NVTX in capture:
        capture_environment(Path())
    return Recording(capture=capture)


def recorded(command: Command, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> Command:
    """`command` so that its processes record what the run asks for.

    Raises:
        MissingEnvironmentError: the capture library, or nsys, is not to be had here.
        UsageError: another NVTX tool is attached to this environment already.
        OSError: the folder of the captures cannot be made.
    """
    if NSYS in run.capture:
        return _under_nsys(command, run, directory, nodes)
    if NVTX not in run.capture:
        return command
    directory.nvtx.mkdir(parents=True, exist_ok=True)
    variables = capture_environment(directory.nvtx, inherited=command.environment)
    return replace(command, environment={**command.environment, **variables})


def _under_nsys(command: Command, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> Command:
    """One nsys for all processes of this host, with a report for every profiled window."""
    output = _reports(run, directory, nodes)
    output.parent.mkdir(parents=True, exist_ok=True)
    argv = nsys.nsys_command(
        nsys.find_nsys(), command.argv, output=output, window=f"{NSYS_WINDOW}@{NVTX_DOMAIN}"
    )
    return replace(command, argv=tuple(argv), environment={**command.environment, **nsys.ENVIRONMENT})


@contextlib.contextmanager
def nsys_window() -> Iterator[None]:
    """While this is open, Nsight Systems records all processes of this host; one of them opens it."""
    import nvtx

    with nvtx.annotate(NSYS_WINDOW, domain=NVTX_DOMAIN):
        yield


@contextlib.contextmanager
def recorded_by_nsys(barrier: Callable[[], object]) -> Iterator[None]:
    """A profiled window on a rank: the first rank of the host opens it, and it closes when all are done.

    Args:
        barrier: Returns when all ranks have called it.
    """
    with nsys_window() if os.environ["LOCAL_RANK"] == "0" else contextlib.nullcontext():
        barrier()
        yield
        barrier()


def keep_reports(
    run: RunRecord, directory: RunDirectory, nodes: Nodes, windows: Sequence[tuple[str, str]]
) -> None:
    """Export this host's reports of Nsight Systems into the folders of their arms.

    Args:
        run: The run.
        directory: Its directory.
        nodes: Which host this is.
        windows: Case and arm of each profiled window, in the order in which they were recorded.

    Raises:
        RunError: there are fewer or more reports than windows, or one cannot be exported.
        MissingEnvironmentError: nsys is gone from the PATH.
    """
    output = _reports(run, directory, nodes)
    reports = sorted(output.parent.glob(f"{output.name}*{nsys.REPORT_SUFFIX}"), key=_number)
    if len(reports) != len(windows):
        raise RunError(
            f"{output.parent}: nsys left {len(reports)} reports of {len(windows)} profiled windows; "
            f"see {directory.launcher_log} for what it said."
        )
    for (case, arm), report in zip(windows, reports, strict=True):
        database = nsys.export_sqlite(report)
        database.replace(directory.nsys_database(case, arm, nodes.rank))


def _reports(run: RunRecord, directory: RunDirectory, nodes: Nodes) -> Path:
    """Reports of this host without number and suffix; a resumed run has another id, so that none is taken for a later one."""
    return directory.root / NSYS / f"host{nodes.rank}-{run.id}"


def _number(report: Path) -> tuple[int, str]:
    """Place of a report: of repeated ranges they end in a number, `x.2` or `x2` by the version of nsys; a single one may have none."""
    digits = re.search(r"(\d+)$", report.name.removesuffix(nsys.REPORT_SUFFIX))
    return (int(digits[1]) if digits else 0), report.name
