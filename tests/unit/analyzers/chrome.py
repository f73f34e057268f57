"""Chrome-format traces for tests: events as dicts, written the way different producers write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Literal

from mtpprof.analyzers.traces.formats import read_file
from mtpprof.analyzers.traces.readers.base import Limits
from mtpprof.analyzers.traces.table import EventTable

Style = Literal["kineto", "compact", "indented"]
Event = dict[str, Any]

BASE_NS = 1_790_857_026_000_000_000
METADATA: dict[str, Any] = {
    "schemaVersion": 1,
    "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 4, "pg_count": 0, "pg_config": []},
    "host_name": "node7",
    "baseTimeNanoseconds": BASE_NS,
}


def complete(name: str, ts: Any, dur: Any = 1.5, cat: str = "cpu_op", **fields: Any) -> Event:
    """A complete event; further fields override."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur, **fields}


def kernel(name: str, ts: Any, dur: Any = 10.0, stream: Any = 7, correlation: Any = 1, **args: Any) -> Event:
    """A kernel on device 0."""
    args = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return complete(name, ts, dur, "kernel", pid=0, tid=stream, args=args)


def some_events(count: int = 20, start: float = 1000.0) -> list[Event]:
    """Launches and their kernels, one pair every 20 µs."""
    events = []
    for index in range(count // 2):
        at = start + 20 * index
        events.append(complete("cudaLaunchKernel", at, 2.25, "cuda_runtime", args={"correlation": index}))
        events.append(kernel(f"k{index % 3}", at + 5.125, correlation=index))
    return events


def text(
    events: list[Event], metadata: dict[str, Any] | None = None, style: Style = "kineto", tail: str = ""
) -> str:
    """A trace as text; `tail` goes between the list's end and the closing brace."""
    metadata = METADATA if metadata is None else metadata
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in metadata.items())
    if style == "compact":
        return json.dumps({**metadata, "traceEvents": events}, separators=(",", ":"))
    if style == "indented":
        return json.dumps({**metadata, "traceEvents": events}, indent=4)
    body = ",\n  ".join(_kineto_event(event) for event in events)
    return f'{{\n{head}  "traceEvents": [\n  {body}\n  ]{tail}}}\n'


def _kineto_event(event: Event) -> str:
    args = event.get("args")
    if not isinstance(args, dict):
        return f"{{\n    {_members(event)}\n  }}"
    fields = _members({key: value for key, value in event.items() if key != "args"})
    return f'{{\n    {fields},\n    "args": {{\n      {_members(args)}\n    }}\n  }}'


def _members(values: dict[str, Any]) -> str:
    return ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())


def write(path: Path, content: str | bytes) -> Path:
    """Write a trace; gzip where the name says so."""
    raw = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw, 1) if path.suffix == ".gz" else raw)
    return path


def read_one(path: Path, limits: Limits | None = None) -> EventTable:
    """The only table of a file."""
    (table,) = read_file(path, limits)
    return table


def read_text(folder: Path, content: str | bytes, name: str = "t.pt.trace.json") -> EventTable:
    """The table of a trace given as text."""
    return read_one(write(folder / name, content))
