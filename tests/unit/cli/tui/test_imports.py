"""What opening the dashboard must not import."""

from __future__ import annotations

from tests.unit.test_imports import loaded_after


def test_the_dashboard_imports_neither_torch_nor_vllm() -> None:
    assert loaded_after("import mtpprof.cli.tui.app") & {"torch", "vllm"} == set()


def test_without_a_terminal_nothing_of_textual_is_imported() -> None:
    script = "from mtpprof.__main__ import main\nmain()"
    assert loaded_after(script, "dashboard") & {"textual", "torch", "numpy"} == set()
