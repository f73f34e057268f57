"""A report as a pull request's description wants it: one table a case with a column an arm, what changed, and the small print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from mtpprof.analyzers.answers.run_report import ArmReport, CaseReport, Report
from mtpprof.analyzers.compare.difference import Difference
from mtpprof.analyzers.compare.effects import Effect
from mtpprof.analyzers.numeric.stats import Claim
from mtpprof.cli.render.escapes import sentence_in_markdown
from mtpprof.cli.render.output import Table, markdown
from mtpprof.cli.render.report import DEVIATIONS, heading, least, redundant_notes, suspect_notes
from mtpprof.cli.render.savings import (
    change_row,
    claim_notes,
    effect_verdict,
    engaged_text,
    engagement_notes,
    interval_text,
    kernels_text,
    memory_text,
    merged_drafts,
    noise_text,
    output_sentence,
    verdict_text,
)
from mtpprof.cli.render.units import UNKNOWN, bytes_text, count_text, percent_text, signed, time_text

Cell = Callable[[ArmReport, ArmReport, Difference | None], str]


def pull_request(report: Report) -> str:
    """The report as Markdown."""
    parts = [_case(case) for case in report.cases]
    return "\n\n".join([*parts, _small_print(report)]) + "\n"


def _case(case: CaseReport) -> str:
    arms = [arm for arm in case.arms if arm.repeats is None]
    base = arms[0]
    differences = {difference.arm: difference for difference in case.differences}
    rows = [(label, *(cell(arm, base, differences.get(arm.name)) for arm in arms)) for label, cell in ROWS]
    table = Table(
        title="", columns=("per step and rank", *(arm.name for arm in arms)), rows=rows, right=frozenset()
    )
    notes = [f"- {_line(note)}" for note in _notes(case)]
    return "\n".join([f"### {_line(heading(case))}", "", markdown(table), "", *notes])


def _engaged(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
    return engaged_text(difference) if difference else ""


def _against(value: float | None, base: float | None, text: str, same: bool) -> str:
    if same or value is None or not base:
        return text
    change = value / base - 1
    return f"{text} ({signed(percent_text(change))})" if round(change, 3) else text


def _total(name: str, text: Callable[[float | None], str]) -> Cell:
    def cell(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
        value = getattr(arm.totals, name) if arm.totals else None
        reference = getattr(base.totals, name) if base.totals else None
        if arm.suspects or base.suspects:
            return least(arm, text(value))
        return _against(value, reference, text(value), arm is base or arm.partial or base.partial)

    return cell


def _step(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
    value = arm.step.mean_ns if arm.step else None
    return _against(value, base.step.mean_ns if base.step else None, time_text(value), arm is base)


def _difference(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
    if difference is None:
        return ""
    return interval_text(difference.step.difference) if difference.step.difference else UNKNOWN


def _verdict(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
    return f"**{verdict_text(difference.step)}**" if difference else ""


def _accepted(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
    found = arm.acceptance
    if found is None:
        return UNKNOWN
    if found.low is None or found.high is None:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _throughput(name: str) -> Cell:
    def cell(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
        value = getattr(arm.throughput, name) if arm.throughput else None
        reference = getattr(base.throughput, name) if base.throughput else None
        return _against(value, reference, UNKNOWN if value is None else f"{value:,.1f}", arm is base)

    return cell


def _tokens(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
    return "reference" if arm is base else output_sentence(arm.output)


def _kernels(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
    return kernels_text(difference) if difference else ""


def _memory(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
    return memory_text(difference) if difference else ""


def _ledger(arm: ArmReport, base: ArmReport, difference: Difference | None) -> str:
    return {True: "equal", False: "**differs**", None: UNKNOWN}[arm.as_expected]


ROWS: tuple[tuple[str, Cell], ...] = (
    ("engaged (from the trace)", _engaged),
    ("collectives", _total("calls", count_text)),
    ("payload", _total("payload_bytes", bytes_text)),
    ("sent by a rank", _total("wire_bytes", bytes_text)),
    ("kernels beside the collectives", _kernels),
    ("their memory traffic", _memory),
    ("observed against the ledger", _ledger),
    ("step time, no profiler", _step),
    ("difference", _difference),
    ("verdict", _verdict),
    ("acceptance length", _accepted),
    ("tokens/s", _throughput("tokens_per_s")),
    ("tokens/s ÷ acceptance length", _throughput("per_acceptance")),
    ("tokens", _tokens),
)
"""The lines of the table. To show another figure is to add a row."""


def _notes(case: CaseReport) -> Iterator[str]:
    for arm in case.arms:
        if arm.missing:
            yield f"`{arm.name}`: {arm.missing}."
    for difference in case.differences:
        found = [change for change in merged_drafts(difference.changes) if change.what != "moved"]
        if found:
            yield f"`{difference.arm}`: {'; '.join(_change(change_row(change)) for change in found)}."
        yield from engagement_notes(difference)
        yield from claim_notes(difference)
    for effect in case.effects:
        if effect.step is not None:
            name = " × ".join(f"`{one}`" for one in effect.optimizations)
            kind = "interaction of" if len(effect.optimizations) > 1 else "by itself, over all arms,"
            yield f"{kind} {name}: {interval_text(effect.step)} ({_held(effect)})."
    noise = next((one for one in case.differences if one.step.noise), None)
    if noise is not None and noise.step.noise is not None:
        yield noise_text(noise.step.noise, paired=noise.step.paired)
    yield from redundant_notes(case)
    yield from suspect_notes(case)
    for name, reason in case.not_applicable.items():
        yield f"`{name}` does not apply: {reason}."


def _held(effect: Effect) -> str:
    """The claim on an effect with the floor that it was held against, or why there is none."""
    if effect.claim in (Claim.UNKNOWN, Claim.NOT_ENGAGED):
        return f"no claim: {effect.reason}"
    floor = f", A/A floor {time_text(effect.noise.floor)}" if effect.noise else ""
    return f"{effect_verdict(effect)}{floor}"


def _line(text: str) -> str:
    return sentence_in_markdown(text).replace("\n", " ")


def _change(cells: tuple[str, ...]) -> str:
    what, verb, where, payload = (cell.strip() for cell in cells)
    bytes_part = f", {payload}" if payload not in (UNKNOWN, "0 B") else ""
    return f"{what} {verb} at {where}{bytes_part}"


def _small_print(report: Report) -> str:
    run = report.run
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run["versions"].items()))
    gpus = (
        ", ".join(map(str, run["machine"].get("gpus") or ()))
        or f"{run['machine'].get('cpus', '?')} CPU cores"
    )
    lines: Iterable[str] = chain(
        [
            f"{run['engine']} engine on {run['device']} ({gpus}), transport {run['transport']}; {run['rounds']} rounds of "
            f"{run['steps']} steps in a balanced order, baseline visited twice a round; seed {run['seed']}; {versions}.",
            "± and [ ] are 95 % intervals: of step times by Student's t over the rounds, paired. A saving is claimed only where "
            "the interval excludes zero and the difference exceeds what the unchanged baseline differs by from itself, and not where "
            "nothing engaged.",
        ],
        ["", DEVIATIONS, "", *(f"- {_line(deviation)}" for deviation in report.deviations), ""]
        if report.deviations
        else [],
        report.notes,
    )
    return "\n".join(["<sub>", "", *lines, "", "</sub>"])
