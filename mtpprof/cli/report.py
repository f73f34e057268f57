"""`mtpprof report RUN`: the answer of a finished or unfinished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtpprof.cli.output import Format
from mtpprof.rundir import RunDirectory


def report(
    run: Annotated[Path, typer.Argument(help="Run directory, made by `mtpprof run`.")],
    style: Annotated[Format, typer.Option("--format", help="How to write the report.")] = Format.TABLE,
) -> None:
    """Show what a run found."""
    show_report(RunDirectory(run), style)


def show_report(directory: RunDirectory, style: Format) -> None:
    """Analyze a run directory."""
