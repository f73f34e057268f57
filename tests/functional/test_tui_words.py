"""What the dashboard says of itself: headings that name what is shown, damage, reasons, messages that can be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mtpprof.cli.tui.app import DashboardApp
from mtpprof.rundir import RunDirectory
from tests.functional.tui import CLOCK_NS, cells, finished_run, press, settle, text_of
from tests.runs import Recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished run of one model with three arms beside its baseline."""
    return finished_run(tmp_path_factory.mktemp("said") / "run", Recipe(models=("deepseek-v3.2",)))


def app_on(path: Path, page: str | None = None) -> DashboardApp:
    return DashboardApp([path], page=page, clock=lambda: CLOCK_NS)


async def test_events_that_cannot_be_read_are_no_rounds_that_wait(run: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(run.root, tmp_path / "run")
    (tmp_path / "run" / "events.jsonl").write_bytes(b"\x00garbage\n" * 7)
    app = app_on(tmp_path / "run", "live")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert "! 7 lines of events.jsonl could not be read" in text_of(app, "#progress")
        assert "·" not in "".join(row[1] for row in cells(app, "#grid"))
        await press(pilot, "7")
        assert "events damaged" in [row[2] for row in cells(app, "#verdicts")]
