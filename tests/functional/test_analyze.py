"""`mtpprof analyze` and `mtpprof doctor PATH` on real traces, as a user types them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.functional.conftest import Answer
from tests.traces import trace_folder

Call = Callable[..., Answer]


def analyzed(mtpprof: Call, *words: str) -> Any:
    answer = mtpprof("analyze", *words, "--format", "json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_one_rank_waits_for_the_other(mtpprof: Call) -> None:
    (found,) = analyzed(mtpprof, str(trace_folder("megatron-tp2-v100")), "--by", "rank")
    zero, one = found["groups"]
    assert [zero["calls"], one["calls"]] == [13, 13]
    assert one["sum_ns"] > 48_000_000
    assert one["wait_ns"] > 0.98 * one["sum_ns"]
    assert found["waits"]["verdict"] == "skew-dominated"
    assert found["stragglers"][0]["rank"] == 0


PAIR = ("sglang-tp4-gb300-fused", "sglang-tp4-gb300-nccl")


def test_latent_reduce_on_and_skipped_side_by_side(mtpprof: Call) -> None:
    answer = mtpprof("analyze", str(trace_folder("vllm-cpu-tp4-nemotron")), "--show", "groups")
    assert answer.returncode == 0
    assert re.search(r"^ *latent-reduce-skipped .* -3 ", answer.stdout, re.MULTILINE)


@pytest.mark.parametrize(("first", "second"), [PAIR, PAIR[::-1]])
@pytest.mark.parametrize("style", ["table", "md", "json", "csv"])
def test_two_captures_are_compared_in_the_order_given_as_compare_does_it(
    mtpprof: Call, first: str, second: str, style: str
) -> None:
    folders = [str(trace_folder(name)) for name in (first, second)]
    found = mtpprof("analyze", *folders, "--show", "summary", "--format", style).stdout
    compared = mtpprof("compare", *folders, "--format", style).stdout
    if style == "json":
        base, arm = json.loads(found)
        assert (base["label"], arm["label"]) == (first, second)
        assert base["comparison"] is None
        (comparison,) = json.loads(compared)["comparisons"]
        assert arm["comparison"] == comparison
        assert comparison["difference"]["base"] == first
        return
    assert found.endswith(compared.partition(" ==\n")[2] if style == "table" else compared)
    assert 0 <= found.index(first) < found.index(second)
    if style in ("table", "md"):
        assert re.search(r"95 × all_reduce by \S+ .*→ by ", found)


def test_two_files_of_one_folder_stand_in_the_order_given(mtpprof: Call, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json.gz").write_bytes(small_trace("ncclDevKernel_AllReduce_Sum_bf16_RING_LL()"))
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rank0.json.gz").write_bytes((tmp_path / "a.json.gz").read_bytes())
    assert [one["label"] for one in analyzed(mtpprof, "y", "x")] == ["y", "x"]


def test_a_window_of_steps_makes_figures_per_step_of_these_steps(mtpprof: Call) -> None:
    folder = str(trace_folder("vllm-cpu-tp4-nemotron") / "latent-reduce-on")
    (some,) = analyzed(mtpprof, folder, "--steps", "2:4", "--ranks", "0-1")
    assert sum(entry["steps"] for entry in some["step_times"]) == 3 * 2
    assert {entry["calls"]["median"] for entry in some["step_times"]} == {11}


def test_a_lone_rank_gets_no_verdict_on_waiting(mtpprof: Call) -> None:
    (found,) = analyzed(mtpprof, str(trace_folder("vllm-tp8-b200-rank0")))
    assert found["missing_ranks"] == [1, 2, 3, 4, 5, 6, 7]
    assert found["waits"]["share"] is None
    assert all(group["wait_ns"] is None for group in found["groups"])
    reduces = next(group for group in found["groups"] if group["key"]["kind"] == "all_reduce")
    assert (reduces["calls"], reduces["key"]["implementation"]) == (73, "torch_symm_mem")


def test_csv_has_a_row_per_group_and_only_the_ranks_asked_for(mtpprof: Call) -> None:
    folder = trace_folder("nanogpt-8xh100-ranks0-3")
    answer = mtpprof("analyze", str(folder), "--by", "rank,kind", "--ranks", "1-2", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(answer.stdout)))
    assert [(row["rank"], row["calls"]) for row in rows] == [
        ("1", "38"),
        ("1", "38"),
        ("2", "38"),
        ("2", "38"),
    ]
    assert all(int(row["min_ns"]) <= int(row["median_ns"]) <= int(row["max_ns"]) for row in rows)


def test_a_window_of_steps(mtpprof: Call) -> None:
    folder = str(trace_folder("vllm-cpu-tp4-nemotron") / "latent-reduce-on")
    (some,) = analyzed(mtpprof, folder, "--steps", "2:4", "--by", "step")
    assert [(group["key"]["step"], group["calls"]) for group in some["groups"]] == [(2, 44), (3, 44), (4, 44)]


def test_every_view_prints(mtpprof: Call) -> None:
    answer = mtpprof("analyze", str(trace_folder("megatron-tp2-v100")), "--show", "all", "--format", "md")
    assert answer.returncode == 0
    for title in ("slowest calls", "most skewed", "stragglers", "clocks", "size_class"):
        assert title in answer.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nowhere",), 3, "nowhere"),
        (("empty.json.gz",), 3, "is empty"),
        (("text.json",), 3, "text.json"),
        ((".", "--by", "colour"), 2, "--by colour"),
        ((".", "--show", "moon"), 2, "--show moon"),
        ((".", "--ranks", "a"), 2, "--ranks a"),
        ((".", "--ranks", "3-1"), 2, "--ranks 3-1"),
        ((".", "--window", "3"), 2, "--window 3"),
        ((".", "--window", "5ms:1ms"), 2, "--window 5ms:1ms"),
        ((".", "--steps", "8:3"), 2, "--steps 8:3"),
        ((".", "--steps", "x:y"), 2, "--steps x:y"),
        ((".", "--rank-map", "nothing"), 2, "FILE=RANK"),
        ((".", "--rules", "none.toml"), 3, "none.toml"),
        ((".", "--rules", "/dev/zero"), 3, "no ordinary file"),
        ((".", "--max-gb", "0"), 2, "--max-gb 0"),
        ((".", "--max-gb", "nan"), 2, "--max-gb nan"),
        ((".", "--model", "no-model"), 2, "no-model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_refusals(mtpprof: Call, tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    (tmp_path / "empty.json.gz").write_bytes(b"")
    (tmp_path / "text.json").write_text("hello")
    answer = mtpprof("analyze", *words)
    assert answer.returncode == code, answer.stderr
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def small_trace(name: str, *, rank: int | None = None) -> bytes:
    info = {"distributedInfo": {"rank": rank, "world_size": 2}} if rank is not None else {}
    event = {
        "ph": "X",
        "cat": "kernel",
        "pid": 0,
        "tid": 7,
        "ts": 10.0,
        "dur": 5.0,
        "name": name,
        "args": {"stream": 7},
    }
    return gzip.compress(json.dumps({**info, "traceEvents": [event]}).encode())


@pytest.mark.parametrize(
    "name", ["[red]all_reduce[/", "op[b", "\x1b[31mnccl\x07", "‮lla", "🙂 all_gather", "x" * 5000]
)
def test_hostile_names_are_printed_harmlessly(mtpprof: Call, tmp_path: Path, name: str) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(small_trace(name, rank=0))
    answer = mtpprof("analyze", ".")
    assert answer.returncode == 0, answer.stderr
    assert "\x1b" not in answer.stdout
    assert "\x07" not in answer.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--window", "10s:20s"), "last from 0 to 75.432 ms"),
        (("--steps", "50:60"), "hold steps 6 to 6"),
    ],
)
@pytest.mark.parametrize("style", ["table", "json", "csv"])
def test_a_window_that_holds_nothing_is_no_answer(
    mtpprof: Call, words: tuple[str, str], said: str, style: str
) -> None:
    answer = mtpprof("analyze", str(trace_folder("megatron-tp2-v100")), *words, "--format", style)
    assert answer.returncode == 2, "the window is what is wrong, not the traces"
    assert said in answer.stderr
    if style == "table":
        assert re.search(r"collective calls +\?: ", answer.stdout)
    if style == "json":
        (found,) = json.loads(answer.stdout)
        assert said in found["no_answer"]
        assert found["collective_calls"] is None


def test_half_a_trace_without_a_call_is_no_zero(mtpprof: Call, tmp_path: Path) -> None:
    (whole, _) = sorted(trace_folder("megatron-tp2-v100").glob("*.json"))
    (tmp_path / "half.pt.trace.json").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    answer = mtpprof("analyze", ".", "--show", "summary")
    assert answer.returncode == 3
    assert "ends in the middle of an event" in answer.stderr
    assert not [
        line for line in answer.stdout.splitlines() if line.split()[:3] == ["collective", "calls", "0,"]
    ]


def test_rules_of_ones_own(mtpprof: Call, tmp_path: Path) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(small_trace("my_team::fast_all_reduce<int>", rank=0))
    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nid = "mine"\npattern = "my_team::fast"\nkind = "all_reduce"\nimplementation = "my_team"\n'
    )
    (without,) = analyzed(mtpprof, "rank0.json.gz")
    assert without["groups"] == []
    assert [suspect["name"] for suspect in without["suspects"]] == ["my_team::fast_all_reduce<int>"]
    (found,) = analyzed(mtpprof, "rank0.json.gz", "--rules", "rules.toml")
    assert found["groups"][0]["key"]["implementation"] == "my_team"


@pytest.mark.parametrize("command", ["analyze", "doctor"])
def test_the_way_past_the_limit_is_an_option(mtpprof: Call, tmp_path: Path, command: str) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(
        small_trace("ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", rank=0)
    )
    refused = mtpprof(command, ".", "--max-gb", "0.0000001")
    assert refused.returncode == 3
    assert "holds more than 100 bytes of text" in refused.stdout + refused.stderr
    assert "--max-gb" in refused.stdout + refused.stderr
    assert mtpprof(command, ".", "--max-gb", "1").returncode == 0


def test_a_rule_that_never_ends_is_named(mtpprof: Call, tmp_path: Path) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(small_trace("a" * 200 + "!", rank=0))
    (tmp_path / "rules.toml").write_text('[[rule]]\nid = "slow"\npattern = "(a|aa)+$"\nkind = "all_reduce"\n')
    answer = mtpprof("analyze", ".", "--rules", "rules.toml")
    assert answer.returncode == 3
    assert "rules.toml: rule 1 (slow)" in answer.stderr


def test_doctor_names_the_verdict_of_every_file(mtpprof: Call) -> None:
    answer = mtpprof("doctor", str(trace_folder("odd")), "--format", "json")
    assert answer.returncode == 0, answer.stderr
    (found,) = json.loads(answer.stdout)
    verdicts = {(Path(item["path"]).name, item["verdict"]) for item in found["verdicts"]}
    assert ("no-distributed-info.json.gz", "unknown_rank") in verdicts
    assert ("trailing-comma.trace.json", "unknown_rank") in verdicts
    assert ("nccl-with-wait-pseudo-collectives.json.gz", "fine") in verdicts


def test_doctor_on_a_trace_without_an_answer(mtpprof: Call, tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(b"")
    answer = mtpprof("doctor", "t.json.gz")
    assert answer.returncode == 3
    assert "empty" in answer.stdout
