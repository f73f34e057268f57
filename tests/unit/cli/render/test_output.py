"""Formats of tables, whatever the cells hold."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.cli.render.escapes import in_spreadsheet, printable
from mtpprof.cli.render.output import (
    Format,
    Table,
    comma_separated,
    markdown,
    spelling,
    stdout_console,
    write,
    write_json,
    write_rows,
    write_tables,
)

CELLS = st.text(max_size=20)


def table(*rows: tuple[str, ...]) -> Table:
    return Table(title="t", columns=("name", "n"), rows=rows, right=frozenset({"n"}), note="note")


def test_markdown_is_a_github_table() -> None:
    assert markdown(table(("a|b", "1"))) == "**t**\n\n| name | n |\n|---|---:|\n| a\\|b | 1 |\n\nnote"


@given(CELLS, CELLS)
def test_csv_comes_back_as_printed(name: str, number: str) -> None:
    rows = list(csv.reader(io.StringIO(comma_separated(table((name, number))), newline="")))
    assert rows[0] == ["name", "n"]
    assert rows[1:] == [[in_spreadsheet(name), in_spreadsheet(number)]]


@given(CELLS)
def test_a_markdown_row_stays_one_row(text: str) -> None:
    assert len(markdown(table((text, "1"))).split("\n")) == 7


@given(CELLS)
def test_nothing_printed_moves_the_cursor(text: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in printable(text))


@pytest.mark.parametrize("text", ["[red]x[/red]", "op[b", "[/", ":smile:", "\x1b[31mred", "‮reversed"])
def test_names_are_never_markup(capsys: pytest.CaptureFixture[str], text: str) -> None:
    write_tables([table((text, "1"))], Format.TABLE)
    assert printable(text) in capsys.readouterr().out


@pytest.mark.parametrize("style", [Format.TABLE, Format.MD])
@pytest.mark.parametrize("text", ["\x1b[2J", "\x1b]0;title\x07", "\u202ereversed", "a\rb", "\x9b31m"])
def test_titles_columns_and_notes_are_plain_too(
    capsys: pytest.CaptureFixture[str], style: Format, text: str
) -> None:
    write_tables([Table(title=text, columns=(text,), rows=[("x",)], note=text)], style)
    stdout_console().print(text)
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)
    assert out.replace("\\\\", "\\").count(printable(text)) == 4


def test_notes_are_no_html_in_markdown() -> None:
    noted = Table(title="", columns=("x",), rows=[], note="<script> and *this* and `that`")
    assert markdown(noted).endswith("\n\n&lt;script> and \\*this\\* and `that`")


def test_rows_are_plain_values(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a,b", "n": 3.0, "x": None}, {"name": "\x1b", "n": 0.5, "x": True}]
    write_rows(("name", "n", "x"), rows)
    assert capsys.readouterr().out == 'name,n,x\n"a,b",3,\n\\x1b,0.5,True\n'


def test_rows_that_are_none_have_a_header_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(("name", "n"), [])
    assert capsys.readouterr().out == "name,n\n"


def test_a_row_holds_nothing_that_is_no_column() -> None:
    with pytest.raises(ValueError, match="other"):
        write_rows(("name",), [{"name": "a", "other": 1}])


def test_json_survives_names_that_are_no_unicode(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"pa\udcffth": ["a\udcff", 1, None, ("\udcff",)]})
    assert json.loads(capsys.readouterr().out) == {"pa?th": ["a?", 1, None, ["?"]]}


def test_data_is_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    write("± \udcff")
    assert raw.getvalue() == "± ?\n".encode()


def test_a_table_that_would_be_squeezed_is_written_as_entries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = Table(
        title="t",
        columns=tuple("abcde"),
        rows=[tuple(f"value {i} of {c}" for c in "abcde") for i in range(2)],
    )
    monkeypatch.setattr("mtpprof.cli.render.output.UNLIMITED_WIDTH", 40)
    write_tables([wide], Format.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["t", "value 0 of a", "  b: value 0 of b", "  c: value 0 of c"]
    monkeypatch.setattr("mtpprof.cli.render.output.UNLIMITED_WIDTH", 100)
    write_tables([wide], Format.TABLE)
    assert "value 0 of a  value 0 of b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("utf-8", "±1 → 2 µs"), ("ascii", "+/-1 -> 2 us"), ("ANSI_X3.4-1968", "+/-1 -> 2 us")],
)
def test_figures_keep_their_meaning_in_ascii(encoding: str, text: str) -> None:
    assert spelling(encoding)("±1 → 2 µs") == text
