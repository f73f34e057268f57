"""Segments with random names: what a run left is removed, what anybody uses is not."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from mtpprof.profilers import lifetime

PATTERNS = ("left_*",)


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lifetime, "SHM_DIR", tmp_path)
    return tmp_path


def write(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_bytes(bytes(4096))
    return [folder / name for name in names]


def test_only_new_segments_that_match_are_removed(shm: Path) -> None:
    write(shm, "left_old")
    before = lifetime.segments(PATTERNS)
    (new,) = write(shm, "left_new")
    (other,) = write(shm, "other")
    assert lifetime.remove_leftovers(PATTERNS, before) == [new]
    assert other.exists()
    assert (shm / "left_old").exists()


def test_what_a_process_has_open_or_mapped_stays(shm: Path) -> None:
    opened, mapped, free = write(shm, "left_open", "left_mapped", "left_free")
    with opened.open("rb"), mapped.open("r+b") as stream:
        view = mmap.mmap(stream.fileno(), 4096)
        assert lifetime.remove_leftovers(PATTERNS, frozenset()) == [free]
        view.close()
    assert sorted(lifetime.remove_leftovers(PATTERNS, frozenset())) == [mapped, opened]


def test_what_only_an_ending_process_uses_goes(shm: Path) -> None:
    (opened,) = write(shm, "left_open")
    with opened.open("rb"):
        assert lifetime.remove_leftovers(PATTERNS, frozenset(), ending=[os.getpid()]) == [opened]


def test_an_engine_that_leaves_nothing_is_not_cleaned_up_after(shm: Path) -> None:
    write(shm, "left_x")
    assert lifetime.segments(()) == frozenset()
    assert lifetime.remove_leftovers((), frozenset()) == []
