"""What a command must not import, held at run time (import-linter holds it statically)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "textual", "numpy", "nvtx", "perfetto")


def loaded_after(statement: str, *arguments: str) -> set[str]:
    """Top-level modules in `sys.modules` after `statement` in a fresh interpreter."""
    script = (
        "import sys, json, atexit\n"
        "atexit.register(lambda: sys.stderr.write('\\n' + json.dumps(sorted({n.partition('.')[0] for n in sys.modules}))))\n"
        f"{statement}\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    modules: list[str] = json.loads(answer.stderr.splitlines()[-1])
    return set(modules)


def command(*words: str) -> set[str]:
    return loaded_after("from mtpprof.__main__ import main\nmain()", *words)


@pytest.mark.parametrize(
    "words",
    [("--help",), ("--version",), ("run", "--help"), ("report", "--help"), ("models",), ("optimizations",)],
    ids=" ".join,
)
def test_help_models_and_optimizations_import_nothing_heavy(words: tuple[str, ...]) -> None:
    assert command(*words) & set(HEAVY) == set()


def test_doctor_imports_no_torch() -> None:
    assert "torch" not in command("doctor")


@pytest.mark.parametrize(
    "module",
    [
        "mtpprof.analyzers.answers.run_report",
        "mtpprof.profilers.run",
        "mtpprof.models.ledger",
        "mtpprof.models.hf",
    ],
)
def test_the_torch_free_half_stays_so(module: str) -> None:
    assert loaded_after(f"import {module}") & {"torch", "vllm", "textual", "typer", "rich"} == set()
