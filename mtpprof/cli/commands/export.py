"""`mtpprof export RUN|PATH… -o FILE`: all ranks, of one arm or two, in one trace for Perfetto."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.cli.options import (
    SELECTION,
    MaxGb,
    Model,
    RankMap,
    Ranks,
    Rules,
    Steps,
    WindowOfTime,
    reading,
)
from mtpprof.cli.render.output import Format, Table, stderr_console, write_json, write_tables
from mtpprof.cli.render.units import bytes_text
from mtpprof.errors import InputError, UsageError
from mtpprof.rundir.directory import RUN_FILE, RunDirectory
from mtpprof.rundir.records import ArmRecord, CaseRecord, Status

if TYPE_CHECKING:
    from mtpprof.analyzers.calls.attribution import ReadOptions
    from mtpprof.analyzers.perfetto.export import Exported
    from mtpprof.analyzers.perfetto.timeline import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files that make one arm."""

    name: str | None
    """None: what discovery calls the runs that it finds."""
    paths: tuple[Path, ...]


def export(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="A run directory, or trace files and directories.", show_default=False),
    ] = None,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Ends in .pftrace or .json, or in either with .gz."
        ),
    ],
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="ARM_A ARM_B",
            help="Two arms of the run (or two paths): both in one file, step by step, with what B saves against A.",
        ),
    ] = None,
    case: Annotated[str | None, typer.Option(help="Case of the run. Default: its first.")] = None,
    arm: Annotated[str | None, typer.Option(help="Arm of the case. Default: its first.")] = None,
    ranks: Ranks = None,
    window: WindowOfTime = None,
    steps: Steps = None,
    only_collectives: Annotated[
        bool,
        typer.Option(
            "--only-collectives",
            help="Only communication, steps, phases and counters.",
            rich_help_panel=SELECTION,
        ),
    ] = False,
    rules: Rules = None,
    model: Model = None,
    rank_map: RankMap = None,
    max_gb: MaxGb = None,
    with_queries: Annotated[
        bool, typer.Option("--with-queries", help="Also write FILE.sql for Perfetto's query page.")
    ] = False,
    style: Annotated[Format, typer.Option("--format", help="How to write the summary.")] = Format.TABLE,
) -> None:
    """Merge the traces of all ranks, or of two arms, into one file that opens in Perfetto.

    Each rank is a group of tracks: a communication track with every collective, what it moved and who waited, streams and threads,
    counters, steps and phases. Events that overlap get lanes of their own: nothing is dropped.

    Examples:

        mtpprof export runs/mine -o mine.pftrace

        mtpprof export runs/mine --compare baseline local-argmax -o saved.pftrace

        mtpprof export traces/ --steps 3:5 --only-collectives -o small.pftrace --with-queries
    """
    from mtpprof.analyzers.perfetto.export import UI_SLICES, Export, Options
    from mtpprof.analyzers.perfetto.files import format_of
    from mtpprof.analyzers.perfetto.queries import sql

    form = format_of(output)
    if not output.absolute().parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}; create it first.")
    asked = reading(
        rules=rules,
        model=model,
        ranks=ranks,
        window=window,
        steps=steps,
        rank_map=rank_map,
        max_gb=max_gb,
    )
    sources = _sources(paths or [], case, arm, compare)
    if any(path.resolve() == output.resolve() for source in sources for path in source.paths):
        raise UsageError(f"-o {output}: is one of the traces to be read; give another name.")
    arms = _arms(sources, asked)
    shown = Options(ranks=asked.ranks, window=asked.window, only_collectives=only_collectives)
    laid_out = Export(arms, shown, compare=compare is not None)
    if laid_out.estimated_slices > UI_SLICES:
        stderr_console().print(
            f"mtpprof: about {laid_out.estimated_slices:,} slices in {bytes_text(laid_out.estimated_bytes(form))}: Perfetto's UI "
            f"will hardly load more than {UI_SLICES:,}; narrow it with --steps, --window, --ranks or --only-collectives."
        )
    done = laid_out.write(output, form)
    queries = output.with_name(output.name + ".sql") if with_queries else None
    if queries is not None:
        _write_text(queries, sql(form, output))
    _show(done, queries, style)


def _sources(
    paths: Sequence[Path], case: str | None, arm: str | None, compare: tuple[str, str] | None
) -> list[Source]:
    """What to read for each arm."""
    run = paths[0] if len(paths) == 1 and (paths[0] / RUN_FILE).is_file() else None
    if compare is not None and arm is not None:
        raise UsageError("--arm and --compare: give one of the two.")
    if run is not None:
        return _of_run(RunDirectory(run), case, compare or ((arm,) if arm is not None else None))
    if case is not None or arm is not None:
        raise UsageError(
            f"--case and --arm need a run directory, made by `mtpprof run`; {', '.join(map(str, paths)) or 'no path'} is none."
        )
    if compare is None:
        if not paths:
            raise UsageError("give a run directory, or trace files and directories.")
        return [Source(name=None, paths=tuple(paths))]
    if paths:
        raise UsageError(
            f"--compare {' '.join(compare)}: {paths[0]} is no run directory; give the two paths to --compare alone."
        )
    names = [Path(text).name for text in compare]
    names = list(compare) if names[0] == names[1] else names
    return [Source(name=name, paths=(Path(text),)) for name, text in zip(names, compare, strict=True)]


def _of_run(directory: RunDirectory, case_id: str | None, arms: Sequence[str] | None) -> list[Source]:
    """Arms of a case of a run; says on stderr what was taken where it was not told."""
    record = directory.run()
    known = {case.id: case for case in record.cases}
    if case_id is not None and case_id not in known:
        raise UsageError(f"--case {case_id}: {directory.root} has {', '.join(known) or 'no cases'}.")
    fitting = [
        case
        for case in record.cases
        if case_id in (None, case.id) and set(arms or ()) <= {item.name for item in case.arms}
    ]
    if not fitting:
        asked = [case for case in record.cases if case_id in (None, case.id)]
        there = sorted({item.name for case in asked for item in case.arms if item.repeats is None})
        where = f"no case of {directory.root} has" if case_id is None else f"case {case_id} does not have"
        raise UsageError(f"{where} the arms {', '.join(arms or ())}; choose from {', '.join(there)}.")
    case = fitting[0]
    chosen = arms or (case.arms[0].name,)
    if (case_id is None and len(known) > 1) or (arms is None and len(case.arms) > 1):
        others = ", ".join(item.name for item in case.arms if item.repeats is None)
        stderr_console().print(
            f"mtpprof: taking case {case.id}, {' and '.join(chosen)}; --case may be {', '.join(known)}; "
            f"--arm and --compare may be {others}."
        )
    return [
        _of_arm(directory, record.status, case, next(item for item in case.arms if item.name == name))
        for name in chosen
    ]


def _of_arm(directory: RunDirectory, status: Status, case: CaseRecord, arm: ArmRecord) -> Source:
    """The traces of an arm.

    Raises:
        UsageError: the arm is timed only.
        InputError: its traces are not there.
    """
    if arm.repeats is not None:
        traced = ", ".join(item.name for item in case.arms if item.repeats is None)
        raise UsageError(
            f"{arm.name} of {case.id} has no traces: it repeats {arm.repeats} for the noise floor and is timed only; "
            f"choose from {traced}."
        )
    paths = directory.captured(case.id, arm.name, case.tp)
    there = tuple(path for path in paths if path.is_file())
    if not there:
        folder = directory.arm(case.id, arm.name)
        if status == "running":
            raise InputError(f"{folder}: has no traces yet; wait for the run.")
        why = "they are gone from a complete run" if status == "complete" else f"the run is {status}"
        again = shlex.join(["mtpprof", "run", "--resume", str(directory.root)])
        raise InputError(f"{folder}: has no traces, {why}; record them with `{again}`.")
    return Source(name=arm.name, paths=there)


def _arms(sources: Sequence[Source], asked: ReadOptions) -> list[Arm]:
    """Read and analyze the arms, each placed on its own time; what is not to be shown still serves to match and align."""
    from mtpprof.analyzers.calls.attribution import Window, analyze
    from mtpprof.analyzers.perfetto.timeline import place
    from mtpprof.analyzers.traces.discover import open_traces
    from mtpprof.analyzers.traces.verdicts import Severity

    whole = replace(asked, ranks=None, window=Window())
    arms = []
    for source in sources:
        sets = open_traces(source.paths, asked.rank_map, asked.load)
        if source.name is not None and len(sets) > 1:
            found = ", ".join(traces.label for traces in sets)
            raise UsageError(
                f"{source.paths[0]}: holds {len(sets)} runs ({found}), which one arm cannot be; name one of them."
            )
        for traces in sets:
            for problem in traces.all_problems():
                if problem.severity >= Severity.WARNING:
                    stderr_console().print(f"mtpprof: {problem.sentence}")
            arms.append(place(source.name or traces.label, traces, analyze(traces, whole)))
    return arms


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); give another -o.") from error


def _show(done: Exported, queries: Path | None, style: Format) -> None:
    facts: dict[str, str | int] = {
        "file": str(done.path),
        "size": done.size_bytes,
        "events": done.events,
        "slices": done.slices,
        "counter values": done.counter_values,
        "processes": done.processes,
        "tracks": done.tracks,
    }
    if queries is not None:
        facts["queries"] = str(queries)
    if style is Format.JSON:
        write_json(
            {key.replace(" ", "_"): value for key, value in facts.items()} | {"clocks": dict(done.clocks)}
        )
        return
    rows = [
        (
            name,
            bytes_text(done.size_bytes)
            if name == "size"
            else f"{value:,}"
            if isinstance(value, int)
            else value,
        )
        for name, value in facts.items()
    ]
    rows += list(done.clocks)
    write_tables([Table(title="Export", columns=("what", "figure"), rows=rows)], style)
    if style is Format.TABLE:
        stderr_console().print(f"Open it with: {shlex.join(['mtpprof', 'view', str(done.path)])}")
