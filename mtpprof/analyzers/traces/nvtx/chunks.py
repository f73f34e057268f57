"""The binary file of the NVTX injection, as it lies on disk: header, definitions, events and their blobs.

The decision: two passes. The first reads the header, the head of each chunk and all definitions; the second yields the events in
batches, so that a file of any length needs the memory of one batch. Files come from processes that crash, so whatever is whole is
read, the rest is counted, and no length in the file is believed beyond what the file holds. Nothing is interpreted here beyond the
layout of `mtpprof.nvtxformat`; `capture.py` makes ranges of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

import numpy as np
from numpy.typing import NDArray

from mtpprof import nvtxformat as fmt
from mtpprof.analyzers.numeric.arrays import I64, Bools
from mtpprof.analyzers.traces.nvtx.payload import Entry, Enumeration, Schema

CLOCK_MAX_NS = 1 << 62
"""Later times are damage: 146 years after the epoch or after boot."""
DEFINITIONS_BYTES_MAX = 64 << 20
HEADER_BYTES_MAX = 1 << 20
PAGE_BYTES = 4096
"""Chunks are whole pages."""
BATCH_BYTES = 8 << 20
"""Events are read in batches of about so much of the file."""
GAP_MAX = 1 << 20
"""Pushes or pops that one LOST event may stand for; more is damage."""

FILE_HEADER = np.dtype(fmt.FILE_HEADER)
CHUNK_HEADER = np.dtype(fmt.CHUNK_HEADER)
EVENT = np.dtype(fmt.EVENT)
LOST = np.dtype(fmt.LOST)


class NotNvtxFileError(ValueError):
    """The bytes are no file of the NVTX injection; the text says why."""


@dataclass(slots=True, kw_only=True)
class Definitions:
    """Names and layouts that a process registered. Domains are the process's own numbers; 0 is the default domain."""

    domains: dict[int, str] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    categories: dict[tuple[int, int], str] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    layouts: dict[tuple[int, int], Schema] = field(default_factory=dict)
    enumerations: dict[tuple[int, int], Enumeration] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One payload of a row, undecoded."""

    schema_id: int
    size_bytes: int
    """As the program gave it."""
    data: bytes
    """What was kept of it: all, or nothing where it was too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSample:
    """Both clocks at one instant."""

    monotonic_ns: int
    realtime_ns: int
    uncertainty_ns: int


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk of events lies in its file."""

    at: int
    length: int
    used: int
    """Events that it counts."""
    thread: int
    """Thread of its first events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCapture:
    """Everything in one file but its events."""

    pid: int
    parent_pid: int
    rank: int | None
    host: str
    command: str
    dropped_events: int
    """Events that the process could not record, of all reasons."""
    lost: dict[str, int]
    """The same by reason (`nvtxformat.LOST`), where the file tells them apart."""
    closed: bool
    """The process ended through exit(); False: killed, left by _exit(), or still running."""
    clocks: tuple[ClockSample, ...]
    definitions: Definitions
    chunks: tuple[ChunkPlace, ...]
    damage: list[str]
    """What could not be read, a sentence each; reading the events adds to it."""
    missing_bytes: int
    """Bytes that the header promises beyond the end of the file: it was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """Events of some chunks; those of one thread are in their order. Columns have one length."""

    records: NDArray[np.void]
    """Of type `nvtxformat.EVENT`."""
    thread: I64
    ghost: Bools
    """Stands for an event that was lost: a pop whose time is not known, or a push of which nothing is known."""
    blob_at: I64
    """Where an event's blob begins in `blobs`; -1: it has none."""
    blobs: bytearray

    def take(self, keep: Bools) -> EventBatch:
        """The events of a mask."""
        return EventBatch(
            records=self.records[keep],
            thread=self.thread[keep],
            ghost=self.ghost[keep],
            blob_at=self.blob_at[keep],
            blobs=self.blobs,
        )


def read_raw(file: IO[bytes], size_bytes: int) -> RawCapture:
    """Read all but the events of the file of one process.

    Args:
        file: Open at its start.
        size_bytes: How long the file is.

    Raises:
        NotNvtxFileError: it does not begin as one, or is of another version.
    """
    head = file.read(FILE_HEADER.itemsize + LOST.itemsize)
    header = _file_header(head)
    lost = np.frombuffer(head, LOST, 1, FILE_HEADER.itemsize)[0] if _has_lost(header, head) else None
    end = int(header["end_bytes"])
    walk = _Walk(file=file, size_bytes=size_bytes)
    walk.to_end(int(header["header_bytes"]), end)
    samples = [_clock(header, "closed_")] if header["closed_monotonic_ns"] else []
    rank = int(header["rank"])
    return RawCapture(
        pid=int(header["pid"]),
        parent_pid=int(header["parent_pid"]),
        rank=rank if rank >= 0 else None,
        host=_text(bytes(header["host"])),
        command=_text(bytes(header["command"])).strip(),
        dropped_events=int(header["dropped_events"]),
        lost={} if lost is None else {name: int(lost[name]) for name, _ in fmt.LOST if lost[name]},
        closed=bool(header["closed_monotonic_ns"]),
        clocks=tuple(
            sample
            for sample in [_clock(header, "opened_"), *samples, *walk.clocks]
            if max(sample.monotonic_ns, sample.realtime_ns, sample.uncertainty_ns) < CLOCK_MAX_NS
        ),
        definitions=walk.definitions,
        chunks=tuple(walk.chunks),
        damage=walk.damage,
        missing_bytes=max(0, end - size_bytes),
    )


def _has_lost(header: np.void, head: bytes) -> bool:
    return int(header["version"]) >= 2 and len(head) == FILE_HEADER.itemsize + LOST.itemsize


def event_batches(file: IO[bytes], raw: RawCapture) -> Iterator[EventBatch]:
    """The events of a file, in batches of whole chunks, in the order of the file."""
    batch = _Batch(raw=raw)
    for place in raw.chunks:
        file.seek(place.at)
        batch.add(file.read(place.length), place)
        if batch.size_bytes >= BATCH_BYTES:
            yield batch.whole()
            batch = _Batch(raw=raw)
    if batch.size_bytes:
        yield batch.whole()


def stored_payloads(blobs: bytearray, at: int) -> list[Payload]:
    """Extended payloads at a position in the blobs; empty for -1, fewer where they are damaged."""
    if at < 0:
        return []
    found: list[Payload] = []
    count = int.from_bytes(blobs[at : at + 8], "little")
    at += 8
    while len(found) < count and at + fmt.BLOB_PAYLOAD_HEADER_BYTES <= len(blobs):
        schema_id = int.from_bytes(blobs[at : at + 8], "little")
        size = int.from_bytes(blobs[at + 8 : at + 12], "little")
        stored = int.from_bytes(blobs[at + 12 : at + 16], "little")
        data = bytes(blobs[at + 16 : at + 16 + stored])
        if len(data) < stored:
            break
        found.append(Payload(schema_id=schema_id, size_bytes=size, data=data))
        at += fmt.BLOB_PAYLOAD_HEADER_BYTES + -(-stored // 8) * 8
    return found


@dataclass(slots=True, kw_only=True)
class _Walk:
    """The first pass: from the head of one chunk to the next."""

    file: IO[bytes]
    size_bytes: int
    definitions: Definitions = field(default_factory=Definitions)
    clocks: list[ClockSample] = field(default_factory=list)
    chunks: list[ChunkPlace] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def to_end(self, at: int, end: int) -> None:
        """Take in every chunk between two positions."""
        while at < min(end, self.size_bytes):
            self.file.seek(at)
            length = self._chunk(at)
            if length == 0:
                return
            at += length

    def _chunk(self, at: int) -> int:
        """Take in the chunk at a position; returns its length, 0 where there is no way on."""
        head_bytes = self.file.read(CHUNK_HEADER.itemsize)
        if len(head_bytes) < CHUNK_HEADER.itemsize:
            return 0
        if not any(head_bytes):
            return PAGE_BYTES  # reserved by a thread that could not map it, or died before
        head = np.frombuffer(head_bytes, CHUNK_HEADER)[0]
        length, used = int(head["chunk_bytes"]), int(head["used"])
        kind = int(head["kind"])
        limit = fmt.CHUNK_BYTES_MAX if kind == fmt.ChunkKind.EVENTS else DEFINITIONS_BYTES_MAX
        if int(head["magic"]) != fmt.CHUNK_MAGIC or not 0 < length <= limit or length % PAGE_BYTES:
            self.damage.append(f"the chunk at byte {at} is damaged and whatever follows it cannot be found")
            return 0
        self.clocks.append(_clock(head, ""))
        if kind == fmt.ChunkKind.EVENTS:
            place = ChunkPlace(
                at, min(length, self.size_bytes - at), used, _thread_id(int(head["thread_id"]))
            )
            self.chunks.append(place)
            if name := _text(bytes(head["thread_name"])):
                self.definitions.threads.setdefault(place.thread, name)
        elif kind == fmt.ChunkKind.DEFINITIONS:
            self._add_definitions(self.file.read(min(used, length - len(head_bytes))), at)
        else:
            self.damage.append(f"the chunk at byte {at} is of unknown kind {kind}")
        return length

    def _add_definitions(self, records: bytes, at: int) -> None:
        position = 0
        while position + fmt.DEFINITION_HEADER_BYTES <= len(records):
            length = int.from_bytes(records[position : position + 4], "little")
            record = records[position : position + length]
            if length < fmt.DEFINITION_HEADER_BYTES or length % 8 or len(record) < length:
                self.damage.append(f"names in the chunk at byte {at} are damaged; those after are lost")
                return
            if not _define(self.definitions, record):
                self.damage.append(f"a name in the chunk at byte {at} is damaged")
            position += length


@dataclass(slots=True, kw_only=True)
class _Batch:
    """The second pass: chunks of events put together."""

    raw: RawCapture
    size_bytes: int = 0
    parts: list[EventBatch] = field(default_factory=list)
    blobs: bytearray = field(default_factory=bytearray)

    def add(self, chunk: bytes, place: ChunkPlace) -> None:
        """Take in one chunk."""
        self.size_bytes += len(chunk)
        damage = self.raw.damage
        first, used = CHUNK_HEADER.itemsize, place.used
        room = max(0, (len(chunk) - first) // EVENT.itemsize)
        if used > room:
            damage.append(f"the chunk at byte {place.at} counts {used} events and has room for {room}")
            used = room
        records = np.frombuffer(chunk, EVENT, used, first)
        position = records["blob"].astype(np.int64) * 8
        has_blob = (position >= first + used * EVENT.itemsize) & (position < len(chunk))
        wrong = int(np.count_nonzero((position > 0) & ~has_blob))
        if wrong:
            damage.append(f"{wrong} events of the chunk at byte {place.at} have lost their text or payload")
        start = int(position[has_blob].min()) if has_blob.any() else len(chunk)
        blob_at = np.where(has_blob, position - start + len(self.blobs), -1)
        self.blobs += chunk[start:]
        thread = np.full(used, place.thread, np.int64)
        for row in np.flatnonzero(records["kind"] == fmt.EventKind.THREAD).tolist():
            number = _thread_id(int(records["value"][row]))
            thread[row:] = number
            at = int(blob_at[row])
            if at >= 0 and (name := _text(self.blobs[at : at + int(records["text_bytes"][row])])):
                self.raw.definitions.threads.setdefault(number, name)
        self.parts.append(
            EventBatch(
                records=records,
                thread=thread,
                ghost=np.zeros(used, np.bool_),
                blob_at=blob_at,
                blobs=self.blobs,
            )
        )

    def whole(self) -> EventBatch:
        """All that was taken in, without the events that only say whose the others are."""
        found = EventBatch(
            records=np.concatenate([part.records for part in self.parts]),
            thread=np.concatenate([part.thread for part in self.parts]),
            ghost=np.concatenate([part.ghost for part in self.parts]),
            blob_at=np.concatenate([part.blob_at for part in self.parts]),
            blobs=self.blobs,
        )
        return _with_ghosts(found.take(found.records["kind"] != fmt.EventKind.THREAD), self.raw.damage)


def _with_ghosts(events: EventBatch, damage: list[str]) -> EventBatch:
    """Every LOST event replaced by the pops and pushes that it stands for, so that no later pop closes a wrong push."""
    kinds = events.records["kind"]
    rows = np.flatnonzero(kinds == fmt.EventKind.LOST)
    if not len(rows):
        return events
    value = events.records["value"][rows]
    closed, opened = (
        (value >> np.uint64(32)).astype(np.int64),
        (value & np.uint64(0xFFFFFFFF)).astype(np.int64),
    )
    if int(max(closed.max(), opened.max())) > GAP_MAX:
        damage.append(f"a gap in the events claims more than {GAP_MAX:,} lost ranges; it is cut to that")
        closed, opened = np.minimum(closed, GAP_MAX), np.minimum(opened, GAP_MAX)
    times = np.ones(len(kinds), np.int64)
    times[rows] = closed + opened
    index = np.repeat(np.arange(len(kinds)), times)
    records = events.records[index]
    ghost = records["kind"] == fmt.EventKind.LOST
    place_in_gap = np.arange(len(index)) - np.repeat(np.cumsum(times) - times, times)
    closes = np.zeros(len(kinds), np.int64)
    closes[rows] = closed
    records["kind"][ghost] = np.where(
        place_in_gap[ghost] < closes[index][ghost], fmt.EventKind.POP, fmt.EventKind.PUSH
    )
    return EventBatch(
        records=records,
        thread=events.thread[index],
        ghost=ghost,
        blob_at=events.blob_at[index],
        blobs=events.blobs,
    )


class _Fields:
    """Reads the fields of one definition; past its end every number is 0 and every text empty, and `whole` is False."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self._at = fmt.DEFINITION_HEADER_BYTES
        self.whole = True

    def number(self) -> int:
        field_bytes = self._record[self._at : self._at + 8]
        self._at += 8
        self.whole = self.whole and len(field_bytes) == 8
        return int.from_bytes(field_bytes, "little")

    def text(self) -> str:
        length = self.number()
        found = self._record[self._at : self._at + length]
        self._at += -(-length // 8) * 8
        self.whole = self.whole and len(found) == length
        return _text(found)


def _define(to: Definitions, record: bytes) -> bool:
    """Take in one definition; a later one of the same id replaces the earlier. False: damaged."""
    kind = int.from_bytes(record[4:6], "little")
    domain = int.from_bytes(record[6:8], "little")
    number = int.from_bytes(record[8:16], "little")
    fields = _Fields(record)
    if kind == fmt.DefinitionKind.SCHEMA:
        to.layouts[domain, number] = _schema(fields)
    elif kind == fmt.DefinitionKind.ENUM:
        to.enumerations[domain, number] = _enumeration(fields)
    elif kind == fmt.DefinitionKind.DOMAIN:
        to.domains[domain] = fields.text()
    elif kind == fmt.DefinitionKind.STRING:
        to.strings[number] = fields.text()
    elif kind == fmt.DefinitionKind.CATEGORY:
        to.categories[domain, number] = fields.text()
    elif kind == fmt.DefinitionKind.THREAD:
        to.threads[number] = fields.text()
    else:
        return False
    return fields.whole


def _schema(fields: _Fields) -> Schema:
    name = fields.text()
    kind, flags, static_bytes, pack_align, count = (fields.number() for _ in range(5))
    entries: list[Entry] = []
    while len(entries) < count and fields.whole:
        flags_, type_, detail, offset = (fields.number() for _ in range(4))
        entry = Entry(flags=flags_, type=type_, detail=detail, offset=offset, name=fields.text())
        if fields.whole:
            entries.append(entry)
    return Schema(
        name=name,
        kind=kind,
        flags=flags,
        static_bytes=static_bytes,
        pack_align=pack_align,
        entries=tuple(entries),
    )


def _enumeration(fields: _Fields) -> Enumeration:
    name = fields.text()
    value_bytes, count = fields.number(), fields.number()
    names: dict[int, str] = {}
    flags: dict[int, str] = {}
    seen = 0
    while seen < count and fields.whole:
        value, is_flag, text = fields.number(), fields.number(), fields.text()
        if fields.whole:
            (flags if is_flag else names)[value] = text
        seen += 1
    return Enumeration(name=name, value_bytes=value_bytes, names=names, flags=flags)


def _file_header(data: bytes) -> np.void:
    if len(data) < FILE_HEADER.itemsize:
        raise NotNvtxFileError("it is too short for a header")
    header: np.void = np.frombuffer(data, FILE_HEADER, 1)[0]
    if data[:8] != fmt.MAGIC:
        raise NotNvtxFileError("it does not begin as one")
    if int(header["byte_order"]) != fmt.BYTE_ORDER_MARK:
        raise NotNvtxFileError("it was written by a machine of another byte order")
    if not 1 <= int(header["version"]) <= fmt.VERSION:
        raise NotNvtxFileError(
            f"it has format {int(header['version'])} and this mtpprof reads up to {fmt.VERSION}"
        )
    if not FILE_HEADER.itemsize <= int(header["header_bytes"]) <= HEADER_BYTES_MAX:
        raise NotNvtxFileError("its header is damaged")
    return header


def _clock(head: np.void, prefix: str) -> ClockSample:
    return ClockSample(
        monotonic_ns=int(head[f"{prefix}monotonic_ns"]),
        realtime_ns=int(head[f"{prefix}realtime_ns"]),
        uncertainty_ns=int(head[f"{prefix}uncertainty_ns"]),
    )


def _thread_id(number: int) -> int:
    return number & ((1 << 62) - 1)


def _text(data: bytes | bytearray) -> str:
    return bytes(data).split(b"\0", 1)[0].decode("utf-8", errors="replace")
