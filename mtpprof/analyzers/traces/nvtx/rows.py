"""Rows of an NVTX capture, made batch by batch: what began in one batch may end in a later one.

The decision: pushes that are still open are put in front of the next batch, so that depth and matching come out as if the file had
been read at once; starts and ends are matched when all are known. A row costs 40 bytes, and 24 more only in captures with payloads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I32, I64, Bools
from mtpprof.analyzers.traces.nvtx.chunks import CLOCK_MAX_NS, EventBatch
from mtpprof.analyzers.traces.nvtx.pairs import pair_numbered, pair_stacks
from mtpprof.analyzers.traces.nvtx.texts import Texts
from mtpprof.nvtxformat import EventKind, PayloadType

UNKNOWN_NS = -1
COLUMNS: dict[str, type[Any]] = {
    "ts_ns": np.int64,
    "dur_ns": np.int64,
    "kind": np.uint8,
    "name": np.int32,
    "domain": np.uint16,
    "category": np.int32,
    "thread": np.int64,
    "depth": np.int32,
    "payload_type": np.uint8,
}
PAYLOAD_COLUMNS: dict[str, tuple[type[Any], int]] = {
    "payload_bits": (np.uint64, 0),
    "payload_at": (np.int64, -1),
    "end_payload_at": (np.int64, -1),
}
"""With their values where a capture has no payloads."""


@dataclass(slots=True)
class Rows:
    """Collects the rows of a capture."""

    texts: Texts
    blobs: bytearray = field(default_factory=bytearray)
    """Of the batches that hold payloads."""
    unusable: int = 0
    """Events that no program writes."""
    lone_ends: int = 0
    unclosed: int = 0
    backwards: int = 0
    """Ranges that end before they begin: damage."""
    _parts: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    _count: int = 0
    _open: _Open | None = None
    _ends: list[tuple[NDArray[np.uint64], I64, I64]] = field(default_factory=list)
    """Number, time and payload of each end."""
    _starts: list[tuple[NDArray[np.uint64], I64]] = field(default_factory=list)
    """Number and row of each start."""
    _closed_later: list[tuple[I64, I64, I64]] = field(default_factory=list)
    """Row, time and payload of pops of an earlier batch's pushes."""

    def add(self, found: EventBatch) -> None:
        """Take in one batch."""
        events = self._usable(found)
        if not len(events.records):
            return
        payload_at = _payload_positions(events)
        texts = self.texts.of(events, payload_at)
        at = payload_at
        if (payload_at >= 0).any():
            at = np.where(payload_at >= 0, payload_at + len(self.blobs), -1)
            self.blobs += events.blobs
        kind, time = events.records["kind"], events.records["monotonic_ns"].astype(np.int64)
        began = (
            (kind == EventKind.PUSH) | (kind == EventKind.START) | (kind == EventKind.MARK)
        ) & ~events.ghost
        row = np.full(len(kind), -1, np.int64)
        row[began] = self._count + np.arange(int(began.sum()))
        depth, dur, end_at = self._close_stacks(events, texts.domain, kind, time, at, row)
        free = kind == EventKind.END
        self._ends.append((events.records["value"][free].copy(), time[free], at[free]))
        starts = kind == EventKind.START
        self._starts.append((events.records["value"][starts].copy(), row[starts]))
        dur[kind == EventKind.MARK] = 0
        columns = {
            "ts_ns": time,
            "dur_ns": dur,
            "kind": _KIND_OF_EVENT[kind],
            "name": texts.name,
            "domain": texts.domain,
            "category": texts.category,
            "thread": events.thread,
            "depth": np.where(starts, -1, depth),
            "payload_type": _payload_types(events),
        }
        part = {name: columns[name][began].astype(kind_) for name, kind_ in COLUMNS.items()}
        bits = _payload_bits(events)[began]
        if bits.any() or (at >= 0).any():
            part |= {"payload_bits": bits, "payload_at": at[began], "end_payload_at": end_at[began]}
        self._parts.append(part)
        self._count += len(part["ts_ns"])

    def columns(self) -> dict[str, Any]:
        """All rows in order of time; times are by the monotonic clock. To be called once."""
        found: dict[str, Any] = {name: self._joined(name, kind) for name, kind in COLUMNS.items()}
        has_payloads = any("payload_at" in part for part in self._parts) or any(
            (at >= 0).any() for *_, at in (*self._ends, *self._closed_later)
        )
        if has_payloads:
            found |= {name: self._joined(name, kind) for name, (kind, _) in PAYLOAD_COLUMNS.items()}
        self._parts.clear()
        for row, time, at in (*self._closed_later, self._numbered(found["ts_ns"])):
            found["dur_ns"][row] = time - found["ts_ns"][row]
            if has_payloads:
                found["end_payload_at"][row] = at
        self._count_ends(found)
        order = np.argsort(found["ts_ns"], kind="stable")
        for name in found:
            found[name] = found[name][order]
        for name, (kind, empty) in PAYLOAD_COLUMNS.items():
            found.setdefault(name, np.broadcast_to(np.array(empty, kind), len(order)))
        return found

    def _joined(self, name: str, kind: type[Any]) -> NDArray[Any]:
        empty = PAYLOAD_COLUMNS.get(name, (kind, 0))[1]
        parts = (
            [
                part.pop(name) if name in part else np.full(len(part["ts_ns"]), empty, kind)
                for part in self._parts
            ]
            if name != "ts_ns"
            else [part[name] for part in self._parts]
        )
        return np.concatenate(parts) if parts else np.empty(0, kind)

    def _count_ends(self, found: dict[str, Any]) -> None:
        dur = found["dur_ns"]
        never = dur == _OPEN
        backwards = (dur < 0) & ~never & (dur != _LOST_END)
        self.unclosed += int(np.count_nonzero(never | (dur == _LOST_END)))
        self.backwards += int(np.count_nonzero(backwards))
        dur[dur < 0] = UNKNOWN_NS

    def _usable(self, events: EventBatch) -> EventBatch:
        kinds = events.records["kind"]
        keep = (
            (events.records["monotonic_ns"] < CLOCK_MAX_NS)
            & (kinds >= EventKind.PUSH)
            & (kinds <= EventKind.MARK)
        )
        self.unusable += len(keep) - int(np.count_nonzero(keep))
        return events if keep.all() else events.take(keep)

    def _close_stacks(
        self, events: EventBatch, domain: I32, kind: NDArray[np.uint8], time: I64, at: I64, row: I64
    ) -> tuple[I32, I64, I64]:
        """Depth, length and payload of the end of every event of this batch; pushes left open wait for the next one."""
        before = self._open or _Open.none()
        n = len(before.row)
        all_kind = np.concatenate((np.full(n, EventKind.PUSH, np.uint8), kind))
        thread = np.concatenate((before.thread, events.thread))
        domains = np.concatenate((before.domain, domain))
        pairs = pair_stacks(all_kind, thread, domains)
        ghost = np.concatenate((before.ghost, events.ghost))
        self.lone_ends += int(np.count_nonzero(pairs.lone & ~ghost))
        partner = pairs.partner
        closed_at = np.append(np.concatenate((np.zeros(n, np.int64), time)), 0)[partner]
        closed_at[(partner >= 0) & ghost[partner]] = _LOST_END
        end_at = np.append(np.concatenate((np.full(n, -1, np.int64), at)), -1)[partner]
        earlier = (partner[:n] >= 0) & ~before.ghost
        lost = earlier & (closed_at[:n] == _LOST_END)
        known = earlier & ~lost
        self._closed_later.append((before.row[known], closed_at[:n][known], end_at[:n][known]))
        self._lost_later(before.row[lost])
        still = (all_kind == EventKind.PUSH) & (partner < 0)
        rows = np.concatenate((before.row, row))
        self._open = _Open(row=rows[still], thread=thread[still], domain=domains[still], ghost=ghost[still])
        mine = partner[n:]
        dur = np.where(mine >= 0, closed_at[n:] - time, _OPEN)
        dur[(mine >= 0) & (closed_at[n:] == _LOST_END)] = _LOST_END
        return pairs.depth[n:], dur, end_at[n:]

    def _lost_later(self, rows: I64) -> None:
        """Pushes of earlier batches whose pop was lost: they stay open, which is how their rows were written."""
        for part_start, part in self._with_starts(rows):
            part["dur_ns"][
                rows[(rows >= part_start) & (rows < part_start + len(part["dur_ns"]))] - part_start
            ] = _LOST_END

    def _with_starts(self, rows: I64) -> list[tuple[int, dict[str, NDArray[Any]]]]:
        if not len(rows):
            return []
        starts = np.cumsum([0, *(len(part["dur_ns"]) for part in self._parts)])
        return list(zip(starts[:-1].tolist(), self._parts, strict=True))

    def _numbered(self, ts_ns: I64) -> tuple[I64, I64, I64]:
        """Starts matched with their ends: row, time and payload of the end."""
        ids = _cat([number for number, _ in self._starts], np.uint64)
        rows = _cat([row for _, row in self._starts], np.int64)
        end_ids = _cat([number for number, *_ in self._ends], np.uint64)
        end_ns = _cat([time for _, time, _ in self._ends], np.int64)
        end_at = _cat([at for *_, at in self._ends], np.int64)
        partner = pair_numbered(ids, ts_ns[rows], end_ids, end_ns)
        has = partner >= 0
        self.lone_ends += len(end_ids) - int(has.sum())
        return rows[has], end_ns[partner[has]], end_at[partner[has]]


_OPEN = -(1 << 62)
"""Length of a range that was not closed up to now."""
_LOST_END = -(1 << 62) + 1
"""Length of a range whose pop was lost."""
_KIND_OF_EVENT = np.array([0, 0, 0, 1, 0, 2], np.uint8)
"""`RangeKind` by `EventKind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """Pushes without a pop up to now, in their order."""

    row: I64
    thread: I64
    domain: I32
    ghost: Bools

    @staticmethod
    def none() -> _Open:
        return _Open(
            row=np.empty(0, np.int64),
            thread=np.empty(0, np.int64),
            domain=np.empty(0, np.int32),
            ghost=np.empty(0, np.bool_),
        )


def _cat(parts: list[NDArray[Any]], kind: type[Any]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _payload_positions(events: EventBatch) -> I64:
    """Where the extended payloads of every event begin in the blobs; -1: it has none."""
    text = (events.records["text_bytes"].astype(np.int64) + 7) // 8 * 8
    has = (events.records["payload_type"] == PayloadType.EXTENDED) & (events.blob_at >= 0)
    return np.where(has, events.blob_at + text, -1)


def _payload_types(events: EventBatch) -> NDArray[np.uint8]:
    types: NDArray[np.uint8] = events.records["payload_type"]
    return np.where(types <= PayloadType.EXTENDED, types, np.uint8(PayloadType.NONE))


def _payload_bits(events: EventBatch) -> NDArray[np.uint64]:
    """Plain payloads: in the event, or, where the event holds a range's id, in its blob."""
    records = events.records
    bits = records["value"].copy()
    free = np.isin(records["kind"], (EventKind.START, EventKind.END))
    bits[free] = 0
    plain = (records["payload_type"] > 0) & (records["payload_type"] < PayloadType.EXTENDED)
    for row in np.flatnonzero(free & plain & (events.blob_at >= 0)).tolist():
        at = int(events.blob_at[row]) + -(-int(records["text_bytes"][row]) // 8) * 8
        bits[row] = int.from_bytes(events.blobs[at : at + 8], "little")
    bits[~plain] = 0
    return bits
