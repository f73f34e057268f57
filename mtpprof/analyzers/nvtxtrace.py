"""NVTX captures as a Chrome trace (JSON), which Perfetto opens.

The decision: one track per thread and domain, since push/pop nests only there, and lanes beside them for start/end
ranges, which may cross. Perfetto silently drops a slice that partially overlaps another of its track, so no track here ever
holds such a pair.
"""

from __future__ import annotations

import gzip
import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.nvtxpayload import PayloadValue
from mtpprof.analyzers.readers.nvtx import NvtxCapture, RangeKind
from mtpprof.errors import UsageError
from mtpprof.nvtxformat import PayloadType

_BATCH = 10_000
DEFAULT_DOMAIN = "(default domain)"


def write_chrome_trace(captures: Sequence[NvtxCapture], path: Path) -> int:
    """Write all captures into one trace, compressed where the name ends in `.gz`; returns the slices and marks written.

    Raises:
        UsageError: the file cannot be written.
    """
    base = min((int(c.ts_ns[0]) for c in captures if len(c)), default=0)
    encode = msgspec.json.Encoder().encode
    written = 0
    try:
        with _open(path) as file:
            file.write(b'{"displayTimeUnit":"ns","baseTimeNanoseconds":%d,"traceEvents":[' % base)
            separator = b"\n"
            for batch in _batches(_all_events(captures, base)):
                written += sum(event["ph"] != "M" for event in batch)
                file.write(separator + b",\n".join(map(encode, batch)))
                separator = b",\n"
            file.write(b"\n]}\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; give another -o.") from error
    return written


def start_end_lanes(ts_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> list[int]:
    """A lane for every range, so that ranges of a lane do not overlap; as few lanes as there are ranges at once.

    Args:
        ts_ns: Starts, not decreasing.
        end_ns: Ends.
    """
    free: list[int] = []
    running: list[tuple[int, int]] = []
    lanes: list[int] = []
    opened = 0
    for start, end in zip(ts_ns.tolist(), end_ns.tolist(), strict=True):
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, opened = opened, opened + 1
        lanes.append(lane)
        heapq.heappush(running, (end, lane))
    return lanes


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "wb", compresslevel=1)) if path.suffix == ".gz" else path.open("wb")


def _batches(events: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for event in events:
        batch.append(event)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _all_events(captures: Sequence[NvtxCapture], base: int) -> Iterator[dict[str, Any]]:
    for number, capture in enumerate(captures, start=1):
        rank = "" if capture.rank is None else f"rank {capture.rank}: "
        name = f"{rank}{capture.command or 'process'} (pid {capture.pid} on {capture.host})"
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
        yield from _process_events(capture, number, base)


def _process_events(capture: NvtxCapture, pid: int, base: int) -> Iterator[dict[str, Any]]:
    last = int((capture.ts_ns + np.maximum(capture.dur_ns, 0)).max(initial=0))
    end = np.where(capture.dur_ns >= 0, capture.ts_ns + capture.dur_ns, last)
    track, labels = _tracks(capture, end)
    for tid, label in enumerate(labels, start=1):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}}
    for row in range(len(capture)):
        event: dict[str, Any] = {
            "ph": "X",
            "name": capture.names[capture.name[row]],
            "cat": capture.categories[capture.category[row]] or "nvtx",
            "pid": pid,
            "tid": int(track[row]),
            "ts": (int(capture.ts_ns[row]) - base) / 1000,
            "dur": int(end[row] - capture.ts_ns[row]) / 1000,
        }
        if capture.kind[row] == RangeKind.MARK:
            del event["dur"]
            event |= {"ph": "i", "s": "t"}
        arguments = _arguments(capture, row)
        if arguments:
            event["args"] = arguments
        yield event


def _tracks(capture: NvtxCapture, end_ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
    """Track of every row, from 1, and the tracks' names."""
    track = np.zeros(len(capture), np.int64)
    labels: list[str] = []
    free = capture.kind == RangeKind.START_END
    for rows in _same(np.flatnonzero(free), capture.domain):
        lanes = start_end_lanes(capture.ts_ns[rows], end_ns[rows])
        track[rows] = np.array(lanes) + len(labels) + 1
        domain = capture.domains[capture.domain[rows[0]]] or DEFAULT_DOMAIN
        labels += [f"{domain}: start/end {lane + 1}" for lane in range(max(lanes) + 1)]
    for rows in _same(np.flatnonzero(~free), capture.thread, capture.domain):
        thread = int(capture.thread[rows[0]])
        domain = capture.domains[capture.domain[rows[0]]] or DEFAULT_DOMAIN
        labels.append(f"{capture.threads.get(thread, 'thread')} {thread}: {domain}")
        track[rows] = len(labels)
    return track, labels


def _same(rows: NDArray[np.int64], *keys: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    """The rows in groups of equal keys, each in order."""
    rows = rows[np.lexsort((rows, *(key[rows] for key in reversed(keys))))]
    if not len(rows):
        return
    change = np.zeros(len(rows) - 1, np.bool_)
    for key in keys:
        change |= key[rows[1:]] != key[rows[:-1]]
    yield from np.split(rows, np.flatnonzero(change) + 1)


def _arguments(capture: NvtxCapture, row: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if capture.payload_type[row] != PayloadType.NONE:
        arguments["payload"] = _printable(capture.payload(row))
    if capture.end_payload_at[row] >= 0:
        arguments["payload at the end"] = _printable(capture.end_payload(row))
    if capture.dur_ns[row] < 0:
        arguments["never closed"] = True
    return arguments


def _printable(value: PayloadValue | None) -> Any:
    """JSON has no bytes: they are shown as hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    return value
