"""What names that look like communication, and that no rule knows, mean for the figures.

The decision: they are never counted, since a name proves nothing, and never forgotten. While they stand, the numbers of calls and bytes
are lower bounds: what is not there may be among them, so nothing was "removed", no verdict on engagement is given, and a budget that
is undercut is exceeded: calls that went may be there under another name. A rule for the name (`--rules`) settles it, either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NAMED = 3
"""Names that a sentence holds; of more, the number is said."""
NAME_LENGTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A name that no rule knows and that looks like communication; never counted as a collective."""

    name: str
    count: int
    dur_ns: int


def suspicion(suspects: Iterable[Suspect]) -> str:
    """`680 × acme::fast_all_reduce (2,414.825 ms over all ranks) looks like communication and no rule knows it`; empty: there are none."""
    found = list(suspects)
    if not found:
        return ""
    names = [
        f"{item.count} × {short(item.name)} ({item.dur_ns / 1e6:,.3f} ms over all ranks)"
        for item in found[:NAMED]
    ]
    if len(found) > NAMED:
        names.append(f"{len(found) - NAMED} more names")
    verb = "looks like communication and no rule knows it" if len(found) == 1 else "look like communication"
    return f"{', '.join(names)} {verb}" + (" and no rule knows them" if len(found) > 1 else "")


def short(name: str) -> str:
    """A name in a sentence: kernels have names of thousands of characters."""
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
