"""Reports and comparisons as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mtpprof.analyzers.answers.run_report import ArmReport, CaseReport, Report
from mtpprof.analyzers.compare.targets import ComparisonReport
from mtpprof.cli.render.comparison import comparison_tables
from mtpprof.cli.render.output import Table
from mtpprof.cli.render.page import (
    distribution_figure,
    html_table,
    note,
    note_list,
    page,
    parts_figure,
    text,
    waterfall_figure,
)
from mtpprof.cli.render.report import DEVIATIONS, case_tables, heading, least
from mtpprof.cli.render.units import bytes_text, count_text


def report_page(report: Report) -> str:
    """The page of a run."""
    return page(f"mtpprof: {report.run['name']}", _report_body(report))


def comparison_page(answer: ComparisonReport) -> str:
    """The page of a comparison."""
    title = " · ".join(comparison.title for comparison in answer.comparisons[:1])
    return page(f"mtpprof: {title}", _comparison_body(answer))


def _report_body(report: Report) -> Iterator[str]:
    run = report.run
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run["versions"].items()))
    yield (
        f'<p class="soft">{text(run["created_utc"])} · {text(run["engine"])} on {text(run["device"])}, transport '
        f"{text(run['transport'])} · {text(run['rounds'])} rounds of {text(run['steps'])} steps, seed {text(run['seed'])} · "
        f"{text(versions)}</p>"
    )
    if report.deviations:
        yield note_list(DEVIATIONS, report.deviations)
    yield from map(note, report.notes)
    yield _contents([heading(case) for case in report.cases])
    for index, case in enumerate(report.cases):
        yield f'<section id="s{index}"><h2>{text(heading(case))}</h2>'
        yield from _case_body(case)
        yield "</section>"


def _case_body(case: CaseReport) -> Iterator[str]:
    tables = {table.title: html_table(table) for table in case_tables(case)}
    titles = list(tables)
    savings = [title for title in titles if title.startswith(("NOT AS EXPECTED", "saved"))]
    for title in savings:
        yield tables.pop(title)
    for difference in case.differences:
        if difference.waterfall is not None:
            yield waterfall_figure(
                difference.waterfall, f"{difference.base} → {difference.arm}: where a step's time went"
            )
        if difference.waterfall_per_token is not None and case.draft_tokens:
            yield waterfall_figure(
                difference.waterfall_per_token, f"{difference.base} → {difference.arm}: per accepted token"
            )
    yield html_table(ledger_table(case.arms))
    ranks = [(f"{arm.name}, rank {rank.rank}", rank.parts_ns) for arm in case.arms for rank in arm.ranks]
    if ranks:
        yield parts_figure("what a profiled step of each rank consists of", ranks)
    timed = [(arm.name, list(arm.step.rounds_ns.values())) for arm in case.arms if arm.step]
    if timed:
        yield distribution_figure("step times without a profiler", timed)
    yield from tables.values()


def ledger_table(arms: Sequence[ArmReport]) -> Table:
    """Every arm's collectives against its ledger, and what another setting of the switches does without."""
    rows = []
    for arm in arms:
        if arm.repeats is not None:
            continue
        totals = arm.totals
        state = {
            True: "equal, call for call",
            False: f"differs in {len(arm.mismatches)} ways",
            None: "no trace",
        }
        excess = "; ".join(
            entry.sentence + (f" ({entry.avoided_by})" if entry.avoided_by else "") for entry in arm.excess
        )
        rows.append(
            (
                arm.name,
                least(arm, count_text(totals.calls if totals else None)),
                least(arm, bytes_text(totals.payload_bytes if totals else None)),
                least(arm, bytes_text(totals.wire_bytes if totals else None)),
                state[arm.as_expected],
                excess or "nothing",
            )
        )
    columns = (
        "arm",
        "calls",
        "payload",
        "sent by a rank",
        "against its ledger",
        "beyond the smallest ledger",
    )
    return Table(
        title="the ledger: expected against observed, per step and rank",
        columns=columns,
        rows=rows,
        right=frozenset(columns[1:4]),
    )


def _comparison_body(answer: ComparisonReport) -> Iterator[str]:
    yield _contents([comparison.title for comparison in answer.comparisons])
    for index, comparison in enumerate(answer.comparisons):
        yield f'<section id="s{index}"><h2>{text(comparison.title)}</h2>'
        savings, *others = comparison_tables(comparison)
        yield html_table(savings)
        fall = comparison.difference.waterfall
        if fall is not None:
            yield waterfall_figure(
                fall, f"{comparison.base.name} → {comparison.arm.name}: where a step's time went"
            )
        for table in others:
            yield html_table(table)
        yield "</section>"


def _contents(titles: Sequence[str]) -> str:
    if len(titles) < 2:
        return ""
    items = "".join(f'<li><a href="#s{index}">{text(title)}</a></li>' for index, title in enumerate(titles))
    return f"<nav><ul>{items}</ul></nav>"
