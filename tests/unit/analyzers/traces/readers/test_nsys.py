from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mtpprof.analyzers.traces.formats import read_file
from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.table import Category
from mtpprof.analyzers.traces.verdicts import Verdict
from tests.unit.analyzers.chrome import read_one

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
Rows = Sequence[tuple[Any, ...]]


def process(number: int) -> int:
    """A global process id as Nsight Systems composes it."""
    return 281474976710656 + (number << 24)


def database(path: Path, **tables: tuple[str, Rows]) -> Path:
    """An export with the given tables: name → (columns, rows)."""
    strings: Rows = [(1, "void kernel<float>()"), (2, "cudaLaunchKernel"), (3, "python3")]
    content = {"StringIds": ("id, value", strings), **tables}
    with closing(sqlite3.connect(path)) as connection:
        for name, (columns, rows) in content.items():
            connection.execute(f"create table {name} ({columns})")
            marks = ", ".join("?" * len(columns.split(",")))
            connection.executemany(f"insert into {name} values ({marks})", rows)
        connection.commit()
    return path


KERNEL_COLUMNS = "start, end, deviceId, streamId, correlationId, globalPid, demangledName"


def kernels(*rows: tuple[Any, ...]) -> tuple[str, Rows]:
    return KERNEL_COLUMNS, rows


def test_two_processes_on_two_devices(tmp_path: Path) -> None:
    path = database(
        tmp_path / "x.sqlite",
        **{KERNELS: kernels((100, 150, 1, 7, 5, process(11), 1), (90, 140, 0, 7, 5, process(10), 1))},
        **{RUNTIME: ("start, end, globalTid, correlationId, nameId", [(80, 85, process(11) + 77, 5, 2)])},
        PROCESSES=("globalPid, name", [(process(11), "worker")]),
        ThreadNames=("nameId, globalTid", [(3, process(11) + 77)]),
        TARGET_INFO_SESSION_START_TIME=("utcEpochNs", [(10**18,)]),
        NVTX_EVENTS=(
            "start, end, eventType, text, textId, globalTid",
            [
                (70, 95, 59, "mtpprof::step index=3", None, process(11) + 77),
                (71, 72, 60, None, 3, process(11) + 77),
                (73, None, 59, "never ended", None, process(11) + 77),
                (74, None, 34, "mark", None, process(11) + 77),
            ],
        ),
    )
    first, second = read_file(path)
    assert (first.meta.rank, second.meta.rank) == (0, 1)
    assert [problem.verdict for problem in second.problems] == [Verdict.ASSUMED_RANK]
    assert first.device.tolist() == [0]
    assert [
        (second.names[n], int(t), int(d))
        for n, t, d in zip(second.name, second.ts_ns, second.dur_ns, strict=True)
    ] == [
        ("mtpprof::step index=3", 70, 25),
        ("python3", 71, 1),
        ("cudaLaunchKernel", 80, 5),
        ("void kernel<float>()", 100, 50),
    ]
    assert second.category.tolist() == [Category.NVTX, Category.NVTX, Category.RUNTIME, Category.KERNEL]
    assert second.correlation.tolist() == [-1, -1, 5, 5]
    track = second.tracks[second.track[2]]
    assert (track.pid, track.tid, track.process, track.thread) == (11, 77, "worker", "python3")
    assert second.tracks[second.track[3]].thread == "stream 7"
    assert second.meta.base_time_ns == 10**18


def test_one_process_has_no_rank(tmp_path: Path) -> None:
    table = read_one(database(tmp_path / "x.sqlite", **{KERNELS: kernels((1, 2, 0, 7, 5, process(1), 1))}))
    assert table.meta.rank is None
    assert len(table) == 1


def test_synchronizations_on_a_foreign_device_stay_with_their_process(tmp_path: Path) -> None:
    sync = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    path = database(
        tmp_path / "x.sqlite",
        **{KERNELS: kernels((1, 2, 0, 7, 5, process(1), 1), (1, 2, 1, 7, 5, process(2), 1))},
        **{
            sync: (
                "start, end, deviceId, streamId, correlationId, globalPid, syncType",
                [(3, 4, 0, 2**32 - 1, 9, process(2), 1)],
            )
        },
    )
    first, second = read_file(path)
    assert (first.count(Category.SYNC), second.count(Category.SYNC)) == (0, 1)
    assert second.stream.tolist() == [7, -1]


def test_one_process_with_two_devices_gives_two_tables(tmp_path: Path) -> None:
    path = database(
        tmp_path / "x.sqlite",
        **{KERNELS: kernels((1, 2, 0, 7, 5, process(1), 1), (1, 2, 1, 7, 6, process(1), 1))},
        **{RUNTIME: ("start, end, globalTid, correlationId, nameId", [(0, 1, process(1) + 1, 5, 2)])},
    )
    first, second = read_file(path)
    assert (len(first), len(second)) == (2, 1)


def test_negative_and_odd_values(tmp_path: Path) -> None:
    rows = [
        (10, 5, 0, 7, None, process(1), 1),
        ("20", "30.5", "0", "x", "y", process(1), 99),
        (2**62, 5, 0, 7, 1, process(1), 1),
    ]
    table = read_one(database(tmp_path / "x.sqlite", **{KERNELS: kernels(*rows)}))
    assert table.ts_ns.tolist() == [10, 20]
    assert table.dur_ns.tolist() == [0, 10]
    assert Verdict.CORRUPT_DURATIONS in {problem.verdict for problem in table.problems}


def test_graphs_traced_as_a_whole_forbid_answers(tmp_path: Path) -> None:
    path = database(
        tmp_path / "x.sqlite",
        **{KERNELS: kernels((1, 2, 0, 7, 5, process(1), 1))},
        CUPTI_ACTIVITY_KIND_GRAPH_TRACE=("start, end", [(1, 2), (3, 4)]),
        DIAGNOSTIC_EVENT=("text", [("Not all CUDA events might have been collected.",), ("All fine",)]),
    )
    verdicts = [problem.verdict for problem in read_one(path).problems]
    assert verdicts == [Verdict.DROPPED_EVENTS, Verdict.OPAQUE_GRAPHS]


def test_an_export_without_events_is_a_table_without_rows(tmp_path: Path) -> None:
    assert len(read_one(database(tmp_path / "x.sqlite", **{KERNELS: kernels()}))) == 0


def test_ranges_alone_make_tables(tmp_path: Path) -> None:
    rows = [(1, 2, 59, "a", None, process(number) + 5) for number in (1, 2)]
    path = database(
        tmp_path / "x.sqlite", NVTX_EVENTS=("start, end, eventType, text, textId, globalTid", rows)
    )
    assert [len(table) for table in read_file(path)] == [1, 1]


@pytest.mark.parametrize("size", [100, 4096, 9000])
def test_cut_databases_are_refused(tmp_path: Path, size: int) -> None:
    rows = [(index, index + 1, 0, 7, index, process(1), 1) for index in range(3000)]
    path = database(tmp_path / "x.sqlite", **{KERNELS: kernels(*rows)})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TraceFormatError) as caught:
        read_file(path)
    assert caught.value.verdict in (Verdict.UNREADABLE, Verdict.NOT_A_TRACE)


def test_a_schema_with_damaged_text_is_refused(tmp_path: Path) -> None:
    """SQLite quotes the damaged text in its own message, which is then no UTF-8 either."""
    path = database(tmp_path / "x.sqlite", **{KERNELS: kernels((1, 2, 0, 7, 5, process(1), 1))})
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE T\xe4BLE", 1))
    with pytest.raises(TraceFormatError) as caught:
        read_file(path)
    assert caught.value.verdict is Verdict.UNREADABLE


def test_other_databases_and_compressed_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="without the tables"):
        read_file(database(tmp_path / "other.sqlite"))
    path = database(tmp_path / "x.sqlite", **{KERNELS: kernels((1, 2, 0, 7, 5, process(1), 1))})
    packed = tmp_path / "x.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(TraceFormatError, match="decompress"):
        read_file(packed)


def test_views_do_not_pass_for_tables(tmp_path: Path) -> None:
    path = database(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        endless = "with recursive n(x) as (select 1 union all select x + 1 from n) select x as start, x as end from n"
        connection.execute(f"create view {KERNELS} as {endless}")
    with pytest.raises(TraceFormatError, match="without the tables"):
        read_file(path)


def test_raw_reports_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "report1.nsys-rep"
    path.write_bytes(b"\x01\x02\x03" * 3000)
    with pytest.raises(TraceFormatError, match="nsys export --type sqlite"):
        read_file(path)
