"""What is said of an NVTX capture that is not whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mtpprof.analyzers.traces.nvtx.chunks import RawCapture
from mtpprof.analyzers.traces.verdicts import Problem, Verdict

CLOCK_RESIDUAL_MAX_NS = 1_000_000
"""Beyond it one of the clocks was set or slewed during the capture, and it is said."""

Remark = tuple[Verdict, str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Counts from making ranges of the events."""

    rows: int
    unusable: int
    unclosed: int
    lone_ends: int
    unknown_texts: int
    clock_residual_ns: int


def problems_of(raw: RawCapture, path: str, findings: Findings) -> tuple[Problem, ...]:
    """Every verdict on a capture, a sentence each that names the file."""
    return tuple(
        Problem(verdict=verdict, sentence=f"{path}: {sentence}.", path=path, rank=raw.rank, count=count)
        for verdict, sentence, count in (*_of_file(raw, findings), *_of_ranges(findings))
    )


def _of_file(raw: RawCapture, findings: Findings) -> Iterator[Remark]:
    if raw.missing_bytes:
        missing = raw.missing_bytes
        yield Verdict.TRUNCATED, f"the file was cut, {missing:,} bytes are missing", missing
    for sentence in raw.damage:
        yield Verdict.DAMAGED_EVENTS, sentence, None
    if raw.dropped_events:
        yield (
            Verdict.DROPPED_EVENTS,
            f"{raw.dropped_events:,} events were not recorded{_reasons(raw)}",
            raw.dropped_events,
        )
    if not findings.rows and not (raw.missing_bytes or raw.damage or raw.dropped_events):
        yield Verdict.NO_EVENTS, "the process loaded the library and emitted no NVTX", None
    if not raw.closed:
        yield (
            Verdict.NOT_CLOSED,
            "the process was killed, left without exit handlers, or runs still; all it emitted is here",
            None,
        )


_LOST = {
    "limit": "the file reached its size limit",
    "disk": "the disk was full",
    "descriptors": "the program had no free file descriptor",
    "memory": "no memory could be mapped",
    "file": "the file could not be written",
    "handler": "they came in a signal handler amid another event",
    "start": "the file was still being created",
}
"""Why events were not recorded, by field of `nvtxformat.LOST`."""


def _reasons(raw: RawCapture) -> str:
    if not raw.lost:
        return "; the file reached its limit or could not grow, or they came in a signal handler amid another"
    return ": " + ", ".join(f"{count:,} as {_LOST.get(name, name)}" for name, count in raw.lost.items())


def _of_ranges(found: Findings) -> Iterator[Remark]:
    if found.unusable:
        yield Verdict.DAMAGED_EVENTS, f"{found.unusable:,} events are damaged and left out", found.unusable
    if found.unclosed:
        yield (
            Verdict.OPEN_RANGES,
            f"{found.unclosed:,} ranges were never closed; their length is unknown",
            found.unclosed,
        )
    if found.lone_ends:
        yield (
            Verdict.LONE_ENDS,
            f"{found.lone_ends:,} ranges were closed that had not been opened here; they are left out",
            found.lone_ends,
        )
    if found.unknown_texts:
        count = found.unknown_texts
        yield Verdict.DAMAGED_TEXT, f"{count:,} names were lost; they are shown by number", count
    if found.clock_residual_ns > CLOCK_RESIDUAL_MAX_NS:
        uncertain_ms = found.clock_residual_ns / 1e6
        yield (
            Verdict.UNALIGNED_CLOCKS,
            f"real time is uncertain by {uncertain_ms:.1f} ms; the system's clock was set or slewed meanwhile",
            None,
        )
