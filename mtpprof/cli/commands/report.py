"""`mtpprof report RUN`: the answer of a finished or unfinished run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.cli.options import MaxGb, Rules, reading
from mtpprof.cli.render.format_names import ReportFormat
from mtpprof.cli.render.output import stderr_console, stdout_console
from mtpprof.errors import ExitCode
from mtpprof.rundir.directory import REPORT_FILE, RunDirectory

if TYPE_CHECKING:
    from mtpprof.analyzers.calls.attribution import ReadOptions


def report(
    run: Annotated[Path, typer.Argument(help="Run directory, made by `mtpprof run`.")],
    rules: Rules = None,
    max_gb: MaxGb = None,
    style: Annotated[
        ReportFormat,
        typer.Option(
            "--format", help="How to write the report; md is ready for a pull request, html one page."
        ),
    ] = ReportFormat.TABLE,
) -> None:
    """Show what a run found: collectives by kind and phase, arms, and what each optimization changed.

    Works on unfinished runs too. Exit code 1 when the collectives seen in a trace are not the expected ones, 3 when a file of an arm is
    damaged, cut off or of another rank, or in a complete run gone: what it would tell is withheld, all else is shown.

    Examples:

        mtpprof report runs/20260101T120000Z-deepseek-v3.2

        mtpprof report runs/mine --format html > report.html

        mtpprof report runs/mine --format json | jq '.cases[].differences'
    """
    show_report(RunDirectory(run), style, reading(rules=rules, max_gb=max_gb))


def show_report(directory: RunDirectory, style: ReportFormat, options: ReadOptions | None = None) -> None:
    """Analyze a run directory, keep the answer there as report.json, and write it out.

    Args:
        directory: The run.
        style: How to write it out.
        options: How its traces are read.

    Raises:
        InputError: not a run directory.
        typer.Exit: with code 1, the observed collectives differ from the ledger; with code 3, a file of an arm is damaged or gone.
    """
    from mtpprof.analyzers.answers.run_report import make_report
    from mtpprof.analyzers.compare.side import run_side
    from mtpprof.cli.render.formats import REPORTS
    from mtpprof.cli.render.report import next_commands

    answer = make_report(directory, partial(run_side, options=options))
    try:
        directory.write(directory.root / REPORT_FILE, answer)
    except OSError as error:
        stderr_console().print(
            f"mtpprof: {directory.root / REPORT_FILE} could not be written ({error.strerror})."
        )
    REPORTS[style](answer)
    if style is ReportFormat.TABLE:
        stdout_console().print(next_commands(directory.root))
    if not answer.as_expected:
        stderr_console().print(
            "mtpprof: the collectives seen are not the expected ones; see the tables named NOT AS EXPECTED."
        )
        raise typer.Exit(ExitCode.CHECK_FAILED)
    if answer.damaged:
        for sentence in answer.damaged:
            stderr_console().print(f"mtpprof: no answer: {sentence}; run again.")
        raise typer.Exit(ExitCode.BAD_INPUT)
