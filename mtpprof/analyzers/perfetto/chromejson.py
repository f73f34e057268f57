"""Chrome's JSON trace format, which Perfetto, chrome://tracing and mtpprof's own reader open.

The decision: text is made with format strings from columns, an event a line, in the form that profilers write. Names
are encoded once, by the JSON encoder, which escapes what must be. Times are microseconds with three decimals, so
nothing is lost. Arrows are `bind_id` on the slices themselves: the older arrow events bind to whatever is innermost
at their time. Source: Trace Event Format, Chromium project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.table import Vocabulary
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.perfetto.model import Argument, Process, Slices, Track, Values

BATCH = 16_384


class ChromeWriter:
    """Writes to a binary file (compressing is the file's matter)."""

    def __init__(self, file: IO[bytes], texts: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._file = file
        self._texts = texts
        self._raw: list[str] = []
        self._encoded: list[str] = []
        self._json: dict[int, str] = {}
        head = _json({"schemaVersion": 1, "displayTimeUnit": "ns", **metadata})
        self._file.write(f'{head[:-1]},"traceEvents":[\n'.encode())
        self._separator = b""

    def process(self, process: Process) -> None:
        """Metadata events."""
        self._metadata("process_name", process.number, 0, name=process.name)
        self._metadata("process_sort_index", process.number, 0, sort_index=process.number)
        if process.description:
            self._metadata("process_labels", process.number, 0, labels=process.description)

    def track(self, track: Track) -> None:
        """Metadata events; a counter has no thread."""
        if track.unit is None:
            self._metadata("thread_name", track.process, track.number, name=track.name)
            self._metadata("thread_sort_index", track.process, track.number, sort_index=track.order)

    def slices(self, track: Track, slices: Slices) -> None:
        """One complete event a slice."""
        self._encode_texts()
        head = f'{{"ph":"X","pid":{track.process},"tid":{track.number},"ts":'
        encoded = self._encoded
        for start in range(0, len(slices), BATCH):
            part = slices.take(np.arange(start, min(start + BATCH, len(slices))))
            columns = zip(
                _microseconds(part.ts_ns),
                _microseconds(part.dur_ns),
                part.category.tolist(),
                part.name.tolist(),
                _flows(part),
                self._arguments(part.arguments, len(part)),
                strict=True,
            )
            self._lines(
                f'{head}{ts},"dur":{dur},"cat":{encoded[category]},"name":{encoded[name]}{flow}{arguments}}}'
                for ts, dur, category, name, flow, arguments in columns
            )

    def counter(self, track: Track, ts_ns: I64, values: NDArray[np.float64]) -> None:
        """One counter event a value."""
        name = _json(f"{track.name} ({track.unit})" if track.unit else track.name)
        head = f'{{"ph":"C","pid":{track.process},"name":{name},"ts":'
        self._lines(
            f'{head}{ts},"args":{{"value":{value!r}}}}}'
            for ts, value in zip(_microseconds(ts_ns), values.tolist(), strict=True)
        )

    def close(self) -> None:
        """The end of the document."""
        self._file.write(b"\n]}\n")

    def _lines(self, lines: Iterator[str]) -> None:
        text = ",\n".join(lines)
        if text:
            self._file.write(self._separator + text.encode())
            self._separator = b",\n"

    def _metadata(self, name: str, pid: int, tid: int, /, **arguments: Any) -> None:
        event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": arguments}
        self._lines(iter([_json(event)]))

    def _encode_texts(self) -> None:
        if len(self._texts) > len(self._raw):
            new = self._texts.since(len(self._raw))
            self._raw += new
            self._encoded += map(_json, new)

    def _arguments(self, arguments: tuple[Argument, ...], count: int) -> list[str]:
        """The `args` member of each slice, with its comma."""
        if not arguments:
            return [""] * count
        members = map("".join, zip(*map(self._column, arguments), strict=True))
        return [f',"args":{{{member[1:]}}}' if member else "" for member in members]

    def _column(self, argument: Argument) -> list[str]:
        """Each slice's member for one argument, with a comma before it; empty where it has none."""
        head = f",{_json(argument.key)}:"
        values, present = argument.column.tolist(), argument.present()
        if argument.kind in (Values.TEXT, Values.JSON):
            text = self._encoded.__getitem__ if argument.kind is Values.TEXT else self._as_json
            members = {code: head + text(code) if code else "" for code in set(values)}
            return [members[code] for code in values]
        if present.all():
            return [f"{head}{value!r}" for value in values]
        return [
            f"{head}{value!r}" if there else "" for value, there in zip(values, present.tolist(), strict=True)
        ]

    def _as_json(self, code: int) -> str:
        """A text that is JSON as it stands; as a string where it is none after all."""
        if code not in self._json:
            text = self._raw[code]
            try:
                msgspec.json.decode(text)
            except msgspec.DecodeError:
                text = self._encoded[code]
            self._json[code] = text
        return self._json[code]


def _json(value: object) -> str:
    """`value` as JSON that every parser takes: what is no valid Unicode is replaced."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


def _flows(slices: Slices) -> list[str]:
    """The members of each slice that make its arrows, with their comma."""
    flow = slices.flow
    if flow is None or not flow.number.any():
        return [""] * len(slices)
    ends = {
        (arrives, leaves): (',"flow_in":true' if arrives else "") + (',"flow_out":true' if leaves else "")
        for arrives in (False, True)
        for leaves in (False, True)
    }
    return [
        f',"bind_id":"0x{number:x}"{ends[arrives, leaves]}' if number else ""
        for number, arrives, leaves in zip(
            flow.number.tolist(), flow.arrives.tolist(), flow.leaves.tolist(), strict=True
        )
    ]


def _microseconds(ns: I64) -> list[str]:
    whole, rest = np.divmod(ns, 1000)
    return [f"{us}.{below:03}" for us, below in zip(whole.tolist(), rest.tolist(), strict=True)]
