"""Markdown tables of published figures as test data, and the comparison of a figure with what was printed."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

DATA = Path(__file__).parents[2] / "data" / "ledger"
_UNITS = {"B": 1, "kB": 1000, "MB": 1_000_000}


def read_table(name: str) -> list[dict[str, str]]:
    """Rows of the one table in a Markdown file, by column title."""
    lines = (DATA / f"{name}.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    titles, _, *rows = cells
    assert rows
    return [dict(zip(titles, row, strict=True)) for row in rows]


def matches(printed: str, value: int) -> bool:
    """Whether `value` bytes, printed in the same unit and to as many digits, gives `printed`."""
    number, unit = printed.split()
    _, _, digits = number.partition(".")
    return abs(Fraction(number) * _UNITS[unit] - value) <= Fraction(_UNITS[unit], 2 * 10 ** len(digits))


def sizes(text: str) -> list[str]:
    """The sizes printed in a cell, e.g. `28.67 kB`."""
    return re.findall(r"[\d.]+ [kM]?B", text)
