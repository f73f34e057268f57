"""`mtpprof check`: a run or a capture against a budget, or against its model's ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.cli.options import MaxGb, RankMap, Ranks, Rules, Steps, WindowOfTime, reading
from mtpprof.cli.render.output import Format, Table, stderr_console, stdout_console, write_json, write_tables
from mtpprof.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from mtpprof.analyzers.answers.budget import BudgetReport, BudgetRow
    from mtpprof.analyzers.compare.side import Side

COLUMNS = ("arm", "where", "what", "budget", "measured", "status")


def check(
    target: Annotated[
        str, typer.Argument(metavar="RUN|PATH", help="Run, RUN:ARM, RUN:CASE/ARM, or a folder of traces.")
    ],
    budget: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Budget (TOML) that must not be exceeded.")
    ] = None,
    write_budget: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the budget that this run just meets, and stop.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Preset or config.json: fail on collectives that the model's ledger does not need, or that are missing."
        ),
    ] = None,
    ranks: Ranks = None,
    window: WindowOfTime = None,
    steps: Steps = None,
    rules: Rules = None,
    rank_map: RankMap = None,
    max_gb: MaxGb = None,
    time: Annotated[
        bool | None,
        typer.Option(
            "--time/--no-time", help="Write step times into the budget. Default: those of a GPU only."
        ),
    ] = None,
    style: Annotated[Format, typer.Option("--format", help="How to write the result.")] = Format.TABLE,
) -> None:
    """Hold calls, bytes and step times against a budget; exit code 1 when one is exceeded.

    Calls and bytes are exact: one all-reduce more per layer fails. Step times fail only beyond the noise, on the same machine.

    Examples:

        mtpprof check runs/good --write-budget budget.toml

        mtpprof check runs/new --budget budget.toml

        mtpprof check traces/ --model ./config.json
    """
    from mtpprof.analyzers.answers.budget import BudgetReport, check_budget
    from mtpprof.analyzers.answers.budget_file import BUDGET_SCHEMA_VERSION, load_budget
    from mtpprof.analyzers.compare.targets import parse_target, sides_of

    if sum(option is not None for option in (budget, write_budget)) + (model is not None) == 0:
        raise UsageError(
            "give --budget FILE, --write-budget FILE or --model MODEL: there is nothing to check against."
        )
    if budget is not None and write_budget is not None:
        raise UsageError("--budget and --write-budget exclude each other; write first, then check.")
    options = reading(
        rules=rules,
        model=model,
        ranks=ranks,
        window=window,
        steps=steps,
        rank_map=rank_map,
        max_gb=max_gb,
    )
    sides = sides_of(parse_target(target), options)
    _name_left_out(sides)
    if write_budget is not None:
        _write(write_budget, sides, target, time)
        return
    held = check_budget(load_budget(budget), sides) if budget is not None else None
    found = [*(held.rows if held else ()), *(_ledger_rows(sides) if model is not None else ())]
    rows = list(dict.fromkeys(found))  # what is uncounted stands in the way of both
    answer = BudgetReport(schema_version=BUDGET_SCHEMA_VERSION, rows=rows)
    if style is Format.JSON:
        write_json(answer)
    else:
        table = _table(answer, everything=style is Format.CSV)
        if table.rows:
            write_tables([table], style)
        else:
            stdout_console().print(table.title)
    if not answer.passed:
        stderr_console().print(f"mtpprof: {len(answer.over)} of {len(answer.rows)} limits are exceeded.")
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _name_left_out(sides: list[Side]) -> None:
    """Say on stderr which files gave no table: no limit is held against them."""
    for side in sides:
        for problem in side.traces.found.problems if side.traces else ():
            if problem.apart:
                stderr_console().print(f"mtpprof: {problem.sentence}", markup=False)


def _write(path: Path, sides: list[Side], source: str, time: bool | None) -> None:
    from mtpprof.analyzers.answers.budget_file import budget_toml, make_budget

    if time is None:
        time = all(side.device != "cpu" for side in sides)
    made = make_budget(sides, time=time)
    try:
        path.write_text(budget_toml(made, source), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path}: the budget cannot be written ({error.strerror}); choose another file."
        ) from error
    for side in sides:
        if side.doubt:
            stderr_console().print(
                f"mtpprof: {side.label}: {side.doubt}, so it is not in the budget; teach it with --rules and write again.",
                markup=False,
            )
    limits = sum(len(arm.limit) for arm in made.arm)
    times = (
        "with step times" if time else "without step times, which say little on a CPU (--time writes them)"
    )
    stderr_console().print(f"mtpprof: wrote {limits} limits of {len(made.arm)} arms to {path}, {times}.")


def _ledger_rows(sides: list[Side]) -> list[BudgetRow]:
    from mtpprof.analyzers.answers.budget import ledger_rows

    return [row for side in sides for row in ledger_rows(side)]


def _table(answer: BudgetReport, *, everything: bool) -> Table:
    from mtpprof.analyzers.answers.budget import Status

    shown = answer.rows if everything else [row for row in answer.rows if row.status != Status.OK or row.note]
    passed = sum(row.status == Status.OK for row in answer.rows)
    unchecked = sum(row.status == Status.UNCHECKED for row in answer.rows)
    verdict = "kept as far as it could be checked" if unchecked else "kept"
    if answer.over:
        verdict = "exceeded"
    return Table(
        title=f"budget {verdict}: {passed} limits kept, {len(answer.over)} exceeded, {unchecked} not checked",
        columns=COLUMNS,
        rows=[_cells(row) for row in shown],
        right=frozenset({"budget", "measured"}),
    )


def _cells(row: BudgetRow) -> tuple[str, ...]:
    from mtpprof.cli.render.units import bytes_text, count_text, time_text

    text = {"step time": time_text, "payload bytes": bytes_text, "wire bytes": bytes_text}.get(
        row.what, count_text
    )
    return (
        "/".join(filter(None, (row.case, row.arm))) or "-",
        " ".join(filter(None, (row.phase, row.kind))) or "-",
        row.what,
        text(row.limit) if row.limit is not None else "-",
        text(row.measured) if row.measured is not None else "-",
        row.status + (f": {row.note}" if row.note else ""),
    )
