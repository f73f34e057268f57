"""A report as tables of text: what was saved, where it went, and what was seen, arm by arm."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from mtpprof.analyzers.answers.run_report import ArmReport, CaseReport
from mtpprof.analyzers.compare.difference import Difference
from mtpprof.analyzers.measures.totals import Group
from mtpprof.cli.render.output import Table
from mtpprof.cli.render.savings import (
    NOTHING,
    changes_table,
    effects_table,
    engagement_notes,
    kernels_table,
    output_text,
    plus,
    savings_table,
    saviour_text,
    waterfall_tables,
)
from mtpprof.cli.render.units import UNKNOWN, bytes_text, count_text, time_text
from mtpprof.rundir.records import BASELINE

DEVIATIONS = "The engine runs something else than was asked for:"


def case_tables(case: CaseReport) -> list[Table]:
    """Savings, what changed, waterfall, effects, arms, and the collectives seen by kind and phase."""
    base = case.differences[0].base if case.differences else BASELINE
    found = [
        *_mismatch_table(case),
        savings_table(f"saved against {base}, per step and rank", case.differences, _notes(case)),
        kernels_table(case.differences),
        changes_table("what changed, per step and rank", case.differences),
        *waterfall_tables("where the step time went", case.differences),
        effects_table("each optimization by itself, from all arms", case.effects),
        _arms_table(case),
        *_serving_tables(case),
        _groups_table(case),
    ]
    return [table for table in found if table.rows or table.note]


def heading(case: CaseReport) -> str:
    """`deepseek-v3.2 (tiny), TP 4, concurrency 1, 3 draft tokens, bf16`."""
    drafts = f"{case.draft_tokens} draft tokens" if case.draft_tokens else "no drafts"
    return (
        f"{case.model} ({case.scale}), TP {case.tp}, concurrency {case.concurrency}, {drafts}, {case.dtype}"
    )


def next_commands(directory: Path) -> str:
    """What to type to look deeper."""
    run = shlex.quote(str(directory))
    return f"Look deeper: mtpprof report {run} --format html > report.html, or mtpprof dashboard {run}"


def _notes(case: CaseReport) -> Iterator[str]:
    for difference in case.differences:
        yield from engagement_notes(difference)
        yield from _output_notes(difference)
    yield from redundant_notes(case)
    yield from suspect_notes(case)
    for name, reason in case.not_applicable.items():
        yield f"Not compared: {name} ({reason})."


def _output_notes(difference: Difference) -> Iterator[str]:
    output = difference.output
    if output is not None and (output.weak or not output.same):
        yield f"{difference.arm}: output: {output.sentence}."


def redundant_notes(case: CaseReport) -> Iterator[str]:
    """Collectives that an arm issues and another setting of the switches does without."""
    for arm in case.arms:
        for entry in arm.excess:
            if entry.what == "redundant" and arm.name == BASELINE:
                yield f"{arm.name}: {entry.sentence}{saviour_text(entry)}."


def suspect_notes(case: CaseReport) -> Iterator[str]:
    """Arms whose numbers of collectives are lower bounds, and what else stands where collectives were."""
    for arm in case.arms:
        if arm.doubt:
            yield f"{arm.name}: calls and bytes are lower bounds: {arm.doubt}; teach it with --rules."
    yield from dict.fromkeys(note for difference in case.differences for note in difference.newcomers)


def least(arm: ArmReport, figure: str) -> str:
    """A figure that is a lower bound, marked so."""
    return f"≥ {figure}" if arm.suspects and figure != UNKNOWN else figure


def _arms_table(case: CaseReport) -> Table:
    columns = ("arm", "step time", "quartiles", "accepted", "tokens/s", "ledger", "tokens")
    notes = [f"{arm.name}: {arm.missing}." for arm in case.arms if arm.missing]
    return Table(
        title="arms",
        columns=columns,
        rows=[_arm_row(arm) for arm in case.arms],
        right=frozenset(columns[1:5]),
        note=" ".join(notes),
    )


def _arm_row(arm: ArmReport) -> tuple[str, ...]:
    step = arm.step
    expected = {True: "equal", False: "DIFFERS", None: NOTHING if arm.repeats else UNKNOWN}[arm.as_expected]
    return (
        arm.name,
        time_text(step.mean_ns if step else None),
        f"{time_text(step.low_ns)} - {time_text(step.high_ns)}" if step else UNKNOWN,
        UNKNOWN if arm.acceptance_length is None else f"{arm.acceptance_length:.2f}",
        f"{arm.throughput.tokens_per_s:,.0f}" if arm.throughput else UNKNOWN,
        expected,
        _tokens(arm),
    )


def _tokens(arm: ArmReport) -> str:
    output = arm.output
    if output is None:
        return "reference" if arm.name == BASELINE else UNKNOWN
    return output_text(output)


def _serving_tables(case: CaseReport) -> Iterator[Table]:
    """The engine's own counters, where it keeps some."""
    columns = ("arm", "inter-token latency", "per output token", "accepted", "rate", "tokens/s", "÷ accepted")
    rows = [
        (
            arm.name,
            time_text(arm.serving.inter_token_ns),
            time_text(arm.serving.time_per_output_token_ns),
            _number(arm.serving.acceptance_length, "{:.2f}"),
            _number(arm.serving.acceptance_rate, "{:.0%}"),
            _number(arm.serving.output_tokens_per_s, "{:,.0f}"),
            _number(arm.serving.tokens_per_s_per_acceptance, "{:,.0f}"),
        )
        for arm in case.arms
        if arm.serving is not None
    ]
    if rows:
        yield Table(
            title="the engine's own counters", columns=columns, rows=rows, right=frozenset(columns[1:])
        )


def _number(value: float | None, style: str) -> str:
    return UNKNOWN if value is None else style.format(value)


def _groups_table(case: CaseReport) -> Table:
    columns = ("collective", "phase", "calls", "payload", "wire (by)", "done by", "time")
    rows: list[tuple[str, ...]] = []
    for arm in case.arms:
        if arm.repeats is None and arm.groups:
            rows.append((f"{arm.name}:", "", *_totals_cells(arm)))
            rows += [_group_row(group) for group in by_pass(arm.groups)]
    return Table(
        title="collectives of one step, per rank",
        columns=columns,
        rows=rows,
        right=frozenset((*columns[2:5], "time")),
    )


def _totals_cells(arm: ArmReport) -> tuple[str, ...]:
    totals = arm.totals
    if totals is None:
        return ("", "", "", "", "")
    return (
        least(arm, count_text(totals.calls)),
        least(arm, bytes_text(totals.payload_bytes)),
        least(arm, bytes_text(totals.wire_bytes)),
        "",
        time_text(totals.collective_ns),
    )


def _group_row(group: Group) -> tuple[str, ...]:
    wire = bytes_text(group.wire_bytes)
    return (
        f"  {group.kind}{' + norm' if group.fused else ''}",
        group.phase,
        count_text(group.calls),
        bytes_text(group.payload_bytes),
        f"{wire} ({group.algorithm})" if group.algorithm and group.wire_bytes is not None else wire,
        group.implementation,
        time_text(group.time_ns),
    )


def by_pass(groups: Iterable[Group]) -> list[Group]:
    """The draft passes taken together; JSON keeps them apart."""
    merged: dict[tuple[str, ...], Group] = {}
    for group in groups:
        phase = "draft" if group.phase.startswith("draft") else group.phase
        key = (group.kind, phase, group.fused, group.implementation, group.algorithm)
        before = merged.get(key)
        merged[key] = Group(
            kind=group.kind,
            phase=phase,
            fused=group.fused,
            implementation=group.implementation,
            algorithm=group.algorithm,
            calls=group.calls + (before.calls if before else 0),
            payload_bytes=plus(group.payload_bytes, before.payload_bytes if before else 0),
            wire_bytes=plus(group.wire_bytes, before.wire_bytes if before else 0),
            time_ns=group.time_ns + (before.time_ns if before else 0),
        )
    return list(merged.values())


def _mismatch_table(case: CaseReport) -> list[Table]:
    columns = ("arm", "collective", "phase", "site", "shape", "dtype", "expected", "seen", "ranks", "steps")
    rows = [
        (
            arm.name,
            mismatch.kind,
            mismatch.phase,
            mismatch.site,
            mismatch.shape,
            mismatch.dtype,
            str(mismatch.expected),
            str(mismatch.observed),
            _span(mismatch.ranks),
            _span(mismatch.steps),
        )
        for arm in case.arms
        for mismatch in arm.mismatches
    ]
    if not rows:
        return []
    return [
        Table(
            title="NOT AS EXPECTED, collectives of one step",
            columns=columns,
            rows=rows,
            right=frozenset(columns[6:8]),
        )
    ]


def _span(numbers: Iterable[int]) -> str:
    """`0-3` or `0, 2`."""
    ordered = sorted(numbers)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ", ".join(map(str, ordered))
