"""Words and figures of a row of Collectives, as the dashboard shows and filters them."""

from __future__ import annotations

from collections.abc import Callable

from mtpprof.analyzers.compare.call_rows import KEY, CollectiveRow, Figures
from mtpprof.cli.render.units import UNKNOWN, bytes_text, count_text, signed, time_text


def matches(row: CollectiveRow, words: str) -> bool:
    """Whether every word of a filter occurs in what the row says; `kind:all_gather` asks one column only."""
    texts = dict(zip(KEY, row.key, strict=True))
    texts["rank"] = "" if row.rank is None else str(row.rank)
    texts["size"] = bytes_text(row.payload_bytes).replace(" ", "")
    texts["change"] = change_word(row)
    everything = " ".join(texts.values()).lower()
    for word in words.lower().split():
        column, colon, value = word.partition(":")
        if colon and column in texts:
            if value not in texts[column].lower():
                return False
        elif word not in everything:
            return False
    return True


def change_word(row: CollectiveRow) -> str:
    """What became of the calls from A to B, in a word; empty: there is no B."""
    if not row.comparable:
        return UNKNOWN if row.paired else ""
    if row.a is None:
        return "added"
    if row.b is None:
        return "gone"
    return "same" if row.calls_change == 0 else "changed"


def is_changed(row: CollectiveRow) -> bool:
    """Whether the calls are known to differ between the sides."""
    return row.comparable and change_word(row) != "same"


def expected_text(row: CollectiveRow) -> str:
    """`ok`, `?`, or what was seen against what was expected; where one side only is there, which one that is."""
    if row.as_expected is None:
        return UNKNOWN
    if row.as_expected:
        there = "" if row.comparable or not row.paired else "A " if row.a_read else "B "
        return f"{there}ok"
    sides = [side for side in (row.a, row.b) if side is not None and side.expected is not None]
    return " ".join(f"{count_text(side.calls)}/{side.expected}!" for side in sides)


def figures(
    row: CollectiveRow, read: Callable[[Figures], float | None], show: Callable[[float | None], str]
) -> tuple[str, str]:
    """A figure of A and of B: `-` where a side has no such call, `?` where it is not read, nothing where there is no B."""
    a = show(read(row.a)) if row.a is not None else "-" if row.a_read else UNKNOWN
    if not row.paired:
        return a, ""
    return a, show(read(row.b)) if row.b is not None else "-" if row.b_read else UNKNOWN


def change_text(row: CollectiveRow) -> str:
    """Change of calls, or of time where the calls are the same; `?`: a side is not read, empty: there is no B."""
    if row.calls_change is None or row.time_change_ns is None:
        return UNKNOWN if row.paired else ""
    if row.calls_change:
        return signed(count_text(row.calls_change))
    return signed(time_text(round(row.time_change_ns)))
