"""`mtpprof check` of captures, as a user types it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.functional.conftest import Answer
from tests.traces import trace_folder

Call = Callable[..., Answer]


def test_the_ledger_of_another_model_is_refused(mtpprof: Call) -> None:
    capture = str(trace_folder("vllm-cpu-tp4-nemotron") / "latent-reduce-on")
    answer = mtpprof("check", capture, "--model", "nemotron-3-super")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert answer.stderr == (
        "mtpprof: latent-reduce-on: messages are 256 wide, the hidden width of nemotron-3-super is 4096: "
        "not this model; give its own with --model.\n"
    )


UNKNOWN_OP = "acme::fast_all_reduce"


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A real capture, and a copy in which no rule knows its all-reduces."""
    folder = trace_folder("vllm-cpu-tp4-nemotron") / "latent-reduce-on"
    copy = tmp_path_factory.mktemp("renamed") / "acme"
    copy.mkdir()
    for path in folder.glob("*.gz"):
        text = gzip.decompress(path.read_bytes()).replace(b"_C::shm_allreduce", UNKNOWN_OP.encode())
        (copy / path.name).write_bytes(gzip.compress(text, 1))
    return str(folder), str(copy)


def test_a_renamed_kernel_is_no_saving(mtpprof: Call, renamed: tuple[str, str], tmp_path: Path) -> None:
    answer = mtpprof("compare", *renamed)
    assert answer.returncode == 0, answer.stderr
    assert "removed" not in answer.stdout
    assert "11 → ≥ 1" in answer.stdout
    assert f"acme: counts: 680 × {UNKNOWN_OP} (2,414.825 ms over all ranks)" in answer.stdout
    assert f"acme: 10 × {UNKNOWN_OP} a step stand where" in answer.stdout
    rules = tmp_path / "rules.toml"
    rules.write_text(
        f'[[rule]]\nid = "acme"\npattern = "^{UNKNOWN_OP}$"\nscope = "cpu_op"\nkind = "all_reduce"\n'
    )
    answer = mtpprof("compare", *renamed, "--rules", str(rules))
    assert "11 → 11" in answer.stdout
    assert "counts:" not in answer.stdout


def test_a_budget_that_a_renamed_kernel_undercuts_is_not_kept(
    mtpprof: Call, renamed: tuple[str, str], tmp_path: Path
) -> None:
    budget = str(tmp_path / "budget.toml")
    good, acme = renamed
    assert mtpprof("check", good, "--write-budget", budget).returncode == 0
    answer = mtpprof("check", acme, "--budget", budget)
    assert answer.returncode == 1
    assert "12 limits kept, 1 exceeded, 12 not checked" in answer.stdout
    assert "tightened" not in answer.stdout
    assert f"680 × {UNKNOWN_OP}" in answer.stdout
    written = mtpprof("check", acme, "--write-budget", budget)
    assert f"680 × {UNKNOWN_OP}" in written.stderr


def test_nothing_is_known_to_be_none_while_a_suspect_stands(mtpprof: Call, tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": UNKNOWN_OP, "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [event]}))
    answer = mtpprof("analyze", ".", "--format", "md")
    assert "| collective calls | at least 0, " in answer.stdout
    assert "| time in collectives | at least 0 ns |" in answer.stdout
