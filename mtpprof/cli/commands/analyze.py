"""`mtpprof analyze PATH…`: attribute time and bytes of any profiler output to its collectives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtpprof.cli.options import MaxGb, load_options
from mtpprof.cli.render.output import Format, stderr_console, write_json, write_rows, write_tables
from mtpprof.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from mtpprof.analyzers.calls.attribution import Attribution, Options, Window

DEFAULT_BY = ("kind", "implementation", "fused")
DEFAULT_SHOW = ("summary", "groups", "steps")
NS_PER_UNIT = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}


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
    ranks: Annotated[str | None, typer.Option(metavar="LIST", help="Only these ranks, e.g. 0,2-3.")] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="FROM:TO", help="Only this time, from the first event, e.g. 10ms:1.5s."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Only these steps, e.g. 3:8.")
    ] = None,
    rank_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE=RANK", help="Which file is which rank, where files do not say; repeatable."
        ),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rules of your own for names (TOML).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Preset or config.json: derives the bytes of calls that carry none.")
    ] = None,
    max_gb: MaxGb = None,
    style: Annotated[Format, typer.Option("--format", help="How to write the result.")] = Format.TABLE,
) -> None:
    """Attribute the time and bytes of profiler traces to their collectives.

    Reads torch-profiler (Kineto) JSON, plain or gzip, and exported Nsight Systems SQLite files, of one rank or many.
    Exit code 3 when none of the runs, or of the parts asked for, gives an answer.

    Examples:

        mtpprof analyze traces/

        mtpprof analyze traces/ --by phase,kind --by size --format csv

        mtpprof analyze rank0.json.gz --show census,slowest

        mtpprof analyze fused/ unfused/
    """
    from mtpprof.analyzers.answers.analysis import analysis_of
    from mtpprof.analyzers.calls.attribution import analyze as attribute
    from mtpprof.analyzers.traces.discover import open_traces, parse_rank_map
    from mtpprof.cli.render import attribution as render
    from mtpprof.cli.render.rows import group_columns, group_rows

    columns = _checked(by, DEFAULT_BY, _columns(), "--by")
    views = _checked(show, DEFAULT_SHOW, ("groups", *render.VIEWS, "all"), "--show")
    options = attribution_options(ranks, window, steps, rules, model)
    found = [
        attribute(traces, options)
        for traces in open_traces(paths, parse_rank_map(rank_map or ()), load_options(max_gb))
    ]
    if style is Format.JSON:
        write_json([analysis_of(one, columns) for one in found])
    elif style is Format.CSV:
        write_rows(group_columns(columns), (row for one in found for row in group_rows(one, columns)))
    else:
        _write(found, views, columns, style)
    if all(one.no_answer for one in found):
        for sentence in dict.fromkeys(one.no_answer for one in found):
            stderr_console().print(f"mtpprof: no answer: {sentence}", markup=False)
        raise typer.Exit(ExitCode.BAD_INPUT)


def _write(found: list[Attribution], views: tuple[str, ...], columns: tuple[str, ...], style: Format) -> None:
    from mtpprof.cli.render import attribution as render

    for one in found:
        write_tables(list(_tables(one, views, columns)), style)
    if len(found) == 2:
        write_tables([render.comparison_table(*found)], style)
    elif len(found) > 2:
        stderr_console().print(
            f"mtpprof: {len(found)} runs; name two of them to have them held against each other."
        )


def _tables(found: Attribution, views: tuple[str, ...], columns: tuple[str, ...]) -> Any:
    from mtpprof.cli.render import attribution as render

    if found.no_answer:
        yield render.summary(found)
        return
    for name in ("summary", "groups", *(name for name in render.VIEWS if name != "summary")):
        if name not in views and "all" not in views:
            continue
        table = render.groups_table(found, columns) if name == "groups" else render.VIEWS[name](found)
        if table.rows:
            yield table
    if found.suspects and "suspects" not in views and "all" not in views:
        yield render.suspects_table(found)


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


def attribution_options(
    ranks: str | None, window: str | None, steps: str | None, rules: Path | None, model: str | None
) -> Options:
    """What the options of the command line ask of the analysis.

    Raises:
        UsageError: one of them is not of its form.
    """
    from mtpprof.analyzers.calls.attribution import Options
    from mtpprof.analyzers.calls.rules import load_rules
    from mtpprof.models.hf import resolve_model
    from mtpprof.models.spec import Scale

    return Options(
        rules=load_rules(rules) if rules else (),
        ranks=frozenset(parse_ranks(ranks)) if ranks is not None else None,
        window=_window(window, steps),
        model=resolve_model(model, preset_scale=Scale.FULL) if model else None,
    )


def parse_ranks(text: str) -> set[int]:
    """`0,2-3` as numbers.

    Raises:
        UsageError: not of that form.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 6 or len(last) > 6:
            raise UsageError(f"--ranks {text}: give numbers and ranges, e.g. 0,2-3.")
        if dash and int(last) < int(first):
            raise UsageError(
                f"--ranks {text}: the range {first}-{last} is empty; give the smaller one first."
            )
        found.update(range(int(first), int(last or first) + 1))
    return found


def _window(window: str | None, steps: str | None) -> Window:
    from mtpprof.analyzers.calls.attribution import Window

    start, end = _bounds(window, "--window", parse_time, "times such as 10ms:1.5s")
    first, last = _bounds(steps, "--steps", _whole, "whole numbers such as 3:8")
    return Window(start_ns=start, end_ns=end, first_step=first, last_step=last)


def _bounds(text: str | None, option: str, parse: Any, form: str) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    try:
        bounds = (parse(first) if first else None), (parse(last) if last else None)
    except ValueError:
        bounds = None, None
        colon = ""
    if not colon or bounds == (None, None):
        raise UsageError(f"{option} {text}: give {form}; either side may be left out.")
    start, end = bounds
    if start is not None and end is not None and end < start:
        raise UsageError(f"{option} {text}: ends before it begins; give the earlier bound first.")
    return bounds


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def parse_time(text: str) -> int:
    """`10ms`, `1.5s`, `200` (µs as in traces) in nanoseconds.

    Raises:
        ValueError: not a time.
    """
    number = text.rstrip("nµumsNMS")
    unit = text[len(number) :] or "us"
    if unit not in NS_PER_UNIT:
        raise ValueError(text)
    value = float(number) * NS_PER_UNIT[unit]
    if not abs(value) < 2**62:
        raise ValueError(text)
    return round(value)
