"""What a reader is: recognises a file by its first bytes, tells cheaply whose trace it is, reads it into event tables.

A reader never lets a parser's traceback out: what cannot be read is a `TraceFormatError`, what could be read in part is
a table with `Problem`s. To add a format is to write a class with the members of `Reader` and to name it in the registry.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Protocol

from mtpprof.analyzers.traces.table import EventTable
from mtpprof.analyzers.traces.verdicts import VERDICTS, Problem, Verdict
from mtpprof.errors import InputError

SNIFF_BYTES = 4096


class TraceFormatError(InputError):
    """A file that gives no table: says which, where and why."""

    def __init__(
        self, path: str, reason: str, *, verdict: Verdict, offset: int | None = None, advice: str = ""
    ) -> None:
        self.path = path
        self.reason = reason
        self.verdict = verdict
        self.offset = offset
        """Byte of the (decompressed) text; None: the file as a whole."""
        where = "" if offset is None else f" (at byte {offset:,})"
        self.finding = f"{path}: {reason}{where}"
        """What is so, without what to do about it."""
        self.advice = advice
        """What to do, where the verdict's own remedy does not say it."""
        remedy = advice or VERDICTS[verdict].remedy
        super().__init__(f"{self.finding}; {remedy}." if remedy else f"{self.finding}.")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_error, (self.path, self.reason, self.verdict, self.offset, self.advice)

    def problem(self) -> Problem:
        """The same as an entry of a list of problems."""
        return Problem(
            verdict=self.verdict,
            sentence=f"{self.finding}.",
            path=self.path,
            left_out=True,
            advice=self.advice,
        )


def _rebuild_error(
    path: str, reason: str, verdict: Verdict, offset: int | None, advice: str
) -> TraceFormatError:
    return TraceFormatError(path, reason, verdict=verdict, offset=offset, advice=advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a file may ask of the reader before it is refused."""

    max_text_bytes: int = 64 << 30
    """Decompressed size."""
    max_ratio: float = 200.0
    """Decompressed to compressed size; real traces stay below 40. Checked once the text exceeds `ratio_from_bytes`."""
    ratio_from_bytes: int = 256 << 20
    max_gap_bytes: int = 32 << 20
    """Longest stretch of text without the boundary of an event: bounds the memory."""

    @classmethod
    def of_trusted(cls, max_text_bytes: int) -> Limits:
        """Limits for a file that the user vouches for: its size alone is bounded."""
        return cls(max_text_bytes=max_text_bytes, max_ratio=inf, max_gap_bytes=max_text_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    """What can be said of a file without reading all of it. None: it does not say."""

    path: Path
    reader: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    trace_id: str | None = None
    start_ns: int | None = None
    """First event, in nanoseconds since the epoch."""
    size_bytes: int = 0
    several: bool = False
    """The format puts several processes into one file, each with a rank of its own."""


class Reader(Protocol):
    """One file format."""

    @property
    def name(self) -> str:
        """What `TraceMeta.reader` and messages call it."""

    @property
    def version(self) -> int:
        """Raised whenever the tables it makes change: part of the cache's key."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """File name endings by which a directory is searched, without those of compressed files, which are searched too."""

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether a file with these first bytes (decompressed, up to `SNIFF_BYTES`) is of this format; `path` to look further."""

    def peek(self, path: Path, limits: Limits) -> Peek:
        """Look at the beginning (and, where it costs little, the end) of a file.

        Raises:
            TraceFormatError: the file is none, or damaged beyond use.
        """

    def read(self, path: Path, limits: Limits) -> tuple[EventTable, ...]:
        """All tables of a file: one per device and process where the format mixes them, else one.

        Raises:
            TraceFormatError: the file gives no table.
        """
