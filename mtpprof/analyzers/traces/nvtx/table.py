"""NVTX captures as event tables, so that analyses of traces read them too.

Only ranges that were closed become rows, as with Nsight Systems: an event table has no row without a length. Marks, open
ranges and payloads stay in the capture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture, RangeKind, load_capture
from mtpprof.analyzers.traces.readers.base import Limits, Peek, TraceFormatError
from mtpprof.analyzers.traces.table import (
    EVENT_COLUMNS,
    MISSING,
    Category,
    Collectives,
    EventTable,
    TraceMeta,
    Track,
)
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.errors import InputError
from mtpprof.nvtxformat import MAGIC


class NvtxReader:
    """Files of the NVTX injection. Folders are searched for them by discovery, where they hold no traces to which they belong."""

    name = "nvtx"
    version = 2
    suffixes: tuple[str, ...] = ()

    def recognises(self, head: bytes, path: Path) -> bool:
        """The magic of our own format."""
        return head.startswith(MAGIC)

    def peek(self, path: Path, limits: Limits) -> Peek:
        """Rank, host and first range; reads the file, which is small."""
        meta = self.read(path, limits)[0].meta
        return Peek(
            path=path,
            reader=self.name,
            rank=meta.rank,
            host=meta.host,
            start_ns=meta.base_time_ns,
            size_bytes=path.stat().st_size,
        )

    def read(self, path: Path, limits: Limits) -> tuple[EventTable, ...]:
        """One table: a file holds one process."""
        try:
            return (event_table(load_capture(path)),)
        except InputError as error:
            reason = str(error).removeprefix(f"{path} ").rstrip(".")
            raise TraceFormatError(str(path), reason, verdict=Verdict.UNREADABLE) from error


def event_table(capture: NvtxCapture) -> EventTable:
    """The closed ranges of a capture, one track per thread and domain."""
    rows = np.flatnonzero((capture.kind != RangeKind.MARK) & (capture.dur_ns >= 0))
    base = int(capture.ts_ns[rows[0]]) if len(rows) else 0
    lanes = capture.thread[rows] * len(capture.domains) + capture.domain[rows]
    distinct, track = np.unique(lanes, return_inverse=True)
    columns = {
        "ts_ns": capture.ts_ns[rows] - base,
        "dur_ns": capture.dur_ns[rows],
        "name": capture.name[rows],
        "category": np.full(len(rows), Category.NVTX),
        "track": track,
    }
    absent = np.full(len(rows), MISSING)
    arrays: dict[str, Any] = {
        name: columns.get(name, absent).astype(dtype) for name, dtype in EVENT_COLUMNS.items()
    }
    return EventTable(
        **arrays,
        names=capture.names,
        tracks=tuple(_track(capture, int(lane)) for lane in distinct),
        shapes=(),
        strings=(),
        collectives=Collectives.empty(),
        meta=TraceMeta(
            path=capture.path,
            reader=NvtxReader.name,
            rank=capture.rank,
            host=capture.host or None,
            base_time_ns=base if len(rows) else None,
            events_total=len(capture),
            phases={"X": len(rows)},
        ),
        problems=capture.problems,
    )


def _track(capture: NvtxCapture, lane: int) -> Track:
    thread, domain = divmod(lane, len(capture.domains))
    name = " ".join(part for part in (capture.threads.get(thread, ""), capture.domains[domain]) if part)
    return Track(pid=capture.pid, tid=thread, process=capture.command, thread=name)
