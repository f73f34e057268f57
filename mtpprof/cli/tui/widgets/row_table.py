"""A table that draws only the rows in sight, so that a hundred thousand rows open and scroll like ten.

Cells are plain text: no markup is ever parsed. Columns that do not fit are left out by priority and named in the corner, where `w` brings
them back with horizontal scrolling. Each cell may carry a sort key beside its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mtpprof.cli.render.output import Table
from mtpprof.cli.tui.text import fitted

GAP = 2
MARGIN = 2
"""Cells at the left for the cursor's mark."""
MAX_WIDTH = 44
NARROWEST = 10
"""Of a column that is cut for want of room."""
SAMPLE = 4000
"""Rows that column widths are taken from."""
SortKey = float | str | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column; those with the highest priority number are the first to go where room is short."""

    label: str
    right: bool = False
    priority: int = 0
    """0: never left out."""
    widest: int = MAX_WIDTH
    """Longer cells are cut, and marked."""
    absent: bool = False
    """Not to be shown at all, whatever the room: the cells have nothing in them."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row; `tag` is what it stands for."""

    cells: tuple[str, ...]
    keys: tuple[SortKey, ...] = ()
    """Sort keys, one a column; empty: the texts."""
    tag: object = None
    strong: bool = False
    heading: bool = False
    """The first cell goes over all columns, in bold; the others are not shown."""


class RowTable(ScrollView, can_focus=True):
    """The table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="table.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="table.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="table.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="table.page_down"),
        Binding("home,g", "edge(0)", "First row", show=False, id="table.first"),
        Binding("end,G", "edge(1)", "Last row", show=False, id="table.last"),
        Binding("enter", "choose", "Open", id="table.choose"),
        Binding("s", "sort(1)", "Sort", id="table.sort"),
        Binding("S", "sort(-1)", "Sort back", show=False, id="table.sort_back"),
        Binding("R", "reverse", "Reverse order", show=False, id="table.reverse"),
        Binding("w", "wide", "All columns", show=False, id="table.wide"),
        Binding("left,shift+left", "shift(-8)", "Scroll left", show=False, id="table.left"),
        Binding("right,shift+right", "shift(8)", "Scroll right", show=False, id="table.right"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"row-table--header", "row-table--cursor", "row-table--strong"}
    DEFAULT_CSS = """
    RowTable { height: 1fr; min-height: 3; scrollbar-size-horizontal: 0; }
    RowTable .row-table--header { text-style: bold underline; color: $text-muted; }
    RowTable .row-table--cursor { background: $primary 30%; }
    RowTable:focus .row-table--cursor { background: $primary; color: $text; text-style: bold; }
    RowTable .row-table--strong { text-style: bold; }
    """

    class Chosen(Message):
        """Enter or a second click on a row."""

        def __init__(self, table: RowTable, row: Row) -> None:
            super().__init__()
            self.table, self.row = table, row

        @property
        def control(self) -> RowTable:
            """The table."""
            return self.table

    class Moved(Message):
        """The cursor stands on another row."""

        def __init__(self, table: RowTable, row: Row) -> None:
            super().__init__()
            self.table, self.row = table, row

        @property
        def control(self) -> RowTable:
            """The table."""
            return self.table

    def __init__(self, *, id: str | None = None, classes: str | None = None, empty: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self._columns: tuple[Column, ...] = ()
        self._rows: list[Row] = []
        self._given: list[Row] = []
        self._widths: list[int] = []
        """That the cells ask for."""
        self._drawn: list[int] = []
        """That the columns get."""
        self._shown: list[int] = []
        self.hidden_columns: tuple[str, ...] = ()
        """Labels of the columns for which there is no room."""
        self._cursor = 0
        self._put = False
        """Whether anybody has put the cursor anywhere; until then it stays on top."""
        self._sorted: tuple[int, bool] | None = None
        self._wide = False
        self._empty = empty

    @property
    def rows(self) -> Sequence[Row]:
        """Rows in the order in which they are shown."""
        return self._rows

    @property
    def current(self) -> Row | None:
        """Row of the cursor."""
        return self._rows[self._cursor] if self._rows else None

    @property
    def sorted_by(self) -> str | None:
        """Label of the column that the rows are sorted by; None: as they were given."""
        return self._columns[self._sorted[0]].label if self._sorted else None

    def fill(self, columns: Sequence[Column], rows: Iterable[Row], *, empty: str | None = None) -> None:
        """Show other rows; sorting and, where it still exists, the row that the cursor was put on are kept."""
        held = self.current if self._put else None
        if tuple(columns) != self._columns:
            same = [column.label for column in columns] == [column.label for column in self._columns]
            self._columns, self._sorted = tuple(columns), self._sorted if same else None
        if self._sorted is not None and self._columns[self._sorted[0]].absent:
            self._sorted = None
        self._given = list(rows)
        self._empty = self._empty if empty is None else empty
        sampled = [row for row in self._given[:SAMPLE] if not row.heading]
        self._widths = [
            max(
                [
                    cell_len(column.label) + 1,
                    *(min(column.widest, cell_len(row.cells[index])) for row in sampled),
                ]
            )
            for index, column in enumerate(self._columns)
        ]
        self._arrange()
        if held is not None:
            place = next(
                (
                    i
                    for i, row in enumerate(self._rows)
                    if row.tag == held.tag and row.cells[0] == held.cells[0]
                ),
                0,
            )
            self._cursor = place
        self._cursor = max(0, min(self._cursor, len(self._rows) - 1)) if self._put else 0
        self._lay_out()

    def fill_table(self, table: Table, *, empty: str = "") -> None:
        """Show a table made for the command line."""
        columns = [
            Column(label or " ", right=label in table.right, priority=0 if index < 4 else index)
            for index, label in enumerate(table.columns)
        ]
        self.fill(columns, [Row(tuple(cells)) for cells in table.rows], empty=empty)

    def select(self, index: int) -> None:
        """Put the cursor on a row."""
        self._to(index)

    def _arrange(self) -> None:
        self._rows = self._given
        if self._sorted is None:
            return
        index, backwards = self._sorted
        known = [row for row in self._given if _key(row, index) is not None]
        unknown = [row for row in self._given if _key(row, index) is None]
        self._rows = sorted(known, key=lambda row: _comparable(_key(row, index)), reverse=backwards) + unknown

    def _lay_out(self) -> None:
        self._drawn = list(self._widths)
        present = [index for index, column in enumerate(self._columns) if not column.absent]
        shown = list(present)
        room = self._width - MARGIN - 1
        while not self._wide and room > 0 and self._total(shown) > room:
            droppable = [index for index in shown if self._columns[index].priority]
            if not droppable:
                break
            shown.remove(max(droppable, key=lambda index: (self._columns[index].priority, index)))
        self._shown = shown
        self._fit(room)
        hidden = [self._columns[index].label.strip() for index in present if index not in shown]
        self.hidden_columns = tuple(hidden)
        self.virtual_size = Size(max(self._total(shown) + MARGIN, 1), len(self._rows) + 1)
        self.refresh()

    def _fit(self, room: int) -> None:
        """Where the columns that are never left out do not fit either, the widest of them is cut."""
        self._drawn = list(self._widths)
        excess = self._total(self._shown) - room
        if excess > 0 and room > 0 and not self._wide and self._shown:
            widest = max(self._shown, key=lambda index: self._widths[index])
            self._drawn[widest] = max(min(NARROWEST, self._widths[widest]), self._widths[widest] - excess)

    @property
    def _width(self) -> int:
        """Beside the scrollbar, where there is one."""
        return self.scrollable_content_region.width

    def watch_show_vertical_scrollbar(self) -> None:
        """A scrollbar takes columns away, or gives them back."""
        self._lay_out()

    def _total(self, shown: Sequence[int]) -> int:
        return sum(self._drawn[index] + GAP for index in shown)

    def on_resize(self, event: events.Resize) -> None:
        """Other columns may fit now."""
        self._lay_out()

    def render_line(self, y: int) -> Strip:
        """One line: the header stays on top."""
        scroll_x, scroll_y = self.scroll_offset
        width = self._width
        if y == 0:
            return self._header_strip(scroll_x, width)
        index = scroll_y + y - 1
        if index >= len(self._rows):
            text = f"  {self._empty}" if not self._rows and y == 1 else ""
            return self._strip(fitted(text, max(width, 1)), self.rich_style, 0, width)
        row = self._rows[index]
        style = self.rich_style
        if row.strong or row.heading:
            style = self.get_component_rich_style("row-table--strong")
        if index == self._cursor:
            style = self.get_component_rich_style("row-table--cursor")
        mark = "▶ " if index == self._cursor else "  "
        if row.heading:
            room = self._total(self._shown) if self._wide else 0
            text = mark + fitted(row.cells[0], max(room, width - MARGIN))
            return self._strip(text, style, scroll_x, width)
        cells = (
            fitted(row.cells[column], self._drawn[column], right=self._columns[column].right)
            for column in self._shown
        )
        return self._strip(mark + (" " * GAP).join(cells), style, scroll_x, width)

    def _header_strip(self, scroll_x: int, width: int) -> Strip:
        style = self.get_component_rich_style("row-table--header")
        if not self.hidden_columns:
            return self._strip(self._header(), style, scroll_x, width)
        hint = f" +{len(self.hidden_columns)}: w"
        return self._strip(fitted(self._header(), max(0, width - len(hint))) + hint, style, 0, width)

    def _header(self) -> str:
        words = []
        for index in self._shown:
            column, label = self._columns[index], self._columns[index].label
            if self._sorted is not None and self._sorted[0] == index:
                label += "▼" if self._sorted[1] else "▲"
            words.append(fitted(label, self._drawn[index], right=column.right))
        return "  " + (" " * GAP).join(words)

    def _strip(self, text: str, style: Style, scroll_x: int, width: int) -> Strip:
        strip = Strip([Segment(text, style)])
        return strip.crop(scroll_x, scroll_x + width).extend_cell_length(width, style)

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self._to(self._cursor + rows)

    def action_page(self, direction: int) -> None:
        """Move the cursor by a screenful."""
        self._to(self._cursor + direction * max(1, self.size.height - 2))

    def action_edge(self, last: int) -> None:
        """Go to the first or the last row."""
        self._to(len(self._rows) - 1 if last else 0)

    def action_shift(self, cells: int) -> None:
        """Scroll sideways."""
        self.scroll_relative(x=cells, animate=False)

    def action_wide(self) -> None:
        """Show all columns, or those that fit."""
        self._wide = not self._wide
        self._lay_out()

    def action_choose(self) -> None:
        """Open the row."""
        if self.current is not None:
            self.post_message(self.Chosen(self, self.current))

    def action_sort(self, direction: int) -> None:
        """Sort by the next column; after the last one, as given."""
        places: list[int | None] = [None, *self._shown]
        now = places.index(self._sorted[0]) if self._sorted and self._sorted[0] in self._shown else 0
        self._sort_by(places[(now + direction) % len(places)])

    def action_reverse(self) -> None:
        """Turn the order round."""
        if self._sorted is not None:
            self._sorted = (self._sorted[0], not self._sorted[1])
            self._resort()

    def _sort_by(self, column: int | None) -> None:
        self._sorted = None if column is None else (column, self._columns[column].right)
        self._resort()

    def _resort(self) -> None:
        self._arrange()
        self._to(0)
        self._lay_out()

    def _to(self, index: int) -> None:
        if not self._rows:
            return
        self._cursor, self._put = max(0, min(index, len(self._rows) - 1)), True
        top, height = self.scroll_offset.y, max(1, self.size.height - 1)
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False, immediate=True)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False, immediate=True)
        self.refresh(Region(0, 0, self.size.width, self.size.height))
        self.post_message(self.Moved(self, self._rows[self._cursor]))

    def on_click(self, event: events.Click) -> None:
        """A click on the header sorts; on a row it selects, a second one opens."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            self._click_header(offset.x + self.scroll_offset.x - MARGIN)
            return
        index = self.scroll_offset.y + offset.y - 1
        if index >= len(self._rows):
            return
        again = index == self._cursor
        self._to(index)
        if again:
            self.action_choose()

    def _click_header(self, x: int) -> None:
        for index in self._shown:
            if x < self._drawn[index] + GAP:
                if self._sorted is not None and self._sorted[0] == index:
                    self.action_reverse()
                else:
                    self._sort_by(index)
                return
            x -= self._drawn[index] + GAP


def _key(row: Row, index: int) -> SortKey:
    return row.keys[index] if row.keys else row.cells[index]


def _comparable(key: SortKey) -> tuple[int, float, str]:
    return (1, 0.0, key.lower()) if isinstance(key, str) else (0, float(key or 0), "")
