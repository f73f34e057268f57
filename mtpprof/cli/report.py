"""`mtpprof report RUN`: the answer of a finished or unfinished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.cli.output import Format, stderr_console, stdout_console, write_json, write_tables
from mtpprof.errors import ExitCode
from mtpprof.rundir import REPORT_FILE, RunDirectory

if TYPE_CHECKING:
    from mtpprof.analyzers.report import Report


def report(
    run: Annotated[Path, typer.Argument(help="Run directory, made by `mtpprof run`.")],
    style: Annotated[Format, typer.Option("--format", help="How to write the report.")] = Format.TABLE,
) -> None:
    """Show what a run found: collectives by kind and phase, arms, and what each optimization changed.

    Works on unfinished runs too. Exit code 1 when the collectives seen in a trace are not the expected ones.

    Examples:

        mtpprof report runs/20260101T120000Z-deepseek-v3.2

        mtpprof report runs/mine --format json | jq '.cases[].differences'
    """
    show_report(RunDirectory(run), style)


def show_report(directory: RunDirectory, style: Format) -> None:
    """Analyze a run directory, keep the answer there as report.json, and write it out.

    Raises:
        InputError: not a run directory.
        typer.Exit: with code 1, the observed collectives differ from the ledger.
    """
    from mtpprof.analyzers.report import make_report
    from mtpprof.cli.render.report import tables

    answer = make_report(directory)
    try:
        directory.write(directory.root / REPORT_FILE, answer)
    except OSError as error:
        stderr_console().print(
            f"mtpprof: {directory.root / REPORT_FILE} could not be written ({error.strerror})."
        )
    if style is Format.JSON:
        write_json(answer)
    elif style is Format.TABLE:
        _write_cases(answer, directory)
    else:
        write_tables(tables(answer), style)
    if not answer.as_expected:
        stderr_console().print(
            "mtpprof: the collectives seen are not the expected ones; see the tables named NOT AS EXPECTED."
        )
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _write_cases(answer: Report, directory: RunDirectory) -> None:
    from mtpprof.cli.render.report import case_tables, heading, next_commands

    console = stdout_console()
    for case in answer.cases:
        console.print(f"== {heading(case)} ==")
        write_tables(case_tables(case), Format.TABLE)
    for note in answer.notes:
        console.print(note)
    console.print(next_commands(directory.root))
