"""Whole exports of small runs: every event once, every collective with what is known of it, and what was asked for."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from mtpprof.analyzers.calls.attribution import Window, analyze
from mtpprof.analyzers.measures.sums import group
from mtpprof.analyzers.perfetto.communication import COLLECTIVE, PHASE, STEP, TRANSFER, WAIT
from mtpprof.analyzers.perfetto.export import Export, Options
from mtpprof.analyzers.perfetto.files import format_of
from mtpprof.analyzers.perfetto.timeline import Arm
from mtpprof.analyzers.traces.discover import open_traces
from mtpprof.errors import InputError, UsageError
from tests.unit.analyzers.perfetto.runs import arm, collective, reference_table
from tests.unit.analyzers.perfetto.written import Content, read_chrome, read_protobuf
from tests.unit.analyzers.tables import GEMM, NCCL_AR, Trace, record

CALLS = [[(collective("moe", seq=10 * step + n), 100 + 200 * n, 150) for n in range(3)] for step in range(4)]


def two_ranks(name: str = "run") -> Arm:
    return arm(name, reference_table(0, CALLS), reference_table(1, CALLS, late_ns=40))


def exported(tmp_path: Path, *arms: Arm, options: Options | None = None, compare: bool = False) -> Content:
    path = tmp_path / "out.pftrace"
    done = Export(arms, options, compare=compare).write(path, format_of(path))
    content = read_protobuf(path.read_bytes())
    assert done.slices == len(content.slices)
    assert done.events == sum(not item.category.startswith("mtpprof.") for item in content.slices)
    assert done.size_bytes == path.stat().st_size
    return content


def of(content: Content, category: str, process: str = "rank 0") -> list[tuple[int, int, str]]:
    return [
        (item.ts_ns, item.dur_ns, item.name)
        for item in content.slices
        if item.category == category and item.process == process
    ]


def test_every_event_is_one_slice(tmp_path: Path) -> None:
    run = two_ranks()
    content = exported(tmp_path, run)
    for index, table in enumerate(run.traces.tables):
        names = [table.names[code] for code in table.name.tolist()]
        expected = sorted(
            zip(run.moved(index, table.ts_ns).tolist(), table.dur_ns.tolist(), names, strict=True)
        )
        assert sorted(of(content, "user_annotation", f"rank {index}")) == expected


def test_collectives_with_wait_and_transfer(tmp_path: Path) -> None:
    content = exported(tmp_path, two_ranks())
    calls = [item for item in content.slices if item.category == COLLECTIVE and item.process == "rank 0"]
    assert [(item.ts_ns, item.dur_ns, item.name, item.depth) for item in calls[:2]] == [
        (100, 150, "all_reduce", 0),
        (300, 150, "all_reduce", 0),
    ]
    assert calls[0].arguments == {
        "arm": "run",
        "kind": "all_reduce",
        "implementation": "shm_oneshot",
        "algorithm": "logical",
        "phase": "target",
        "site": "moe",
        "shape": "4x8",
        "dtype": "bf16",
        "group": "tp",
        "how": "mtpprof range",
        "bytes": "measured",
        "rank": 0,
        "step": 0,
        "payload_bytes": 64,
        "wire_bytes": 64,
        "wait_ns": 40,
        "transfer_ns": 110,
        "exposed_ns": 150,
        "group_size": 2,
        "seq": 0,
        "match": calls[0].arguments["match"],
    }
    assert of(content, WAIT)[0] == (100, 40, "wait")
    assert of(content, TRANSFER)[0] == (140, 110, "transfer")
    assert of(content, WAIT, "rank 1") == []
    assert all(item.depth == 1 for item in content.slices if item.category in (WAIT, TRANSFER))


def test_a_collective_is_tied_over_the_ranks(tmp_path: Path) -> None:
    content = exported(tmp_path, two_ranks())
    flows = {
        process: [
            item.flows for item in content.slices if item.category == COLLECTIVE and item.process == process
        ]
        for process in ("rank 0", "rank 1")
    }
    assert flows["rank 0"] == flows["rank 1"]
    assert len({flow for (flow,) in flows["rank 0"]}) == 12


def test_steps_and_phases(tmp_path: Path) -> None:
    content = exported(tmp_path, two_ranks())
    assert of(content, STEP) == [(1000 * n, 1000, f"step {n}") for n in range(4)]
    assert of(content, PHASE) == [(1000 * n + 1, 998, "target") for n in range(4)]


def test_counters(tmp_path: Path) -> None:
    content = exported(tmp_path, arm("run", reference_table(0, CALLS[:1])))
    rate = content.counters["collective payload bytes per second"]
    assert rate[:2] == [(100, pytest.approx(64 / 150e-9)), (250, 0.0)]
    area = sum(value * (after - at) for (at, value), (after, _) in itertools.pairwise(rate))
    assert area / 1e9 == pytest.approx(3 * 64)
    assert content.counters["collectives in flight"][:2] == [(100, 1.0), (250, 0.0)]
    assert content.counters["exposed communication"] == [(0, pytest.approx(45.0)), (1000, 0.0)]


def test_bytes_that_are_not_known_are_absent(tmp_path: Path) -> None:
    trace = Trace()
    for n in range(3):
        trace.kernel(
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>",
            100 * n,
            50,
        )
    content = exported(tmp_path, arm("run", trace.table(0)))
    calls = [item for item in content.slices if item.category == COLLECTIVE]
    assert len(calls) == 3
    assert all(not {"payload_bytes", "wire_bytes", "wait_ns"} & item.arguments.keys() for item in calls)
    assert {item.arguments["bytes"] for item in calls} == {"unknown"}
    assert not any("bytes" in name for name in content.counters)


def test_a_counter_names_the_calls_that_it_leaves_out(tmp_path: Path) -> None:
    trace = Trace()
    trace.kernel(NCCL_AR, 0, 50, record=record(in_elems=64, out_elems=64))
    trace.kernel(NCCL_AR, 100, 50)
    content = exported(tmp_path, arm("run", trace.table(0)))
    assert (
        "collective payload bytes per second (of the 1 of 2 calls whose bytes are known)" in content.counters
    )


def test_overlapping_kernels_get_lanes_and_keep_their_times(tmp_path: Path) -> None:
    trace = Trace()
    trace.kernel(GEMM, 100, 80)
    trace.kernel(NCCL_AR, 150, 60)
    trace.kernel(GEMM, 190, 10)
    content = exported(tmp_path, arm("run", trace.table(0)))
    assert {
        (item.track, item.ts_ns, item.dur_ns) for item in content.slices if item.category == "kernel"
    } == {
        ("GPU 0 stream 7", 0, 80),
        ("GPU 0 stream 7 (lane 2)", 50, 60),
        ("GPU 0 stream 7", 90, 10),
    }


def test_a_launch_points_at_its_kernel_and_a_graph_at_none(tmp_path: Path) -> None:
    trace = Trace()
    trace.kernel(GEMM, 100, 10, launched=50)
    trace.graph_launch(120, 1000)
    trace.kernel(GEMM, 130, 10, graph=1000)
    trace.kernel(GEMM, 140, 10, graph=1000)
    content = exported(tmp_path, arm("run", trace.table(0)))
    flows = {(item.name, item.ts_ns): item.flows for item in content.slices}
    assert flows["cudaLaunchKernel", 0] == flows[GEMM, 50] != ()
    assert flows["cudaGraphLaunch", 70] == flows[GEMM, 80] == flows[GEMM, 90] == ()


def test_phases_of_a_device_are_where_its_kernels_are(tmp_path: Path) -> None:
    trace = Trace()
    trace.note("mtpprof::phase name=target", 0, 100)
    trace.note("mtpprof::phase name=draft[0]", 100, 50)
    trace.kernel(GEMM, 500, 10, launched=10)
    trace.kernel(GEMM, 600, 20, launched=90)
    trace.kernel(GEMM, 700, 5, launched=120)
    content = exported(tmp_path, arm("run", trace.table(0)))
    assert of(content, PHASE) == [(500, 120, "target"), (700, 5, "draft[0]")]


def test_only_some_ranks(tmp_path: Path) -> None:
    content = exported(tmp_path, two_ranks(), options=Options(ranks=frozenset({1})))
    assert {item.process for item in content.slices} == {"rank 1"}
    with pytest.raises(UsageError, match=r"no trace of ranks \[7\]; there are \[0, 1\]"):
        Export([two_ranks()], Options(ranks=frozenset({1, 7})))


def test_only_some_steps(tmp_path: Path) -> None:
    options = Options(window=Window(first_step=1, last_step=2))
    content = exported(tmp_path, two_ranks(), options=options)
    assert [name for _, _, name in of(content, STEP)] == ["step 1", "step 2"]
    assert len(of(content, COLLECTIVE)) == 6
    assert len(of(content, "user_annotation")) == 2 * (2 + 3)


def test_only_some_time(tmp_path: Path) -> None:
    options = Options(window=Window(start_ns=300, end_ns=1300))
    content = exported(tmp_path, two_ranks(), options=options)
    assert [ts for ts, _, _ in of(content, COLLECTIVE)] == [300, 500, 1100]
    assert all(300 <= item.ts_ns < 1300 for item in content.slices if item.category == "user_annotation")


def test_the_launches_of_a_step_come_with_its_kernels(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(3):
        trace.note(f"mtpprof::step index={step}", 100 * step, 90)
        trace.kernel(NCCL_AR, 1000 + 100 * step, 80, launched=100 * step + 10)
    content = exported(
        tmp_path, arm("run", trace.table(0)), options=Options(window=Window(first_step=1, last_step=1))
    )
    assert [item.ts_ns for item in content.slices if item.category == "kernel"] == [1100]
    assert 110 in [item.ts_ns for item in content.slices if item.category == "cuda_runtime"]


def test_nothing_to_show_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing of the traces"):
        Export([two_ranks()], Options(window=Window(first_step=90)))


def test_only_collectives(tmp_path: Path) -> None:
    content = exported(tmp_path, two_ranks(), options=Options(only_collectives=True))
    assert all(item.category.startswith("mtpprof.") for item in content.slices)
    assert len(of(content, COLLECTIVE)) == 12


def test_ranks_of_equal_pids_and_tids_stay_apart(tmp_path: Path) -> None:
    content = exported(tmp_path, two_ranks())
    per_process = [sum(item.process == f"rank {rank}" for item in content.slices) for rank in (0, 1)]
    assert per_process[0] == per_process[1] + len(of(content, WAIT))
    assert len(set(content.numbers)) == len(content.numbers)


def test_names_of_ranks_sort_as_their_numbers(tmp_path: Path) -> None:
    tables = [reference_table(rank, CALLS[:1]) for rank in (2, 10)]
    content = exported(tmp_path, arm("run", *tables))
    assert {item.process for item in content.slices} == {"rank 02", "rank 10"}


def test_unknown_ranks_are_named_after_their_files(tmp_path: Path) -> None:
    trace = Trace()
    trace.op("aten::mm", 0, 5)
    content = exported(tmp_path, arm("run", trace.table(None)))
    assert {item.process for item in content.slices} == {"unknown rank (rankNone.json)"}


def test_several_runs_lie_beside_each_other_from_zero(tmp_path: Path) -> None:
    later = arm("later", reference_table(0, CALLS, base=2 * 10**18))
    content = exported(tmp_path, arm("run", reference_table(0, CALLS)), later)
    assert of(content, STEP, "rank 0: run") == of(content, STEP, "rank 0: later")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "out.pftrace"
    with pytest.raises(InputError, match=r"out\.pftrace cannot be written \(No such file or directory\)"):
        Export([two_ranks()]).write(path, format_of(path))


def test_an_export_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mtpprof.analyzers.perfetto.export.add_counters", full)
    with pytest.raises(InputError, match="No space left"):
        Export([two_ranks()]).write(path, format_of(path))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["trace", "trace.gz", "trace.perfetto", "trace.sql"])
def test_a_name_that_tells_no_format_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"\.pftrace"):
        format_of(Path(name))


def test_metadata_of_json_lets_it_be_read_as_the_rank_that_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    Export([arm("run", reference_table(1, CALLS))]).write(path, format_of(path))
    _, document = read_chrome(path.read_bytes())
    assert document["baseTimeNanoseconds"] == 10**18 + 100
    assert document["distributedInfo"]["rank"] == 1
    Export([two_ranks()]).write(path, format_of(path))
    _, document = read_chrome(path.read_bytes())
    assert document["mtpprof"]["arms"] == ["run"]
    assert [process["distributedInfo"]["rank"] for process in document["mtpprof"]["processes"]] == [0, 1]
    assert "distributedInfo" not in document


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_an_export_of_several_ranks_is_read_as_those_ranks(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    run = two_ranks()
    Export([run]).write(path, format_of(path))
    (again,) = open_traces([path])
    assert again.ranks == (0, 1)
    assert again.world_size == 2
    found = analyze(again)
    for by in (("kind", "phase", "site", "rank"), ("step", "rank")):
        assert group(found.calls, found.steps, by) == group(run.found.calls, run.found.steps, by)


def test_an_export_of_two_arms_is_no_measurement_any_more(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    Export([two_ranks("a"), two_ranks("b")], compare=True).write(path, format_of(path))
    with pytest.raises(InputError, match="several runs laid side by side"):
        open_traces([path])


def test_an_export_of_two_arms_beside_traces_is_named_and_the_traces_are_answered(tmp_path: Path) -> None:
    run = two_ranks()
    Export([run]).write(tmp_path / "ranks.json", format_of(tmp_path / "ranks.json"))
    Export([run, two_ranks("b")], compare=True).write(tmp_path / "ab.json", format_of(tmp_path / "ab.json"))
    (again,) = open_traces([tmp_path])
    found = analyze(again)
    assert again.ranks == (0, 1)
    assert group(found.calls, found.steps, ("kind",)) == group(run.found.calls, run.found.steps, ("kind",))
    assert [item.answer for item in found.withheld if "ab.json" in item.reason] == ["another run"]
    assert found.waits.share == run.found.waits.share


def test_the_estimate_is_of_the_right_size(tmp_path: Path) -> None:
    run = two_ranks()
    for name in ("out.pftrace", "out.json"):
        path = tmp_path / name
        laid_out = Export([run])
        done = laid_out.write(path, format_of(path))
        assert 0.5 < laid_out.estimated_slices / done.slices < 2
        assert 0.2 < laid_out.estimated_bytes(format_of(path)) / done.size_bytes < 5


def test_events_of_an_empty_table(tmp_path: Path) -> None:
    empty = Trace().table(0)
    with pytest.raises(UsageError, match="nothing"):
        Export([arm("run", empty)])
    assert np.array_equal(empty.ts_ns, [])
