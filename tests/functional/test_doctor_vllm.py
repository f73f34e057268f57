"""`mtpprof doctor --engine vllm` over a stand-in for vLLM, without it, and with a part of it missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtpprof.errors import ExitCode
from mtpprof.profilers.engines.vllm.patches import PATCH_POINTS
from tests.standin.vllm_standin import install

SEAM = "vllm.distributed.parallel_state.GroupCoordinator._all_reduce_out_place"


def doctor(*options: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    words = [sys.executable, "-m", "mtpprof", "doctor", *options]
    return subprocess.run(words, capture_output=True, text=True, env=environment, check=False)


def test_every_name_is_listed_with_what_needs_it(tmp_path: Path) -> None:
    done = doctor("--engine", "vllm", "--format", "json", path=install(tmp_path))
    assert done.returncode == ExitCode.OK, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["version"], answer["platform"]) == ("0.32.0", "cpu")
    found = {point["name"]: point["found"] for point in answer["patch_points"]}
    assert found == {point.text: True for point in PATCH_POINTS if "cpu" in point.platforms}
    table = doctor("--engine", "vllm", path=tmp_path).stdout
    assert "get_top_tokens" in table
    assert "0.32.0" in table


def test_a_missing_seam_is_an_environment_that_lacks_something(tmp_path: Path) -> None:
    folder = install(tmp_path, without=SEAM)
    source = folder / "vllm" / "distributed" / "parallel_state.py"
    source.write_text(source.read_text().replace("from vllm._standin import GroupCoordinator", ""))
    done = doctor("--engine", "vllm", "--format", "csv", path=folder)
    assert done.returncode == ExitCode.ENVIRONMENT
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("missing")]
    assert "GroupCoordinator._all_reduce_out_place" in line


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--engine", "vllm"), ExitCode.ENVIRONMENT, "vLLM is not installed; `make install-vllm`"),
        (("--engine", "other"), ExitCode.USAGE, "only vllm has parts to examine"),
    ],
)
def test_what_cannot_be_examined_is_said(options: tuple[str, ...], code: ExitCode, words: str) -> None:
    done = doctor(*options)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
