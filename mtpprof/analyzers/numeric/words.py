"""Numbers and names as words of a sentence."""

from __future__ import annotations


def counted(number: int, name: str) -> str:
    """`1 row`, `8 rows`."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
