"""`mtpprof export` warns before it writes what the UI cannot load."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpprof.cli.commands.export import export
from tests.unit.analyzers import chrome


@pytest.mark.parametrize(("limit", "warned"), [(5, True), (50, False)])
def test_a_file_that_the_ui_cannot_load_is_announced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limit: int,
    warned: bool,
) -> None:
    monkeypatch.setattr("mtpprof.analyzers.perfetto.export.UI_SLICES", limit)
    trace = chrome.write(tmp_path / "rank0.json", chrome.text(chrome.some_events(20)))
    export([trace], output=tmp_path / "out.json")
    diagnostics = capsys.readouterr().err
    assert ("hardly load" in diagnostics) is warned
    if warned:
        assert "about 20 slices" in diagnostics
        assert "--only-collectives" in diagnostics
    assert (tmp_path / "out.json").stat().st_size
