"""Text on the screen: names are hostile, terminals may know ASCII only, and bars are made of characters.

The decision on ASCII: one filter on the finished lines, below all widgets, so that no widget (ours or Textual's) and no name out of a
trace can put anything else on the terminal, and nothing has to be drawn twice.
"""

from __future__ import annotations

import locale
import sys
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter

from mtpprof.cli.render.escapes import printable

SPARKS = "▁▂▃▄▅▆▇█"
_SUBSTITUTES = {
    **dict(zip(SPARKS, "_..--==#", strict=True)),
    **dict.fromkeys("█▊▉▋▌", "#"),
    **dict.fromkeys("▓", "@"),  # on the timeline it is another mark than the full block
    **dict.fromkeys("▒", "%"),
    **dict.fromkeys("░", ":"),
    **dict.fromkeys("─━═╌┄▔⎯", "-"),
    **dict.fromkeys("│┃║╎┆▎▏▍▕▐", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰╔╗╚╝╋╸╺┏┓┗┛", "+"),
    **dict.fromkeys("▶▸▷", ">"),
    **dict.fromkeys("◀◂◁", "<"),
    **dict.fromkeys("▲△▴↑", "^"),
    **dict.fromkeys("▼▽▾↓", "v"),
    **dict.fromkeys("·∙•", "."),
    **dict.fromkeys("●◉", "*"),
    **dict.fromkeys("○◯", "o"),
    **dict.fromkeys("✓✔", "y"),
    **dict.fromkeys("✗✘×", "x"),
    **dict.fromkeys("–—−", "-"),
    "→": ">",
    "←": "<",
    "±": "~",
    "µ": "u",
    "…": "~",
    "‹": "<",
    "›": ">",
    "⏎": ">",
    "⚠": "!",
    "\u00a0": " ",
}


def terminal_is_ascii() -> bool:
    """Whether the locale (not Python's UTF-8 mode) says that the terminal shows ASCII only."""
    if sys.platform == "win32":
        return False
    return "utf" not in locale.getencoding().lower()


def to_ascii(text: str) -> str:
    """The same number of cells in ASCII."""
    if text.isascii():
        return text
    return "".join(_ascii_character(character) for character in text)


def _ascii_character(character: str) -> str:
    if character.isascii():
        return character
    known = _SUBSTITUTES.get(character)
    if known is not None:
        return known
    plain = unicodedata.normalize("NFKD", character)[:1]
    return (plain if plain.isascii() else "?").ljust(cell_len(character), "?")[: cell_len(character)]


class AsciiFilter(LineFilter):
    """Leaves nothing but ASCII of every line."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same line in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


def safe(text: str) -> Text:
    """A name or message as text without markup and control characters."""
    return Text(printable(text), no_wrap=False)


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells, marked with `…` where it is cut."""
    text = printable(text).replace("\n", " ")
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, max(0, width - 1)) + "…" if width > 0 else ""
    return " " * (width - length) + text if right else text + " " * (width - length)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars of one cell, each column the mean of the values that fall into it."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    bounds = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(bounds) if high > low]
    low, high = min(means), max(means)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0
    return "".join(SPARKS[round((mean - low) * scale)] for mean in means)


def bar(before: float, after: float, low: float, high: float, width: int) -> str:
    """A bar from `before` to `after` on a scale from `low` to `high`: solid where it grows, light where it shrinks."""
    scale = width / (high - low) if high > low else 0
    start, end = sorted((round((before - low) * scale), round((after - low) * scale)))
    start = min(start, width - 1)
    end = max(end, start + (1 if before != after else 0))
    mark = "█" if after > before else "░"
    drawn = mark * (end - start) if before != after else "│"
    return (" " * start + drawn).ljust(width)[:width]
