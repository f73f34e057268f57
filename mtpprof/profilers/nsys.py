"""Nsight Systems, where it is installed: the command line for a worker, and the export that we read.

The decision: nsys and torch's profiler exclude each other, since CUPTI takes one subscriber, so asking for both is refused
before anything starts. A run has one nsys a host, which is supervised as the engine's launcher is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from mtpprof.errors import MissingEnvironmentError, RunError, UsageError
from mtpprof.profilers.lifetime import end_group

PROGRAM = "nsys"
REPORT_SUFFIX = ".nsys-rep"
SQLITE_SUFFIX = ".sqlite"
KILL_GRACE_S = 5.0
EXPORT_TIMEOUT_S = 600.0
ENVIRONMENT = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
"""Names of ranges that were not registered can start a capture only with this."""
_TAIL_BYTES = 300


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


def nsys_command(nsys: str, command: Sequence[str], *, output: Path, window: str) -> list[str]:
    """The command line that runs `command` under nsys.

    Args:
        nsys: path of the program.
        command: what to run.
        output: of the reports, without number and suffix.
        window: the range, `name@domain`, each of whose occurrences is recorded in a report of its own.
    """
    return [
        nsys,
        "profile",
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",  # every kernel of a replayed graph has its own row; by graph no collective can be told apart
        "--sample=none",
        "--cpuctxsw=none",
        "--trace-fork-before-exec=true",
        "--force-overwrite=true",
        f"--output={output}",
        "--capture-range=nvtx",
        "--capture-range-end=repeat",
        f"--nvtx-capture={window}",
        *command,
    ]


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
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, process_group=0)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise RunError(
                f"nsys export of {report} took longer than {timeout_s:g} s; record fewer steps."
            ) from error
        finally:
            end_group(process, KILL_GRACE_S)
        size = os.fstat(log.fileno()).st_size
        said = os.pread(log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
    if code != 0 or not database.is_file():
        raise RunError(
            f"nsys export of {report} failed ({_reason(code, said)}); export it with the nsys that wrote it."
        )
    return database


def _reason(code: int, said: str) -> str:
    lines = said.strip().splitlines()
    return f"exit code {code}: {lines[-1].strip()}" if lines else f"exit code {code}"
