"""Whether there is a terminal to draw on, and the start of the dashboard in it. Textual is imported only when it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mtpprof.errors import InputError, MissingEnvironmentError

if TYPE_CHECKING:
    from mtpprof.cli.tui.sources import Reading
    from mtpprof.profilers.run import RunOptions

ReadPlan = Callable[[Sequence[str]], "RunOptions"]
"""Reads the words behind `mtpprof run` as that command does."""


def has_terminal() -> bool:
    """Whether there is a screen to draw on and a keyboard to read."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def open_dashboard(
    paths: Sequence[Path],
    read_plan: ReadPlan,
    reading: Reading | None = None,
    command: Sequence[str] | None = None,
) -> None:
    """Run the app until it is left.

    Args:
        paths: What to open.
        read_plan: Reads the command line of a run.
        reading: How traces are read.
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
        from mtpprof.cli.tui.plan_preview import preview
        from mtpprof.cli.tui.text import terminal_is_ascii
    except ModuleNotFoundError as error:
        raise MissingEnvironmentError(
            f"the dashboard needs {error.name}, which is not installed; pip install textual."
        ) from error
    _start_resource_tracker()
    DashboardApp(
        paths,
        plan=lambda form: preview(form, read_plan),
        reading=reading,
        command=command,
        ascii_only=terminal_is_ascii(),
    ).run()


def watch(words: Sequence[str], folder: Path, read_plan: ReadPlan) -> None:
    """Start the run that the words of a command line ask for in a process of its own, and follow it.

    Args:
        words: Arguments of `mtpprof`, `run` first.
        folder: The run directory that they were resolved to.
        read_plan: Reads the command line of a run.
    """
    own = [word for word in words if word not in ("--dashboard", "--debug")]
    named = any(word.partition("=")[0] in ("--out", "--resume") for word in own)
    open_dashboard((), read_plan, command=[*own, *([] if named else ["--out", str(folder)])])


def _start_resource_tracker() -> None:
    """Start multiprocessing's helper while stderr is a file: under Textual it is none, and reading traces in processes would fail."""
    from multiprocessing import resource_tracker

    with suppress(OSError, AttributeError):
        resource_tracker.ensure_running()  # type: ignore[attr-defined,unused-ignore]
