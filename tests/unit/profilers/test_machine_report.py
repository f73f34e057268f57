"""What `mtpprof doctor` says of the capture of NVTX."""

from __future__ import annotations

import pytest

from mtpprof.errors import MissingEnvironmentError
from mtpprof.profilers.machine_report import Finding, examine
from mtpprof.profilers.nvtx.build import find_compiler, include_directory


def capture() -> Finding:
    (found,) = [finding for finding in examine() if finding.item == "NVTX capture"]
    return found


def test_without_a_compiler_runs_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    found = capture()
    assert found.state == "limited"
    assert "runs record with torch's profiler alone: NVTX capture needs a C compiler" in found.meaning


def test_with_compiler_and_headers_it_is_fine() -> None:
    try:
        compiler = find_compiler()[0]
        include_directory()
    except MissingEnvironmentError as error:
        pytest.skip(str(error))
    assert compiler in capture().found
    assert "mtpprof nvtx" in capture().meaning or capture().state == "limited"
