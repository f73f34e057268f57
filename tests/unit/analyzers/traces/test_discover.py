from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mtpprof.analyzers.traces.captures import FileSet
from mtpprof.analyzers.traces.discover import discover, open_traces, parse_rank_map
from mtpprof.analyzers.traces.load import LoadOptions
from mtpprof.analyzers.traces.nvtx.capture import load_capture
from mtpprof.analyzers.traces.verdicts import Answer, Verdict, withheld
from mtpprof.errors import InputError, UsageError
from tests.traces import FOLDER, needs_traces
from tests.unit.analyzers.chrome import kernel, some_events, text, write

SERIAL = LoadOptions(use_cache=False, workers=1)
BASE_NS = 10**18
HOUR_US = 3600e6


def trace(
    path: Path,
    rank: int | None = None,
    world_size: int = 2,
    start: float = 1000.0,
    base_ns: int | None = BASE_NS,
    **metadata: Any,
) -> Path:
    """A small trace that says the given of itself."""
    if rank is not None:
        metadata["distributedInfo"] = {"rank": rank, "world_size": world_size}
    if base_ns is not None:
        metadata["baseTimeNanoseconds"] = base_ns
    return write(path, text(some_events(10, start), metadata))


def ranks(sets: tuple[FileSet, ...]) -> list[dict[int | None, str]]:
    return [{file.rank: file.path.name for file in part.files} for part in sets]


def verdicts(sets: tuple[FileSet, ...]) -> list[tuple[Verdict, str]]:
    """Verdict and file of all problems."""
    own = [problem for part in sets for problem in part.problems]
    files = [problem for part in sets for file in part.files for problem in file.problems]
    return [(problem.verdict, Path(problem.path).name) for problem in (*own, *files)]


def database(path: Path, *kernels: tuple[int, int]) -> Path:
    """An Nsight Systems export with one kernel per (process, device)."""
    columns = "start, end, deviceId, streamId, correlationId, globalPid, demangledName"
    rows = [(1, 2, device, 7, 5, process << 24, "k") for process, device in kernels]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"create table CUPTI_ACTIVITY_KIND_KERNEL ({columns})")
        connection.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?, ?)", rows)
        connection.commit()
    return path


class TestRanks:
    def test_what_is_inside_comes_first(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 1)
        trace(tmp_path / "rank1.json", 0)
        sets = discover([tmp_path])
        assert ranks(sets) == [{0: "rank1.json", 1: "rank0.json"}]
        assert verdicts(sets) == [
            (Verdict.CONFLICTING_RANK, "rank1.json"),
            (Verdict.CONFLICTING_RANK, "rank0.json"),
        ]

    @pytest.mark.parametrize(
        ("name", "rank"),
        [
            ("x-rank12-chrome-trace.json", 12),
            ("rank3.pt.trace.json", 3),
            ("rank_4_trace.json", 4),
            ("Rank-5.json", 5),
            ("1779022349.0032532-TP-2.trace.json", 2),
            ("bs16-TP-3.trace.json", 3),
            ("tp1.json", 1),
            ("dp0_pp0_tp1_dcp0_ep1_rank7.1795955217422480363.pt.trace.json", 7),
        ],
    )
    def test_names(self, tmp_path: Path, name: str, rank: int) -> None:
        trace(tmp_path / name)
        sets = discover([tmp_path])
        assert ranks(sets) == [{rank: name}]
        assert verdicts(sets) == [(Verdict.ASSUMED_RANK, name)]

    @pytest.mark.parametrize(
        "name",
        [
            "trace.json",
            "host_1375.1724066820235.pt.trace.json",
            "http1.json",
            "prank2.json",
            "rank1_of_rank2.json",
        ],
    )
    def test_no_guess(self, tmp_path: Path, name: str) -> None:
        trace(tmp_path / name)
        sets = discover([tmp_path])
        assert ranks(sets) == [{None: name}]
        assert verdicts(sets) == [(Verdict.UNKNOWN_RANK, name)]

    def test_names_of_directories(self, tmp_path: Path) -> None:
        for rank in (0, 1):
            trace(tmp_path / f"rank{rank}" / "trace.json")
        sets = discover([tmp_path])
        assert [{file.rank for file in part.files} for part in sets] == [{0, 1}]

    def test_rank_after_the_events(self, tmp_path: Path) -> None:
        tail = ', "distributedInfo": {"rank": 5, "world_size": 8}'
        write(tmp_path / "a.json.gz", text(some_events(9000), {}, tail=tail))
        assert ranks(discover([tmp_path])) == [{5: "a.json.gz"}]

    def test_the_map_overrules(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 0)
        trace(tmp_path / "other.json")
        sets = discover([tmp_path], {"rank0.json": 1, "*/oth*": 0})
        assert ranks(sets) == [{0: "other.json", 1: "rank0.json"}]
        assert verdicts(sets) == []

    def test_a_map_that_matches_nothing(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 0)
        with pytest.raises(UsageError, match="nope"):
            discover([tmp_path], {"nope*": 1})

    def test_words_of_the_map(self) -> None:
        assert parse_rank_map(["a=b.json=3", "*.gz=0"]) == {"a=b.json": 3, "*.gz": 0}
        for word in ("a", "=1", "a=", "a=x", "a=-1"):
            with pytest.raises(UsageError, match="FILE=RANK"):
                parse_rank_map([word])


class TestRuns:
    def test_directories_with_the_same_ranks_are_runs(self, tmp_path: Path) -> None:
        for arm in ("off", "on"):
            for rank in (0, 1):
                trace(tmp_path / "case" / arm / f"rank{rank}.pt.trace.json.gz", rank)
        sets = discover([tmp_path])
        assert [part.label for part in sets] == ["off", "on"]
        assert [[file.rank for file in part.files] for part in sets] == [[0, 1], [0, 1]]

    def test_relative_and_absolute_paths_go_together(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for folder in ("one", "two"):
            trace(tmp_path / folder / "rank0.json", 0)
        monkeypatch.chdir(tmp_path)
        found = discover([Path("one"), tmp_path / "two"])
        assert sorted(part.label for part in found) == ["one", "two"]
        monkeypatch.chdir(tmp_path / "one")
        found = discover([Path(), Path("../two"), tmp_path / "one" / ".." / "two" / "rank0.json"])
        assert sorted(part.label for part in found) == ["one", "two"]

    def test_directories_with_other_ranks_are_one_run(self, tmp_path: Path) -> None:
        trace(tmp_path / "node0" / "a.json", 0)
        trace(tmp_path / "node1" / "b.json", 1)
        (part,) = discover([tmp_path])
        assert [file.rank for file in part.files] == [0, 1]
        assert part.label == str(tmp_path)

    def test_directories_of_runs_an_hour_apart_are_not_one(self, tmp_path: Path) -> None:
        trace(tmp_path / "a" / "a.json", 0)
        trace(tmp_path / "b" / "b.json", 1, start=2 * HOUR_US)
        assert len(discover([tmp_path])) == 2

    def test_data_parallel_replicas_that_each_start_at_rank_0_are_apart(self, tmp_path: Path) -> None:
        for replica in (0, 1):
            for rank in (0, 1):
                trace(tmp_path / f"dp{replica}_pp0_tp{rank}_rank{rank}.json", rank)
        sets = discover([tmp_path])
        assert [part.label for part in sets] == ["dp0", "dp1"]
        assert [[file.rank for file in part.files] for part in sets] == [[0, 1], [0, 1]]
        assert verdicts(sets) == []

    def test_stages_with_files_of_their_own_are_apart(self, tmp_path: Path) -> None:
        for stage in ("EXTEND", "DECODE"):
            for rank in (0, 1):
                trace(tmp_path / f"1779022349.003-TP-{rank}-{stage}.trace.json", rank)
        sets = discover([tmp_path])
        assert [part.label for part in sets] == ["decode", "extend"]
        assert verdicts(sets) == []

    def test_data_parallel_replicas_with_ranks_of_one_world_are_together(self, tmp_path: Path) -> None:
        for rank in range(4):
            trace(tmp_path / f"dp{rank // 2}_tp{rank % 2}_rank{rank}.json", rank, world_size=4)
        (part,) = discover([tmp_path])
        assert [file.rank for file in part.files] == [0, 1, 2, 3]

    def test_the_newest_capture_counts_and_the_older_is_named(self, tmp_path: Path) -> None:
        for rank in (0, 1):
            trace(tmp_path / f"old{rank}.json", rank)
            trace(tmp_path / f"new{rank}.json", rank, start=HOUR_US)
        sets = discover([tmp_path])
        assert ranks(sets) == [{0: "new0.json", 1: "new1.json"}]
        assert verdicts(sets) == [(Verdict.STALE_FILE, "old0.json"), (Verdict.STALE_FILE, "old1.json")]

    def test_a_rank_left_over_from_a_run_with_more_is_stale(self, tmp_path: Path) -> None:
        trace(tmp_path / "a.json", 0, world_size=1, start=100e6)
        trace(tmp_path / "b.json", 1, world_size=2)
        sets = discover([tmp_path])
        assert ranks(sets) == [{0: "a.json"}]
        assert verdicts(sets) == [(Verdict.STALE_FILE, "b.json")]

    def test_a_rank_left_over_from_yesterday_is_stale(self, tmp_path: Path) -> None:
        trace(tmp_path / "a.json", 0, start=24 * HOUR_US)
        trace(tmp_path / "b.json", 1)
        assert verdicts(discover([tmp_path])) == [(Verdict.STALE_FILE, "b.json")]

    def test_files_asked_for_by_name_are_all_taken(self, tmp_path: Path) -> None:
        old, new = trace(tmp_path / "old.json", 0), trace(tmp_path / "new.json", 0, start=HOUR_US)
        sets = discover([old, new])
        assert ranks(sets) == [{0: "old.json"}, {0: "new.json"}]
        assert verdicts(sets) == []

    def test_two_files_that_cannot_be_told_apart(self, tmp_path: Path) -> None:
        trace(tmp_path / "a.json", 0, base_ns=None)
        trace(tmp_path / "b.json", 0, base_ns=None)
        sets = discover([tmp_path])
        assert ranks(sets) == [{0: "a.json"}]
        assert verdicts(sets) == [(Verdict.DUPLICATE_RANK, "b.json")]

    def test_copies(self, tmp_path: Path) -> None:
        trace(tmp_path / "a.json", 0, trace_id="X")
        trace(tmp_path / "a.json.gz", 0, trace_id="X")
        assert verdicts(discover([tmp_path])) == [(Verdict.COPY, "a.json.gz")]

    def test_a_file_given_twice_is_one(self, tmp_path: Path) -> None:
        path = trace(tmp_path / "a.json", 0)
        assert ranks(discover([tmp_path, path, path])) == [{0: "a.json"}]


class TestOtherFiles:
    def test_what_is_no_trace_is_passed_over_in_silence(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 0)
        write(tmp_path / "config.json", '{"a": 1}')
        write(tmp_path / "run.json", '{"traceEvents": []}')
        write(tmp_path / ".hidden" / "rank1.json", text(some_events()))
        sets = discover([tmp_path])
        assert ranks(sets) == [{0: "rank0.json"}]
        assert verdicts(sets) == []

    def test_broken_traces_are_named(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 0)
        write(tmp_path / "rank1.json", "")
        write(tmp_path / "rank2.pt.trace.json", "hello")
        assert verdicts(discover([tmp_path])) == [
            (Verdict.EMPTY, "rank1.json"),
            (Verdict.NOT_A_TRACE, "rank2.pt.trace.json"),
        ]

    @pytest.mark.parametrize("name", ["/dev/zero", "pipe", "socket"])
    def test_what_is_no_regular_file_is_refused_unopened(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        if name == "pipe":
            os.mkfifo(path)
        if name == "socket":
            socket.socket(socket.AF_UNIX).bind(str(path))
        with pytest.raises(InputError, match="is not a regular file but a"):
            open_traces([path])
        with pytest.raises(InputError, match="is not a regular file but a"):
            load_capture(path)

    def test_in_a_folder_it_is_named_and_the_others_are_read(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 0)
        os.mkfifo(tmp_path / "rank1.json")
        os.mkfifo(tmp_path / "rank0.pid1.nvtx")
        (tmp_path / "rank2.json").symlink_to("/dev/zero")
        (tmp_path / "rank3.json").symlink_to("gone")
        (traces,) = open_traces([tmp_path])
        assert traces.ranks == (0,)
        said = [problem.sentence for problem in traces.problems if problem.left_out]
        assert ["not a regular file but a pipe" in text for text in said] == [True, False, False]
        assert ["not a regular file but a character device" in text for text in said] == [False, True, False]
        assert said[2].endswith("is not a regular file but a symbolic link to a file that is not there.")

    def test_front_ends_and_captures_are_no_ranks(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 0)
        trace(tmp_path / "host_77.async_llm.1795955217422480363.pt.trace.json.gz")
        trace(tmp_path / "capture_traces" / "graph_capture_rank_0.json", 0)
        sets = discover([tmp_path])
        assert ranks(sets)[0] == {0: "rank0.json"}
        assert {verdict for verdict, _ in verdicts(sets)} == {Verdict.FRONT_END_TRACE, Verdict.CAPTURE_TRACE}

    def test_a_capture_asked_for_by_name_is_read(self, tmp_path: Path) -> None:
        path = trace(tmp_path / "capture_traces" / "graph_capture_rank_0.json", 0)
        assert ranks(discover([path])) == [{0: path.name}]

    def test_nothing_found(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no trace"):
            discover([tmp_path])
        with pytest.raises(InputError, match="no such file"):
            discover([tmp_path / "absent"])


class TestOpening:
    def test_problems_of_files_sets_and_events_come_together(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 0, world_size=3)
        write(tmp_path / "rank1.json", "")
        write(
            tmp_path / "rank2.json",
            text(some_events(100), {"distributedInfo": {"rank": 2, "world_size": 3}})[:-300],
        )
        (traces,) = open_traces([tmp_path], options=SERIAL)
        assert traces.ranks == (0, 2)
        assert traces.world_size == 3
        assert {problem.verdict for problem in traces.problems} == {
            Verdict.EMPTY,
            Verdict.MISSING_RANKS,
            Verdict.UNALIGNED_CLOCKS,
        }
        assert [(problem.verdict, problem.rank) for problem in traces.table(2).problems] == [
            (Verdict.TRUNCATED, 2)
        ]
        # A file that cannot be read takes the comparison over ranks with it, and nothing else.
        assert withheld(traces.all_problems(), Answer.CROSS_RANK)
        assert not withheld(traces.problems, Answer.COUNTS)

    def test_unknown_ranks_come_last_and_are_named(self, tmp_path: Path) -> None:
        trace(tmp_path / "a.json")
        trace(tmp_path / "rank1.json", 1)
        (traces,) = open_traces([tmp_path], options=SERIAL)
        assert [table.meta.rank for table in traces.tables] == [1, None]
        assert Verdict.UNKNOWN_RANK in {problem.verdict for problem in traces.tables[1].problems}

    def test_mapped_ranks_reach_the_tables(self, tmp_path: Path) -> None:
        trace(tmp_path / "a.json")
        (traces,) = open_traces([tmp_path], {"a.json": 3}, SERIAL)
        assert traces.ranks == (3,)

    def test_a_database_of_several_ranks_beside_a_trace(self, tmp_path: Path) -> None:
        trace(tmp_path / "rank0.json", 0)
        database(tmp_path / "x.sqlite", (1, 0), (1, 1))
        (traces,) = open_traces([tmp_path], options=SERIAL)
        assert traces.ranks == (0, 1)
        assert Verdict.DUPLICATE_RANK in {problem.verdict for problem in traces.problems}

    def test_a_database_of_several_processes_is_not_mapped_to_one_rank(self, tmp_path: Path) -> None:
        database(tmp_path / "x.sqlite", (1, 0), (2, 1))
        with pytest.raises(UsageError, match="several ranks"):
            discover([tmp_path], {"x.sqlite": 0})

    def test_nothing_readable_names_every_reason(self, tmp_path: Path) -> None:
        write(tmp_path / "rank0.json", "")
        write(tmp_path / "rank1.json", '{"schemaVersion": 1, ')
        with pytest.raises(InputError, match=r"(?s)rank0.*empty.*rank1.*cut off"):
            open_traces([tmp_path], options=SERIAL)


@needs_traces
class TestRealFolders:
    def test_every_folder(self) -> None:
        sets = {part.label: [file.rank for file in part.files] for part in discover([FOLDER])}
        four = [0, 1, 2, 3]
        assert sets["sglang-tp4-gb300-fused"] == four
        assert sets["sglang-tp4-gb300-nccl"] == four
        assert sets["nanogpt-8xh100-ranks0-3"] == four
        assert sets["vllm-cpu-tp4-nemotron/latent-reduce-on"] == four
        assert sets["vllm-cpu-tp4-nemotron/latent-reduce-skipped"] == four
        assert sets["megatron-tp2-v100"] == [0, 1]
        assert sets["vllm-tp8-b200-rank0"] == [0]
        assert sets["nsys/mfu_2gpu_after.sqlite"] == [None]

    def test_missing_ranks(self) -> None:
        (traces,) = open_traces([FOLDER / "nanogpt-8xh100-ranks0-3"], options=SERIAL)
        assert traces.missing_ranks == (4, 5, 6, 7)
        (rank0,) = open_traces([FOLDER / "vllm-tp8-b200-rank0"], options=SERIAL)
        assert rank0.missing_ranks == tuple(range(1, 8))

    def test_a_rank_of_an_unfinished_world(self) -> None:
        (traces,) = open_traces([FOLDER / "odd" / "cpu-only-rank34.pt.trace.json.gz"], options=SERIAL)
        assert traces.ranks == (34,)
        assert traces.world_size == 300
        assert len(traces.missing_ranks) == 299

    def test_nsight_systems_files_are_runs_of_their_own(self) -> None:
        after, before = open_traces([FOLDER / "nsys"], options=SERIAL)
        assert after.ranks == before.ranks == (0, 1)


class TestLinksThatLeadNowhere:
    def test_one_to_itself_is_named_and_costs_the_good_file_nothing(self, tmp_path: Path) -> None:
        trace(tmp_path / "good.json", 0)
        (tmp_path / "self.json").symlink_to("self.json")
        (tmp_path / "a.json").symlink_to("b.json")
        (tmp_path / "b.json").symlink_to("a.json")
        (tmp_path / "folder.json").symlink_to(".")
        (traces,) = open_traces([tmp_path])
        assert traces.ranks == (0,)
        named = {Path(problem.path).name: problem.sentence for problem in traces.problems if problem.left_out}
        assert set(named) == {"self.json", "a.json", "b.json"}
        assert all(text.endswith("but a symbolic link that leads back to itself.") for text in named.values())

    @pytest.mark.parametrize("target", ["self.json", "gone.json"])
    def test_one_that_was_asked_for_says_what_it_is(self, tmp_path: Path, target: str) -> None:
        (tmp_path / "self.json").symlink_to(target)
        with pytest.raises(InputError, match="not a regular file but a symbolic link"):
            open_traces([tmp_path / "self.json"])


def test_a_time_beyond_all_bounds_is_named_and_the_rest_is_answered(tmp_path: Path) -> None:
    events = [kernel("ncclKernel_AllReduce_RING_LL_Sum_float(x)", ts) for ts in (1.0, 1e308, 9.0)]
    write(tmp_path / "rank0.json", text(events, {"distributedInfo": {"rank": 0, "world_size": 1}}))
    (traces,) = open_traces([tmp_path])
    assert len(traces.tables[0]) == 2
    damaged = [item for item in traces.all_problems() if item.verdict is Verdict.DAMAGED_EVENTS]
    assert [item.count for item in damaged] == [1]
    assert "1 events have no usable start time" in damaged[0].sentence
