"""Doctor: every verdict that limits an answer, of the traces, of the run, and of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from mtpprof.analyzers.answers.examination import ProblemFound, problem_found
from mtpprof.cli.tui.screens.page import Page
from mtpprof.cli.tui.text import safe
from mtpprof.cli.tui.widgets.row_table import GAP, MARGIN, NARROWEST, Column, Row, RowTable
from mtpprof.profilers.machine_report import Finding, examine

COLUMNS = (
    Column("of", priority=2, widest=24),
    Column("severity", priority=3),
    Column("verdict", widest=20),
    Column("no answer on", priority=1, widest=28),
    Column("what is so"),
)
SENTENCE = 30
"""Cells that the sentence has to get; where they are wanting, how severe and whose it is go first."""


class DoctorPage(Page):
    """The page."""

    NAME = "doctor"
    NEEDS_SIDES = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "machine", "Examine this machine", id="doctor.machine"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._findings: list[Finding] = []
        self._examining = False

    def body(self) -> Iterable[Widget]:
        """Verdicts, and the one under the cursor in full."""
        yield RowTable(id="verdicts")
        yield Static(id="verdict-line", markup=False)

    def show(self) -> None:
        """Draw all verdicts."""
        rows = list(self._rows())
        table = self.query_one("#verdicts", RowTable)
        nothing = (
            "Nothing limits the answers." if self.store.cases else "Nothing is open; m examines this machine."
        )
        table.fill(
            columns(rows, table.scrollable_content_region.width or self.size.width),
            rows,
            empty="Examining…" if self._examining else nothing,
        )
        self._describe(table.current)

    def _rows(self) -> Iterator[Row]:
        store = self.store
        if store.verdict is not None:
            yield _row("input", "error", "cannot be shown", "everything", store.verdict)
        if store.record is not None and store.record.error:
            yield _row("run", "error", store.record.status, "", store.record.error)
        if store.live.damage:
            yield _row("run", "warning", "events damaged", "", store.live.damage)
        for deviation in store.record.deviations if store.record else []:
            yield _row("run", "note", "deviation", "", deviation)
        yield from (_problem_row("traces", problem) for problem in store.trace_problems)
        for letter, arm in (("A", store.a), ("B", store.b)):
            yield from self._side_rows(letter, arm)
        if store.answer is not None:
            yield from (_row("answer", "note", "note", "", note) for note in store.answer.notes)
        for difference in store.differences:
            yield from (
                _row(difference.arm, "warning", "caveat", "", caveat) for caveat in difference.caveats
            )
        case = store.case_report
        for report in case.arms if case else []:
            for item in report.mismatches:
                what = (
                    f"{item.kind} {item.shape} at {item.site}: {item.observed} seen, {item.expected} expected"
                )
                yield _row(report.name, "error", "not as expected", "", what)
        for finding in self._findings:
            yield _row("machine", finding.state, finding.item, "", f"{finding.found}. {finding.meaning}")

    def _side_rows(self, letter: str, arm: str | None) -> Iterator[Row]:
        store = self.store
        side, problem = store.side(arm), store.side_problem(arm)
        if problem is not None:
            yield _row(f"{letter} {arm}", "error", "no traces", "collectives", problem)
        if side is None or side.traces is None:
            return
        found = side.traces.found
        if not store.trace_problems:
            yield from (
                _problem_row(f"{letter} {arm}", item)
                for item in map(problem_found, found.problems)
                if item.level
            )
        yield from (
            _row(f"{letter} {arm}", "note", "withheld", item.answer, item.reason) for item in found.withheld
        )
        yield from (_row(f"{letter} {arm}", "note", "left out", "", text) for text in found.transients)

    def _describe(self, row: Row | None) -> None:
        text = row.tag if row is not None and isinstance(row.tag, str) else ""
        self.query_one("#verdict-line", Static).update(safe(text))

    def on_row_table_moved(self, event: RowTable.Moved) -> None:
        """The full sentence follows the cursor."""
        self._describe(event.row)

    def action_machine(self) -> None:
        """Look at this machine as `mtpprof doctor` does."""
        self._examining = True
        self.show()
        self.dashboard.background.start(
            "machine", lambda: list(examine()), self._take, self.dashboard.complain
        )

    def _take(self, findings: list[Finding]) -> None:
        self._findings, self._examining = findings, False
        self.show()


def columns(rows: Sequence[Row], width: int) -> tuple[Column, ...]:
    """The columns, the last of which has all the room that the others leave."""
    *others, sentence = COLUMNS
    needs = {
        column: GAP
        + max([len(column.label) + 1, *(min(column.widest, cell_len(row.cells[index])) for row in rows)])
        for index, column in enumerate(others)
    }
    room = width - MARGIN - 1 - GAP
    for column in sorted(others, key=lambda column: -column.priority):
        if room - sum(needs.values()) >= SENTENCE or not column.priority:
            break
        del needs[column]
    return (*others, replace(sentence, widest=max(NARROWEST, room - sum(needs.values()))))


def _row(of: str, severity: str, verdict: str, forbids: str, sentence: str) -> Row:
    return Row((of, severity, verdict, forbids or "-", sentence), tag=sentence)


def _problem_row(of: str, problem: ProblemFound) -> Row:
    sentence = f"{problem.sentence} {problem.remedy}".strip()
    return _row(of, problem.severity, problem.verdict, ", ".join(problem.forbids), sentence)
