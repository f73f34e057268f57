"""Perfetto's native format: TrackEvent packets.

The decision: one packet sequence; texts interned once, as they first appear. Ranks are tracks of the top level and not Perfetto
processes, because the UI sorts processes by their number of slices and the tracks of a process by name, which tears apart the arms
of a comparison; tracks below one of ours keep the order that we give, and no process or thread id takes part. Begins and ends are
written in the order of a walk through the nest, because Perfetto sorts by time and keeps the order of the file where times are
equal. Slices and counters go through `wire`, in batches that stay in the processor's cache; everything else is protobuf objects.

Source: perfetto.dev/docs/reference/synthetic-track-event.
"""

from __future__ import annotations

from types import ModuleType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.table import Vocabulary
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.perfetto.lanes import nesting
from mtpprof.analyzers.perfetto.model import Argument, Process, Slices, Track, Values
from mtpprof.analyzers.perfetto.wire import Messages
from mtpprof.errors import MissingEnvironmentError

BATCH = 16_384
SEQUENCE = 1

_TRACE_PACKET = 1
_PACKET_TIMESTAMP, _PACKET_SEQUENCE, _PACKET_TRACK_EVENT, _PACKET_FLAGS = 8, 10, 11, 13
_CLEARED, _NEEDS_STATE = 1, 2
_EVENT_CATEGORY, _EVENT_ANNOTATION, _EVENT_TYPE, _EVENT_NAME, _EVENT_TRACK = 3, 4, 9, 10, 11
_EVENT_COUNTER_NUMBER, _EVENT_FLOW = 44, 47
_BEGIN, _END, _COUNTER = 1, 2, 4
_ANNOTATION_NAME, _ANNOTATION_INTEGER, _ANNOTATION_DOUBLE, _ANNOTATION_TEXT = 1, 4, 5, 17


class ProtobufWriter:
    """Writes to a binary file.

    Raises:
        MissingEnvironmentError: the package `perfetto` is not installed.
    """

    def __init__(self, file: IO[bytes], texts: Vocabulary, base_time_ns: int | None) -> None:
        self._file = file
        self._texts = texts
        self._messages = _messages()
        self._known_texts = 0
        self._keys: dict[str, int] = {}
        first = self._messages.TracePacket(
            trusted_packet_sequence_id=SEQUENCE, sequence_flags=_CLEARED, first_packet_on_sequence=True
        )
        self._packet(first)
        if base_time_ns is not None:
            self._clock(base_time_ns)

    def process(self, process: Process) -> None:
        """A track without a parent, whose children keep their order."""
        descriptor = self._messages.TrackDescriptor(
            uuid=process.number,
            name=shown(process.name),
            description=shown(process.description),
            child_ordering=self._messages.TrackDescriptor.EXPLICIT,
            sibling_merge_behavior=self._messages.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE,
        )
        self._packet(self._messages.TracePacket(track_descriptor=descriptor))

    def track(self, track: Track) -> None:
        """A track descriptor under its process."""
        descriptor = self._messages.TrackDescriptor(
            uuid=track.number,
            parent_uuid=track.process,
            name=shown(track.name),
            sibling_order_rank=track.order,
            sibling_merge_behavior=self._messages.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE,
        )
        if track.unit is not None:
            descriptor.counter.unit_name = track.unit
        self._packet(self._messages.TracePacket(track_descriptor=descriptor))

    def slices(self, track: Track, slices: Slices) -> None:
        """Two packets a slice."""
        self._intern(slices.arguments)
        tree = nesting(slices.ts_ns, slices.dur_ns)
        count = len(slices)
        place = np.empty(2 * count, np.int64)
        place[tree.opens_at], place[tree.closes_at] = np.arange(count), np.arange(count) + count
        for start in range(0, 2 * count, BATCH):
            part = place[start : start + BATCH]
            self._file.write(self._batch(track, slices, part % count, part < count))

    def counter(self, track: Track, ts_ns: I64, values: NDArray[np.float64]) -> None:
        """One packet a value."""
        for start in range(0, len(ts_ns), BATCH):
            part = slice(start, start + BATCH)
            count = len(ts_ns[part])
            event = Messages(count)
            event.varint(_EVENT_TYPE, _COUNTER)
            event.varint(_EVENT_TRACK, track.number)
            event.fixed64(_EVENT_COUNTER_NUMBER, values[part])
            self._file.write(_packets(count, ts_ns[part], event, None))

    def close(self) -> None:
        """Nothing is held back."""

    def _batch(self, track: Track, slices: Slices, rows: I64, begins: NDArray[np.bool_]) -> bytes:
        """Begin and end packets, in order."""
        here = slices.take(rows)
        event = Messages(len(rows))
        event.varint(_EVENT_TYPE, np.where(begins, _BEGIN, _END))
        event.varint(_EVENT_TRACK, track.number)
        event.varint(_EVENT_NAME, _iid(here.name), begins)
        event.varint(_EVENT_CATEGORY, _iid(here.category), begins)
        for argument in here.arguments:
            present = begins & argument.present()
            if present.any():
                event.message(_EVENT_ANNOTATION, self._annotation(argument), present)
        if here.flow is not None and here.flow.number.any():
            event.fixed64(_EVENT_FLOW, here.flow.number, begins & (here.flow.number > 0))
        times = here.ts_ns + np.where(begins, 0, here.dur_ns)
        return _packets(len(rows), times, event, begins)

    def _annotation(self, argument: Argument) -> Messages:
        annotation = Messages(len(argument.column))
        annotation.varint(_ANNOTATION_NAME, self._keys[argument.key])
        if argument.kind is Values.INTEGER:
            annotation.varint(_ANNOTATION_INTEGER, argument.column)
        elif argument.kind is Values.NUMBER:
            annotation.fixed64(_ANNOTATION_DOUBLE, argument.column)
        else:
            annotation.varint(_ANNOTATION_TEXT, _iid(argument.column))
        return annotation

    def _intern(self, arguments: tuple[Argument, ...]) -> None:
        """Announce the texts and keys that are new. A text may serve as name, category or value, so it is announced as all."""
        new = self._texts.since(self._known_texts) if len(self._texts) > self._known_texts else []
        keys = [argument.key for argument in arguments if argument.key not in self._keys]
        if not new and not keys:
            return
        packet = self._messages.TracePacket(trusted_packet_sequence_id=SEQUENCE, sequence_flags=_NEEDS_STATE)
        data = packet.interned_data
        for iid, text in enumerate(new, start=self._known_texts + 1):
            visible = shown(text)
            data.event_names.add(iid=iid, name=visible)
            data.event_categories.add(iid=iid, name=visible)
            data.debug_annotation_string_values.add(iid=iid, str=visible.encode())
        for key in keys:
            self._keys[key] = len(self._keys) + 1
            data.debug_annotation_names.add(iid=self._keys[key], name=key)
        self._known_texts += len(new)
        self._packet(packet)

    def _clock(self, base_time_ns: int) -> None:
        """Ties the export's zero to the time of day."""
        packet = self._messages.TracePacket()
        clocks = self._messages.BuiltinClock
        for clock, time_ns in (
            (clocks.BUILTIN_CLOCK_BOOTTIME, 0),
            (clocks.BUILTIN_CLOCK_REALTIME, base_time_ns),
        ):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=time_ns)
        self._packet(packet)

    def _packet(self, packet: Any) -> None:
        self._file.write(self._messages.Trace(packet=[packet]).SerializeToString())


def shown(text: str) -> str:
    """`text` as any viewer can show it: control characters in escaped form, no lone surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _packets(count: int, times: I64, event: Messages, begins: NDArray[np.bool_] | None) -> bytes:
    packet = Messages(count)
    packet.varint(_PACKET_TIMESTAMP, times)
    packet.varint(_PACKET_SEQUENCE, SEQUENCE)
    if begins is not None:
        packet.varint(_PACKET_FLAGS, _NEEDS_STATE, begins)
    packet.message(_PACKET_TRACK_EVENT, event)
    trace = Messages(count)
    trace.message(_TRACE_PACKET, packet)
    return trace.encode()


def _iid(codes: NDArray[Any]) -> I64:
    """Interning ids start at 1."""
    return codes.astype(np.int64) + 1


def _messages() -> ModuleType:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise MissingEnvironmentError(
            "Perfetto's native format needs the package perfetto, which is not installed: "
            "pip install 'mtpprof[perfetto]', or write JSON with -o FILE.json.gz."
        ) from error
    module: ModuleType = perfetto_trace_pb2
    return module
