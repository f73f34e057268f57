"""Collectives: every kind of call on both sides, sortable and filterable, with provenance and what was expected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input, Static

from mtpprof.analyzers.compare.call_rows import CollectiveRow, Figures, collective_rows
from mtpprof.analyzers.compare.side import Side
from mtpprof.cli.render.savings import short_fused
from mtpprof.cli.render.units import UNKNOWN, bytes_text, count_text, time_text
from mtpprof.cli.tui.row_text import change_text, expected_text, figures, is_changed, matches
from mtpprof.cli.tui.screens.page import Page
from mtpprof.cli.tui.text import safe
from mtpprof.cli.tui.widgets.row_table import Column, Row, RowTable, SortKey

COLUMNS = (
    Column("kind"),
    Column("phase", priority=1),
    Column("site", priority=5),
    Column("rank", right=True),
    Column("shape", priority=6),
    Column("dtype", priority=10),
    Column("size", right=True),
    Column("bytes are", priority=11),
    Column("by", priority=9),
    Column("A calls", right=True),
    Column("B calls", right=True),
    Column("B-A", right=True, priority=2),
    Column("A time", right=True, priority=3),
    Column("B time", right=True, priority=3),
    Column("A wait", right=True, priority=7),
    Column("B wait", right=True, priority=7),
    Column("expected", priority=4),
)
WITHOUT_RANK = tuple(replace(column, absent=column.label == "rank") for column in COLUMNS)


UNIT = "calls and times per step and rank"
ONLY_CHANGED = "changed only (d)"


class CollectivesPage(Page):
    """The page."""

    NAME = "collectives"
    AUTO_FOCUS = "#collectives"
    NEEDS_SIDES = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/", id="collectives.filter"),
        Binding("d", "only_changed", "Changed only", id="collectives.changed"),
        Binding("n", "by_rank", "By rank", id="collectives.by_rank"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._by_rank = False
        self._only_changed = False
        self._rows: list[CollectiveRow] = []
        self._made_of: tuple[Side | None, Side | None, bool, bool] | None = None

    def body(self) -> Iterable[Widget]:
        """Filter, unit, table, description."""
        yield Input(
            id="filter",
            placeholder="filter: words, or kind:all_gather phase:draft site:lm_head change:gone",
            compact=True,
        )
        yield Static(id="unit", markup=False)
        yield RowTable(id="collectives")
        yield Static(id="call-line", markup=False)

    def show(self) -> None:
        """Draw the rows of both sides; they are made in the background."""
        store = self.store
        wanted = (store.side(store.a), store.side(store.b), self._by_rank, store.b is not None)
        field = self.query_one("#filter", Input)
        if field.value != store.filter:
            field.value = store.filter
        if self._made_of is None or any(x is not y for x, y in zip(wanted, self._made_of, strict=True)):
            self._made_of = wanted
            a, b, by_rank, paired = wanted
            self.dashboard.background.start(
                "rows",
                lambda: collective_rows(a, b, by_rank=by_rank, paired=paired),
                self._take,
                self.dashboard.complain,
            )
        self._fill()

    def _take(self, rows: list[CollectiveRow]) -> None:
        self._rows = rows
        self._fill()

    def _fill(self) -> None:
        words = self.store.filter
        chosen = [
            row for row in self._rows if matches(row, words) and (not self._only_changed or is_changed(row))
        ]
        self.query_one("#unit", Static).update(safe(self._unit()))
        table = self.query_one("#collectives", RowTable)
        columns = COLUMNS if self._by_rank else WITHOUT_RANK
        table.fill(columns, [_row(row) for row in chosen], empty=self._empty())
        self._describe(table.current)

    def _unit(self) -> str:
        """What the figures are of, and which of the page's switches are on."""
        sides = [side for side in (self.store.side(self.store.a), self.store.side(self.store.b)) if side]
        stepless = any(side.traces is not None and not len(side.traces.steps) for side in sides)
        unit = "calls and times per rank (no steps in the traces)" if stepless else UNIT
        switches = [
            text for text, on in (("by rank (n)", self._by_rank), (ONLY_CHANGED, self._only_changed)) if on
        ]
        return f"{unit}{''.join(f'; {text}' for text in switches)}"

    def _empty(self) -> str:
        store = self.store
        if self._rows and self._only_changed:
            fitting = [row for row in self._rows if matches(row, store.filter)]
            if fitting and not any(row.comparable for row in fitting):
                return "Only what changed is shown, and there is nothing to compare with; d shows all."
            if fitting:
                return "Only what changed is shown, and nothing did; d shows all."
        if not self._rows and store.missing_sides:
            return "; ".join(store.missing_sides)
        if self._rows:
            return "No collective fits the filter; escape, then / to change it."
        if store.side(store.a) is not None:
            return "The traces show no collective."
        return "Reading the traces…" if self.dashboard.background.busy else "Nothing is open."

    def _describe(self, row: Row | None) -> None:
        text = describe(row.tag) if row is not None and isinstance(row.tag, CollectiveRow) else ""
        self.query_one("#call-line", Static).update(safe(text))

    def on_row_table_moved(self, event: RowTable.Moved) -> None:
        """The description follows the cursor."""
        self._describe(event.row)

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """Enter goes to the timeline."""
        self.dashboard.go("timeline")

    def on_input_changed(self, event: Input.Changed) -> None:
        """The rows follow the filter."""
        if event.value != self.store.filter:
            self.store.filter = event.value
            self._fill()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes from the filter to the rows."""
        self.query_one("#collectives").focus()

    def action_filter(self) -> None:
        """Write a filter."""
        self.query_one("#filter").focus()

    def action_leave_field(self) -> None:
        """From the filter to the rows."""
        self.query_one("#collectives").focus()

    def action_only_changed(self) -> None:
        """Only what differs between the sides, or everything."""
        self._only_changed = not self._only_changed
        self._fill()

    def action_by_rank(self) -> None:
        """Rows by rank, or over all ranks."""
        self._by_rank = not self._by_rank
        self.show()


def _row(row: CollectiveRow) -> Row:
    kind, phase, site, shape, dtype, implementation, fused = row.key
    either = row.a or row.b
    texts = (
        f"{kind} + {short_fused(fused)}" if fused else kind,
        phase or "?",
        site or "?",
        "" if row.rank is None else str(row.rank),
        shape or "?",
        dtype or "?",
        bytes_text(row.payload_bytes),
        either.provenance if either else "",
        implementation or "?",
        *figures(row, lambda side: side.calls, count_text),
        change_text(row),
        *figures(row, lambda side: side.time_ns, time_text),
        *figures(row, lambda side: side.wait_ns, time_text),
        expected_text(row),
    )
    keys: list[SortKey] = list(texts)
    keys[3] = row.rank
    keys[6] = row.payload_bytes
    keys[9], keys[10] = (side.calls if side else None for side in (row.a, row.b))
    keys[11] = row.calls_change or (None if row.time_change_ns is None else row.time_change_ns / 1e12)
    keys[12], keys[13] = (side.time_ns if side else None for side in (row.a, row.b))
    keys[14], keys[15] = (side.wait_ns if side else None for side in (row.a, row.b))
    return Row(texts, tuple(keys), tag=row, strong=is_changed(row) or row.as_expected is False)


def describe(row: CollectiveRow) -> str:
    """Everything about a row, on a line or two: what narrow terminals have no column for."""
    kind, phase, site, shape, dtype, implementation, fused = row.key
    what = f"{kind}{f' fused with {fused}' if fused else ''} [{shape or '?'}] {dtype or '?'} by {implementation or '?'}"
    where = f"in {phase or 'a phase not known'} at {site or 'a site not known'}"
    if row.rank is not None:
        where += f", rank {row.rank}"
    sides = _side_text("A", row.a, row.a_read)
    return f"{what} {where}\n{sides}" + (f"   {_side_text('B', row.b, row.b_read)}" if row.paired else "")


def _side_text(letter: str, side: Figures | None, read: bool) -> str:
    if side is None:
        return f"{letter}: no such call" if read else f"{letter}: not read ({UNKNOWN})"
    wanted = "" if side.expected is None else f" (expected {side.expected})"
    return (
        f"{letter}: {count_text(side.calls)} calls{wanted} of {bytes_text(side.payload_bytes)} {side.provenance}, "
        f"wait {time_text(side.wait_ns)}, transfer {time_text(side.transfer_ns)}"
    )
