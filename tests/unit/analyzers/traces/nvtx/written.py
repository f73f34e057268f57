"""Writes NVTX capture files as the injection does, so that the reader is tested on what no program here would emit."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mtpprof import nvtxformat as fmt
from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture, parse_capture
from mtpprof.nvtxformat import ChunkKind, DefinitionKind, EventKind, PayloadType

PAGE = 4096
CHUNK = 4 * PAGE
REALTIME_OFFSET = 1_700_000_000_000_000_000


def text_field(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data + bytes(-len(data) % 8)


def definition(kind: DefinitionKind, domain: int, number: int, fields: bytes) -> bytes:
    return struct.pack("<IHHQ", fmt.DEFINITION_HEADER_BYTES + len(fields), kind, domain, number) + fields


def schema_definition(
    domain: int,
    number: int,
    entries: Sequence[tuple[int, int, int, int, str]],
    *,
    static_bytes: int,
    kind: int = 1,
    pack_align: int = 0,
) -> bytes:
    fields = text_field("") + struct.pack("<5Q", kind, 0, static_bytes, pack_align, len(entries))
    for flags, type_, detail, offset, name in entries:
        fields += struct.pack("<4Q", flags, type_, detail, offset) + text_field(name)
    return definition(DefinitionKind.SCHEMA, domain, number, fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenEvent:
    kind: EventKind
    ns: int
    thread: int = 1
    domain: int = 0
    message: int = 0
    text: str = ""
    category: int = 0
    value: int = 0
    payload_type: int = PayloadType.NONE
    payloads: tuple[tuple[int, bytes], ...] = ()


def push(ns: int, text: str = "", *, thread: int = 1, domain: int = 0) -> WrittenEvent:
    return WrittenEvent(kind=EventKind.PUSH, ns=ns, text=text, thread=thread, domain=domain)


def pop(ns: int, *, thread: int = 1, domain: int = 0) -> WrittenEvent:
    return WrittenEvent(kind=EventKind.POP, ns=ns, thread=thread, domain=domain)


def start(ns: int, number: int, text: str = "", *, thread: int = 1) -> WrittenEvent:
    return WrittenEvent(kind=EventKind.START, ns=ns, value=number, text=text, thread=thread)


def end(ns: int, number: int, *, thread: int = 1) -> WrittenEvent:
    return WrittenEvent(kind=EventKind.END, ns=ns, value=number, thread=thread)


def mark(ns: int, text: str = "", *, thread: int = 1, domain: int = 0) -> WrittenEvent:
    return WrittenEvent(kind=EventKind.MARK, ns=ns, text=text, thread=thread, domain=domain)


@dataclass(slots=True, kw_only=True)
class Written:
    events: list[WrittenEvent] = field(default_factory=list)
    definitions: list[bytes] = field(default_factory=list)
    rank: int = -1
    closed: bool = True
    dropped: int = 0
    clock_drift_ns: int = 0
    """Real-time clock against the monotonic one between the start and the end."""

    def data(self) -> bytes:
        chunks = (
            [_chunk(ChunkKind.DEFINITIONS, b"".join(self.definitions), None, 0)] if self.definitions else []
        )
        for thread in dict.fromkeys(event.thread for event in self.events):
            own = [event for event in self.events if event.thread == thread]
            chunks += _event_chunks(own, thread)
        header = np.zeros((), fmt.FILE_HEADER)
        for name, value in {
            "magic": fmt.MAGIC,
            "version": fmt.VERSION,
            "header_bytes": PAGE,
            "byte_order": fmt.BYTE_ORDER_MARK,
            "pid": 42,
            "parent_pid": 41,
            "rank": self.rank,
            "opened_realtime_ns": REALTIME_OFFSET + 1,
            "opened_monotonic_ns": 1,
            "opened_uncertainty_ns": 20,
            "closed_realtime_ns": REALTIME_OFFSET + 10**9 + self.clock_drift_ns,
            "closed_monotonic_ns": 10**9 if self.closed else 0,
            "end_bytes": PAGE + sum(map(len, chunks)),
            "dropped_events": self.dropped,
            "host": b"host",
            "command": b"program --option ",
        }.items():
            header[name] = value
        return header.tobytes().ljust(PAGE, b"\0") + b"".join(chunks)

    def capture(self) -> NvtxCapture:
        return parse(self.data())


def parse(data: bytes) -> NvtxCapture:
    return parse_capture(io.BytesIO(data), len(data), "file.nvtx")


def _event_chunks(events: list[WrittenEvent], thread: int) -> list[bytes]:
    chunks: list[bytes] = []
    records, blobs = b"", b""
    first = np.dtype(fmt.CHUNK_HEADER).itemsize
    for event in events:
        blob = _blob(event)
        if first + len(records) + 32 + len(blob) + len(blobs) > CHUNK:
            chunks.append(_chunk(ChunkKind.EVENTS, records, blobs, thread))
            records, blobs = b"", b""
        blobs = blob + blobs
        record = np.zeros((), fmt.EVENT)
        for name, value in {
            "monotonic_ns": event.ns,
            "value": event.value,
            "message": event.message,
            "category": event.category,
            "domain": event.domain,
            "blob": (CHUNK - len(blobs)) // 8 if blob else 0,
            "text_bytes": len(event.text.encode()),
            "kind": event.kind,
            "payload_type": event.payload_type,
        }.items():
            record[name] = value
        records += record.tobytes()
    chunks.append(_chunk(ChunkKind.EVENTS, records, blobs, thread))
    return chunks


def _blob(event: WrittenEvent) -> bytes:
    text = event.text.encode()
    blob = text + bytes(-len(text) % 8)
    if event.payload_type == PayloadType.EXTENDED:
        blob += struct.pack("<Q", len(event.payloads))
        for schema, data in event.payloads:
            blob += struct.pack("<QII", schema, len(data), len(data)) + data + bytes(-len(data) % 8)
    return blob


def _chunk(kind: ChunkKind, front: bytes, back: bytes | None, thread: int) -> bytes:
    head = np.zeros((), fmt.CHUNK_HEADER)
    size = CHUNK if back is not None else -(-(len(front) + 80) // PAGE) * PAGE
    for name, value in {
        "magic": fmt.CHUNK_MAGIC,
        "kind": kind,
        "chunk_bytes": size,
        "thread_id": thread,
        "monotonic_ns": 5,
        "realtime_ns": REALTIME_OFFSET + 5,
        "uncertainty_ns": 20,
        "used": len(front) // 32 if kind == ChunkKind.EVENTS else len(front),
        "thread_name": b"worker" if kind == ChunkKind.EVENTS else b"",
    }.items():
        head[name] = value
    middle = size - head.nbytes - len(front) - len(back or b"")
    return head.tobytes() + front + bytes(middle) + (back or b"")
