"""Rows made batch by batch are those of the whole file, and gaps shift no pair."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.traces.nvtx import chunks
from mtpprof.analyzers.traces.nvtx.capture import UNKNOWN_NS, NvtxCapture
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.nvtxformat import EventKind, PayloadType
from tests.unit.analyzers.traces.nvtx.written import (
    CHUNK,
    PAGE,
    REALTIME_OFFSET,
    Written,
    WrittenEvent,
    end,
    mark,
    parse,
    pop,
    push,
    start,
)

COLUMNS = ("ts_ns", "dur_ns", "kind", "name", "domain", "category", "thread", "depth", "payload_type")
PAYLOADS = ("payload_bits",)


def events_of(plan: list[tuple[int, int, int]]) -> list[WrittenEvent]:
    """(what, thread, domain) as events, one a nanosecond."""
    found = []
    for ns, (what, thread, domain) in enumerate(plan, start=1):
        makers = (
            push(ns, f"p{ns % 5}", thread=thread, domain=domain),
            pop(ns, thread=thread, domain=domain),
            start(ns, 1 + ns % 7, "s", thread=thread),
            end(ns, 1 + ns % 7, thread=thread),
            mark(ns, "m", thread=thread, domain=domain),
            WrittenEvent(
                kind=EventKind.PUSH,
                ns=ns,
                thread=thread,
                payload_type=PayloadType.EXTENDED,
                payloads=((1, bytes(900)),),
            ),
        )
        found.append(makers[what])
    return found


PLANS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(0, 1)), min_size=1, max_size=300)


@settings(max_examples=60, deadline=None)
@given(plan=PLANS)
def test_batches_give_what_the_whole_file_gives(plan: list[tuple[int, int, int]]) -> None:
    data = Written(events=events_of(plan)).data()
    whole = parse(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "BATCH_BYTES", 1)
        parts = parse(data)
    for name in (*COLUMNS, *PAYLOADS):
        assert np.array_equal(getattr(whole, name), getattr(parts, name)), name
    assert [whole.payload(row) for row in range(len(whole))] == [
        parts.payload(row) for row in range(len(parts))
    ]
    assert [p.sentence for p in whole.problems] == [p.sentence for p in parts.problems]


def lost(ns: int, *, closed: int, opened: int, thread: int = 1, domain: int = 0) -> WrittenEvent:
    return WrittenEvent(kind=EventKind.LOST, ns=ns, value=closed << 32 | opened, thread=thread, domain=domain)


def told(capture: NvtxCapture) -> list[tuple[str, int, int]]:
    return [
        (capture.names[name], int(dur), int(depth))
        for name, dur, depth in zip(capture.name, capture.dur_ns, capture.depth, strict=True)
    ]


@pytest.mark.parametrize("batch", [1, 1 << 20])
def test_a_gap_closes_what_was_open_and_opens_what_nobody_knows(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "BATCH_BYTES", batch)
    capture = Written(
        events=[
            push(10, "outer"),
            push(20, "closed unseen"),
            lost(30, closed=1, opened=2),
            push(40, "inside"),
            pop(50),
            pop(60),
            pop(70),
            pop(80),
        ]
    ).capture()
    assert told(capture) == [("outer", 70, 0), ("closed unseen", UNKNOWN_NS, 1), ("inside", 10, 3)]
    assert [problem.verdict for problem in capture.problems] == [Verdict.OPEN_RANGES]


def test_a_gap_concerns_its_own_thread_and_domain() -> None:
    capture = Written(
        events=[
            push(10, "a"),
            push(20, "b", thread=2),
            lost(30, closed=1, opened=0),
            pop(40),
            pop(50, thread=2),
        ]
    ).capture()
    assert told(capture) == [("a", UNKNOWN_NS, 0), ("b", 30, 0)]


def test_a_gap_that_lies_about_its_size_is_bounded() -> None:
    capture = Written(
        events=[push(10, "a"), lost(20, closed=2**32 - 1, opened=2**32 - 1), mark(30, "m")]
    ).capture()
    assert told(capture)[-1] == ("m", 0, chunks.GAP_MAX)
    assert Verdict.DAMAGED_EVENTS in {problem.verdict for problem in capture.problems}


def test_a_chunk_of_another_thread_says_whose_its_events_are() -> None:
    who = WrittenEvent(kind=EventKind.THREAD, ns=25, value=77, text="second")
    capture = Written(events=[push(10, "a"), pop(20), who, push(30, "b"), pop(40)]).capture()
    assert capture.thread.tolist() == [1, 77]
    assert capture.threads == {1: "worker", 77: "second"}
    assert told(capture) == [("a", 10, 0), ("b", 10, 0)]


def test_a_hole_between_chunks_is_stepped_over() -> None:
    data = Written(events=[push(10, "a"), pop(20), push(30, "b", thread=2), pop(40, thread=2)]).data()
    at = PAGE + CHUNK
    holed = bytearray(data[:at] + bytes(3 * PAGE) + data[at:])
    end_bytes = int.from_bytes(data[80:88], "little")
    assert end_bytes == len(data)
    holed[80:88] = len(holed).to_bytes(8, "little")
    capture = parse(bytes(holed))
    assert told(capture) == [("a", 10, 0), ("b", 10, 0)]
    assert capture.problems == ()


def test_files_of_the_first_version_are_read() -> None:
    data = bytearray(Written(events=[push(10, "a"), pop(20)], dropped=3).data())
    data[8:12] = (1).to_bytes(4, "little")
    capture = parse(bytes(data))
    assert told(capture) == [("a", 10, 0)]
    assert capture.dropped_events == 3
    assert int(capture.ts_ns[0]) == REALTIME_OFFSET + 10


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.9])
def test_a_cut_file_does_not_say_that_nothing_was_emitted(keep: float) -> None:
    data = Written(
        events=[event for i in range(50) for event in (push(10 * i + 1, f"name {i}"), pop(10 * i + 5))]
    ).data()
    capture = parse(data[: PAGE + int((len(data) - PAGE) * keep)])
    found = {problem.verdict for problem in capture.problems}
    assert Verdict.TRUNCATED in found
    assert Verdict.NO_EVENTS not in found


def test_rows_group_by_thread_as_they_were_emitted() -> None:
    events = [
        event
        for t in (1, 2, 3)
        for i in range(200)
        for event in (push(i * 10 + t, "x" * 90, thread=t), pop(i * 10 + t + 3, thread=t))
    ]
    capture = Written(events=events).capture()
    per_thread: dict[int, int] = defaultdict(int)
    for thread in capture.thread.tolist():
        per_thread[thread] += 1
    assert dict(per_thread) == {1: 200, 2: 200, 3: 200}
