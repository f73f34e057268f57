"""What the command line writes where: results on stdout, progress and diagnostics on stderr.

Without a terminal there is no colour and no width limit, so that piped tables lose nothing.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mtpprof.cli.render.escapes import cell_in_markdown, in_spreadsheet, printable, sentence_in_markdown

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED_WIDTH = 10_000
PROSE_WIDTH = 24
MAX_SQUEEZE = 1.5
"""How much wider than the terminal a table may be; beyond, its rows are written under one another."""
ASCII = str.maketrans(
    {
        "±": "+/-",
        "×": "x",
        "→": "->",
        "≥": ">=",
        "≤": "<=",
        "µ": "u",
        "…": "...",
        "–": "-",
        "−": "-",
        "─": "-",
    }
)


class Format(StrEnum):
    """How a result is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A result as rows of text, before any format."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: frozenset[str] = frozenset()
    """Columns of numbers, aligned to the right."""
    note: str = ""


def stdout_console() -> Console:
    """Console for results."""
    return _console(sys.stdout)


def stderr_console() -> Console:
    """Console for progress and diagnostics."""
    return _console(sys.stderr)


def _console(stream: Any) -> Console:
    from rich.console import Console

    class OurConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            """Plain text in it may quote names that anybody wrote: none of them moves the cursor."""
            super().print(*(printable(one) if isinstance(one, str) else one for one in objects), **options)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would exit with 1, which says something else here

    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a terminal without UTF-8 must not end a finished run
    terminal = stream.isatty()
    return OurConsole(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        no_color=None if terminal else True,
        width=None if terminal else UNLIMITED_WIDTH,
    )


def write(text: str) -> None:
    """Write a result that is data, not for a terminal: in UTF-8 whatever the locale, as its readers expect it."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # a file's name may be no Unicode at all
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Write a result as JSON."""
    import msgspec

    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:  # a file's name that is no Unicode
        text = msgspec.json.encode(_unicode(msgspec.to_builtins(value)))
    write(msgspec.json.format(text, indent=2).decode())


def _unicode(value: Any) -> Any:
    """Plain values with what is no Unicode in their texts replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_unicode(key): _unicode(item) for key, item in value.items()}
    return [_unicode(item) for item in value] if isinstance(value, list | tuple) else value


def write_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows of plain values as CSV, below a header even where there are none; None is empty.

    No text is a formula, and control characters are escaped, as everywhere.

    Raises:
        ValueError: a row holds what is no column.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_value(value) for name, value in row.items()} for row in rows)
    write(buffer.getvalue())


def _csv_value(value: Any) -> Any:
    if isinstance(value, str):
        return in_spreadsheet(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def write_tables(tables: Sequence[Table], style: Format) -> None:
    """Write tables in a text format."""
    if style is Format.TABLE:
        console = stdout_console()
        spell = spelling(console.encoding)
        for table in tables:
            fits = _natural_width(table) <= console.width * MAX_SQUEEZE
            console.print(_rich_table(table, spell) if fits else _as_entries(table, spell))
            if table.note:
                console.print(spell(table.note))
            console.print()
    elif style is Format.MD:
        write("\n\n".join(markdown(table) for table in tables))
    elif style is Format.CSV:
        write("\n".join(comma_separated(table) for table in tables))


def _rich_table(table: Table, spell: Callable[[str], str]) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    title = Text(spell(printable(table.title)))
    # Two columns between cells, not the three of the default: what a run ends with fits 100.
    rich_table = RichTable(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for column in table.columns:
        rich_table.add_column(
            Text(spell(printable(column))),
            justify="right" if column in table.right else "left",
            overflow="fold",
        )
    for row in table.rows:
        rich_table.add_row(*(Text(spell(printable(cell))) for cell in row))
    return rich_table


def _natural_width(table: Table) -> int:
    """Columns that the table takes unfolded; long prose may always fold."""
    cells = [table.columns, *table.rows]
    widest = [max(min(len(row[index]), PROSE_WIDTH) for row in cells) for index in range(len(table.columns))]
    return sum(widest) + 2 * len(widest)


def _as_entries(table: Table, spell: Callable[[str], str]) -> Any:
    """A row under the other, a line per cell: for terminals in which the columns would be a few letters wide."""
    from rich.text import Text

    lines = [table.title] if table.title else []
    for row in table.rows:
        first, *rest = row
        lines.append(first or "-")
        lines += [
            f"  {column}: {cell}"
            for column, cell in zip(table.columns[1:], rest, strict=True)
            if cell.strip()
        ]
    return Text("\n".join(spell(printable(line)) for line in lines))


def spelling(encoding: str) -> Callable[[str], str]:
    """How to write text on a stream of this encoding: outside of Unicode, ± and its like in ASCII, never as a question mark."""
    if encoding.lower().replace("-", "").startswith("utf"):
        return str
    return lambda text: text.translate(ASCII)


def markdown(table: Table) -> str:
    """A GitHub table."""
    lines = [f"**{cell_in_markdown(table.title)}**", ""] if table.title else []
    lines.append("| " + " | ".join(cell_in_markdown(column) for column in table.columns) + " |")
    lines.append("|" + "|".join("---:" if column in table.right else "---" for column in table.columns) + "|")
    lines += ["| " + " | ".join(cell_in_markdown(cell) for cell in row) + " |" for row in table.rows]
    if table.note:
        lines += ["", sentence_in_markdown(table.note)]
    return "\n".join(lines)


def comma_separated(table: Table) -> str:
    """Rows as comma-separated values with a header; no cell is a formula, and control characters are escaped, as everywhere."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(in_spreadsheet, table.columns))
    writer.writerows([in_spreadsheet(cell) for cell in row] for row in table.rows)
    return buffer.getvalue()
