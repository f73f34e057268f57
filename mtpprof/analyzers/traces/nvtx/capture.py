"""NVTX captures as columns: one row per range or mark of a process, with real time, name, thread, nesting and payload.

The decision: what a range lacks stays unknown: one that was never closed has `dur_ns` -1 and is kept, since the range in which a process
was killed is the one that tells why.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    event_batches,
    read_raw,
    stored_payloads,
)
from mtpprof.analyzers.traces.nvtx.payload import PayloadValue, Schemas
from mtpprof.analyzers.traces.nvtx.problems import Findings, problems_of
from mtpprof.analyzers.traces.nvtx.rows import UNKNOWN_NS, Rows
from mtpprof.analyzers.traces.nvtx.texts import Texts
from mtpprof.analyzers.traces.verdicts import Problem
from mtpprof.errors import InputError
from mtpprof.files import no_regular_file
from mtpprof.nvtxformat import FILE_SUFFIX, PayloadType

FILE_BYTES_MAX = 4 << 30


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
    domain: NDArray[np.uint16]
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
            f"{path} is not a regular file but {kind}; give a {FILE_SUFFIX} file that mtpprof wrote."
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
    raw = read_raw(file, size_bytes)
    texts = Texts(raw.definitions)
    rows = Rows(texts)
    for batch in event_batches(file, raw):
        rows.add(batch)
    columns = rows.columns()
    offset, residual = _clock_offset(raw.clocks)
    columns["ts_ns"] += offset
    return NvtxCapture(
        path=path,
        **{name: getattr(raw, name) for name in _PROCESS_FIELDS},
        **columns,
        blobs=rows.blobs,
        names=tuple(texts.names),
        domains=tuple(texts.domains),
        categories=tuple(texts.categories),
        threads=raw.definitions.threads,
        schemas=texts.schemas,
        clock_residual_ns=residual,
        problems=problems_of(
            raw,
            path,
            Findings(
                rows=len(columns["ts_ns"]),
                unusable=rows.unusable + rows.backwards,
                unclosed=rows.unclosed,
                lone_ends=rows.lone_ends,
                unknown_texts=texts.unknown,
                clock_residual_ns=residual,
            ),
        ),
    )


_PROCESS_FIELDS = ("pid", "parent_pid", "rank", "host", "command", "closed", "dropped_events")
"""What a capture takes over as it is in the file."""


def _clock_offset(clocks: tuple[ClockSample, ...]) -> tuple[int, int]:
    """What to add to the monotonic clock for the real one, and by how much the readings disagree with that."""
    if not clocks:
        return 0, CLOCK_MAX_NS
    offset = clocks[0].realtime_ns - clocks[0].monotonic_ns
    residual = max(abs(c.realtime_ns - c.monotonic_ns - offset) + c.uncertainty_ns for c in clocks)
    return offset, residual


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


__all__ = ["UNKNOWN_NS", "NvtxCapture", "RangeKind", "load_capture", "load_captures", "parse_capture"]
