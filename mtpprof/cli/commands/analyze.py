"""`mtpprof analyze PATH…`: attribute time and bytes of any profiler output to its collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.cli.options import MaxGb, Model, RankMap, Ranks, Rules, Steps, WindowOfTime, reading
from mtpprof.cli.render.output import (
    Format,
    Table,
    stderr_console,
    write,
    write_json,
    write_rows,
    write_tables,
)
from mtpprof.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from mtpprof.analyzers.answers.analysis import Analysis
    from mtpprof.analyzers.calls.attribution import ReadOptions

DEFAULT_BY = ("kind", "implementation", "fused")
DEFAULT_SHOW = ("summary", "groups", "steps")


def analyze(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Trace files, or directories that are searched for them (also runs of mtpprof).",
        ),
    ],
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Group calls by kind, phase, site, rank, size, step, implementation, ...; repeatable, or with commas.",
        ),
    ] = None,
    show: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIEW",
            help="summary, groups, steps, census, slowest, skewed, stragglers, clocks, suspects, all; repeatable, or with commas.",
        ),
    ] = None,
    ranks: Ranks = None,
    window: WindowOfTime = None,
    steps: Steps = None,
    rules: Rules = None,
    model: Model = None,
    rank_map: RankMap = None,
    max_gb: MaxGb = None,
    style: Annotated[Format, typer.Option("--format", help="How to write the result.")] = Format.TABLE,
) -> None:
    """Attribute the time and bytes of profiler traces to their collectives.

    Reads torch-profiler (Kineto) JSON, plain or gzip, and exported Nsight Systems SQLite files, of one rank or many.
    Two runs are compared too, as `mtpprof compare` does it: the second with the first, in the order given.
    Exit code 3 when none of the runs gives an answer, 2 when --window or --steps hold nothing of them.

    Examples:

        mtpprof analyze traces/

        mtpprof analyze traces/ --by phase,kind --by size --format csv

        mtpprof analyze rank0.json.gz --show census,slowest

        mtpprof analyze fused/ unfused/
    """
    from mtpprof.cli.render.analysis import VIEWS

    columns = _checked(by, DEFAULT_BY, _columns(), "--by")
    views = _checked(show, DEFAULT_SHOW, (*VIEWS, "all"), "--show")
    options = reading(
        rules=rules,
        model=model,
        ranks=ranks,
        window=window,
        steps=steps,
        rank_map=rank_map,
        max_gb=max_gb,
    )
    show_analysis(paths, options, columns, views, style)


def show_analysis(
    paths: Sequence[Path],
    options: ReadOptions,
    columns: tuple[str, ...] = DEFAULT_BY,
    views: tuple[str, ...] = DEFAULT_SHOW,
    style: Format = Format.TABLE,
) -> None:
    """Analyze traces and write the answer out.

    Raises:
        InputError: nothing readable there.
        UsageError: ranks or a rank map that the traces do not have.
        typer.Exit: with code 3, none of the runs gives an answer; with code 2, the window holds nothing of them.
    """
    from mtpprof.analyzers.answers.analysis import analyses_of
    from mtpprof.analyzers.traces.discover import open_traces

    found = analyses_of(open_traces(paths, options.rank_map, options.load), columns, options)
    if style is Format.JSON:
        write_json(found)
    elif style is Format.CSV:
        _write_rows(found, columns)
    else:
        _write_tables(found, views, style)
    if len(found) > 2:
        stderr_console().print(f"mtpprof: {len(found)} runs; name two of them to compare them.")
    if all(one.no_answer for one in found):
        for sentence in dict.fromkeys(one.no_answer for one in found):
            stderr_console().print(f"mtpprof: no answer: {sentence}", markup=False)
        missed = all(one.outside_window for one in found)
        raise typer.Exit(ExitCode.USAGE if missed else ExitCode.BAD_INPUT)


def _write_rows(found: list[Analysis], columns: tuple[str, ...]) -> None:
    """A row per group; two runs are followed by the rows of their comparison, below a header of their own."""
    from mtpprof.cli.render.rows import COMPARISON_COLUMNS, comparison_rows, group_columns, group_rows

    write_rows(group_columns(columns), (row for one in found for row in group_rows(one)))
    compared = [one.comparison for one in found if one.comparison is not None]
    if compared:
        write("")
        write_rows(COMPARISON_COLUMNS, comparison_rows(compared))


def _write_tables(found: list[Analysis], views: tuple[str, ...], style: Format) -> None:
    from mtpprof.cli.render.comparison import comparison_tables

    tables = [table for one in found for table in _tables(one, views)]
    compared = [one.comparison for one in found if one.comparison is not None]
    write_tables([*tables, *(table for one in compared for table in comparison_tables(one))], style)


def _tables(found: Analysis, views: tuple[str, ...]) -> Iterator[Table]:
    from mtpprof.cli.render.analysis import VIEWS, summary, suspects_table

    if found.no_answer:
        yield summary(found)
        return
    for name, view in VIEWS.items():
        if name in views or "all" in views:
            table = view(found)
            if table.rows:
                yield table
    if found.suspects and "suspects" not in views and "all" not in views:
        yield suspects_table(found)


def _columns() -> tuple[str, ...]:
    from mtpprof.analyzers.measures.sums import BY

    return BY


def _checked(
    words: list[str] | None, default: tuple[str, ...], known: tuple[str, ...], option: str
) -> tuple[str, ...]:
    chosen = tuple(
        dict.fromkeys(part.strip() for word in words or () for part in word.split(",") if part.strip())
    )
    for name in chosen:
        if name not in known:
            raise UsageError(f"{option} {name}: choose from {', '.join(known)}.")
    return chosen or default
