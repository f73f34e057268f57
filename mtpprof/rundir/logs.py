"""The logs of a run, as far as a sentence quotes them or a pane shows them."""

from __future__ import annotations

from pathlib import Path

TAIL_BYTES = 16_384
QUOTED_CHARACTERS = 300
_MARKERS = ("USDT:",)
"""torch's profiler writes such a line to stderr at every start and stop, whatever its log level is."""


def says_something(line: str) -> bool:
    """Whether a line is neither blank nor a marker of torch's profiler."""
    return bool(line.strip()) and not line.startswith(_MARKERS)


def tail(path: Path) -> str:
    """The end of a log; empty where it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def last_line(path: Path) -> str | None:
    """The last line of a log that says something, shortened; None: there is none."""
    lines = [line.strip() for line in tail(path).splitlines() if says_something(line)]
    return lines[-1][:QUOTED_CHARACTERS] if lines else None
