"""Names that anybody may have written, made harmless in each output: no markup, no link, no picture, no formula, no control character.

The decision: what a name looks like is kept where it can be. Markdown gets backslashes and entities, which render as the name; a
spreadsheet has no such thing, so a cell that it would take for a formula gets an apostrophe in front.
"""

from __future__ import annotations

import re

_MARKUP = re.compile(
    r"([\\`*|~]|\](?=[(\[:])|(?<=\])[(\[:]|!(?=\[)|(?<=!)\[|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z]))"
)
"""Brackets stay, as of shapes, where no link can come of them."""
_BOLD = re.compile(r"\*\*(.+)\*\*", re.DOTALL)
_FIGURE = re.compile(r"-|[+-]\s?\d[\d,. ]*(?:e[+-]?\d+)?(?:[A-Za-zµ%/().,–\d -]|≥|×)*")
"""Text that starts with a sign and is a figure all the same; a sign alone stands for nothing."""
_ENTITIES = (("&", "&amp;"), ("<", "&lt;"), ("://", "&#58;//"), ("@", "&#64;"))
_WWW = re.compile(r"\b(www)\.", re.IGNORECASE)


def printable(text: str) -> str:
    """`text` without control characters: names come from files that anybody may have written."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def in_markdown(text: str) -> str:
    """Text as Markdown shows it unchanged: no emphasis, code, link, picture, mention or HTML, and no end of a table's cell."""
    found = _MARKUP.sub(r"\\\1", printable(text))
    for written, entity in _ENTITIES:
        found = found.replace(written, entity)
    return _WWW.sub(r"\1&#46;", found)


def cell_in_markdown(text: str) -> str:
    """The same for a cell of a table, which is one line; a cell that is bold as a whole stays so."""
    bold = _BOLD.fullmatch(text)
    shown = f"**{in_markdown(bold[1])}**" if bold else in_markdown(text)
    return shown.replace("\n", " ")


def sentence_in_markdown(text: str) -> str:
    """The same for a sentence of ours, in which names stand between backticks: those stay, and what is between them is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return in_markdown(text)
    shown = [printable(part) if index % 2 else in_markdown(part) for index, part in enumerate(parts)]
    return "`".join(shown)


def in_spreadsheet(text: str) -> str:
    """Text of a cell that no spreadsheet takes for a formula."""
    found = printable(text)
    start = found.lstrip()
    formula = start.startswith(("=", "@")) or (start.startswith(("+", "-")) and not _FIGURE.fullmatch(start))
    return f"'{found}" if formula else found
