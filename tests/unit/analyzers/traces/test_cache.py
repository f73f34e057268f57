from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from mtpprof.analyzers.traces import cache
from mtpprof.analyzers.traces.formats import READERS
from mtpprof.analyzers.traces.load import LoadOptions, load_file
from mtpprof.analyzers.traces.readers.kineto import KinetoReader
from mtpprof.analyzers.traces.table import EventTable
from tests.unit.analyzers.chrome import read_one, some_events, text, write


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(cache.SWITCH, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mtpprof" / "tables"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "t.json", text(some_events(2000)))


class ReadCounter:
    """Counts how often a file is parsed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = KinetoReader.read

        def read(reader: KinetoReader, *args: object) -> tuple[EventTable, ...]:
            self.count += 1
            return real(reader, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(KinetoReader, "read", read)


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> ReadCounter:
    return ReadCounter(monkeypatch)


def test_the_second_look_does_not_parse(home: Path, trace: Path, parses: ReadCounter) -> None:
    (first,) = load_file(trace)
    (second,) = load_file(trace)
    assert parses.count == 1
    assert np.array_equal(first.ts_ns, second.ts_ns)
    assert second.names == first.names
    assert second.meta == first.meta
    assert (home.stat().st_mode & 0o777) == 0o700


def test_a_changed_file_is_parsed_again(home: Path, trace: Path, parses: ReadCounter) -> None:
    load_file(trace)
    write(trace, text(some_events(2002)))
    (table,) = load_file(trace)
    assert len(table) == 2002
    os.utime(trace, ns=(1, 1))
    load_file(trace)
    assert parses.count == 3


def test_a_newer_reader_parses_again(
    home: Path, trace: Path, parses: ReadCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_file(trace)
    monkeypatch.setattr(KinetoReader, "version", KinetoReader.version + 1)
    load_file(trace)
    assert parses.count == 2


def test_switched_off(home: Path, trace: Path, parses: ReadCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SWITCH, "0")
    load_file(trace)
    load_file(trace)
    assert parses.count == 2
    assert not home.exists()
    monkeypatch.delenv(cache.SWITCH)
    load_file(trace, LoadOptions(use_cache=False))
    assert not home.exists()


def test_small_files_make_no_entry(home: Path, tmp_path: Path) -> None:
    load_file(write(tmp_path / "small.json", text(some_events(10))))
    assert not home.exists()


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:1000], lambda raw: b"", lambda raw: raw[:5000] + b"\xff" + raw[5001:]]
)
def test_damaged_entries_are_parsed_again(
    home: Path, trace: Path, parses: ReadCounter, damage: object
) -> None:
    load_file(trace)
    (entry,) = home.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))  # type: ignore[operator]
    (table,) = load_file(trace)
    assert len(table) == 2000
    assert parses.count == 2
    load_file(trace)
    assert parses.count == 2


def test_a_missing_part_is_parsed_again(home: Path, trace: Path) -> None:
    table = read_one(trace)
    entry = cache.key(trace)
    assert entry is not None
    assert cache.store(entry, (table, table))
    loaded = cache.load(entry)
    assert loaded is not None
    assert len(loaded) == 2
    next(home.glob("*.1of2.npz")).unlink()
    assert cache.load(entry) is None


def test_nowhere_to_write_is_no_error(tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.SWITCH, raising=False)
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    assert len(load_file(trace)[0]) == 2000
    entry = cache.key(trace)
    assert entry is not None
    assert not cache.store(entry, load_file(trace))


def test_old_entries_make_room(home: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_one(trace)
    for index in range(4):
        assert cache.store(cache.CacheKey(digest=f"{index}"), (table,))
        os.utime(home / f"{index}.0of1.npz", (index, index))
    size = (home / "0.0of1.npz").stat().st_size
    monkeypatch.setattr(cache, "_MAX_BYTES", 3 * size)
    assert cache.store(cache.CacheKey(digest="new"), (table,))
    assert sorted(file.name for file in home.iterdir()) == ["2.0of1.npz", "3.0of1.npz", "new.0of1.npz"]


def test_every_reader_has_a_version() -> None:
    assert all(isinstance(reader.version, int) for reader in READERS)
