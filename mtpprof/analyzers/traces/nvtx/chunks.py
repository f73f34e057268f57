"""The binary file of the NVTX injection, as it lies on disk: header, definitions, events and their blobs.

Nothing is interpreted here beyond the layout of `mtpprof.nvtxformat`; `readers.nvtx` makes ranges of it. Files come from
processes that crash, so whatever is whole is read, the rest is counted, and no length in the file is believed beyond what
the file holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO

import numpy as np
from numpy.typing import NDArray

from mtpprof import nvtxformat as fmt
from mtpprof.analyzers.traces.nvtx.payload import Entry, Enumeration, Schema

CLOCK_MAX_NS = 1 << 62
"""Later times are damage: 146 years after the epoch or after boot."""
DEFINITIONS_BYTES_MAX = 64 << 20
HEADER_BYTES_MAX = 1 << 20
PAGE_BYTES = 4096
"""Chunks are whole pages."""

FILE_HEADER = np.dtype(fmt.FILE_HEADER)
CHUNK_HEADER = np.dtype(fmt.CHUNK_HEADER)
EVENT = np.dtype(fmt.EVENT)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCapture:
    """Everything in one file."""

    pid: int
    parent_pid: int
    rank: int | None
    host: str
    command: str
    dropped_events: int
    """Events that the process could not record: the size limit, a full disk, or an event inside a signal handler."""
    closed: bool
    """The process ended through exit(); False: killed, left by _exit(), or still running."""
    clocks: tuple[ClockSample, ...]
    definitions: Definitions
    events: NDArray[np.void]
    """Of type `nvtxformat.EVENT`; events of one thread are in their order."""
    thread: NDArray[np.int64]
    blob_at: NDArray[np.int64]
    """Where an event's blob begins in `blobs`; -1: it has none."""
    blobs: bytearray
    damage: tuple[str, ...]
    """What could not be read, a sentence each."""
    missing_bytes: int
    """Bytes that the header promises beyond the end of the file: it was cut."""


def read_raw(file: IO[bytes], size_bytes: int) -> RawCapture:
    """Read the file of one process.

    Args:
        file: Open at its start.
        size_bytes: How long the file is.

    Raises:
        NotNvtxFileError: it does not begin as one, or is of another version.
    """
    header = _file_header(file.read(FILE_HEADER.itemsize))
    file.seek(int(header["header_bytes"]))
    end = int(header["end_bytes"])
    parts = _Parts()
    at = int(header["header_bytes"])
    while at < min(end, size_bytes):
        length = parts.read_chunk(file, at, size_bytes)
        if length == 0:
            break
        at += length
        file.seek(at)
    samples = [_clock(header, "opened_"), _clock(header, "closed_")] if header["closed_monotonic_ns"] else []
    rank = int(header["rank"])
    return RawCapture(
        pid=int(header["pid"]),
        parent_pid=int(header["parent_pid"]),
        rank=rank if rank >= 0 else None,
        host=_text(bytes(header["host"])),
        command=_text(bytes(header["command"])).strip(),
        dropped_events=int(header["dropped_events"]),
        closed=bool(header["closed_monotonic_ns"]),
        clocks=tuple(
            sample
            for sample in [_clock(header, "opened_"), *samples, *parts.clocks]
            if max(sample.monotonic_ns, sample.realtime_ns, sample.uncertainty_ns) < CLOCK_MAX_NS
        ),
        definitions=parts.definitions,
        events=np.concatenate(parts.events) if parts.events else np.empty(0, EVENT),
        thread=_joined(parts.threads),
        blob_at=_joined(parts.blob_at),
        blobs=parts.blobs,
        damage=tuple(parts.damage),
        missing_bytes=max(0, end - size_bytes),
    )


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


@dataclass(slots=True)
class _Parts:
    """What has been read so far, chunk by chunk."""

    definitions: Definitions = field(default_factory=Definitions)
    clocks: list[ClockSample] = field(default_factory=list)
    events: list[NDArray[np.void]] = field(default_factory=list)
    threads: list[NDArray[np.int64]] = field(default_factory=list)
    blob_at: list[NDArray[np.int64]] = field(default_factory=list)
    blobs: bytearray = field(default_factory=bytearray)
    damage: list[str] = field(default_factory=list)

    def read_chunk(self, file: IO[bytes], at: int, size_bytes: int) -> int:
        """Take in the chunk at position `at`; returns its length, 0 where there is no way on."""
        head_bytes = file.read(CHUNK_HEADER.itemsize)
        if len(head_bytes) < CHUNK_HEADER.itemsize:
            return 0
        head = np.frombuffer(head_bytes, CHUNK_HEADER)[0]
        length, used = int(head["chunk_bytes"]), int(head["used"])
        kind = int(head["kind"])
        limit = fmt.CHUNK_BYTES_MAX if kind == fmt.ChunkKind.EVENTS else DEFINITIONS_BYTES_MAX
        if int(head["magic"]) != fmt.CHUNK_MAGIC or not 0 < length <= limit or length % PAGE_BYTES:
            self.damage.append(f"the chunk at byte {at} is damaged and whatever follows it cannot be found")
            return 0
        self.clocks.append(_clock(head, ""))
        if kind == fmt.ChunkKind.EVENTS:
            self._add_events(head_bytes + file.read(length - len(head_bytes)), head, used, at)
        elif kind == fmt.ChunkKind.DEFINITIONS:
            self._add_definitions(file.read(min(used, length - len(head_bytes))), at)
        else:
            self.damage.append(f"the chunk at byte {at} is of unknown kind {kind}")
        name = _text(bytes(head["thread_name"]))
        if kind == fmt.ChunkKind.EVENTS and name:
            self.definitions.threads.setdefault(_thread_id(head), name)
        return length

    def _add_events(self, chunk: bytes, head: np.void, used: int, at: int) -> None:
        first = CHUNK_HEADER.itemsize
        room = (len(chunk) - first) // EVENT.itemsize
        if used > room:
            self.damage.append(f"the chunk at byte {at} counts {used} events and has room for {room}")
            used = room
        events = np.frombuffer(chunk, EVENT, used, first)
        position = events["blob"].astype(np.int64) * 8
        least = first + used * EVENT.itemsize
        has_blob = (position >= least) & (position < len(chunk))
        wrong = int(np.count_nonzero((position > 0) & ~has_blob))
        if wrong:
            self.damage.append(f"{wrong} events of the chunk at byte {at} have lost their text or payload")
        start = int(position[has_blob].min()) if has_blob.any() else len(chunk)
        self.blob_at.append(np.where(has_blob, position - start + len(self.blobs), -1))
        self.blobs += chunk[start:]
        self.events.append(events)
        self.threads.append(np.full(used, _thread_id(head), np.int64))

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
    header: np.void = np.frombuffer(data, FILE_HEADER)[0]
    if data[:8] != fmt.MAGIC:
        raise NotNvtxFileError("it does not begin as one")
    if int(header["byte_order"]) != fmt.BYTE_ORDER_MARK:
        raise NotNvtxFileError("it was written by a machine of another byte order")
    if int(header["version"]) != fmt.VERSION:
        raise NotNvtxFileError(f"it has format {int(header['version'])} and this mtpprof reads {fmt.VERSION}")
    if not FILE_HEADER.itemsize <= int(header["header_bytes"]) <= HEADER_BYTES_MAX:
        raise NotNvtxFileError("its header is damaged")
    return header


def _clock(head: np.void, prefix: str) -> ClockSample:
    return ClockSample(
        monotonic_ns=int(head[f"{prefix}monotonic_ns"]),
        realtime_ns=int(head[f"{prefix}realtime_ns"]),
        uncertainty_ns=int(head[f"{prefix}uncertainty_ns"]),
    )


def _thread_id(head: np.void) -> int:
    return int(head["thread_id"]) & ((1 << 62) - 1)


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("utf-8", errors="replace")
