"""What writers wrote, read back without Perfetto: slices with their tracks, and counters."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mtpprof.analyzers.calls.table import Vocabulary
from mtpprof.analyzers.perfetto.chromejson import ChromeWriter
from mtpprof.analyzers.perfetto.model import Layout, Slices, Writer
from mtpprof.analyzers.perfetto.protobuf import ProtobufWriter

Fill = Callable[[Layout], None]


@dataclass(frozen=True)
class Slice:
    track: str
    process: str
    name: str
    category: str
    ts_ns: int
    dur_ns: int
    depth: int
    arguments: dict[str, Any]
    flows: tuple[int, ...]


@dataclass
class Content:
    slices: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    tracks: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def on(self, track: str) -> list[Slice]:
        return [item for item in self.slices if item.track == track]


def protobuf(fill: Fill, base_time_ns: int | None = None) -> Content:
    """Content of what is filled in, by way of Perfetto's format."""
    pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    file, texts = io.BytesIO(), Vocabulary()
    _write(ProtobufWriter(file, texts, base_time_ns), texts, fill)
    return read_protobuf(file.getvalue())


def read_protobuf(data: bytes) -> Content:
    """Content of a file in Perfetto's format, by a viewer that keeps a stack for every track."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = pb.Trace.FromString(data)
    content, names, parents = Content(), {}, {}
    interned: dict[str, dict[int, Any]] = {"names": {}, "categories": {}, "keys": {}, "values": {}}
    timed = []
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            names[packet.track_descriptor.uuid] = packet.track_descriptor.name
            parents[packet.track_descriptor.uuid] = packet.track_descriptor.parent_uuid
        for key, entries in (
            ("names", packet.interned_data.event_names),
            ("categories", packet.interned_data.event_categories),
            ("keys", packet.interned_data.debug_annotation_names),
        ):
            interned[key].update({entry.iid: entry.name for entry in entries})
        values = packet.interned_data.debug_annotation_string_values
        interned["values"].update({entry.iid: entry.str.decode() for entry in values})
        if packet.HasField("track_event"):
            timed.append(packet)
    content.tracks = [name for uuid, name in names.items() if parents[uuid]]
    content.numbers = list(names)
    open_slices: dict[int, list[tuple[Any, int]]] = {}
    for packet in sorted(timed, key=lambda packet: packet.timestamp):
        event = packet.track_event
        track = names[event.track_uuid]
        if event.type == event.TYPE_COUNTER:
            content.counters.setdefault(track, []).append((packet.timestamp, event.double_counter_value))
        elif event.type == event.TYPE_SLICE_BEGIN:
            open_slices.setdefault(event.track_uuid, []).append((event, packet.timestamp))
        else:
            begin, start = open_slices[event.track_uuid].pop()
            content.slices.append(
                Slice(
                    track=track,
                    process=names[parents[event.track_uuid]],
                    name=interned["names"][begin.name_iid],
                    category=interned["categories"][begin.category_iids[0]],
                    ts_ns=start,
                    dur_ns=packet.timestamp - start,
                    depth=len(open_slices[event.track_uuid]),
                    arguments=dict(_annotation(item, interned) for item in begin.debug_annotations),
                    flows=tuple(begin.flow_ids),
                )
            )
    assert not any(open_slices.values())
    return content


def _annotation(item: Any, interned: dict[str, dict[int, Any]]) -> tuple[str, Any]:
    value = getattr(item, item.WhichOneof("value"))
    if item.WhichOneof("value") == "string_value_iid":
        value = interned["values"][value]
    return interned["keys"][item.name_iid], value


def chrome(fill: Fill, **metadata: Any) -> tuple[Content, dict[str, Any]]:
    """Content of what is filled in, by way of Chrome's format, and the document."""
    file, texts = io.BytesIO(), Vocabulary()
    _write(ChromeWriter(file, texts, metadata), texts, fill)
    return read_chrome(file.getvalue())


def read_chrome(data: bytes) -> tuple[Content, dict[str, Any]]:
    """Content of a JSON file by a strict parser, and the document."""
    document = json.loads(data, parse_constant=_refused, parse_float=str)
    content = Content()
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for event in document["traceEvents"]:
        match event["ph"]:
            case "M" if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            case "M" if event["name"] == "thread_name":
                threads[event["pid"], event["tid"]] = event["args"]["name"]
            case "C":
                value = float(event["args"]["value"])
                content.counters.setdefault(event["name"], []).append((_ns(event["ts"]), value))
            case "X":
                content.slices.append(
                    Slice(
                        track=threads[event["pid"], event["tid"]],
                        process=processes[event["pid"]],
                        name=event["name"],
                        category=event["cat"],
                        ts_ns=_ns(event["ts"]),
                        dur_ns=_ns(event["dur"]),
                        depth=-1,
                        arguments=event.get("args", {}),
                        flows=(int(event["bind_id"], 16),) if "bind_id" in event else (),
                    )
                )
    content.tracks = list(threads.values())
    content.numbers = [*processes, *(tid for _, tid in threads)]
    return content, document


def _write(writer: Writer, texts: Vocabulary, fill: Fill) -> None:
    fill(Layout(writer=writer, texts=texts))
    writer.close()


def _refused(text: str) -> float:
    raise AssertionError(f"not JSON: {text}")


def _ns(text: str) -> int:
    whole, _, rest = text.partition(".")
    return int(whole) * 1000 + int(rest)


def slices_of(layout: Layout, spans: list[tuple[int, int, str]], category: str = "test") -> Slices:
    """Plain slices from (start, length, name)."""
    return Slices(
        ts_ns=np.array([span[0] for span in spans], np.int64),
        dur_ns=np.array([span[1] for span in spans], np.int64),
        name=layout.texts.codes(span[2] for span in spans),
        category=layout.constant(category, len(spans)),
    )
