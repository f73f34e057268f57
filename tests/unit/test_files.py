"""Which files of a run are whole."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.files import trace_is_whole

DOCUMENT = b'{"traceEvents": [' + b",".join(b'{"ph": "X", "ts": %d}' % index for index in range(300)) + b"]}"
PACKED = gzip.compress(DOCUMENT, mtime=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (DOCUMENT, True),
        (DOCUMENT + b"\n", True),
        (b"[]", True),
        (DOCUMENT[:-4], False),
        (b"", False),
        (PACKED, True),
        (gzip.compress(DOCUMENT[:-4]), False),
        (b"\x1f\x8bnot gzip", False),
        (b"SQLite format 3\0", False),
    ],
    ids=["plain", "line", "array", "cut", "none", "gzip", "gzip of cut", "no gzip", "no database"],
)
def test_text_ends_as_json_does(tmp_path: Path, data: bytes, whole: bool) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert trace_is_whole(path) is whole


def test_neither_a_folder_nor_nothing_is_whole(tmp_path: Path) -> None:
    assert not trace_is_whole(tmp_path)
    assert not trace_is_whole(tmp_path / "none")


@given(cut=st.integers(0, len(PACKED) - 1))
def test_no_cut_of_a_gzip_file_is_whole(folder: Path, cut: int) -> None:
    path = folder / "cut.json.gz"
    path.write_bytes(PACKED[:cut])
    assert not trace_is_whole(path)


@given(at=st.integers(10, len(PACKED) - 1), bit=st.integers(0, 7))
def test_no_altered_gzip_file_is_whole(folder: Path, at: int, bit: int) -> None:
    data = bytearray(PACKED)
    data[at] ^= 1 << bit
    path = folder / "altered.json.gz"
    path.write_bytes(data)
    assert not trace_is_whole(path)


def test_a_database_has_all_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "host0.nsys.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table t (x)")
        connection.executemany("insert into t values (?)", [("x" * 100,)] * 1000)
        connection.commit()
    assert trace_is_whole(path)
    path.write_bytes(path.read_bytes()[:-4096])
    assert not trace_is_whole(path)
