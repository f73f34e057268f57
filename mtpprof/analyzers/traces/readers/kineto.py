"""Reader of torch profiler (Kineto) and other Chrome-format JSON traces, plain or gzip, object or array.

Complete events (`X`, and pairs of `B` and `E`) become rows; metadata events name processes and threads; instants and the
profiler's own span give the window; everything else is only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.traces.readers import merged, metadata
from mtpprof.analyzers.traces.readers.base import Limits, Peek, TraceFormatError
from mtpprof.analyzers.traces.readers.bytestream import TextSource, last_text
from mtpprof.analyzers.traces.readers.columns import Columns, exact_ns, joined, resolution_ns
from mtpprof.analyzers.traces.readers.events import Event
from mtpprof.analyzers.traces.readers.repair import recover_metadata
from mtpprof.analyzers.traces.readers.salvage import AnyEvent, TextNotes
from mtpprof.analyzers.traces.readers.tracetext import METADATA_KEYS, TraceText
from mtpprof.analyzers.traces.table import (
    COLLECTIVE_COLUMNS,
    EVENT_COLUMNS,
    MISSING,
    Collectives,
    EventTable,
    Track,
)
from mtpprof.analyzers.traces.verdicts import Problem, Verdict

_NOTED = frozenset("MiIBE")
"""Phases of events that say something without being complete events; flows and counters are only counted."""
_WINDOW_END = "Record Window End"
_WINDOW_START = "Iteration Start"


@dataclass(slots=True, kw_only=True)
class _Others:
    """What the events that make no row say."""

    phases: Counter[str] = field(default_factory=Counter)
    processes: dict[Any, str] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], str] = field(default_factory=dict)
    open: dict[tuple[Any, Any], list[AnyEvent]] = field(default_factory=dict)
    """Begin events still without an end, by track, innermost last."""
    unpaired: int = 0
    window_ns: list[int] = field(default_factory=list)

    def take(self, event: AnyEvent) -> AnyEvent | None:
        """Note what an event says; returns the complete event where it is the end of one."""
        match event.ph:
            case "M" if event.args is not None and event.args.name is not None:
                if event.name == "process_name":
                    self.processes[event.pid] = str(event.args.name)
                elif event.name == "thread_name":
                    self.threads[event.pid, event.tid] = str(event.args.name)
            case "i" | "I" if str(event.name).startswith((_WINDOW_START, _WINDOW_END)):
                self.note_window(event.ts)
            case "B":
                self.open.setdefault((event.pid, event.tid), []).append(event)
            case "E":
                return self._close(event)
        return None

    def note_window(self, *times: object) -> None:
        """A time that lies in the profiler's window."""
        self.window_ns.extend(ns for time in times if (ns := exact_ns(time)) is not None)

    def _close(self, end: AnyEvent) -> AnyEvent | None:
        stack = self.open.get((end.pid, end.tid))
        if not stack:
            self.unpaired += 1
            return None
        begin = stack.pop()
        start_ns, end_ns = exact_ns(begin.ts), exact_ns(end.ts)
        if start_ns is None or end_ns is None:
            self.unpaired += 1
            return None
        return Event(
            ph="X",
            name=begin.name,
            cat=begin.cat,
            pid=begin.pid,
            tid=begin.tid,
            ts=_microseconds(start_ns),
            dur=_microseconds(end_ns - start_ns),
            args=begin.args,
        )


class KinetoReader:
    """Chrome-format JSON."""

    name = "kineto"
    version = 6
    suffixes = (".json",)

    def recognises(self, head: bytes, path: Path) -> bool:
        """Text that starts like a JSON object or array."""
        return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))

    def peek(self, path: Path, limits: Limits) -> Peek:
        """Metadata and first event; the end of the file too where the beginning does not say the rank."""
        text = TraceText(TextSource(path, limits))
        values, first = text.head()
        found = metadata.trace_meta(path, self.name, values)
        if found.rank is None:
            values = recover_metadata(last_text(path, limits), METADATA_KEYS) | values
            found = metadata.trace_meta(path, self.name, values)
        times = [ns for event in first[:100] if event.ph == "X" and (ns := exact_ns(event.ts)) is not None]
        return Peek(
            path=path,
            reader=self.name,
            rank=found.rank,
            world_size=found.world_size,
            host=found.host,
            trace_id=found.trace_id,
            start_ns=_start_ns(path, found.base_time_ns, times),
            size_bytes=path.stat().st_size,
            several=merged.is_merged(values),
        )

    def read(self, path: Path, limits: Limits) -> tuple[EventTable, ...]:
        """One table: a file is what one process recorded, unless it is an export of ours."""
        text = TraceText(TextSource(path, limits))
        others = _Others()
        columns: Columns | None = None
        for batch in text.batches():
            if columns is None:
                columns = Columns(exact=text.exact)
            columns.add(_complete(batch, others))
        if others.phases and not any(others.phases.keys() - {""}):
            raise TraceFormatError(
                str(path), "is a list of something else than events", verdict=Verdict.NOT_A_TRACE
            )
        table = _table(path, columns or Columns(exact=False), others, text)
        return merged.split(path, table, text.metadata) if merged.is_merged(text.metadata) else (table,)


def _start_ns(path: Path, written_base_ns: int | None, times_ns: list[int]) -> int | None:
    if not times_ns:
        return None
    base_ns = metadata.base_time_ns(path, written_base_ns, max(times_ns) / 1000)
    return None if base_ns is None else base_ns + min(times_ns)


def _complete(batch: list[AnyEvent], others: _Others) -> list[AnyEvent]:
    """The events of a batch that make rows; the others are noted."""
    rows = [event for event in batch if event.ph == "X"]
    if rows:
        others.phases["X"] += len(rows)
    if len(rows) < len(batch):
        rest = [event for event in batch if event.ph != "X"]
        others.phases.update(event.ph for event in rest)
        closed = [others.take(event) for event in rest if event.ph in _NOTED]
        rows += [event for event in closed if event is not None]
    return rows


def _microseconds(ns: int) -> str:
    """The text of a time, exact to the nanosecond whatever its size."""
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03}"


def _table(path: Path, columns: Columns, others: _Others, text: TraceText) -> EventTable:
    arrays, order = _sorted_columns(columns)
    shapes = _merge_shapes(columns, arrays)
    oddities = columns.oddities
    oddities.unpaired += others.unpaired + sum(len(stack) for stack in others.open.values())
    meta = metadata.trace_meta(path, KinetoReader.name, text.metadata)
    last_us = (int(arrays["ts_ns"][-1]) if columns.rows else 0) / 1000
    fineness_ns = resolution_ns(columns)
    window_ns = others.window_ns + columns.window_ns
    return EventTable(
        **arrays,
        names=tuple(str(name) if name is not None else "" for name in columns.names),
        tracks=_tracks(columns, others),
        shapes=shapes,
        strings=tuple(columns.strings),
        collectives=_collectives(columns, order),
        meta=replace(
            meta,
            base_time_ns=metadata.base_time_ns(path, meta.base_time_ns, last_us),
            ts_exact=fineness_ns == 1,
            ts_resolution_ns=fineness_ns,
            events_total=others.phases.total(),
            phases=dict(others.phases),
            window_ns=(min(window_ns), max(window_ns)) if window_ns else None,
            events_refused=oddities.without_time + text.notes.damaged,
        ),
        problems=_problems(str(path), text.notes, columns),
    )


def _sorted_columns(columns: Columns) -> tuple[dict[str, Any], NDArray[np.intp] | None]:
    """The columns in order of time, and that order; None: they were in order."""
    arrays: dict[str, Any] = {"ts_ns": joined(columns.parts["ts_ns"], np.int64)}
    starts = arrays["ts_ns"]
    order = None
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        arrays["ts_ns"] = starts[order]
    for name, dtype in EVENT_COLUMNS.items():
        if name != "ts_ns":
            column = joined(columns.parts[name], dtype)
            arrays[name] = column[order] if order is not None else column
    return arrays, order


def _collectives(columns: Columns, order: NDArray[np.intp] | None) -> Collectives:
    """The sparse columns, with the rows of the sorted table."""
    sparse = {name: joined(columns.sparse[name], dtype) for name, dtype in COLLECTIVE_COLUMNS.items()}
    found = Collectives(**sparse)
    if order is None or not len(found):
        return found
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    rows = place[found.row]
    by_row = np.argsort(rows)
    return found.take(by_row, rows[by_row])


def _merge_shapes(columns: Columns, arrays: dict[str, Any]) -> tuple[str, ...]:
    """Shapes written in different ways (line breaks, spaces) become one text; absent ones become -1."""
    texts: dict[str, int] = {}
    codes = np.full(len(columns.shapes) + 1, MISSING, np.int32)
    for raw, code in columns.shapes.items():
        if raw:
            codes[code] = texts.setdefault(_one_spelling(raw), len(texts))
    for name in ("dims", "types"):
        arrays[name] = codes[arrays[name]]
    return tuple(texts)


def _one_spelling(raw: bytes) -> str:
    try:
        return msgspec.json.encode(msgspec.json.decode(raw)).decode()
    except msgspec.DecodeError:
        return raw.decode("utf-8", "replace")


def _tracks(columns: Columns, others: _Others) -> tuple[Track, ...]:
    return tuple(
        Track(
            pid=_track_id(pid),
            tid=_track_id(tid),
            process=others.processes.get(pid, ""),
            thread=others.threads.get((pid, tid), ""),
        )
        for pid, tid in columns.tracks
    )


def _track_id(value: object) -> int | str:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else "" if value is None else str(value)


def _corrupt_durations(negative: int, absent: int) -> str:
    parts = [(negative, "have a negative length"), (absent, "have no length")]
    return " and ".join(f"{count:,} events {what}" for count, what in parts if count)


def _problems(path: str, notes: TextNotes, columns: Columns) -> tuple[Problem, ...]:
    oddities = columns.oddities
    corrupt = oddities.negative_durations + oddities.without_duration
    rounded_ns = resolution_ns(columns)
    found: Iterable[tuple[Verdict, int, str]] = (
        (
            Verdict.TRUNCATED,
            int(notes.truncated is not None),
            f"{notes.truncated}; what was whole before that was kept",
        ),
        (
            Verdict.DAMAGED_TEXT,
            notes.repaired,
            f"{notes.repaired:,} events were no valid JSON and were mended",
        ),
        (
            Verdict.DAMAGED_TEXT,
            notes.replaced,
            f"{notes.replaced:,} events hold bytes that are no UTF-8, which were replaced",
        ),
        *((Verdict.DAMAGED_TEXT, 1, remark) for remark in notes.remarks),
        (
            Verdict.DAMAGED_EVENTS,
            notes.damaged,
            f"{notes.damaged:,} events could not be read and are missing, the first at byte {notes.first_damage or 0:,}",
        ),
        (
            Verdict.DAMAGED_EVENTS,
            notes.unread,
            f"{notes.unread:,} events stand in a second traceEvents list and were not read",
        ),
        (
            Verdict.DAMAGED_EVENTS,
            oddities.without_time,
            f"{oddities.without_time:,} events have no usable start time and are missing",
        ),
        (
            Verdict.DAMAGED_EVENTS,
            oddities.unpaired,
            f"{oddities.unpaired:,} begin or end events have no counterpart",
        ),
        (
            Verdict.CORRUPT_DURATIONS,
            corrupt,
            _corrupt_durations(oddities.negative_durations, oddities.without_duration),
        ),
        (
            Verdict.TIME_NOT_EXACT,
            int(rounded_ns > 1),
            f"its times are good to {rounded_ns:,} ns only, as the file writes them",
        ),
    )
    return tuple(
        Problem(verdict=verdict, sentence=f"{path}: {sentence}.", path=path, count=count)
        for verdict, count, sentence in found
        if count
    )
