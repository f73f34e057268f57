"""NVTX captures as a trace for Perfetto.

The decision: one track per thread and domain, since push/pop nests only there, and lanes beside them for start/end ranges, which may
cross. Marks are slices of no length. A range that was never closed reaches to the end of its process, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.table import Vocabulary
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.perfetto.files import format_of, written
from mtpprof.analyzers.perfetto.lanes import following, nested
from mtpprof.analyzers.perfetto.model import Argument, Layout, Process, Slices, Values
from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture, RangeKind
from mtpprof.analyzers.traces.nvtx.payload import PayloadValue
from mtpprof.nvtxformat import PayloadType

DEFAULT_DOMAIN = "(default domain)"
MARK = "mark"
RANGE = "nvtx"


def write_trace(captures: Sequence[NvtxCapture], path: Path) -> int:
    """Write all captures into one file, in the format that its name asks for; returns the ranges and marks written.

    Raises:
        UsageError: the name asks for no format of ours.
        InputError: the file cannot be written.
        MissingEnvironmentError: the format needs a package that is not installed.
    """
    base = min((int(c.ts_ns[0]) for c in captures if len(c)), default=0)
    texts = Vocabulary()
    with written(path, format_of(path), texts, {"baseTimeNanoseconds": base}) as writer:
        layout = Layout(writer=writer, texts=texts)
        for capture in captures:
            _add_process(layout, capture, base)
    return layout.slices_written


def _add_process(layout: Layout, capture: NvtxCapture, base: int) -> None:
    rank = "" if capture.rank is None else f"rank {capture.rank}: "
    name = f"{rank}{capture.command or 'process'} (pid {capture.pid} on {capture.host})"
    process = layout.process(name, f"clock good to {capture.clock_residual_ns} ns")
    slices = _slices(layout, capture, base)
    free = capture.kind == RangeKind.START_END
    for rows in _same(np.flatnonzero(~free), capture.thread, capture.domain):
        thread = int(capture.thread[rows[0]])
        label = f"{capture.threads.get(thread, 'thread')} {thread}: {_domain(capture, rows)}"
        _add_track(layout, process, label, slices.take(rows), nests=True)
    for rows in _same(np.flatnonzero(free), capture.domain):
        label = f"{_domain(capture, rows)}: start/end"
        _add_track(layout, process, label, slices.take(rows), nests=False)


def _add_track(layout: Layout, process: Process, label: str, slices: Slices, *, nests: bool) -> None:
    lanes = (nested if nests else following)(slices.ts_ns, slices.dur_ns)
    layout.lanes(process, label, slices, lanes)


def _slices(layout: Layout, capture: NvtxCapture, base: int) -> Slices:
    """All rows of a capture, in its order."""
    last = int((capture.ts_ns + np.maximum(capture.dur_ns, 0)).max(initial=0))
    unclosed = capture.dur_ns < 0
    names = layout.texts.codes(capture.names)
    categories = layout.texts.codes(name or RANGE for name in capture.categories)[capture.category]
    categories[(capture.kind == RangeKind.MARK) & (capture.category == 0)] = layout.texts.code(MARK)
    return Slices(
        ts_ns=capture.ts_ns - base,
        dur_ns=np.where(unclosed, last - capture.ts_ns, capture.dur_ns),
        name=names[capture.name],
        category=categories,
        arguments=(
            _payloads(layout, capture, "payload", capture.payload_type != PayloadType.NONE, at_end=False),
            _payloads(layout, capture, "payload at the end", capture.end_payload_at >= 0, at_end=True),
            Argument(
                key="length",
                kind=Values.TEXT,
                column=np.where(unclosed, layout.texts.code("unknown: never closed"), 0),
            ),
        ),
    )


def _payloads(
    layout: Layout, capture: NvtxCapture, key: str, has: NDArray[np.bool_], *, at_end: bool
) -> Argument:
    column = np.zeros(len(capture), np.int32)
    encode = msgspec.json.Encoder().encode
    read = capture.end_payload if at_end else capture.payload
    for row in np.flatnonzero(has).tolist():
        column[row] = layout.texts.code(encode(_printable(read(row))).decode())
    return Argument(key=key, kind=Values.JSON, column=column)


def _printable(value: PayloadValue | None) -> Any:
    """JSON has no bytes: they are shown as hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    return value


def _domain(capture: NvtxCapture, rows: I64) -> str:
    return capture.domains[capture.domain[rows[0]]] or DEFAULT_DOMAIN


def _same(rows: I64, *keys: NDArray[Any]) -> Iterator[I64]:
    """The rows in groups of equal keys, each in order."""
    rows = rows[np.lexsort((rows, *(key[rows] for key in reversed(keys))))]
    if not len(rows):
        return
    change = np.zeros(len(rows) - 1, np.bool_)
    for key in keys:
        change |= key[rows[1:]] != key[rows[:-1]]
    yield from np.split(rows, np.flatnonzero(change) + 1)
