"""Exports of several ranks read back, and metadata that only looks like one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mtpprof.analyzers.traces.discover import open_traces
from mtpprof.analyzers.traces.formats import read_file
from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.verdicts import Verdict
from tests.unit.analyzers import chrome


def written(folder: Path, own: Any) -> Path:
    events = [
        chrome.complete(f"op {pid}", 1000.0 + n, pid=pid, tid=n) for n, pid in enumerate((1, 2, 2, "x"))
    ]
    return chrome.write(folder / "t.json", chrome.text(events, {"baseTimeNanoseconds": 5, "mtpprof": own}))


def process(rank: int) -> dict[str, Any]:
    return {
        "distributedInfo": {
            "rank": rank,
            "world_size": 8,
            "backend": "nccl",
            "pg_config": [{"pg_name": "0", "pg_desc": "tp", "pg_size": 2, "ranks": [3, 5]}],
        },
        "host_name": f"node{rank}",
    }


def test_each_process_is_the_rank_that_the_metadata_says(tmp_path: Path) -> None:
    path = written(tmp_path, {"arms": ["a"], "processes": [process(3), process(5)]})
    first, second = read_file(path)
    assert [(table.meta.rank, table.meta.world_size, table.meta.host) for table in (first, second)] == [
        (3, 8, "node3"),
        (5, 8, "node5"),
    ]
    assert [len(first), len(second)] == [1, 2]
    assert first.meta.process_groups[0].ranks == (3, 5)
    assert first.meta.base_time_ns == second.meta.base_time_ns == 5
    (traces,) = open_traces([tmp_path])
    assert traces.ranks == (3, 5)
    assert traces.world_size == 8


def test_several_arms_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"arms": ["a", "b"], "processes": [process(0), process(0)]})
    with pytest.raises(TraceFormatError, match="several runs") as error:
        read_file(path)
    assert error.value.verdict is Verdict.NOT_A_TRACE


@pytest.mark.parametrize(
    "own",
    [None, 7, "x", [], {}, {"processes": 3}, {"processes": []}, {"processes": [{}]}, {"processes": {"a": 1}}],
)
def test_other_metadata_of_that_name_changes_nothing(tmp_path: Path, own: Any) -> None:
    (table,) = read_file(written(tmp_path, own))
    assert len(table) == 4
    assert table.meta.rank is None


def test_odd_processes_are_ranks_that_are_not_known(tmp_path: Path) -> None:
    path = written(tmp_path, {"arms": ["a"], "processes": ["x", process(1), None, {"distributedInfo": 3}]})
    tables = read_file(path)
    assert [table.meta.rank for table in tables] == [None, 1, None, None]
    assert [len(table) for table in tables] == [1, 2, 0, 0]
