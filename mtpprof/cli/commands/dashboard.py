"""`mtpprof dashboard [RUN|PATH…]`: launch, watch and read in the terminal.

Without a terminal there is nothing to draw on: it says so and prints the plain report instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from mtpprof.cli.render.format_names import ReportFormat
from mtpprof.cli.render.output import stderr_console
from mtpprof.errors import InputError, MissingEnvironmentError
from mtpprof.rundir.directory import RUN_FILE, RunDirectory


def dashboard(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN|PATH...]",
            help="Run directory (finished or in progress), or traces; none: start one. Two folders of traces are compared.",
        ),
    ] = None,
) -> None:
    """Open the dashboard: start a run, follow one that runs here or elsewhere, or read what it saved.

    Keys: 1 to 7 change the page, ? lists all keys, q leaves. Without a terminal the plain report is printed.

    Examples:

        mtpprof dashboard

        mtpprof dashboard runs/20260101T120000Z-deepseek-v3.2

        mtpprof dashboard traces/before traces/after
    """
    found = paths or []
    if has_terminal():
        open_dashboard(found)
    else:
        _plain(found)


def has_terminal() -> bool:
    """Whether there is a screen to draw on and a keyboard to read."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def open_dashboard(paths: Sequence[Path], command: Sequence[str] | None = None) -> None:
    """Run the app until it is left.

    Args:
        paths: What to open.
        command: Arguments of `mtpprof` that start a run, to be started at once.

    Raises:
        InputError: a path does not exist.
        MissingEnvironmentError: textual is not installed.
    """
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or directory; give a run directory or traces.")
    try:
        from mtpprof.cli.tui.app import DashboardApp
        from mtpprof.cli.tui.text import terminal_is_ascii
    except ModuleNotFoundError as error:
        raise MissingEnvironmentError(
            f"the dashboard needs {error.name}, which is not installed; pip install textual."
        ) from error
    _start_resource_tracker()
    DashboardApp(paths, command=command, ascii_only=terminal_is_ascii()).run()


def watch(words: Sequence[str], folder: Path) -> None:
    """Start the run that the words of a command line ask for in a process of its own, and follow it.

    Args:
        words: Arguments of `mtpprof`, `run` first.
        folder: The run directory that they were resolved to.
    """
    own = [word for word in words if word not in ("--dashboard", "--debug")]
    named = any(word.partition("=")[0] in ("--out", "--resume") for word in own)
    open_dashboard((), command=[*own, *([] if named else ["--out", str(folder)])])


def _start_resource_tracker() -> None:
    """Start multiprocessing's helper while stderr is a file: under Textual it is none, and reading traces in processes would fail."""
    from multiprocessing import resource_tracker

    with suppress(OSError, AttributeError):
        resource_tracker.ensure_running()  # type: ignore[attr-defined,unused-ignore]


def _plain(paths: Sequence[Path]) -> None:
    stderr_console().print("mtpprof: no terminal to draw the dashboard on; this is the plain report.")
    run = paths[0] if len(paths) == 1 and (paths[0] / RUN_FILE).exists() else None
    if run is not None:
        from mtpprof.cli.commands.report import show_report

        with suppress(typer.Exit):  # what a report fails on is in its text; a dashboard checks nothing
            show_report(RunDirectory(run), ReportFormat.TABLE)
    elif paths:
        from mtpprof.cli.commands.analyze import analyze

        analyze(list(paths))
    else:
        stderr_console().print(
            "mtpprof: name a run directory or traces, or start a run with: mtpprof run --tp 4"
        )
