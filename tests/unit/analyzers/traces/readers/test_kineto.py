from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtpprof.analyzers.traces.readers.columns import exact_ns, integers
from mtpprof.analyzers.traces.table import EVENT_COLUMNS, MISSING, Category
from mtpprof.analyzers.traces.verdicts import Verdict
from tests.unit.analyzers.chrome import (
    BASE_NS,
    Style,
    complete,
    kernel,
    read_one,
    read_text,
    some_events,
    text,
    write,
)

STYLES: tuple[Style, ...] = ("kineto", "compact", "indented")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_every_style_gives_the_same_table(tmp_path: Path, style: Style, name: str) -> None:
    events = some_events(5000)
    table = read_text(tmp_path, text(events, style=style), name)
    assert len(table) == 5000
    assert table.meta.events_total == 5000
    assert table.count(Category.KERNEL) == 2500
    assert [table.names[code] for code in table.name[:3]] == ["cudaLaunchKernel", "k0", "cudaLaunchKernel"]
    assert table.ts_ns[:3].tolist() == [1_000_000, 1_005_125, 1_020_000]
    assert table.dur_ns[:2].tolist() == [2250, 10_000]
    assert table.correlation[:4].tolist() == [0, 0, 1, 1]
    assert not table.problems


def test_metadata(tmp_path: Path) -> None:
    table = read_text(tmp_path, text(some_events()))
    meta = table.meta
    assert (meta.rank, meta.world_size, meta.host, meta.backend) == (1, 4, "node7", "nccl")
    assert meta.base_time_ns == BASE_NS
    absolute = table.absolute_ns()
    assert absolute is not None
    assert absolute[0] == BASE_NS + 1_000_000


def test_process_groups_and_devices(tmp_path: Path) -> None:
    group = {"pg_name": "3", "pg_desc": "tp", "pg_size": 2, "ranks": [0, 1]}
    metadata = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA B200"}],
        "distributedInfo": {
            "rank": 0,
            "world_size": 2,
            "pg_config": [group, "odd"],
            "nccl_version": "2.28.9",
        },
    }
    meta = read_text(tmp_path, text(some_events(), metadata)).meta
    assert meta.devices == ("NVIDIA B200",)
    assert [(item.name, item.size, item.ranks) for item in meta.process_groups] == [("3", 2, (0, 1))]
    assert meta.producer["nccl_version"] == "2.28.9"


def test_metadata_after_the_events(tmp_path: Path) -> None:
    tail = ', "baseTimeNanoseconds": 12, "distributedInfo": {"rank": 2, "world_size": 3}'
    meta = read_text(tmp_path, text(some_events(), {}, tail=tail)).meta
    assert (meta.rank, meta.world_size, meta.base_time_ns) == (2, 3, 12)


def test_objects_in_the_metadata_that_look_like_events(tmp_path: Path) -> None:
    devices = ",\n  ".join('{\n    "id": 1\n  }' for _ in range(5))
    tail = f',\n  "deviceProperties": [\n  {devices}\n  ], "host_name": "late"'
    table = read_text(tmp_path, text(some_events(), {}, tail=tail))
    assert len(table) == 20
    assert table.meta.host == "late"
    assert not table.problems


@pytest.mark.parametrize("rank", [-1, "x", None, 1.5, True, [1], 9, 10**30])
def test_impossible_ranks_are_no_rank(tmp_path: Path, rank: Any) -> None:
    metadata = {"distributedInfo": {"rank": rank, "world_size": 4}}
    assert read_text(tmp_path, text(some_events(), metadata)).meta.rank is None


def test_array_form(tmp_path: Path) -> None:
    table = read_text(tmp_path, json.dumps(some_events()))
    assert len(table) == 20
    assert not table.problems


@pytest.mark.parametrize(
    ("cat", "category"),
    [
        ("kernel", Category.KERNEL),
        ("Kernel", Category.KERNEL),
        ("Operator", Category.CPU_OP),
        ("cpu_op", Category.CPU_OP),
        ("Memcpy", Category.MEMCPY),
        ("gpu_memcpy", Category.MEMCPY),
        ("Memset", Category.MEMSET),
        ("Runtime", Category.RUNTIME),
        ("cuda_driver", Category.RUNTIME),
        ("user_annotation", Category.USER_ANNOTATION),
        ("gpu_user_annotation", Category.GPU_USER_ANNOTATION),
        ("cuda_sync", Category.SYNC),
        ("python_function", Category.PYTHON),
        ("overhead", Category.OVERHEAD),
        ("something new", Category.OTHER),
    ],
)
def test_old_and_new_categories(tmp_path: Path, cat: str, category: Category) -> None:
    table = read_text(tmp_path, text([complete("x", 1.5, cat=cat)]))
    assert table.category.tolist() == [category]


def test_rows_are_sorted_and_ties_keep_the_order_of_the_file(tmp_path: Path) -> None:
    events = [
        complete("late", 30.5),
        complete("outer", 10.5, 9),
        complete("inner", 10.5, 3),
        complete("first", 1.5),
    ]
    table = read_text(tmp_path, text(events))
    assert [table.names[code] for code in table.name] == ["first", "outer", "inner", "late"]


def test_collective_arguments_follow_their_rows_through_the_sort(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 4096,
        "Out msg nelems": 4096,
        "Group size": 4,
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 1, 2, 3]",
        "Seq": 17,
    }
    events = [
        kernel("late", 90.5, **arguments),
        kernel("none", 50.5),
        kernel("early", 10.5, **(arguments | {"Seq": 16})),
    ]
    table = read_text(tmp_path, text(events))
    entries = table.collectives
    assert entries.row.tolist() == [0, 2]
    assert entries.seq.tolist() == [16, 17]
    assert entries.in_elems.tolist() == [4096, 4096]
    assert table.text(entries.name[0]) == "allreduce"
    assert table.text(entries.dtype[0]) == "BFloat16"
    assert table.text(entries.group_ranks[1]) == "[0, 1, 2, 3]"
    assert table.collective_entries(np.array([0, 1, 2])).tolist() == [0, -1, 1]


def test_input_dims_have_one_spelling(tmp_path: Path) -> None:
    dims = [[], [8, 256]]
    types = ["Scalar", "c10::BFloat16"]
    events = [complete("a", 1.5, args={"Input Dims": dims, "Input type": types}), complete("b", 2.5)]
    for style in STYLES:
        table = read_text(tmp_path, text(events, style=style))
        assert table.input_dims(int(table.dims[0])) == ((), (8, 256))
        assert table.input_types(int(table.types[0])) == ("Scalar", "c10::BFloat16")
        assert table.dims[1] == MISSING
        assert table.shapes[table.dims[0]] == "[[],[8,256]]"


def test_device_and_stream_of_cpu_events_are_absent(tmp_path: Path) -> None:
    # Triton's operations carry a stream of their own, which is not where the CPU event runs.
    table = read_text(tmp_path, text([complete("triton", 1.5, args={"stream": 0}), kernel("k", 2.5)]))
    assert table.stream.tolist() == [-1, 7]
    assert table.device.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("written", "read"), [("3", 3), (3, 3), (3.0, 3), ("0x7f", -1), (None, -1), (2**40, -1)]
)
def test_streams_of_every_type(tmp_path: Path, written: Any, read: int) -> None:
    assert read_text(tmp_path, text([kernel("k", 2.5, stream=written)])).stream.tolist() == [read]


def test_process_ids_of_every_type(tmp_path: Path) -> None:
    ids: list[Any] = ["Spans", "", 7168000000, 2**70, None]
    events = [complete("x", 1.5 + number, pid=pid) for number, pid in enumerate(ids)]
    table = read_text(tmp_path, text(events))
    assert [table.tracks[code].pid for code in table.track] == ["Spans", "", 7168000000, str(2**70), ""]


def test_names_of_processes_and_threads(tmp_path: Path) -> None:
    events = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 7,
            "tid": 0,
            "ts": 1,
            "args": {"name": "VLLM::Worker_TP0"},
        },
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "ts": 1, "args": {"name": "main"}},
        complete("x", 1.5),
    ]
    table = read_text(tmp_path, text(events))
    assert (table.tracks[0].process, table.tracks[0].thread) == ("VLLM::Worker_TP0", "main")
    assert table.meta.phases == {"M": 2, "X": 1}


def test_begin_and_end_events_pair_by_track(tmp_path: Path) -> None:
    def edge(ph: str, name: str, ts: float, tid: int = 7) -> dict[str, Any]:
        return {"ph": ph, "name": name, "cat": "cpu_op", "pid": 7, "tid": tid, "ts": ts}

    events = [
        edge("B", "outer", 1.5),
        edge("B", "inner", 2.5),
        edge("B", "other thread", 2.75, tid=8),
        edge("E", "", 4.0),
        edge("E", "", 9.0),
        edge("E", "", 9.5, tid=8),
        edge("E", "without begin", 10.0),
        edge("B", "without end", 11.0),
        edge("B", "without time", 12.0, tid=9) | {"ts": "never"},
        edge("E", "", 13.0, tid=9),
    ]
    table = read_text(tmp_path, text(events))
    rows = [(table.names[n], int(d)) for n, d in zip(table.name, table.dur_ns, strict=True)]
    assert rows == [("outer", 7500), ("inner", 1500), ("other thread", 6750)]
    assert [problem.count for problem in table.problems if problem.verdict is Verdict.DAMAGED_EVENTS] == [3]


def test_window_from_the_profilers_span_and_marks(tmp_path: Path) -> None:
    events = [
        complete("PyTorch Profiler (0)", 100.5, 50.0, "Trace", pid="Spans"),
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 160.25},
    ]
    table = read_text(tmp_path, text(events))
    assert table.meta.window_ns == (100_500, 160_250)


class TestTimes:
    def test_relative_times_are_exact(self, tmp_path: Path) -> None:
        table = read_text(tmp_path, text([complete("x", 5096960377321.101, 6.961)]))
        assert table.ts_ns.tolist() == [5096960377321101]
        assert table.dur_ns.tolist() == [6961]
        assert table.meta.ts_exact

    def test_epoch_times_with_fractions_are_exact_too(self, tmp_path: Path) -> None:
        # float64 holds this time to 250 ns only.
        raw = text([complete("x", 1), complete("y", 2)]).replace('"ts": 1', '"ts": 1670017236189780.123')
        raw = raw.replace('"ts": 2', '"ts": 1670017236189780.124')
        table = read_text(tmp_path, raw)
        assert table.ts_ns.tolist() == [1670017236189780123, 1670017236189780124]
        assert table.meta.ts_exact

    def test_times_that_turn_out_too_fine_for_a_float_are_said_to_be_rounded(self, tmp_path: Path) -> None:
        # What the first thousand events look like decides how the rest is read.
        late = complete("late", 0.5)
        raw = text([*some_events(1200), late]).replace('"ts": 0.5', '"ts": 1670017236189780.123')
        table = read_text(tmp_path, raw)
        assert table.names[table.name[-1]] == "late"
        assert not table.meta.ts_exact
        assert table.meta.ts_resolution_ns == 250
        assert [problem.verdict for problem in table.problems] == [Verdict.TIME_NOT_EXACT]

    def test_whole_microseconds_are_said_to_be_so(self, tmp_path: Path) -> None:
        table = read_text(tmp_path, text([complete("x", 1670017236189780, 4)], {}))
        assert not table.meta.ts_exact
        assert table.meta.ts_resolution_ns == 1000
        assert table.meta.base_time_ns == 0
        assert [problem.verdict for problem in table.problems] == [Verdict.TIME_NOT_EXACT]

    def test_times_without_a_base_compare_with_nothing(self, tmp_path: Path) -> None:
        table = read_text(tmp_path, text([complete("x", 1000.5)], {}))
        assert table.meta.base_time_ns is None
        assert table.absolute_ns() is None

    def test_base_from_the_name_where_it_fits(self, tmp_path: Path) -> None:
        quarter_ns = 7_889_238 * 10**9
        base_ns = 218 * quarter_ns
        raw = text([complete("x", 4212936.0 * 10**6 + 0.5)], {})
        stamp_ns = base_ns + 4212937 * 10**9
        fitting = read_text(tmp_path, raw, f"host_1.{stamp_ns}.pt.trace.json")
        assert fitting.meta.base_time_ns == base_ns
        later = read_text(tmp_path, raw, f"host_1.{stamp_ns + 7200 * 10**9}.pt.trace.json")
        assert later.meta.base_time_ns is None

    @pytest.mark.parametrize(
        ("written", "ns"),
        [
            ("12.345", 12345),
            ("12.3", 12300),
            ("12", 12000),
            ("-3.5", -3500),
            ("12.3456", 12346),
            ("1.5e3", 1500000),
            ('"7.25"', 7250),
            (12.5, 12500),
            (None, None),
            ("", None),
            ("abc", None),
            ("nan", None),
            ("Infinity", None),
            ("1e400", None),
            ("9" * 30, None),
            (float("inf"), None),
        ],
    )
    def test_exact_ns(self, written: Any, ns: int | None) -> None:
        assert exact_ns(written) == ns

    def test_negative_and_missing_durations_become_zero_and_are_counted(self, tmp_path: Path) -> None:
        events = [complete("a", 1.5, -3.0), complete("b", 2.5), complete("c", 3.5, "oops")]
        del events[1]["dur"]
        table = read_text(tmp_path, text(events))
        assert table.dur_ns.tolist() == [0, 0, 0]
        assert [
            problem.count for problem in table.problems if problem.verdict is Verdict.CORRUPT_DURATIONS
        ] == [3]

    def test_events_without_a_time_are_left_out_and_counted(self, tmp_path: Path) -> None:
        events = [complete("a", None), complete("b", 2.5), complete("c", "never"), complete("d", 1e300)]
        table = read_text(tmp_path, text(events))
        assert [table.names[code] for code in table.name] == ["b"]
        assert table.meta.events_refused == 3
        assert [problem.count for problem in table.problems if problem.verdict is Verdict.DAMAGED_EVENTS] == [
            3
        ]


def test_memory_follows_the_table_and_not_the_text(tmp_path: Path) -> None:
    padding = "x" * 1000
    events = [complete(f"n{index % 9}", 1.5 + index, args={"Call stack": padding}) for index in range(30_000)]
    path = write(tmp_path / "t.json.gz", text(events))
    table = read_one(path)
    tracemalloc.start()
    try:
        assert len(read_one(path)) == len(table) == 30_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    columns = sum(getattr(table, name).nbytes for name in EVENT_COLUMNS)
    assert peak < 2 * columns + (8 << 20) < 36 << 20


def test_integers_of_every_type() -> None:
    assert integers([1, 2.7, "3", "x", None, 2**70, float("nan"), True], np.int64).tolist() == [
        1,
        2,
        3,
        -1,
        -1,
        -1,
        -1,
        1,
    ]
    assert integers([1, 40000], np.int16).tolist() == [1, -1]


def test_old_spellings_of_arguments(tmp_path: Path) -> None:
    events = [
        complete("k", 1.5, cat="Kernel", args={"external id": 12, "device": 0, "stream": 7}),
        complete("op", 2.5, cat="Operator", args={"External id": 12, "Input dims": [[2, 3]]}),
    ]
    table = read_text(tmp_path, text(events))
    assert table.external_id.tolist() == [12, 12]
    assert table.input_dims(int(table.dims[1])) == ((2, 3),)
