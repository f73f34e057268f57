"""What the dashboard says of itself: headings that name what is shown, damage, reasons, messages that can be read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input

from mtpprof.analyzers.calls.attribution import Withheld
from mtpprof.cli.tui import exports
from mtpprof.cli.tui.app import DashboardApp
from mtpprof.cli.tui.screens.dialogs import TextDialog
from mtpprof.cli.tui.screens.ranks import RanksPage
from mtpprof.cli.tui.screens.saved import SavedPage, _article
from mtpprof.cli.tui.widgets.row_table import RowTable
from mtpprof.rundir.directory import RunDirectory
from tests.functional.tui import CLOCK_NS, cells, dashboard, finished_run, press, screen_text, settle, text_of
from tests.runs import Recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished run of one model with three arms beside its baseline."""
    return finished_run(tmp_path_factory.mktemp("said") / "run", Recipe(models=("deepseek-v3.2",)))


def app_on(path: Path, page: str | None = None) -> DashboardApp:
    return dashboard([path], page=page, clock=lambda: CLOCK_NS)


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


async def test_the_heading_of_saved_names_what_the_page_shows(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        seen = []
        for key in ("B", "b", "b", "b", "b"):
            await press(pilot, key)
            page = app.screen
            assert isinstance(page, SavedPage)
            assert page.chosen is not None
            assert text_of(app, "#case-line").rstrip().endswith(f"  A baseline  B {page.chosen.arm}")
            seen.append(page.chosen.arm)
        assert seen[1:] == ["local-argmax", "all-on", "allreduce-norm-fusion", "local-argmax"]
        assert app.store.a == "baseline"
        app.choose_arms(a=1)  # on another page
        await settle(pilot)
        assert "  A baseline  B local-argmax" in text_of(app, "#case-line")


async def test_a_repeated_arm_says_that_saved_has_no_row_of_it(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert app.store.record is not None
        case = app.store.record.cases[0]
        app.open_arm(case.id, next(arm.name for arm in case.arms if arm.repeats is not None))
        await settle(pilot)
        assert any("no row on Saved" in str(notice.message) for notice in app._notifications)


async def test_ranks_tell_the_reason_of_what_they_withhold(run: RunDirectory) -> None:
    app = app_on(run.root, "ranks")
    async with app.run_test(size=(160, 50)) as pilot:
        await settle(pilot)
        side = app.store.side(app.store.a)
        assert side is not None
        assert side.traces is not None
        withheld = (Withheld(answer="which rank is last", reason="ends agree to 2.5 ms only"),)
        found = replace(side.traces.found, withheld=withheld, stragglers=())
        blind = replace(side, traces=replace(side.traces, found=found))
        page = app.screen
        assert isinstance(page, RanksPage)
        page._show_tables((blind, None))
        await pilot.pause()
        text = screen_text(app)
        assert "A: which rank is last: ends agree to 2.5 ms only" in text
        assert "ranks that were not matched" not in text


async def test_complaints_stay_until_they_are_read(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        app.complain("Short.")
        app.complain("long " * 100)
        await pilot.pause()
        short, long = (notice.timeout for notice in app._notifications)
        assert short >= 15
        assert long > 2 * short


async def test_a_comparison_says_that_it_works_and_knows_the_home_folder(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(run.root.parent))
    asked: list[str] = []
    table = "arm   calls\n ──────────\n all      10\n"
    sentence = "Ranks share CPU cores: " + "time in a collective is mostly waiting; " * 5

    def compare(_command: object, _here: Path, other: str, _options: object) -> str:
        asked.append(other)
        return f"{table}\n{sentence}\n" + "x  " * 60

    monkeypatch.setattr(exports, "compare_with", compare)
    app = app_on(run.root)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("C")
        await pilot.pause()
        app.screen.query_one("#answer", Input).value = "~/run:baseline"
        await press(pilot, "enter")
        assert asked == [f"{run.root}:baseline"]
        assert any(str(notice.message) == "Comparing…" for notice in app._notifications)
        assert isinstance(app.screen, TextDialog)
        room = app.screen.query_one("#long-text").size.width
        prose = app.screen.query(".prose").first()
        assert prose.size.width == room
        assert prose.size.height > 2
        assert app.screen.query(".drawn").last().size.width > room


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_doctor_leaves_the_sentences_in_sight(run: RunDirectory, size: tuple[int, int]) -> None:
    app = app_on(run.root, "doctor")
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        table = app.screen.query_one("#verdicts", RowTable)
        assert "what is so" not in table.hidden_columns
        assert "no answer on" not in table.hidden_columns
        assert size[0] < 200 or not table.hidden_columns
        said = max((row.cells[-1] for row in table.rows), key=len)
        assert said[: size[0] // 3] in screen_text(app)


def test_the_unit_has_its_article() -> None:
    assert [f"{_article(noun)} {noun}" for noun in ("step", "accepted token")] == [
        "a step",
        "an accepted token",
    ]
