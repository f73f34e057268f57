"""The command line without a run: help, catalogues, refusals, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mtpprof.models.optimizations.catalogue import CATALOGUE
from mtpprof.models.presets import PRESETS
from tests.functional.conftest import Answer

Call = Callable[..., Answer]

COMMANDS = ("run", "report", "models", "optimizations", "doctor")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(mtpprof: Call, command: str) -> None:
    answer = mtpprof(command, "--help")
    assert answer.returncode == 0
    assert f"mtpprof {command}" in answer.stdout
    assert "Examples:" in answer.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("analyze", ""),
        ("doctor", ""),
        ("export", ".", "-o", ""),
        ("export", ".", "--output="),
        ("compare", "", "."),
        ("check", "", "--model", "glm-5.2"),
        ("predict", "--from", ""),
        ("report", ""),
        ("nvtx", "--keep", "", "true"),
    ],
)
def test_an_empty_word_is_not_the_folder_that_one_is_in(mtpprof: Call, words: tuple[str, ...]) -> None:
    answer = mtpprof(*words)
    assert answer.returncode == 2
    assert "of the command line is empty" in answer.stderr
    assert answer.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ("nvtx", "--", "test", "-z", ""),
        ("nvtx", "test", "-z", ""),
        ("nvtx", "--max-mb=8", "test", "-z", ""),
        ("run", "--vllm-arg=key=", "--engine", "reference", "--device", "cpu"),
    ],
)
def test_empty_words_of_another_program_are_its_own(mtpprof: Call, words: tuple[str, ...]) -> None:
    assert "is empty" not in mtpprof(*words).stderr


def test_a_prediction_for_one_rank_says_that_it_has_no_communication(mtpprof: Call) -> None:
    answer = mtpprof("predict", "--model", "glm-5.2", "--tp", "1", "--concurrency", "4")
    assert answer.returncode == 0
    assert answer.stdout.splitlines() == [
        "glm-5.2, TP 1, concurrency 4, 3 draft tokens, h200 scale-up",
        "There is no communication at TP 1: no optimization can save any.",
    ]


@pytest.mark.parametrize(
    "words",
    [("--model", "glm-5.2"), ("--tp", "8"), ("--from", "run"), ("--step-ms", "3"), ("--draft-tokens", "0")],
)
def test_published_results_take_no_options_of_a_prediction(mtpprof: Call, words: tuple[str, ...]) -> None:
    answer = mtpprof("predict", "--published", *words)
    assert answer.returncode == 2
    assert f"--published and {words[0]}:" in answer.stderr
    assert answer.stdout == ""


def test_a_step_time_that_contradicts_the_prediction_gives_no_shares(mtpprof: Call) -> None:
    answer = mtpprof("predict", "--tp", "8", "--concurrency", "1", "--step-ms", "0.1")
    assert "Shares withheld: a step of 0.1 ms contradicts this prediction" in answer.stdout
    assert "%" not in answer.stdout


def test_help_lists_the_commands(mtpprof: Call) -> None:
    answer = mtpprof("--help")
    assert all(command in answer.stdout for command in COMMANDS)


def test_models_as_a_table_and_as_json(mtpprof: Call) -> None:
    assert all(name in mtpprof("models").stdout for name in PRESETS)
    specs = json.loads(mtpprof("models", "--format", "json", "--scale", "tiny").stdout)
    assert [spec["name"] for spec in specs] == list(PRESETS)
    assert {spec["scale"] for spec in specs} == {"tiny"}


def test_optimizations_give_the_reason(mtpprof: Call) -> None:
    answer = json.loads(mtpprof("optimizations", "--model", "kimi-k3", "--format", "json").stdout)
    assert {entry["id"] for entry in answer["optimizations"]} >= set(CATALOGUE)
    verdicts = {entry["optimization"]: entry for entry in answer["eligibility"]}
    assert not verdicts["commutative-reduce"]["eligible"]
    assert "RMSNorm" in verdicts["commutative-reduce"]["reason"]


@pytest.mark.parametrize("style", ["table", "csv", "md", "json"])
def test_every_format_names_every_model(mtpprof: Call, style: str) -> None:
    answer = mtpprof("models", "--format", style)
    assert answer.returncode == 0
    assert all(name in answer.stdout for name in PRESETS)
    assert "\x1b" not in answer.stdout


def test_doctor_looks_at_everything(mtpprof: Call) -> None:
    answer = mtpprof("doctor", "--format", "json")
    assert answer.returncode == 0
    findings = {finding["item"]: finding for finding in json.loads(answer.stdout)}
    assert {
        "Python",
        "torch",
        "CPUs",
        "GPUs",
        "NCCL",
        "vLLM",
        "nsys",
        "shared memory",
        "disk",
        "ports",
    } <= set(findings)
    assert all(finding["meaning"] for finding in findings.values())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "--tp", "3"), 2, "does not divide its vocabulary"),
        (("run", "--tp", "3", "--vocab", "129"), 2, "does not divide its attention heads"),
        (("run", "--tp", "16"), 2, "does not divide"),
        (("run", "--tp", "0"), 2, "--tp 0"),
        (("run", "--model", "deepsek-v3.2"), 2, "deepseek-v3.2"),
        (("run", "--model", "./nowhere/config.json"), 3, "nowhere"),
        (("run", "--opt", "local-argmax"), 2, "NAME=on"),
        (("run", "--opt", "nonsense=on"), 2, "nonsense"),
        (("run", "--model", "kimi-k3", "--opt", "commutative-reduce=on"), 2, "RMSNorm"),
        (("run", "--arms", "all"), 2, "one-at-a-time"),
        (("run", "--dtype", "int4"), 2, "bf16"),
        (("run", "--engine", "magic"), 2, "magic"),
        (("run", "--transport", "nccl", "--device", "cpu"), 2, "--transport nccl"),
        (("run", "--device", "cuda"), 5, "GPUs"),
        (("run", "--steps", "0"), 2, "--steps 0"),
        (("run", "--timeout", "nan"), 2, "--timeout nan"),
        (("run", "--timeout", "inf"), 2, "--timeout inf"),
        (("run", "--acceptance-length", "nan"), 2, "--acceptance-length nan"),
        (
            ("run", "--opt", "local-argmax=on", "--opt", "local-argmax=off"),
            2,
            "local-argmax=on was asked for",
        ),
        (("run", "--resume", "x", "--tp", "2"), 2, "--tp: a run is resumed as it was planned"),
        (("run", "--acceptance-length", "9"), 2, "--acceptance-length 9"),
        (("run", "--nnodes", "2"), 2, "--out"),
        (("run", "--nnodes", "3", "--out", "x", "--rdzv-endpoint", "h:1"), 2, "--nnodes 3"),
        (("run", "--nnodes", "2", "--out", "x", "--rdzv-endpoint", "nonsense"), 2, "host:port"),
        (("run", "--node-rank", "1"), 2, "--node-rank 1: the hosts of --nnodes 1"),
        (("run", "--node-rank", "-1", "--nnodes", "2", "--out", "x"), 2, "--node-rank -1"),
        (("run", "--nnodes", "0"), 2, "--nnodes 0"),
        (("run", "--draft-tokens", "99999"), 2, "--draft-tokens 99999: must be from 0 to 10000"),
        (("run", "--seed", "99999999999999999999"), 2, "--seed 99999999999999999999"),
        (("run", "--seed", "-1"), 2, "--seed -1"),
        (("run", "--rounds", "1000001"), 2, "--rounds 1000001"),
        (("run", "--profile-steps", "1000001"), 2, "--profile-steps 1000001"),
        (("run", "--resume", "nowhere"), 3, "nowhere"),
        (("run", "-c", "nowhere.toml"), 3, "nowhere.toml"),
        (("report", "nowhere"), 3, "nowhere"),
        (("models", "no-such-model"), 2, "no-such-model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_refusals_are_one_sentence_with_the_right_code(
    mtpprof: Call, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    answer = mtpprof(*words)
    assert said in answer.stderr
    assert answer.returncode == code, answer.stderr
    assert answer.stdout == ""
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_plan_file_gives_options_and_the_command_line_goes_first(mtpprof: Call, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('tp = 3\nmodel = ["kimi-k2"]\n')
    assert "kimi-k2 (tiny): --tp 3" in mtpprof("run", "-c", str(plan)).stderr
    assert "kimi-k2 (tiny): --tp 5" in mtpprof("run", "--tp", "5", "-c", str(plan)).stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp = ", "not TOML"),
        ("nonsense = 1", "`nonsense`"),
        ('tp = "many"', "Expected `int`, got `str` - at `$.tp`"),
    ],
)
def test_damaged_plan_files_are_named(mtpprof: Call, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    answer = mtpprof("run", "-c", "plan.toml")
    assert answer.returncode == 3
    assert "plan.toml" in answer.stderr
    assert said in answer.stderr


def test_debug_shows_the_traceback(mtpprof: Call) -> None:
    answer = mtpprof("run", "--tp", "3", "--debug")
    assert "Traceback" in answer.stderr


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m mtpprof models --format json | head -1"
    answer = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.stdout.strip() == "["
    assert answer.stderr == ""


@pytest.mark.parametrize("style", ["table", "json", "csv"])
def test_output_that_cannot_be_written_is_one_sentence(style: str) -> None:
    command = f"{sys.executable} -m mtpprof models --format {style} > /dev/full"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 5
    assert (
        answer.stderr
        == "mtpprof: the output cannot be written (No space left on device); nothing else is wrong.\n"
    )


def test_output_that_is_closed_is_not_wanted() -> None:
    command = f"{sys.executable} -m mtpprof models >&-"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_piped_tables_are_not_squeezed(mtpprof: Call) -> None:
    lines = mtpprof("optimizations").stdout.splitlines()
    assert max(map(len, lines)) > 200
    assert not any("…" in line for line in lines)


def test_a_terminal_without_utf8_still_gets_its_answer() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "mtpprof", "models"],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    )
    assert answer.returncode == 0
    assert b"deepseek-v3.2" in answer.stdout
