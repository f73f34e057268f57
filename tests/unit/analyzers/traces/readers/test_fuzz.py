"""Mutations of traces, synthetic and real: a reader gives a table or a named refusal, whatever it is fed.

Nothing else may come out: no other exception, no unbounded time, no table that breaks its own contract.
"""

from __future__ import annotations

import gzip
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.traces.checks import diagnose
from mtpprof.analyzers.traces.formats import read_file
from mtpprof.analyzers.traces.readers.base import Limits, TraceFormatError
from mtpprof.analyzers.traces.table import COLLECTIVE_COLUMNS, EVENT_COLUMNS, EventTable
from tests.traces import FOLDER, needs_traces
from tests.unit.analyzers.chrome import Style, complete, kernel, some_events, text

LIMITS = Limits(max_text_bytes=64 << 20, ratio_from_bytes=8 << 20, max_gap_bytes=8 << 20)
FUZZ = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=80,
)
STYLES: tuple[Style, ...] = ("kineto", "compact", "indented")

HOSTILE = [
    b'"', b"\\", b"\x00", b"\x01", b"\x9f", b"\n", b"{", b"}", b"[", b"]", b",", b":", b"},\n  {", b"}, {", b"]}",
    b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"-9223372036854775809", b"null", b"true", b'""', b"[[[[", b'"\\ud800"',
    b'"traceEvents": [', b'"distributedInfo": {"rank": -1}', b'"ts": ', b'"dur": -5', b'"ph": "B"', b'"ph": "E"',
    b"[" * 5000, b'{"a":' * 3000,
]  # fmt: skip


def check(table: EventTable) -> None:
    """The contract of `EventTable`, as far as it can be checked on any table."""
    rows = len(table)
    for name, dtype in EVENT_COLUMNS.items():
        column = getattr(table, name)
        assert (len(column), column.dtype) == (rows, np.dtype(dtype)), name
    assert np.all(np.diff(table.ts_ns) >= 0)
    assert np.all(table.dur_ns >= 0)
    assert np.all(table.end_ns >= table.ts_ns)
    for codes, texts in ((table.name, table.names), (table.track, table.tracks)):
        assert np.all((codes >= 0) & (codes < len(texts)))
    for codes in (table.dims, table.types):
        assert np.all((codes >= -1) & (codes < len(table.shapes)))
    for code in range(len(table.shapes)):
        table.input_dims(code)
    entries = table.collectives
    for name, dtype in COLLECTIVE_COLUMNS.items():
        column = getattr(entries, name)
        assert (len(column), column.dtype) == (len(entries.row), np.dtype(dtype)), name
    assert np.all(np.diff(entries.row) > 0)
    assert not len(entries.row) or 0 <= entries.row[0] <= entries.row[-1] < rows
    assert table.meta.rank is None or table.meta.rank >= 0
    assert all(problem.sentence and "\n" not in problem.sentence for problem in table.problems)
    diagnose(table)


def survives(path: Path, content: bytes) -> EventTable | None:
    path.write_bytes(content)
    try:
        tables = read_file(path, LIMITS)
    except TraceFormatError as error:
        refusal: TraceFormatError | None = error
    else:
        refusal = None
    if refusal is not None:
        assert str(path) in str(refusal)
        return None
    for table in tables:
        check(table)
    return tables[0]


@cache
def whole(style: Style, packed: bool) -> bytes:
    events = some_events(400)
    events += [
        kernel(
            "ncclDevKernel_AllReduce", 900.5 + index, **{"Collective name": "allreduce", "In msg nelems": 8}
        )
        for index in range(9)
    ]
    events += [complete("op", 3.25 * index, args={"Input Dims": [[], [8, 256]]}) for index in range(9)]
    raw = text(events, style=style).encode()
    return gzip.compress(raw, 1) if packed else raw


def mutate(raw: bytes, seed: int, rounds: int) -> bytes:
    """A few random injuries: cuts, flips, insertions, repeats, moves."""
    dice = random.Random(seed)
    injuries: tuple[Callable[[bytes, int, int], bytes], ...] = (
        lambda data, at, size: data[:at],
        lambda data, at, size: data[at:],
        lambda data, at, size: data[:at] + data[at + size :],
        lambda data, at, size: data[:at] + dice.choice(HOSTILE) + data[at:],
        lambda data, at, size: data[:at] + dice.choice(HOSTILE) + data[at + size :],
        lambda data, at, size: data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :],
        lambda data, at, size: data[: at + size] + data[at:],
        lambda data, at, size: (
            data[:at] + data[at + size : at + 2 * size] + data[at : at + size] + data[at + 2 * size :]
        ),
        lambda data, at, size: data[:at] + dice.randbytes(min(size, 64)) + data[at:],
    )
    for _ in range(rounds):
        # Cuts end the text, so they are rarer than the rest.
        injury = dice.choice(injuries[2:] if dice.random() < 0.85 else injuries)
        raw = injury(raw, dice.randrange(len(raw) + 1), dice.choice((1, 7, 60, 500, 5000)))
    return raw


@FUZZ
@given(
    style=st.sampled_from(STYLES),
    packed=st.booleans(),
    seed=st.integers(0, 2**32),
    rounds=st.integers(1, 6),
    outside=st.booleans(),
)
def test_injured_traces(
    tmp_path: Path, style: Style, packed: bool, seed: int, rounds: int, outside: bool
) -> None:
    """Injuries to the text, or to the compressed bytes around it."""
    if packed and outside:
        content = mutate(whole(style, packed=True), seed, rounds)
    else:
        content = mutate(whole(style, packed=False), seed, rounds)
        content = gzip.compress(content, 1) if packed else content
    survives(tmp_path / "t.json", content)


@FUZZ
@given(
    content=st.binary(max_size=3000),
    before=st.sampled_from([b"", b"{", b"[", b'{"traceEvents": [', b"\x1f\x8b\x08", b"SQLite format 3\0"]),
)
def test_noise(tmp_path: Path, content: bytes, before: bytes) -> None:
    survives(tmp_path / "t.json", before + content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["ph", "name", "cat", "pid", "tid", "ts", "dur", "args", "device", "stream", "correlation", "External id"]
)
ARGS = st.dictionaries(
    st.sampled_from(["device", "stream", "correlation", "Input Dims", "Input type", "Collective name", "In msg nelems",
                     "Group size", "Process Group Ranks", "dtype", "Seq", "name"]),
    JSON,
    max_size=5,
)  # fmt: skip
EVENTS = st.lists(
    st.builds(
        lambda base, changes, args: {**base, "args": args, **changes},
        st.sampled_from(
            [complete("a", 1.5), kernel("k", 2.5), {"ph": "M", "name": "process_name", "pid": 1, "ts": 0}]
        ),
        st.dictionaries(FIELDS, JSON, max_size=2),
        ARGS,
    ),
    max_size=12,
)


@FUZZ
@given(
    events=EVENTS,
    metadata=st.dictionaries(
        st.sampled_from(
            ["distributedInfo", "baseTimeNanoseconds", "deviceProperties", "host_name", "trace_id", "x"]
        ),
        JSON,
    ),
    style=st.sampled_from(STYLES),
)
def test_fields_of_any_type(
    tmp_path: Path, events: list[dict[str, object]], metadata: dict[str, object], style: Style
) -> None:
    table = survives(tmp_path / "t.json", text(events, metadata, style).encode("utf-8", "surrogatepass"))
    if table is not None and style == "kineto":
        kept = len(table) + table.meta.events_refused
        assert kept <= table.meta.events_total + table.meta.events_refused


@FUZZ
@given(cut=st.floats(0, 1), style=st.sampled_from(STYLES), packed=st.booleans())
def test_a_cut_trace_keeps_the_events_before_the_cut(
    tmp_path: Path, cut: float, style: Style, packed: bool
) -> None:
    raw = whole(style, packed=False)
    content = raw[: int(cut * len(raw))]
    table = survives(tmp_path / "t.json", gzip.compress(content, 1) if packed else content)
    complete_events = content.count(b'"ph"') - 1
    if table is not None and b"traceEvents" in content:
        assert complete_events <= table.meta.events_total + table.meta.events_refused <= complete_events + 1


@FUZZ
@given(blocks=st.lists(st.integers(1, 20_000), min_size=1, max_size=30))
def test_gzip_members_of_any_size(tmp_path: Path, blocks: list[int]) -> None:
    raw, parts = whole("kineto", packed=False), []
    for size in blocks:
        parts.append(gzip.compress(raw[:size], 1))
        raw = raw[size:]
    parts.append(gzip.compress(raw, 1))
    table = survives(tmp_path / "t.json", b"".join(parts))
    assert table is not None
    assert len(table) == 418
    assert not table.problems


@FUZZ
@given(seed=st.integers(0, 2**32), rounds=st.integers(1, 5))
def test_injured_databases(tmp_path: Path, seed: int, rounds: int) -> None:
    survives(tmp_path / "t.sqlite", mutate(small_database(tmp_path), seed, rounds))


@cache
def small_database(folder: Path) -> bytes:
    path = folder / "whole.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table StringIds (id integer primary key, value text)")
        connection.execute(
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, streamId integer, "
            "correlationId integer, globalPid integer, demangledName integer)"
        )
        connection.executemany(
            "insert into StringIds values (?, ?)", [(index, f"kernel{index}") for index in range(50)]
        )
        rows = [
            (index * 10, index * 10 + 5, index % 2, 7, index, (index % 2 + 1) << 24, index % 50)
            for index in range(400)
        ]
        connection.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?, ?)", rows)
        connection.commit()
    return path.read_bytes()


REAL = [
    "megatron-tp2-v100/9c44bd29b3f0_1375.1724066820235157909.pt.trace.json",
    "odd/trailing-comma.trace.json",
    "odd/cpu-only-rank34.pt.trace.json.gz",
    "odd/no-distributed-info.json.gz",
]


@cache
def real(name: str) -> bytes:
    raw = (FOLDER / name).read_bytes()
    return gzip.decompress(raw) if name.endswith(".gz") else raw


@needs_traces
@settings(FUZZ, max_examples=60)
@given(name=st.sampled_from(REAL), seed=st.integers(0, 2**32), rounds=st.integers(1, 4))
def test_injured_real_traces(tmp_path: Path, name: str, seed: int, rounds: int) -> None:
    survives(tmp_path / "t.json", mutate(real(name), seed, rounds))


@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_wrong_units_change_times_only(tmp_path: Path, factor: float) -> None:
    """A producer that writes nanoseconds or milliseconds where microseconds belong."""
    events = [
        {**event, "ts": event["ts"] * factor, "dur": event["dur"] * factor} for event in some_events(200)
    ]
    table = survives(tmp_path / "t.json", text(events).encode())
    assert table is not None
    assert len(table) == 200
