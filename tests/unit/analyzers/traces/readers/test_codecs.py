"""Compressed traces: the same table whatever the compression, bounded memory, and a name for what is not read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from mtpprof.analyzers.traces.discover import examine_traces, open_traces
from mtpprof.analyzers.traces.formats import read_file
from mtpprof.analyzers.traces.readers.base import Limits, TraceFormatError
from mtpprof.analyzers.traces.readers.codecs import CODECS, ZSTD_WINDOW_BYTES_MAX, plain_name
from mtpprof.analyzers.traces.verdicts import Verdict
from tests.unit.analyzers.chrome import kernel, text

Pack = Callable[[bytes], bytes]


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


PACKED: dict[str, Pack] = {"gz": gzip.compress, "zst": zstd, "xz": lzma.compress, "bz2": bz2.compress}
EVENTS = [kernel(f"k{index % 7}", 10.0 * index) for index in range(5000)]


def of_rank(rank: int) -> str:
    return text(EVENTS[:10], {"distributedInfo": {"rank": rank, "world_size": 2}})


@pytest.mark.parametrize("suffix", PACKED)
def test_compression_changes_nothing(tmp_path: Path, suffix: str) -> None:
    plain = tmp_path / "rank0.json"
    plain.write_text(text(EVENTS))
    packed = tmp_path / f"rank1.json.{suffix}"
    packed.write_bytes(PACKED[suffix](plain.read_bytes()))
    (expected,), (table,) = read_file(plain), read_file(packed)
    assert np.array_equal(table.ts_ns, expected.ts_ns)
    assert table.names == expected.names
    assert [p.verdict for p in table.problems] == [p.verdict for p in expected.problems]


@pytest.mark.parametrize("suffix", PACKED)
def test_a_folder_is_searched_for_them(tmp_path: Path, suffix: str) -> None:
    for rank in range(2):
        packed = PACKED[suffix](of_rank(rank).encode())
        (tmp_path / f"rank{rank}.json.{suffix}").write_bytes(packed)
    (traces,) = open_traces([tmp_path])
    assert traces.ranks == (0, 1)


@pytest.mark.parametrize("suffix", PACKED)
def test_a_cut_file_gives_what_is_whole(tmp_path: Path, suffix: str) -> None:
    random = np.random.default_rng(3)
    events = [kernel(f"k{random.integers(1 << 60)}", 10.0 * index) for index in range(60_000)]
    data = PACKED[suffix](text(events).encode())
    path = tmp_path / f"rank0.json.{suffix}"
    path.write_bytes(data[: len(data) // 2])
    (table,) = read_file(path)
    assert 0 < len(table) < 60_000
    assert Verdict.TRUNCATED in {problem.verdict for problem in table.problems}


@pytest.mark.parametrize("suffix", PACKED)
def test_damaged_data_is_named(tmp_path: Path, suffix: str) -> None:
    data = bytearray(PACKED[suffix](text(EVENTS).encode()))
    data[20:40] = bytes(20)
    path = tmp_path / f"rank0.json.{suffix}"
    path.write_bytes(data)
    (traces,) = examine_traces([path])
    assert {problem.verdict for problem in traces.all_problems()} & {
        Verdict.UNREADABLE,
        Verdict.TRUNCATED,
        Verdict.EMPTY,
    }


@pytest.mark.parametrize("suffix", PACKED)
def test_a_bomb_is_stopped(tmp_path: Path, suffix: str) -> None:
    head = b'{"traceEvents": ['
    path = tmp_path / f"rank0.json.{suffix}"
    path.write_bytes(PACKED[suffix](head + b" " * (64 << 20)))
    limits = Limits(ratio_from_bytes=8 << 20, max_gap_bytes=1 << 30)
    with pytest.raises(TraceFormatError) as caught:
        read_file(path, limits)
    assert caught.value.verdict is Verdict.TOO_LARGE


def test_a_frame_that_asks_for_a_huge_window_gets_none(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=30, compression_level=1)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = frame.compress(text(EVENTS[:10]).encode()) + frame.flush()
    path = tmp_path / "rank0.json.zst"
    path.write_bytes(data)
    assert ZSTD_WINDOW_BYTES_MAX < 1 << 30
    with pytest.raises(TraceFormatError, match="damaged") as caught:
        read_file(path)
    assert caught.value.verdict is Verdict.EMPTY


def test_without_the_package_zstd_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "rank0.json.zst"
    path.write_bytes(zstd(text(EVENTS[:10]).encode()))
    with pytest.raises(
        TraceFormatError, match=r"compressed with zstd.*pip install 'mtpprof\[zstd\]'"
    ) as caught:
        read_file(path)
    assert caught.value.verdict is Verdict.OTHER_FORMAT


def test_zip_and_lz4_are_named_and_cost_the_others_nothing(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(of_rank(rank))
    with zipfile.ZipFile(tmp_path / "rank2.json.zip", "w") as archive:
        archive.writestr("rank2.json", text(EVENTS[:10]))
    (tmp_path / "rank3.json.lz4").write_bytes(b"\x04\x22\x4d\x18" + bytes(50))
    (traces,) = open_traces([tmp_path])
    assert traces.ranks == (0, 1)
    said = {Path(problem.path).name: problem for problem in traces.problems if problem.left_out}
    assert said["rank2.json.zip"].sentence.endswith("is a zip archive.")
    assert said["rank3.json.lz4"].remedy == "unpack it with lz4 -d"
    assert {problem.verdict for problem in said.values()} == {Verdict.OTHER_FORMAT}


def test_names_without_the_endings_of_compression() -> None:
    assert [plain_name(name) for name in ("a.JSON.gz", "a.json.zst", "a.json.zip", "a.gz.gz", "gz")] == [
        "a.json",
        "a.json",
        "a.json",
        "a",
        "gz",
    ]
    assert len({codec.magic for codec in CODECS}) == len(CODECS)
