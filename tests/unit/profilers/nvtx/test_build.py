from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mtpprof.errors import MissingEnvironmentError, UsageError
from mtpprof.nvtxformat import DIRECTORY_VARIABLE, INJECTION_VARIABLE, MAX_BYTES_VARIABLE, RANK_VARIABLE
from mtpprof.profilers.nvtx import build, capture_environment, loaded_files, ranks_not_loaded


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "fakecc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Headers of no content, where the build looks for them."""
    include = tmp_path / "include"
    (include / "nvtx3").mkdir(parents=True)
    (include / build.HEADER).write_text("")
    monkeypatch.setattr(build, "include_directory", lambda: include)
    return include


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(
        MissingEnvironmentError, match=r"needs a C compiler.*cc, gcc, clang.*apt-get install gcc"
    ):
        build.find_compiler()
    monkeypatch.setenv("CC", "mycc -m64")
    with pytest.raises(MissingEnvironmentError, match="mycc"):
        build.find_compiler()


def test_the_compiler_may_have_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path, "exit 0")
    monkeypatch.setenv("CC", f"{compiler} -m64")
    assert build.find_compiler() == [compiler, "-m64"]


def test_without_headers_the_message_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_include_candidates", lambda: iter([Path("/nonexistent")]))
    with pytest.raises(MissingEnvironmentError, match="pip install 'nvidia-nvtx>=13'"):
        build.include_directory()


def test_on_another_system_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(MissingEnvironmentError, match="works on Linux only and this is darwin"):
        build.injection_library()


def test_a_compiler_that_fails_is_quoted(
    monkeypatch: pytest.MonkeyPatch, headers: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", fake_compiler(tmp_path, "echo 'x.c:1: error: no such thing' >&2; exit 1"))
    with pytest.raises(MissingEnvironmentError, match=r"could not build.*error: no such thing.*set CC"):
        build.injection_library(cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_library_that_cannot_be_loaded_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, headers: Path, tmp_path: Path
) -> None:
    writes_text = 'while [ "$1" != -o ]; do shift; done; echo text > "$2"'
    monkeypatch.setenv("CC", fake_compiler(tmp_path, writes_text))
    with pytest.raises(MissingEnvironmentError, match="cannot be loaded"):
        build.injection_library(cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, headers: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", fake_compiler(tmp_path, "exit 0"))
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingEnvironmentError, match=r"cannot keep its library in .*file.*XDG_CACHE_HOME"):
        build.injection_library(cache=tmp_path / "file" / "cache")


def test_a_cached_library_needs_no_compiler(
    monkeypatch: pytest.MonkeyPatch, headers: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(MissingEnvironmentError):
        build.injection_library(cache=tmp_path)
    kept = tmp_path / f"libmtpprof-nvtx-{build._library(headers).key(build._headers(headers))}.so"
    kept.write_text("")
    assert build.injection_library(cache=tmp_path) == kept
    (headers / build.HEADER).write_text("another version")
    with pytest.raises(MissingEnvironmentError):
        build.injection_library(cache=tmp_path)


def test_the_environment_names_library_folder_and_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    library = tmp_path / "libmtpprof-nvtx-x.so"
    variables = capture_environment(Path("runs"), 3, max_bytes=5, library=library, inherited={})
    assert variables == {
        INJECTION_VARIABLE: str(library),
        DIRECTORY_VARIABLE: str(tmp_path / "runs"),
        RANK_VARIABLE: "3",
        MAX_BYTES_VARIABLE: "5",
    }
    assert capture_environment(Path("runs"), library=library, inherited={})[RANK_VARIABLE] == ""


def test_another_nvtx_tool_is_not_pushed_aside(tmp_path: Path) -> None:
    library = tmp_path / "libmtpprof-nvtx-x.so"
    with pytest.raises(UsageError, match=r"already names another NVTX tool \(/opt/nsight/libTool\.so\)"):
        capture_environment(
            tmp_path, library=library, inherited={INJECTION_VARIABLE: "/opt/nsight/libTool.so"}
        )
    capture_environment(tmp_path, library=library, inherited={INJECTION_VARIABLE: str(library)})


def test_files_tell_which_ranks_loaded_the_library(tmp_path: Path) -> None:
    for name in ("rank0.pid5.nvtx", "rank0.pid6.nvtx", "rank10.pid7-1.nvtx", "pid8.nvtx", "rank1.log"):
        (tmp_path / name).write_text("")
    assert len(loaded_files(tmp_path)) == 4
    assert ranks_not_loaded(tmp_path, [0, 1, 10]) == [1]
    assert os.fspath(loaded_files(tmp_path)[0]).endswith("pid8.nvtx")
