"""Figures for people: inside, everything is integer bytes and nanoseconds; unknown is shown as unknown."""

from __future__ import annotations

UNKNOWN = "?"


def bytes_text(size: float | None) -> str:
    """Decimal units with three significant digits or all of the integer: `28.7 kB`, `64 B`."""
    if size is None:
        return UNKNOWN
    value, sign = abs(size), "-" if size < 0 else ""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{sign}{_significant(value / scale)} {unit}"
    return f"{sign}{value:.0f} B" if value == int(value) else f"{sign}{value:.1f} B"


def time_text(dur_ns: float | None) -> str:
    """`4.64 ms`, `12.3 µs`, `850 ns`."""
    if dur_ns is None:
        return UNKNOWN
    value, sign = abs(dur_ns), "-" if dur_ns < 0 else ""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value >= scale:
            return f"{sign}{_significant(value / scale)} {unit}"
    return f"{sign}{value:.0f} ns"


def count_text(count: float | None) -> str:
    """Counts are integers where they are whole."""
    if count is None:
        return UNKNOWN
    return f"{count:.0f}" if count == int(count) else f"{count:.2f}"


def signed(text: str) -> str:
    """A difference with its sign always shown; nothing for zero."""
    return text if text.startswith("-") or text in ("0", "0 B", "0 ns", UNKNOWN) else f"+{text}"


def percent_text(share: float | None) -> str:
    """A share of one as percent."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def elapsed_text(seconds: float) -> str:
    """`1:05` or `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _significant(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
