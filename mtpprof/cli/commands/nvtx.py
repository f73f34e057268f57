"""`mtpprof nvtx -- COMMAND…`: the NVTX ranges of any program, without Nsight and without a GPU."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.cli.render.output import Format, Table, stderr_console, write_json, write_tables
from mtpprof.cli.render.units import time_text
from mtpprof.errors import UsageError

if TYPE_CHECKING:
    from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture
    from mtpprof.analyzers.traces.nvtx.summary import RangeSummary

CONTEXT_SETTINGS = {"allow_interspersed_args": False}
"""For the registration of the command: options after the program's name are the program's own."""

ROWS_SHOWN = 50


def nvtx(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Program and its arguments.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Also write a trace for Perfetto (.pftrace, .json, either also .gz).",
        ),
    ] = None,
    style: Annotated[
        Format,
        typer.Option("--format", help="With json, csv and md the command's own output goes to stderr."),
    ] = Format.TABLE,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the raw .nvtx files, one a process, here."),
    ] = None,
    max_mb: Annotated[
        int, typer.Option("--max-mb", min=1, help="Size limit of the record of one process.")
    ] = 1024,
) -> None:
    """Run COMMAND and show its NVTX ranges: count, total, mean, shortest and longest, by domain and name.

    Every process that the command starts is recorded. The exit code is the command's.
    """
    from mtpprof.profilers.nvtx import capture_environment
    from mtpprof.profilers.nvtx.command import run_command

    if output is not None:
        _check_output(output)
    with tempfile.TemporaryDirectory(prefix="mtpprof-nvtx-") as scratch:
        directory = _directory(keep) if keep is not None else Path(scratch)
        before = set(directory.iterdir())
        environment = capture_environment(directory, max_bytes=max_mb << 20)
        code = run_command(
            command,
            environment=environment,
            stdout=None if style is Format.TABLE else sys.stderr.fileno(),
        )
        _show(sorted(set(directory.glob("*.nvtx")) - before), output, style)
    raise typer.Exit(code)


def _check_output(output: Path) -> None:
    """Refuse before the command runs what would lose its record after."""
    from mtpprof.analyzers.perfetto.files import format_of

    format_of(output)
    if not output.absolute().parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}; create it first.")


def _directory(keep: Path) -> Path:
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--keep {keep} cannot be created: {error.strerror}; give another folder."
        ) from error
    return keep


def _show(files: list[Path], output: Path | None, style: Format) -> None:
    from mtpprof.analyzers.perfetto.nvtx import write_trace
    from mtpprof.analyzers.traces.nvtx.capture import load_capture
    from mtpprof.analyzers.traces.nvtx.summary import summarize

    captures = [load_capture(path) for path in files]
    diagnostics = stderr_console()
    for capture in captures:
        for problem in capture.problems:
            diagnostics.print(problem.sentence)
    if not captures:
        diagnostics.print(
            "No process of the command loaded the NVTX library: either none calls NVTX, or they cannot load it "
            "(32-bit or statically linked programs, NVTX_DISABLE set)."
        )
    _write(captures, summarize(captures), style)
    if output is not None:
        written = write_trace(captures, output)
        diagnostics.print(f"{written} ranges and marks written to {output}; open it at ui.perfetto.dev.")


def _write(captures: list[NvtxCapture], summaries: list[RangeSummary], style: Format) -> None:
    if style is Format.JSON:
        write_json({"processes": [_process(c) for c in captures], "ranges": [_row(s) for s in summaries]})
    elif style is Format.CSV:
        rows = [tuple("" if v is None else str(v) for v in _row(s).values()) for s in summaries]
        write_tables([Table(title="NVTX ranges", columns=tuple(_COLUMNS), rows=rows)], style)
    elif summaries or style is not Format.TABLE:
        write_tables([_table(captures, summaries)], style)


_COLUMNS = ("domain", "name", "kind", "count", "unclosed", "total_ns", "mean_ns", "min_ns", "max_ns")


def _row(summary: RangeSummary) -> dict[str, str | int | float | None]:
    values = (
        summary.domain,
        summary.name,
        "mark" if summary.is_mark else "range",
        summary.count,
        summary.unclosed,
        None if summary.is_mark else summary.total_ns,
        summary.mean_ns,
        summary.min_ns,
        summary.max_ns,
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _process(capture: NvtxCapture) -> dict[str, object]:
    return {
        "file": Path(capture.path).name,
        "pid": capture.pid,
        "parent_pid": capture.parent_pid,
        "rank": capture.rank,
        "host": capture.host,
        "command": capture.command,
        "rows": len(capture),
        "dropped_events": capture.dropped_events,
        "closed": capture.closed,
        "clock_residual_ns": capture.clock_residual_ns,
        "problems": [{"verdict": p.verdict, "sentence": p.sentence} for p in capture.problems],
    }


def _table(captures: list[NvtxCapture], summaries: list[RangeSummary]) -> Table:
    rows = [
        (
            summary.domain or "(default)",
            summary.name,
            f"{summary.count} marks" if summary.is_mark else str(summary.count),
            "" if summary.is_mark else time_text(summary.total_ns),
            "" if summary.is_mark else time_text(summary.mean_ns),
            "" if summary.is_mark else time_text(summary.min_ns),
            "" if summary.is_mark else time_text(summary.max_ns),
        )
        for summary in summaries[:ROWS_SHOWN]
    ]
    hidden = len(summaries) - len(rows)
    return Table(
        title=f"NVTX of {len(captures)} process{'es' if len(captures) != 1 else ''}",
        columns=("domain", "name", "count", "total", "mean", "min", "max"),
        rows=rows,
        right=frozenset({"count", "total", "mean", "min", "max"}),
        note=f"{hidden} more names; --format csv has all." if hidden else "",
    )
