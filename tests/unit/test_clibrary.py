"""Libraries in C: compiled once, kept by what they depend on, and refused with a sentence."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from mtpprof import clibrary
from mtpprof.errors import MissingEnvironmentError


@pytest.fixture
def library(tmp_path: Path) -> clibrary.CLibrary:
    source = tmp_path / "answer.c"
    source.write_text("int answer(void) { return ANSWER; }\n")
    return clibrary.CLibrary(
        sources=(source,),
        name="answer",
        purpose="the answer",
        otherwise="do without",
        symbol="answer",
        flags=("-DANSWER=42",),
    )


def compiled(library: clibrary.CLibrary, cache: Path, *depends_on: bytes) -> Path:
    try:
        clibrary.find_compiler("a test", "skip it")
    except MissingEnvironmentError as error:
        pytest.skip(str(error))
    return library.path(depends_on=depends_on, cache=cache)


def test_it_is_compiled_once_and_works(library: clibrary.CLibrary, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = compiled(library, cache)
    assert ctypes.CDLL(str(path)).answer() == 42
    first = path.stat().st_mtime_ns
    assert compiled(library, cache) == path
    assert path.stat().st_mtime_ns == first
    assert list(cache.iterdir()) == [path]


def test_what_it_depends_on_makes_another(library: clibrary.CLibrary) -> None:
    keys = {library.key(), library.key([b"x"]), library.key([b"x", b"y"])}
    library.sources[0].write_text("int answer(void) { return 1 + ANSWER; }\n")
    keys |= {library.key()}
    assert len(keys) == 4


def test_sentences_name_what_needs_it_and_what_to_do(
    library: clibrary.CLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library.sources[0].write_text("int other(void) { return 1; }\n")
    with pytest.raises(
        MissingEnvironmentError, match=r"the library for the answer .* cannot be loaded.*or do without\.$"
    ):
        compiled(library, tmp_path / "cache")
    library.sources[0].write_text("int answer(void) { this is no C }\n")
    with pytest.raises(MissingEnvironmentError, match=r"could not build the library for the answer: .*error"):
        compiled(library, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(
        MissingEnvironmentError,
        match=r"the answer needs a C compiler.*apt-get install gcc\) or do without\.$",
    ):
        library.path(cache=tmp_path / "cache")


@pytest.mark.parametrize(("value", "expected"), [("/cache", "/cache"), ("relative", None), ("", None)])
def test_the_cache_follows_the_xdg_rule(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: str | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    root = Path(expected) if expected else Path.home() / ".cache"
    assert clibrary.cache_folder("nvtx") == root / "mtpprof" / "nvtx"
