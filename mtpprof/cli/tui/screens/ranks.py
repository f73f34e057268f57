"""Ranks: what each rank's step consists of, who keeps the others waiting, how well the clocks agree."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from mtpprof.analyzers.answers.run_report import RankTimes, rank_times
from mtpprof.analyzers.compare.side import Side
from mtpprof.analyzers.measures.step_parts import PARTS
from mtpprof.cli.render.analysis import clocks_table, stragglers_table
from mtpprof.cli.render.units import percent_text, time_text
from mtpprof.cli.tui.screens.page import Page
from mtpprof.cli.tui.text import bar, safe
from mtpprof.cli.tui.widgets.row_table import Column, Row, RowTable

FIRST = {"wait": 0, "transfer": 0}
BAR = 16


class RanksPage(Page):
    """The page."""

    NAME = "ranks"
    NEEDS_SIDES = True

    def __init__(self) -> None:
        super().__init__()
        self._made_of: tuple[Side | None, Side | None] | None = None

    def body(self) -> Iterable[Widget]:
        """Matrix, stragglers, clocks."""
        with VerticalScroll():
            yield Static(id="waits", markup=False)
            yield RowTable(id="matrix")
            yield Static(id="stragglers-title", markup=False)
            yield RowTable(id="stragglers")
            yield Static(id="clocks-title", markup=False)
            yield RowTable(id="clocks")

    def show(self) -> None:
        """Draw both sides."""
        store = self.store
        wanted = (store.side(store.a), store.side(store.b))
        if self._made_of is None or any(x is not y for x, y in zip(wanted, self._made_of, strict=True)):
            self._made_of = wanted
            self.dashboard.background.start(
                "ranks", lambda: [_times(side) for side in wanted], self._take, self.dashboard.complain
            )
        lines = [
            line
            for letter, arm, side in zip("AB", (store.a, store.b), wanted, strict=True)
            for line in waits_text(letter, arm, side, store.side_problem(arm))
        ]
        self.query_one("#waits", Static).update(safe("\n".join(lines)))
        self._show_tables(wanted)

    def _take(self, times: list[list[RankTimes]]) -> None:
        rows = [
            _matrix_row(letter, rank, max(entry.step_ns for entry in side))
            for letter, side in zip("AB", times, strict=True)
            for rank in side
        ]
        table = self.query_one("#matrix", RowTable)
        table.fill(MATRIX, rows, empty="No rank's step is known.")
        table.styles.height = max(2, len(rows) + 1)

    def _show_tables(self, sides: tuple[Side | None, Side | None]) -> None:
        for name, answers, title in (
            (
                "stragglers",
                ("which rank is last", "wait and transfer"),
                "Stragglers: who came last, and what the others waited for it",
            ),
            (
                "clocks",
                ("wait and transfer",),
                "Clocks: the residual is how far the ends of collectives agree",
            ),
        ):
            rows: list[Row] = []
            columns: list[Column] = []
            for letter, side in zip("AB", sides, strict=True):
                if side is None or side.traces is None:
                    continue
                found = side.traces.found
                made = (
                    stragglers_table(found.label, found.stragglers)
                    if name == "stragglers"
                    else clocks_table(found.label, found.clocks)
                )
                columns = [
                    Column("side"),
                    *(
                        Column(c, right=c in made.right, priority=i if i > 3 else 0)
                        for i, c in enumerate(made.columns)
                    ),
                ]
                rows += [Row((letter, *cells)) for cells in made.rows]
            table = self.query_one(f"#{name}", RowTable)
            table.fill(
                columns or [Column("")],
                rows,
                empty=_why_not(sides, answers),
            )
            table.styles.height = max(2, len(rows) + 1)
            self.query_one(f"#{name}-title", Static).update(safe(title))


MATRIX = (
    Column("side"),
    Column("rank", right=True),
    Column("step", right=True),
    Column("wait", right=True),
    Column("transfer", right=True),
    Column("wait share", right=True, priority=1),
    Column("wait of the step", priority=2),
    *(Column(name, right=True, priority=3 + index) for index, name in enumerate(PARTS) if name not in FIRST),
)


def _why_not(sides: Iterable[Side | None], answers: Iterable[str]) -> str:
    """The reasons for which the sides do not answer this, as their traces tell them."""
    reasons = [
        f"{letter}: {item.answer}: {item.reason}"
        for letter, side in zip("AB", sides, strict=True)
        if side is not None and side.traces is not None
        for item in side.traces.found.withheld
        if item.answer in answers
    ]
    return "; ".join(reasons) or "Not known: one rank alone, or ranks that were not matched."


def _times(side: Side | None) -> list[RankTimes]:
    return rank_times(side.traces) if side is not None and side.traces is not None else []


def _matrix_row(letter: str, rank: RankTimes, longest_ns: float) -> Row:
    parts = rank.parts_ns
    wait, transfer = parts["wait"], parts["transfer"]
    both = wait + transfer
    share = wait / both if both else None
    rest = [parts[name] for name in PARTS if name not in FIRST]
    return Row(
        (
            letter,
            str(rank.rank) if rank.rank >= 0 else "?",
            time_text(round(rank.step_ns)),
            time_text(round(wait)),
            time_text(round(transfer)),
            percent_text(share),
            bar(0, wait, 0, longest_ns or 1, BAR),
            *(time_text(round(value)) for value in rest),
        ),
        (letter, rank.rank, rank.step_ns, wait, transfer, share, wait, *rest),
        tag=(letter, rank.rank),
    )


def waits_text(letter: str, arm: str | None, side: Side | None, problem: str | None) -> Iterable[str]:
    """What the time in collectives mostly was on a side."""
    if arm is None:
        return
    if problem is not None:
        yield f"{letter} {arm}: {problem}"
    elif side is None or side.traces is None:
        yield f"{letter} {arm}: reading the traces…"
    else:
        waits = side.traces.found.waits
        share = (
            ""
            if waits.share is None
            else f", {percent_text(waits.share)} of the time in {waits.calls} calls was waiting"
        )
        yield f"{letter} {arm}: {waits.verdict}{share}{'; ' + waits.reason if waits.reason else ''}"
