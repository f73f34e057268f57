"""Columns of messages encode to the bytes that protobuf itself writes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.perfetto.wire import Messages

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

INT64 = st.integers(-(2**63), 2**63 - 1)
rows = st.lists(
    st.tuples(INT64, st.booleans(), st.floats(allow_nan=False), st.integers(0, 2**40), st.booleans()),
    max_size=30,
)


@settings(deadline=None)
@given(rows)
def test_as_protobuf_writes_it(items: list[tuple[int, bool, float, int, bool]]) -> None:
    count = len(items)
    integers = np.array([item[0] for item in items], np.int64)
    annotated = np.array([item[1] for item in items], np.bool_)
    numbers = np.array([item[2] for item in items], np.float64)
    flows = np.array([item[3] for item in items], np.int64)
    flowing = np.array([item[4] for item in items], np.bool_)

    annotation = Messages(count)
    annotation.varint(1, 7)
    annotation.varint(4, integers)
    annotation.fixed64(5, numbers, flowing)
    event = Messages(count)
    event.message(4, annotation, annotated)
    event.varint(9, np.where(flowing, 1, 2))
    event.varint(10, flows, flowing)
    event.fixed64(47, flows, flowing)
    packet = Messages(count)
    packet.message(11, event)
    trace = Messages(count)
    trace.message(1, packet)

    expected = pb.Trace()
    for integer, has_annotation, number, flow, has_flow in items:
        written = expected.packet.add().track_event
        written.type = 1 if has_flow else 2
        if has_flow:
            written.name_iid = flow
            written.flow_ids.append(flow)
        if has_annotation:
            note = written.debug_annotations.add(name_iid=7)
            note.int_value = integer
            if has_flow:
                note.double_value = number
    found = pb.Trace.FromString(trace.encode())
    assert len(found.packet) == count
    for ours, theirs in zip(found.packet, expected.packet, strict=True):
        # `value` is a oneof: of both annotation values protobuf keeps the last, on both sides.
        assert ours == theirs
    assert len(trace.encode()) >= len(expected.SerializeToString())


@settings(deadline=None)
@given(st.lists(INT64, min_size=1, max_size=50))
def test_varints_take_their_shortest_form(values: list[int]) -> None:
    messages = Messages(len(values))
    messages.varint(3, np.array(values, np.int64))
    expected = b"".join(pb.DebugAnnotation(uint_value=value % 2**64).SerializeToString() for value in values)
    assert messages.encode() == expected


def test_no_messages_no_bytes() -> None:
    empty = Messages(0)
    empty.varint(1, np.empty(0, np.int64))
    assert empty.encode() == Messages(3).encode() == b""
