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


def test_each_module_can_be_the_first_that_is_imported() -> None:
    """A circle of imports shows only with the module that happens to be first, so every module is tried as the first one."""
    script = (
        "import importlib, json, pkgutil, sys, traceback, mtpprof\n"
        "names = [m.name for m in pkgutil.walk_packages(mtpprof.__path__, 'mtpprof.', onerror=lambda name: None)]\n"
        "failed = {}\n"
        "for name in names:\n"
        "    for loaded in [n for n in sys.modules if n.partition('.')[0] == 'mtpprof']:\n"
        "        del sys.modules[loaded]\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if (error.name or '').partition('.')[0] == 'mtpprof':\n"
        "            failed[name] = traceback.format_exc(limit=-1)\n"
        "    except ImportError:\n"
        "        failed[name] = traceback.format_exc(limit=-1)\n"
        "json.dump([len(names), failed], sys.stdout)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    count, failed = json.loads(answer.stdout.splitlines()[-1])
    assert count > 200
    assert failed == {}
