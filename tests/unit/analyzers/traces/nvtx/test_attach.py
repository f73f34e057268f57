"""NVTX beside a trace: which capture belongs to it, what of the capture becomes rows, and bytes that only NCCL's NVTX tells."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof import ranges
from mtpprof.analyzers.calls.attribution import Attribution, analyze
from mtpprof.analyzers.calls.known import BY_NVTX_RANGE, MEASURED_BY_NVTX, only_around
from mtpprof.analyzers.calls.table import Provenance
from mtpprof.analyzers.perfetto.export import Export
from mtpprof.analyzers.perfetto.files import format_of
from mtpprof.analyzers.traces.discover import open_traces
from mtpprof.analyzers.traces.nvtx.attach import beside
from mtpprof.analyzers.traces.table import EVENT_COLUMNS, Category, EventTable, Track
from mtpprof.errors import InputError
from mtpprof.ranges import CollectiveRange
from tests.runs import BASE_NS, trace
from tests.unit.analyzers.perfetto.runs import arm
from tests.unit.analyzers.perfetto.written import read_protobuf
from tests.unit.analyzers.tables import NCCL_AG, NCCL_AR, Trace, one_run, record
from tests.unit.analyzers.traces.nvtx.test_nccl import ALL_GATHER, ALL_REDUCE, INIT_RANK, call, definitions
from tests.unit.analyzers.traces.nvtx.written import REALTIME_OFFSET, Written, WrittenEvent, pop, push

US = 1000
BASE = REALTIME_OFFSET + 1_000_000
"""The traces' zero, on the clock of `written` captures 1 ms."""
ID = 77


def reduce_name(sequence: int, phase: str = "target") -> str:
    return CollectiveRange(
        kind="all_reduce",
        site="layers.0.attention.o_proj",
        phase=phase,
        shape=(2, 64),
        dtype="bf16",
        payload_bytes=256,
        group="tp",
        group_size=2,
        implementation="nccl",
        sequence=sequence,
    ).name()


def span(name: str, start: int, length: int, *, thread: int = 1, domain: int = 0) -> list[WrittenEvent]:
    """A range on the traces' clock."""
    at = 1_000_000 + start
    return [push(at, name, thread=thread, domain=domain), pop(at + length, thread=thread, domain=domain)]


def nccl(start: int, length: int, function: str, schema: int, size: int) -> list[WrittenEvent]:
    payload = struct.pack("<QQQ", ID, size, 0) if schema == ALL_REDUCE else struct.pack("<QQ", ID, size)
    opened, *_ = call(1_000_000 + start, function, schema, payload)
    return [opened, pop(1_000_000 + start + length, domain=1)]


def found(table: EventTable) -> Attribution:
    return analyze(one_run(table))


def test_only_what_the_trace_lacks_becomes_rows() -> None:
    events = Trace()
    events.note(ranges.step_name(0), 0, 900 * US)
    events.note(reduce_name(1), 100 * US, 20 * US)
    table = events.table(base=BASE)
    capture = Written(
        events=[
            *span(reduce_name(1), 100 * US - 300, 20 * US + 700),
            *span("theirs", 300 * US, 10 * US),
            *span("on a thread of its own", 400 * US, 10 * US, thread=9),
            *span("before the window", -600 * US, 10),
            *span("after it", 2_000 * US, 10),
        ]
    ).capture()
    joined = beside(table, capture)
    names = [joined.names[code] for code in joined.name]
    assert names == [ranges.step_name(0), reduce_name(1), "theirs", "on a thread of its own"]
    assert [Category(int(value)).name for value in joined.category[2:]] == ["NVTX", "NVTX"]
    assert joined.ts_ns[2] == 300 * US
    assert joined.tracks[joined.track[3]].tid == 9
    nvtx = joined.nvtx
    assert nvtx is not None
    assert (nvtx.ranges, nvtx.joined, nvtx.only_nvtx, nvtx.only_trace) == (3, 1, 0, 1)
    assert nvtx.shift_ns == (-400, 300)
    assert any("apart by -0.4 to +0.3 µs" in note for note in found(joined).notes)


def test_site_phase_and_bytes_come_from_nvtx_where_the_trace_has_no_range() -> None:
    events = Trace()
    events.kernel(NCCL_AR, 150 * US, 30 * US, launched=110 * US)
    events.op("aten::mm", 0, 900 * US)
    table = replace(
        events.table(base=BASE), tracks=(Track(pid=42, tid=1), Track(pid=42, tid=2), Track(pid=0, tid=7))
    )
    before = found(table).calls
    assert before.payload_bytes.tolist() == [-1]
    capture = Written(events=span(reduce_name(3), 100 * US, 20 * US)).capture()
    calls = found(beside(table, capture)).calls
    assert calls.payload_bytes.tolist() == [256]
    assert calls.text("site", 0) == "layers.0.attention.o_proj"
    assert calls.text("phase", 0) == "target"
    assert calls.provenance.tolist() == [Provenance.MEASURED]
    assert calls.text("how", 0) == BY_NVTX_RANGE


def gpu_trace() -> EventTable:
    events = Trace()
    events.op("aten::mm", 0, 900 * US)
    events.kernel(NCCL_AR, 150 * US, 30 * US, launched=110 * US)
    events.kernel(NCCL_AG, 250 * US, 30 * US, launched=210 * US)
    events.kernel(NCCL_AR, 350 * US, 30 * US, launched=310 * US, record=record(in_elems=100))
    return events.table(base=BASE)


def test_bytes_of_nccl_calls_that_torch_did_not_issue() -> None:
    init = call(10, "ncclCommInitRank", INIT_RANK, struct.pack("<QiiiI", ID, 4, 0, 0, 0))
    capture = Written(
        definitions=definitions(),
        events=[
            *init,
            *nccl(100 * US, 20 * US, "ncclAllReduce", ALL_REDUCE, 4096),
            *nccl(200 * US, 20 * US, "ncclAllGather", ALL_GATHER, 1000),
            *nccl(300 * US, 20 * US, "ncclAllReduce", ALL_REDUCE, 9),
        ],
    ).capture()
    assert found(gpu_trace()).calls.payload_bytes.tolist() == [-1, -1, 200]
    calls = found(beside(gpu_trace(), capture)).calls
    # An all-gather's message is one rank's share of 4; what the trace itself says goes first.
    assert calls.payload_bytes.tolist() == [4096, 4000, 200]
    assert calls.group_size.tolist()[:2] == [4, 4]
    assert calls.provenance.tolist() == [Provenance.MEASURED] * 3
    assert [calls.text("how", index) == MEASURED_BY_NVTX for index in range(3)] == [True, True, False]


def test_a_size_is_not_guessed() -> None:
    """Another kind around the launch; two calls around it; a gather whose communicator was made before the capture."""
    other = nccl(100 * US, 20 * US, "ncclAllReduce", ALL_REDUCE, 64)
    for events in (
        nccl(100 * US, 20 * US, "ncclAllGather", ALL_GATHER, 64),
        [other[0], *nccl(105 * US, 10 * US, "ncclAllReduce", ALL_REDUCE, 32), other[1]],
        nccl(130 * US, 20 * US, "ncclAllReduce", ALL_REDUCE, 64),
        nccl(200 * US, 20 * US, "ncclAllGather", ALL_GATHER, 64),
    ):
        capture = Written(definitions=definitions(), events=events).capture()
        assert found(beside(gpu_trace(), capture)).calls.payload_bytes.tolist() == [-1, -1, 200]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=12),
    st.lists(st.integers(-1, 45), max_size=20),
)
def test_the_only_interval_around_a_time(spans: list[tuple[int, int]], times: list[int]) -> None:
    start = np.array([at for at, _ in spans], np.int64)
    end = start + np.array([length for _, length in spans], np.int64)
    found = only_around(start, end, np.array(times, np.int64))
    for time, index in zip(times, found.tolist(), strict=True):
        around = [n for n, (at, length) in enumerate(spans) if at <= time <= at + length]
        assert index == (around[0] if len(around) == 1 else -1)


@given(
    st.lists(st.tuples(st.integers(0, 800), st.integers(1, 90), st.booleans()), max_size=20),
    st.lists(st.integers(0, 800), min_size=1, max_size=10),
)
def test_the_rows_of_the_trace_keep_their_values_and_order(
    spans: list[tuple[int, int, bool]], kernels: list[int]
) -> None:
    events = Trace()
    events.op("aten::mm", 0, 1_000 * US, dims=[[2, 2]])
    for at in kernels:
        events.kernel(NCCL_AR, at * US, US, record=record(in_elems=at + 1))
    table = events.table(base=BASE)
    written = [
        event
        for thread, (at, length, known) in enumerate(spans, start=1)
        for event in span("seen" if known else f"name {at}", at * US, length * US, thread=thread)
    ]
    merged = beside(table, Written(events=written).capture())
    assert len(merged) == len(table) + len(spans)
    assert (np.diff(merged.ts_ns) >= 0).all()
    kept = merged.select(merged.category != Category.NVTX)
    for column in EVENT_COLUMNS:
        assert getattr(kept, column).tolist() == getattr(table, column).tolist()
    assert kept.collectives.row.tolist() == table.collectives.row.tolist()
    assert kept.collectives.in_elems.tolist() == table.collectives.in_elems.tolist()


def test_an_export_shows_them_as_tracks_of_their_own(tmp_path: Path) -> None:
    events = Trace()
    events.note(ranges.step_name(0), 0, 900 * US)
    capture = Written(
        events=[*span("theirs", 300 * US, 10 * US), *span(ranges.step_name(0), -200, 900 * US + 300)]
    ).capture()
    path = tmp_path / "out.pftrace"
    done = Export([arm("run", beside(events.table(base=BASE), capture))]).write(path, format_of(path))
    slices = [item for item in read_protobuf(path.read_bytes()).slices if item.category == "nvtx"]
    assert [(item.name, item.dur_ns) for item in slices] == [("theirs", 10 * US)]
    assert "NVTX" in slices[0].track
    assert done.events == 2


def write(folder: Path, *, rank: int = 0, pid: int = 7) -> Path:
    """A trace of 1 ms from `BASE_NS`."""
    folder.mkdir(parents=True, exist_ok=True)
    event = {"ph": "X", "cat": "user_annotation", "name": "work", "pid": pid, "tid": 7, "ts": 0, "dur": 1000}
    path = folder / f"rank{rank}.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace([event], rank, 2)).encode()))
    return path


def captured(path: Path, *, rank: int = 0, at_ns: int = BASE_NS + 500) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [push(at_ns - REALTIME_OFFSET, path.name), pop(at_ns - REALTIME_OFFSET + 10)]
    path.write_bytes(Written(events=events, rank=rank).data())


def opened(path: Path) -> EventTable:
    (traces,) = open_traces([path])
    (table,) = traces.tables
    return table


def test_a_capture_is_found_beside_the_trace_and_in_its_run(tmp_path: Path) -> None:
    path = write(tmp_path / "run" / "case" / "arm")
    assert opened(path).nvtx is None
    captured(tmp_path / "run" / "nvtx" / "rank0.pid42.nvtx")
    assert opened(path).nvtx is None, "a folder of that name is a run's only where a run is"
    (tmp_path / "run" / "run.json").write_text("{}")
    assert "rank0.pid42.nvtx" in opened(path).names
    captured(path.parent / "rank0.pid43.nvtx", at_ns=BASE_NS + 10**9)
    captured(path.parent / "rank1.pid44.nvtx", rank=1)
    assert "rank0.pid42.nvtx" in opened(path).names
    nvtx = opened(path).nvtx
    assert nvtx is not None
    assert nvtx.path.endswith("rank0.pid42.nvtx")


def test_a_capture_without_a_rank_is_told_by_its_process(tmp_path: Path) -> None:
    path = write(tmp_path, pid=42)
    captured(tmp_path / "pid42.nvtx", rank=-1)
    assert "pid42.nvtx" in opened(path).names
    other = write(tmp_path / "other", pid=43)
    captured(other.parent / "pid42.nvtx", rank=-1)
    assert "pid42.nvtx" not in opened(other).names


@pytest.mark.parametrize("damage", ["none", "of another rank", "unreadable"])
def test_a_missing_capture_is_said(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "run" / "case" / "arm")
    (tmp_path / "run" / "run.json").write_text("{}")
    folder = tmp_path / "run" / "nvtx"
    folder.mkdir()
    if damage == "of another rank":
        captured(folder / "rank1.pid42.nvtx", rank=1)
    elif damage == "unreadable":
        (folder / "rank0.pid42.nvtx").write_bytes(b"")
    table = opened(path)
    assert table.nvtx is not None
    (sentence,) = table.nvtx.sentences
    assert ("is empty" if damage == "unreadable" else "the capture library was not loaded") in sentence
    assert sentence in " ".join(found(table).notes)


def test_captures_alone_are_traces_and_beside_traces_they_are_not(tmp_path: Path) -> None:
    for rank in (0, 1):
        captured(tmp_path / "kept" / f"rank{rank}.pid{40 + rank}.nvtx", rank=rank)
    (tmp_path / "kept" / "notes.json").write_text('{"a": 1}')
    (alone,) = open_traces([tmp_path / "kept"])
    assert [(table.meta.rank, table.meta.reader) for table in alone.tables] == [(0, "nvtx"), (1, "nvtx")]
    (twice,) = open_traces([tmp_path / "kept", tmp_path / "kept" / ".." / "kept"])
    assert twice.ranks == (0, 1)
    write(tmp_path / "kept")
    write(tmp_path / "above" / "rank0")
    captured(tmp_path / "above" / "nvtx" / "rank0.pid42.nvtx")
    for folder in (tmp_path / "kept", tmp_path / "above"):
        (joined,) = open_traces([folder, folder / ".." / folder.name])
        assert [table.meta.reader for table in joined.tables] == ["kineto"]


def test_captures_of_a_run_without_traces_yet_are_no_traces(tmp_path: Path) -> None:
    captured(tmp_path / "run" / "nvtx" / "rank0.pid42.nvtx")
    (tmp_path / "run" / "run.json").write_text("{}")
    for folder in (tmp_path / "run", tmp_path):
        with pytest.raises(InputError, match="no trace found there"):
            open_traces([folder])
    captured(tmp_path / "others" / "rank1.pid43.nvtx", rank=1)
    (beside_it,) = open_traces([tmp_path])
    assert beside_it.ranks == (1,)
    (asked_for,) = open_traces([tmp_path / "run" / "nvtx"])
    assert asked_for.ranks == (0,)


def test_a_damaged_trace_beside_captures_is_named_and_they_do_not_stand_in_for_it(tmp_path: Path) -> None:
    captured(tmp_path / "rank0.pid42.nvtx")
    (tmp_path / "rank0.trace.json").write_bytes(b"")
    with pytest.raises(InputError, match=r"rank0\.trace\.json: is empty"):
        open_traces([tmp_path])
