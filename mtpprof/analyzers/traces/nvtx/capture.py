"""NVTX captures as columns: one row per range or mark of a process, with real time, name, thread, nesting and payload.

The decision: what a range lacks stays unknown: one that was never closed has `dur_ns` -1 and is kept, since the range in which a process
was killed is the one that tells why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I32, I64
from mtpprof.analyzers.traces.nvtx.chunks import (
    CLOCK_MAX_NS,
    ClockSample,
    NotNvtxFileError,
    Payload,
    RawCapture,
    read_raw,
    stored_payloads,
)
from mtpprof.analyzers.traces.nvtx.pairs import pair_events
from mtpprof.analyzers.traces.nvtx.payload import PayloadValue, Schemas
from mtpprof.analyzers.traces.nvtx.problems import Findings, problems_of
from mtpprof.analyzers.traces.nvtx.texts import read_texts
from mtpprof.analyzers.traces.verdicts import Problem
from mtpprof.errors import InputError
from mtpprof.files import no_regular_file
from mtpprof.nvtxformat import FILE_SUFFIX, EventKind, PayloadType

FILE_BYTES_MAX = 4 << 30
UNKNOWN_NS = -1


class RangeKind(IntEnum):
    """What a row is."""

    PUSH_POP = 0
    """Nested within its thread and domain."""
    START_END = 1
    """Free: may cross others and end on another thread."""
    MARK = 2
    """A point in time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvtxCapture:
    """The NVTX of one process, sorted by start. Columns have one length; codes point into the texts below."""

    path: str
    pid: int
    parent_pid: int
    rank: int | None
    """None: the process was not told."""
    host: str
    command: str
    ts_ns: I64
    """Start, nanoseconds since the epoch, good to `clock_residual_ns`."""
    dur_ns: I64
    """Length by the monotonic clock; 0 for marks; -1 where the range was never closed: unknown."""
    kind: NDArray[np.uint8]
    """A `RangeKind`."""
    name: I32
    domain: I32
    category: I32
    thread: I64
    """The operating system's id of the thread that began it."""
    depth: I32
    """Push/pop ranges of the same thread and domain around it; -1 for start/end ranges, which are in no stack."""
    payload_type: NDArray[np.uint8]
    """A `mtpprof.nvtxformat.PayloadType`."""
    payload_bits: NDArray[np.uint64]
    """The payload's 8 bytes, where its type is a number."""
    payload_at: I64
    """Extended payloads given at the start: where they begin in `blobs`; -1: none."""
    end_payload_at: I64
    """The same of those given at the end."""
    blobs: bytearray
    names: tuple[str, ...]
    domains: tuple[str, ...]
    """The default domain is the empty text."""
    categories: tuple[str, ...]
    """Names of categories, their number where they have none; the empty text: no category."""
    threads: dict[int, str]
    """Names of threads."""
    schemas: Schemas
    closed: bool
    """The process ended through exit(); False: killed, left by _exit(), or still running."""
    dropped_events: int
    clock_residual_ns: int
    """By how much a time may be off the real-time clock: the largest disagreement of all readings of both clocks."""
    problems: tuple[Problem, ...] = ()

    def __len__(self) -> int:
        return len(self.ts_ns)

    def payload(self, row: int) -> PayloadValue | None:
        """Payload given with the start of a row: a number, or a decoded extended payload (a list if several); None: none."""
        kind = int(self.payload_type[row])
        if kind != PayloadType.EXTENDED:
            return _plain_payload(kind, int(self.payload_bits[row]))
        return self._decoded(row, int(self.payload_at[row]))

    def end_payload(self, row: int) -> PayloadValue | None:
        """Extended payload given with the end of a range; None: none."""
        return self._decoded(row, int(self.end_payload_at[row]))

    def payloads(self, at: int) -> list[Payload]:
        """Extended payloads at a position of `payload_at` or `end_payload_at`; empty for -1 and for damaged ones."""
        return stored_payloads(self.blobs, at)

    def _decoded(self, row: int, at: int) -> PayloadValue | None:
        domain = int(self.domain[row])
        values = [
            self.schemas.decode(domain, item.schema_id, item.data)
            if item.data or not item.size_bytes
            else f"{item.size_bytes} bytes, not kept"
            for item in self.payloads(at)
        ]
        if not values:
            return None
        return values[0] if len(values) == 1 else values


def load_capture(path: Path) -> NvtxCapture:
    """Read the NVTX file of one process. Damaged and cut files give what is whole, with the verdict in `problems`.

    Raises:
        InputError: the file cannot be read, or is none.
    """
    if kind := no_regular_file(path):
        raise InputError(
            f"{path} is no regular file but {kind}; give a {FILE_SUFFIX} file that mtpprof wrote."
        )
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size == 0:
                raise InputError(f"{path} is empty; capture again and check that the disk is not full.")
            if size > FILE_BYTES_MAX:
                raise InputError(
                    f"{path} has {size} bytes, more than {FILE_BYTES_MAX}; capture a shorter run."
                )
            return parse_capture(file, size, str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; check the path.") from error
    except NotNvtxFileError as error:
        raise InputError(
            f"{path} is no NVTX capture of mtpprof: {error}; give a {FILE_SUFFIX} file that it wrote."
        ) from error


def load_captures(directory: Path) -> list[NvtxCapture]:
    """All captures of a folder, by rank (those without last), then by the time of their first range.

    Raises:
        InputError: a file cannot be read, or is none.
    """
    captures = [load_capture(path) for path in sorted(directory.glob(f"*{FILE_SUFFIX}"))]
    return sorted(
        captures, key=lambda c: (c.rank is None, c.rank or 0, int(c.ts_ns[0]) if len(c) else 0, c.pid)
    )


def parse_capture(file: IO[bytes], size_bytes: int, path: str) -> NvtxCapture:
    """The capture in an open file of known length; `path` only names it.

    Raises:
        NotNvtxFileError: it is none.
    """
    raw, unusable = _usable(read_raw(file, size_bytes))
    events = raw.events
    payload_at = _payload_positions(raw)
    texts = read_texts(raw, payload_at)
    pairs = pair_events(events, raw.thread, texts.domain)
    rows = _begun(events)
    kind = _KIND_OF_EVENT[events["kind"][rows]]
    start = events["monotonic_ns"][rows].astype(np.int64)
    partner = pairs.partner[rows]
    dur = _durations(events["monotonic_ns"].astype(np.int64), start, partner, kind)
    offset, residual = _clock_offset(raw.clocks)
    return NvtxCapture(
        path=path,
        **{name: getattr(raw, name) for name in _PROCESS_FIELDS},
        ts_ns=start + offset,
        dur_ns=dur,
        kind=kind,
        name=texts.name[rows],
        domain=texts.domain[rows],
        category=texts.category[rows],
        thread=raw.thread[rows],
        depth=np.where(kind == RangeKind.START_END, -1, pairs.depth[rows]).astype(np.int32),
        payload_type=_payload_types(raw)[rows],
        payload_bits=_payload_bits(raw)[rows],
        payload_at=payload_at[rows],
        end_payload_at=np.append(payload_at, -1)[partner],
        names=texts.names,
        domains=texts.domains,
        categories=texts.categories,
        threads=raw.definitions.threads,
        schemas=texts.schemas,
        clock_residual_ns=residual,
        problems=problems_of(
            raw,
            path,
            Findings(
                unusable=unusable + int(np.count_nonzero((partner >= 0) & (dur < 0))),
                unclosed=int(np.count_nonzero(partner[kind != RangeKind.MARK] < 0)),
                lone_ends=pairs.lone_ends,
                unknown_texts=texts.unknown,
                clock_residual_ns=residual,
            ),
        ),
    )


_PROCESS_FIELDS = ("pid", "parent_pid", "rank", "host", "command", "closed", "dropped_events", "blobs")
"""What a capture takes over as it is in the file."""
_KIND_OF_EVENT = np.array([0, RangeKind.PUSH_POP, 0, RangeKind.START_END, 0, RangeKind.MARK], np.uint8)


def _usable(raw: RawCapture) -> tuple[RawCapture, int]:
    """The capture without the events that no program writes, and how many those were."""
    kinds = raw.events["kind"]
    keep = (raw.events["monotonic_ns"] < CLOCK_MAX_NS) & (kinds >= EventKind.PUSH) & (kinds <= EventKind.MARK)
    unusable = len(keep) - int(np.count_nonzero(keep))
    if not unusable:
        return raw, 0
    kept = replace(raw, events=raw.events[keep], thread=raw.thread[keep], blob_at=raw.blob_at[keep])
    return kept, unusable


def _begun(events: NDArray[np.void]) -> I64:
    """The events that become rows, in order of time."""
    kinds = events["kind"]
    rows = np.flatnonzero((kinds == EventKind.PUSH) | (kinds == EventKind.START) | (kinds == EventKind.MARK))
    return rows[np.argsort(events["monotonic_ns"][rows], kind="stable")]


def _durations(times: I64, start: I64, partner: I64, kind: NDArray[np.uint8]) -> I64:
    """By the monotonic clock; unknown for what was not closed, or closed before it began (damage)."""
    dur = np.append(times, 0)[partner] - start
    dur[(partner < 0) | (dur < 0)] = UNKNOWN_NS
    dur[kind == RangeKind.MARK] = 0
    return dur


def _clock_offset(clocks: tuple[ClockSample, ...]) -> tuple[int, int]:
    """What to add to the monotonic clock for the real one, and by how much the readings disagree with that."""
    if not clocks:
        return 0, CLOCK_MAX_NS
    offset = clocks[0].realtime_ns - clocks[0].monotonic_ns
    residual = max(abs(c.realtime_ns - c.monotonic_ns - offset) + c.uncertainty_ns for c in clocks)
    return offset, residual


def _payload_positions(raw: RawCapture) -> I64:
    """Where the extended payloads of every event begin in the blobs; -1: it has none."""
    events, blob_at = raw.events, raw.blob_at
    text = (events["text_bytes"].astype(np.int64) + 7) // 8 * 8
    has = (events["payload_type"] == PayloadType.EXTENDED) & (blob_at >= 0)
    return np.where(has, blob_at + text, -1)


def _payload_types(raw: RawCapture) -> NDArray[np.uint8]:
    types: NDArray[np.uint8] = raw.events["payload_type"]
    return np.where(types <= PayloadType.EXTENDED, types, np.uint8(PayloadType.NONE))


def _payload_bits(raw: RawCapture) -> NDArray[np.uint64]:
    """Plain payloads: in the event, or, where the event holds a range's id, in its blob."""
    events = raw.events
    bits = events["value"].copy()
    free = np.isin(events["kind"], (EventKind.START, EventKind.END))
    bits[free] = 0
    plain = (events["payload_type"] > 0) & (events["payload_type"] < PayloadType.EXTENDED)
    for row in np.flatnonzero(free & plain & (raw.blob_at >= 0)).tolist():
        at = int(raw.blob_at[row]) + -(-int(events["text_bytes"][row]) // 8) * 8
        bits[row] = int.from_bytes(raw.blobs[at : at + 8], "little")
    return bits


def _plain_payload(kind: int, bits: int) -> int | float | None:
    types: dict[int, Any] = {
        PayloadType.UINT64: np.uint64,
        PayloadType.INT64: np.int64,
        PayloadType.DOUBLE: np.float64,
        PayloadType.UINT32: np.uint32,
        PayloadType.INT32: np.int32,
        PayloadType.FLOAT: np.float32,
    }
    if kind not in types:
        return None
    value: int | float = np.frombuffer(bits.to_bytes(8, "little"), types[kind])[0].item()
    return value
