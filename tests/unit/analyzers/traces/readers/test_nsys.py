from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mtpprof.analyzers.calls.attribution import Attribution, analyze
from mtpprof.analyzers.traces.discover import open_traces
from mtpprof.analyzers.traces.formats import read_file
from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.table import Category, EventTable
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
        ("20", "30.5", "0", "7", None, process(1), 99),
        (2**62, 5, 0, 7, 1, process(1), 1),
    ]
    table = read_one(database(tmp_path / "x.sqlite", **{KERNELS: kernels(*rows)}))
    assert table.ts_ns.tolist() == [10, 20]
    assert table.dur_ns.tolist() == [0, 10]
    assert verdicts_of(table) == {Verdict.CORRUPT_DURATIONS: 1, Verdict.DAMAGED_EVENTS: 1}


def verdicts_of(table: EventTable) -> dict[Verdict, int | None]:
    return {problem.verdict: problem.count for problem in table.problems}


@pytest.mark.parametrize("column", range(6))
@pytest.mark.parametrize("value", ["a word", b"bytes", "", "1e400", 2**63 - 1])
def test_a_record_without_a_number_where_one_belongs_is_named_and_left_out(
    tmp_path: Path, column: int, value: object
) -> None:
    """Never read as 0: start, end, device, stream, correlation and process."""
    rows = [(10 + index, 20 + index, 0, 7, index, process(1), 1) for index in range(3)]
    rows[1] = (*rows[1][:column], value, *rows[1][column + 1 :])  # type: ignore[assignment]
    tables = read_file(database(tmp_path / "x.sqlite", **{KERNELS: kernels(*rows)}))
    if value == 2**63 - 1 and column in (3, 4, 5):
        assert sum(len(table) for table in tables) == 3  # a number, if a large one
        return
    (table,) = tables
    assert table.ts_ns.tolist() == [10, 12]
    (problem,) = table.problems
    assert (problem.verdict, problem.count) == (Verdict.DAMAGED_EVENTS, 1)
    assert f"1 records of {KERNELS} hold text" in problem.sentence


@pytest.mark.parametrize("missing", [0, 1])
def test_times_that_are_not_there_are_no_zeros(tmp_path: Path, missing: int) -> None:
    rows = [(10, 20, 0, 7, 1, process(1), 1), (30, 40, 0, 7, 2, process(1), 1)]
    rows[1] = tuple(None if index == missing else value for index, value in enumerate(rows[1]))  # type: ignore[assignment]
    table = read_one(database(tmp_path / "x.sqlite", **{KERNELS: kernels(*rows)}))
    assert verdicts_of(table) == {Verdict.DAMAGED_EVENTS: 1}
    assert table.ts_ns.tolist() == [10]


class TestLostNames:
    ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

    def export(self, tmp_path: Path, kept: int | None) -> Attribution:
        """30 all-reduces, each with a name of its own, of which `kept` have a text in the file. None: no table of texts."""
        rows = [(100 * i, 100 * i + 50, 0, 7, i, process(1), 100 + i) for i in range(30)]
        content: dict[str, tuple[str, Rows]] = {
            KERNELS: kernels(*rows),
            "StringIds": ("id, value", [(100 + i, self.ALL_REDUCE) for i in range(kept or 0)]),
        }
        path = database(tmp_path / "x.sqlite", **content)
        if kept is None:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("drop table StringIds")
                connection.commit()
        (traces,) = open_traces([path])
        return analyze(traces)

    def test_all_names_there(self, tmp_path: Path) -> None:
        found = self.export(tmp_path, 30)
        assert (len(found.calls), found.counts_are_exact) == (30, True)

    def test_a_third_lost_makes_counts_lower_bounds(self, tmp_path: Path) -> None:
        found = self.export(tmp_path, 20)
        assert (len(found.calls), found.counts_are_exact) == (20, False)
        assert any("10 of its 30 kernels have no name" in problem.sentence for problem in found.problems)

    def test_all_lost_is_no_answer_and_no_zero(self, tmp_path: Path) -> None:
        found = self.export(tmp_path, None)
        assert "30 of its 30 kernels have no name" in found.no_answer
        assert not found.counts_are_exact

    def test_another_column_tells_the_name(self, tmp_path: Path) -> None:
        path = database(
            tmp_path / "x.sqlite",
            StringIds=("id, value", [(5, self.ALL_REDUCE)]),
            **{KERNELS: (KERNEL_COLUMNS + ", shortName", [(1, 2, 0, 7, 1, process(1), 4, 5)])},
        )
        assert read_one(path).names == (self.ALL_REDUCE,)


@pytest.mark.parametrize("name", [KERNELS + "_1", KERNELS + "_V2", KERNELS.lower() + "2"])
def test_numbers_behind_the_names_of_tables_change_nothing(tmp_path: Path, name: str) -> None:
    content = {
        KERNELS: kernels((1, 2, 0, 7, 5, process(1), 1)),
        name: kernels((3, 4, 0, 7, 6, process(1), 1)),
    }
    assert read_one(database(tmp_path / "x.sqlite", **content)).ts_ns.tolist() == [1, 3]
    assert read_one(database(tmp_path / "y.sqlite", **{name: content[name]})).ts_ns.tolist() == [3]


@pytest.mark.parametrize(
    ("table", "said", "advice"),
    [
        ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "a database of nvprof", "nsys profile"),
        ("COMMUNICATION_OP", "the Ascend profiler", "trace_view.json"),
    ],
)
def test_databases_of_other_profilers_are_named(tmp_path: Path, table: str, said: str, advice: str) -> None:
    path = database(tmp_path / "x.sqlite", **{table: ("start, end", [(1, 2)])})
    with pytest.raises(TraceFormatError, match=said) as caught:
        read_file(path)
    assert caught.value.verdict is Verdict.OTHER_FORMAT
    assert advice in str(caught.value)
    assert caught.value.problem().remedy == caught.value.advice


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
    with pytest.raises(TraceFormatError, match="of another program"):
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
    with pytest.raises(TraceFormatError, match="of another program"):
        read_file(path)


def test_raw_reports_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "report1.nsys-rep"
    path.write_bytes(b"\x01\x02\x03" * 3000)
    with pytest.raises(TraceFormatError, match="nsys export --type sqlite"):
        read_file(path)
