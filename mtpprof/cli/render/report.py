"""A report as tables of text: what was seen, arm by arm, and what each optimization changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mtpprof.analyzers.report import ArmReport, CaseReport, Difference, Group, Report
from mtpprof.cli.output import Table
from mtpprof.cli.units import UNKNOWN, bytes_text, count_text, signed, time_text

NOISE_MARGIN = 1.0
"""A difference of step times is called one when it exceeds the A/A difference by this factor."""


def tables(report: Report) -> list[Table]:
    """Three tables a case: collectives by kind and phase, arms, and differences to the baseline."""
    result = []
    for case in report.cases:
        result += [_groups_table(case), _arms_table(case), _differences_table(case)]
        result += _mismatch_table(case)
    return result


def _heading(case: CaseReport) -> str:
    drafts = f"{case.draft_tokens} draft tokens" if case.draft_tokens else "no drafts"
    return (
        f"{case.model} ({case.scale}), TP {case.tp}, concurrency {case.concurrency}, {drafts}, {case.dtype}"
    )


def _groups_table(case: CaseReport) -> Table:
    columns = ("arm", "collective", "phase", "by", "calls", "payload", "wire", "time")
    rows = []
    for arm in case.arms:
        if arm.repeats is None:
            rows += [(arm.name, *_group_row(group)) for group in _by_pass(arm.groups)]
    return Table(
        title=f"{_heading(case)}: collectives of one step, per rank",
        columns=columns,
        rows=_without_repeats(rows),
        right=frozenset(columns[4:]),
    )


def _group_row(group: Group) -> tuple[str, ...]:
    kind = f"{group.kind} + {group.fused}" if group.fused else group.kind
    return (
        kind,
        group.phase,
        f"{group.implementation} ({group.algorithm})" if group.algorithm else group.implementation,
        count_text(group.calls),
        bytes_text(group.payload_bytes),
        bytes_text(group.wire_bytes),
        time_text(group.time_ns),
    )


def _by_pass(groups: Iterable[Group]) -> list[Group]:
    """The draft passes taken together; JSON and CSV keep them apart."""
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
            payload_bytes=_plus(group.payload_bytes, before.payload_bytes if before else 0),
            wire_bytes=_plus(group.wire_bytes, before.wire_bytes if before else 0),
            time_ns=group.time_ns + (before.time_ns if before else 0),
        )
    return list(merged.values())


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _without_repeats(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The arm's name on its first row only."""
    result, last = [], ""
    for row in rows:
        result.append(("" if row[0] == last else row[0], *row[1:]))
        last = row[0]
    return result


def _arms_table(case: CaseReport) -> Table:
    columns = (
        "arm",
        "step time",
        "quartiles",
        "profiled",
        "in collectives",
        "fused",
        "accepted",
        "as expected",
        "tokens",
    )
    notes = [f"{arm.name}: {arm.missing}." for arm in case.arms if arm.missing]
    return Table(
        title=f"{_heading(case)}: arms",
        columns=columns,
        rows=[_arm_row(arm) for arm in case.arms],
        right=frozenset(columns[1:7]),
        note=" ".join(notes),
    )


def _arm_row(arm: ArmReport) -> tuple[str, ...]:
    step, totals = arm.step, arm.totals
    expected = {True: "yes", False: "NO", None: "-" if arm.repeats else UNKNOWN}[arm.as_expected]
    return (
        arm.name,
        time_text(step.median_ns if step else None),
        f"{time_text(step.low_ns)} - {time_text(step.high_ns)}" if step else UNKNOWN,
        "-" if arm.repeats else time_text(arm.profiled_step_ns),
        "-" if arm.repeats else time_text(totals.collective_ns if totals else None),
        "-" if arm.repeats else time_text(totals.fused_ns if totals else None),
        UNKNOWN if arm.acceptance_length is None else f"{arm.acceptance_length:.2f}",
        expected,
        _tokens(arm),
    )


def _tokens(arm: ArmReport) -> str:
    output = arm.output
    if output is None:
        return "reference" if arm.name == "baseline" else UNKNOWN
    if output.same:
        return "same"
    sequence, position = output.first_difference or (0, 0)
    return f"{output.agreeing}/{output.tokens} agree, first differs at sequence {sequence}, token {position}"


def _differences_table(case: CaseReport) -> Table:
    columns = (
        "optimization",
        "engaged",
        "calls",
        "payload",
        "wire",
        "in collectives",
        "step time",
        "A/A noise",
        "above noise",
    )
    notes = [f"Not applicable: {name} ({reason})." for name, reason in case.not_applicable.items()]
    return Table(
        title=f"{_heading(case)}: difference to the baseline, per step and rank",
        columns=columns,
        rows=[_difference_row(case, difference) for difference in case.differences],
        right=frozenset(columns[2:8]),
        note="\n".join(notes),
    )


def _difference_row(case: CaseReport, difference: Difference) -> tuple[str, ...]:
    arm = next(arm for arm in case.arms if arm.name == difference.arm)
    return (
        difference.arm,
        ", ".join(_engaged(arm, difference)) or UNKNOWN,
        signed(count_text(difference.calls)),
        signed(bytes_text(difference.payload_bytes)),
        signed(bytes_text(difference.wire_bytes)),
        signed(time_text(difference.collective_ns)),
        signed(time_text(difference.step_ns)),
        "±" + time_text(abs(difference.noise_ns)) if difference.noise_ns is not None else UNKNOWN,
        _above_noise(difference),
    )


def _engaged(arm: ArmReport, difference: Difference) -> Iterator[str]:
    for name in difference.optimizations:
        engagement = arm.engagement.get(name)
        if engagement is None:
            continue
        if engagement.verdict == "PARTLY":
            yield f"PARTLY ({engagement.engaged_calls} of {engagement.opportunities} calls)"
        else:
            yield engagement.verdict


def _above_noise(difference: Difference) -> str:
    if difference.step_ns is None or difference.noise_ns is None:
        return UNKNOWN
    return "yes" if abs(difference.step_ns) > NOISE_MARGIN * abs(difference.noise_ns) else "no"


def _mismatch_table(case: CaseReport) -> list[Table]:
    columns = ("arm", "collective", "phase", "site", "shape", "dtype", "expected", "seen", "ranks", "steps")
    rows = [
        (
            arm.name,
            *(
                str(mismatch[key])
                for key in ("kind", "phase", "site", "shape", "dtype", "expected", "observed")
            ),
            _span(mismatch["ranks"]),
            _span(mismatch["steps"]),
        )
        for arm in case.arms
        for mismatch in arm.mismatches
    ]
    if not rows:
        return []
    title = f"{_heading(case)}: NOT AS EXPECTED, collectives of one step"
    return [Table(title=title, columns=columns, rows=rows, right=frozenset(columns[6:8]))]


def _span(numbers: Iterable[int]) -> str:
    """`0-3` or `0, 2`."""
    ordered = sorted(numbers)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ", ".join(map(str, ordered))
