"""Nsight Systems, where it is installed: the command line for a worker, its running, and the export that we read.

The decision: nsys and torch's profiler exclude each other, since CUPTI takes one subscriber, so asking for both is refused
before anything starts. Time limits are obeyed gently: nsys that is killed leaves a `.qdstrm` that nobody can convert, so it
is interrupted and given time to write its report first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtpprof.errors import MissingEnvironmentError, RunError, UsageError
from mtpprof.profilers.lifetime import end_group

PROGRAM = "nsys"
REPORT_SUFFIX = ".nsys-rep"
UNFINISHED_SUFFIX = ".qdstrm"
SQLITE_SUFFIX = ".sqlite"
FINISH_S = 60.0
"""For nsys to write its report once it was interrupted."""
KILL_GRACE_S = 5.0
EXPORT_TIMEOUT_S = 600.0
ENVIRONMENT = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
"""Names of ranges that were not registered can start a capture only with this."""
_TAIL_BYTES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysOptions:
    """How a command is recorded."""

    output: Path
    """Report without its suffix."""
    trace: tuple[str, ...] = ("cuda", "nvtx")
    """`cuda-sw` in place of `cuda` where hardware tracing wedges the driver."""
    cuda_graph_trace: str = "node"
    """`node`: every kernel of a replayed graph has its own row; `graph`: cheaper, and no collective can be told apart."""
    capture_range: str | None = "cudaProfilerApi"
    """What starts the recording: `cudaProfilerApi`, `nvtx`, or None: the start of the command."""
    nvtx_capture: str | None = None
    """With `nvtx`, the range that starts it, `name@domain`."""
    capture_range_end: str = "stop"
    """`stop`: the first such range only; `repeat`: every one of them, with a report each."""


def check_exclusive(captures: Collection[str]) -> None:
    """Refuse captures that cannot run together.

    Raises:
        UsageError: nsys with torch or with nvtx.
    """
    if "nsys" not in captures:
        return
    if "torch" in captures:
        raise UsageError(
            "--capture nsys and torch cannot run together, since both need CUPTI and it takes one; choose one of them."
        )
    if "nvtx" in captures:
        raise UsageError(
            "--capture nsys and nvtx cannot run together, since NVTX takes one tool and nsys records NVTX itself; "
            "drop nvtx."
        )


def find_nsys() -> str:
    """Path of nsys.

    Raises:
        MissingEnvironmentError: it is not on the PATH.
    """
    found = shutil.which(PROGRAM)
    if found is None:
        raise MissingEnvironmentError(
            "--capture nsys needs Nsight Systems and no nsys is on the PATH; install it or capture with torch,nvtx."
        )
    return found


def nsys_command(nsys: str, command: Sequence[str], options: NsysOptions) -> list[str]:
    """The command line that runs `command` under nsys."""
    words = [
        nsys,
        "profile",
        f"--trace={','.join(options.trace)}",
        f"--cuda-graph-trace={options.cuda_graph_trace}",
        "--sample=none",
        "--cpuctxsw=none",
        "--trace-fork-before-exec=true",
        "--force-overwrite=true",
        f"--output={options.output}",
    ]
    if options.capture_range is not None:
        words += [
            f"--capture-range={options.capture_range}",
            f"--capture-range-end={options.capture_range_end}",
        ]
    if options.nvtx_capture is not None:
        words.append(f"--nvtx-capture={options.nvtx_capture}")
    return [*words, *command]


def record(
    command: Sequence[str],
    options: NsysOptions,
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    finish_s: float = FINISH_S,
) -> Path:
    """Run `command` under nsys to its end; returns the report.

    Raises:
        MissingEnvironmentError: nsys is not on the PATH.
        RunError: it failed, left no report, or took longer than `timeout_s`.
    """
    variables = {**ENVIRONMENT, **(environment or {})}
    words = nsys_command(find_nsys(), command, options)
    code, said = _run(words, variables, timeout_s=timeout_s, finish_s=finish_s)
    if code is None:
        raise RunError(
            f"nsys ({options.output}) took longer than {timeout_s:g} s and was stopped; "
            f"record fewer steps or raise --timeout."
        )
    return _check_report(options.output, code, said)


def export_sqlite(report: Path, *, timeout_s: float = EXPORT_TIMEOUT_S) -> Path:
    """Export a report to the SQLite database that `mtpprof analyze` reads; returns the database.

    Raises:
        MissingEnvironmentError: nsys is not on the PATH.
        RunError: the export failed or took longer than `timeout_s`.
    """
    database = report.with_suffix(SQLITE_SUFFIX)
    words = [
        find_nsys(),
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        f"--output={database}",
        str(report),
    ]
    code, said = _run(words, {}, timeout_s=timeout_s, finish_s=0)
    if code is None:
        raise RunError(f"nsys export of {report} took longer than {timeout_s:g} s; record fewer steps.")
    if code != 0 or not database.is_file():
        raise RunError(
            f"nsys export of {report} failed ({_reason(code, said)}); export it with the nsys that wrote it."
        )
    return database


def _run(
    words: Sequence[str], variables: Mapping[str, str], *, timeout_s: float, finish_s: float
) -> tuple[int | None, str]:
    """Exit code and last words; None: it took too long and was ended, with its whole group, after `finish_s` to finish."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            words, env={**os.environ, **variables}, stdout=log, stderr=log, process_group=0
        )
        code: int | None = None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(finish_s)
        finally:
            end_group(process, KILL_GRACE_S)
        size = os.fstat(log.fileno()).st_size
        said = os.pread(log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    return code, said.decode(errors="replace")


def _check_report(output: Path, code: int, said: str) -> Path:
    report = output.with_name(output.name + REPORT_SUFFIX)
    if code != 0:
        raise RunError(f"nsys ({output}) failed ({_reason(code, said)}); see its words and the command's.")
    if report.is_file():
        return report
    if output.with_name(output.name + UNFINISHED_SUFFIX).is_file():
        raise RunError(
            f"nsys left {output}{UNFINISHED_SUFFIX}, which it did not finish and nothing can read; record again "
            f"and let it end by itself."
        )
    raise RunError(
        f"nsys ran and left no report {report}; the capture range never began, or the disk is full "
        f"({_reason(code, said)})."
    )


def _reason(code: int, said: str) -> str:
    lines = said.strip().splitlines()
    return f"exit code {code}: {lines[-1].strip()}" if lines else f"exit code {code}"
