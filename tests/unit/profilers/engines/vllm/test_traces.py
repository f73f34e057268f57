"""Trace files count when they are whole, and are missed by rank when they are not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mtpprof.errors import RunError
from mtpprof.profilers.engines.vllm.traces import collect, find

DOCUMENT = json.dumps(
    {"traceEvents": [{"ph": "X", "name": "a", "ts": index} for index in range(2000)]}
).encode()


def write(folder: Path, prefix: str, rank: int, data: bytes, number: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{prefix}_dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.{number}.pt.trace.json.gz"
    path.write_bytes(data)
    return path


def test_whole_files_are_moved_into_the_run_by_rank(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / "in", "p-1", rank, gzip.compress(DOCUMENT))
    write(tmp_path / "in", "p-10", 0, b"another window")
    moved = collect(tmp_path / "in", "p-1", tmp_path / "arm", 2, 1.0)
    assert [path.name for path in moved] == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]
    assert gzip.decompress(moved[1].read_bytes()) == DOCUMENT
    assert len(list((tmp_path / "in").iterdir())) == 1


def test_a_rank_without_a_trace_is_named(tmp_path: Path) -> None:
    write(tmp_path / "in", "p", 0, gzip.compress(DOCUMENT))
    with pytest.raises(RunError, match=r"no trace of rank 1, 2 appeared in .*shared|no trace of rank 1, 2"):
        collect(tmp_path / "in", "p", tmp_path / "arm", 3, 0.0)


def test_a_trace_cut_off_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(DOCUMENT)
    write(tmp_path / "in", "p", 0, whole)
    write(tmp_path / "in", "p", 1, whole[: len(whole) // 2])
    with pytest.raises(RunError, match=r"the trace of rank 1 .* is cut off"):
        collect(tmp_path / "in", "p", tmp_path / "arm", 2, 0.0)


def test_waiting_feeds_whoever_watches(tmp_path: Path) -> None:
    write(tmp_path / "in", "p", 0, gzip.compress(DOCUMENT))
    fed: list[str | None] = []

    def feed(doing: str | None) -> None:
        fed.append(doing)
        write(tmp_path / "in", "p", 1, gzip.compress(DOCUMENT))

    collect(tmp_path / "in", "p", tmp_path / "arm", 2, 30.0, feed)
    assert fed == [None]


def test_of_two_traces_of_a_rank_the_newer_counts(tmp_path: Path) -> None:
    import os

    old = write(tmp_path / "in", "p", 0, b"x", number=1)
    new = write(tmp_path / "in", "p", 0, b"y", number=2)
    os.utime(old, ns=(1, 1))
    assert find(tmp_path / "in", "p") == {0: new}
