"""Text on the screen: width, ASCII, bars."""

from __future__ import annotations

import locale

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color

from mtpprof.cli.render.escapes import printable
from mtpprof.cli.tui.text import (
    SPARKS,
    AsciiFilter,
    bar,
    fitted,
    safe,
    sparkline,
    terminal_is_ascii,
    to_ascii,
)
from mtpprof.cli.tui.widgets.timeline_view import GLYPHS, SPARSE


@given(st.text(), st.integers(1, 40), st.booleans())
def test_fitted_has_exactly_its_width_and_no_control_characters(text: str, width: int, right: bool) -> None:
    found = fitted(text, width, right=right)
    assert cell_len(found) == width
    assert found.isprintable()


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_ascii_keeps_the_width_of_what_can_be_shown(text: str) -> None:
    shown = printable(text).replace("\n", "")
    found = to_ascii(shown)
    assert found.isascii()
    assert len(found) == sum(cell_len(character) for character in shown)


def test_bars_of_a_sparkline_rise_in_ascii() -> None:
    assert to_ascii(SPARKS) == "_..--==#"


def test_the_filter_leaves_styles_alone() -> None:
    segments = AsciiFilter().apply([Segment("▶ é→🔥", None)], Color(0, 0, 0))
    assert [segment.text for segment in segments] == ["> e>??"]


def test_markup_stays_text() -> None:
    assert safe("[bold]x[/]").plain == "[bold]x[/]"
    assert safe("\x1b[31mx").plain == "\\x1b[31mx"


@given(st.lists(st.floats(0, 1e12), max_size=50), st.integers(0, 20))
def test_sparklines_fit(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == (min(width, len(values)) if values and width else 0)


def test_sparklines_rise() -> None:
    assert sparkline([1, 2, 3, 4], 4) == "▁▃▆█"
    assert sparkline([7, 7], 2) == "▁▁"


@given(st.floats(0, 100), st.floats(0, 100), st.integers(1, 60))
def test_bars_are_as_wide_as_their_column_and_never_empty(before: float, after: float, width: int) -> None:
    found = bar(before, after, 0, 100, width)
    assert len(found) == width
    assert found.strip()


def test_more_and_less_have_different_marks() -> None:
    assert bar(2, 4, 0, 4, 4) == "  ██"
    assert bar(4, 2, 0, 4, 4) == "  ░░"


@pytest.mark.parametrize(
    ("encoding", "ascii_only"), [("ANSI_X3.4-1968", True), ("UTF-8", False), ("utf8", False)]
)
def test_the_locale_decides(monkeypatch: pytest.MonkeyPatch, encoding: str, ascii_only: bool) -> None:
    monkeypatch.setattr(locale, "getencoding", lambda: encoding)
    assert terminal_is_ascii() is ascii_only


def test_marks_of_the_timeline_differ_in_ascii() -> None:
    marks = [to_ascii(glyph) for glyph in (*GLYPHS.values(), SPARSE)]
    assert len(set(marks)) == len(marks)
