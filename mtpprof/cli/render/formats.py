"""The formats of reports and comparisons: the one table to extend for another.

Beside what every command can print (table, JSON, CSV, Markdown tables), a report has a Markdown form for pull requests and a page.
"""

from __future__ import annotations

from collections.abc import Callable

from mtpprof.analyzers.answers.run_report import Report
from mtpprof.analyzers.compare.targets import ComparisonReport
from mtpprof.cli.render.comparison import comparison_tables
from mtpprof.cli.render.format_names import ReportFormat
from mtpprof.cli.render.html import comparison_page, report_page
from mtpprof.cli.render.output import Format, stdout_console, write, write_json, write_rows, write_tables
from mtpprof.cli.render.pullrequest import pull_request
from mtpprof.cli.render.report import DEVIATIONS, case_tables, heading
from mtpprof.cli.render.rows import COMPARISON_COLUMNS, REPORT_COLUMNS, comparison_rows, report_rows
from mtpprof.cli.render.savings import summary_table


def _report_as_tables(report: Report) -> None:
    for case in report.cases:
        stdout_console().print(f"== {heading(case)} ==")
        write_tables(case_tables(case), Format.TABLE)
    if len(report.cases) > 1:
        stdout_console().print("== all cases ==")
        groups = [
            (f"{case.model}, concurrency {case.concurrency}", case.differences) for case in report.cases
        ]
        write_tables([summary_table(groups)], Format.TABLE)
    if report.deviations:
        stdout_console().print(DEVIATIONS)
    for sentence in (*(f"- {deviation}" for deviation in report.deviations), *report.notes):
        stdout_console().print(sentence)


def _comparison_as_tables(answer: ComparisonReport) -> None:
    for comparison in answer.comparisons:
        stdout_console().print(f"== {comparison.title} ==")
        write_tables(comparison_tables(comparison), Format.TABLE)


def _comparison_as_markdown(answer: ComparisonReport) -> None:
    tables = [table for comparison in answer.comparisons for table in comparison_tables(comparison)]
    write_tables(tables, Format.MD)


REPORTS: dict[ReportFormat, Callable[[Report], None]] = {
    ReportFormat.TABLE: _report_as_tables,
    ReportFormat.JSON: write_json,
    ReportFormat.CSV: lambda report: write_rows(REPORT_COLUMNS, report_rows(report)),
    ReportFormat.MD: lambda report: write(pull_request(report)),
    ReportFormat.HTML: lambda report: write(report_page(report)),
}
COMPARISONS: dict[ReportFormat, Callable[[ComparisonReport], None]] = {
    ReportFormat.TABLE: _comparison_as_tables,
    ReportFormat.JSON: write_json,
    ReportFormat.CSV: lambda answer: write_rows(COMPARISON_COLUMNS, comparison_rows(answer.comparisons)),
    ReportFormat.MD: _comparison_as_markdown,
    ReportFormat.HTML: lambda answer: write(comparison_page(answer)),
}
