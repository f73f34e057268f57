"""`mtpprof dashboard [RUN|PATH…]`: launch, watch and read in the terminal.

Without a terminal there is nothing to draw on: it says so and prints the plain report instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.cli.options import MaxGb, Model, RankMap, Rules, reading
from mtpprof.cli.render.format_names import ReportFormat
from mtpprof.cli.render.output import stderr_console
from mtpprof.cli.tui.start import has_terminal, open_dashboard
from mtpprof.rundir.directory import RUN_FILE, RunDirectory

if TYPE_CHECKING:
    from mtpprof.analyzers.calls.attribution import ReadOptions


def dashboard(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN|PATH...]",
            help="Run directory (finished or in progress), or traces; none: start one. Two folders of traces are compared.",
        ),
    ] = None,
    rules: Rules = None,
    model: Model = None,
    rank_map: RankMap = None,
    max_gb: MaxGb = None,
) -> None:
    """Open the dashboard: start a run, follow one that runs here or elsewhere, or read what it saved.

    Keys: 1 to 7 change the page, ? lists all keys, q leaves. Without a terminal the plain report is printed.

    Examples:

        mtpprof dashboard

        mtpprof dashboard runs/20260101T120000Z-deepseek-v3.2

        mtpprof dashboard traces/before traces/after
    """
    if not has_terminal() and not paths:
        stderr_console().print(
            "mtpprof: no terminal to draw the dashboard on; name a run directory or traces, or start a run with: mtpprof run --tp 4"
        )
        return
    options = reading(rules=rules, model=model, rank_map=rank_map, max_gb=max_gb)
    if not has_terminal():
        _plain(paths or [], options)
        return
    from mtpprof.cli.commands.run import read_options
    from mtpprof.cli.tui.sources import Reading

    of_run = [
        *([] if rules is None else ["--rules", str(rules)]),
        *([] if max_gb is None else ["--max-gb", str(max_gb)]),
    ]
    of_traces = [
        *of_run,
        *([] if model is None else ["--model", model]),
        *(word for entry in rank_map or () for word in ("--rank-map", entry)),
    ]
    shown = Reading(options=options, words_for_run=tuple(of_run), words_for_traces=tuple(of_traces))
    open_dashboard(paths or [], read_options, shown)


def _plain(paths: Sequence[Path], options: ReadOptions) -> None:
    stderr_console().print("mtpprof: no terminal to draw the dashboard on; this is the plain report.")
    run = paths[0] if len(paths) == 1 and (paths[0] / RUN_FILE).exists() else None
    if run is not None:
        from mtpprof.cli.commands.report import show_report

        with suppress(typer.Exit):  # what a report fails on is in its text; a dashboard checks nothing
            show_report(RunDirectory(run), ReportFormat.TABLE, options)
    else:
        from mtpprof.cli.commands.analyze import show_analysis

        show_analysis(paths, options)
