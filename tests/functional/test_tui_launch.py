"""Launching, leaving, asking: the pages and dialogs that start things."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual import events
from textual.widgets import Input, Static

from mtpprof.analyzers.calls.attribution import ReadOptions
from mtpprof.cli.tui import app as app_module
from mtpprof.cli.tui import sources
from mtpprof.cli.tui.app import DashboardApp
from mtpprof.cli.tui.screens.dialogs import LeaveDialog, StopDialog, TextDialog
from mtpprof.cli.tui.screens.page import Page
from mtpprof.cli.tui.widgets.choice import Choice
from mtpprof.errors import UsageError
from mtpprof.rundir.directory import REPORT_FILE, RunDirectory
from mtpprof.rundir.follow import Update
from tests.functional.tui import CLOCK_NS, dashboard, finished_run, press, settle, text_of, words
from tests.runs import Recipe
from tests.unit.analyzers.calls.test_unknown_names import hidden, told

SMALL = Recipe(models=("nemotron-3-super",), rounds=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return finished_run(tmp_path_factory.mktemp("launch") / "run", SMALL)


class Standing:
    """A run that has been started and stands still; remembers what was asked of it."""

    started: list[Standing] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, line: list[str]) -> None:
        self.words = list(line)
        self.directory = RunDirectory(Path(line[line.index("--out") + 1] if "--out" in line else "nowhere"))
        self.running = True
        self.exit_code: int | None = None
        self.stopped = False
        Standing.started.append(self)

    def stop(self) -> None:
        self.stopped = True

    def move_log(self) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        return self.running

    def last_words(self) -> str:
        return "--tp 0: must be from 1 to 65536."


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> type[Standing]:
    Standing.started = []
    monkeypatch.setattr(app_module, "StartedRun", Standing)
    return Standing


async def test_the_command_line_follows_the_form(standing: type[Standing]) -> None:
    app = dashboard(clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert app.current_mode == "launch"
        assert text_of(app, "#command") == "$ mtpprof run --tp 4"
        app.screen.query_one("#field-models", Input).value = "deepseek-v3.2"
        app.screen.query_one("#field-tp", Input).value = "2"
        await pilot.pause(0.5)
        await settle(pilot)
        assert "--tp 2 --model deepseek-v3.2" in text_of(app, "#command")
        assert app.screen.query_one("#switch-commutative-reduce", Choice).disabled
        assert "no latent width" in words(text_of(app, "#why-commutative-reduce"))
        app.screen.query_one("#switch-local-argmax", Choice).focus()
        await press(pilot, "space")
        assert "--opt local-argmax=on" in text_of(app, "#command")
        assert "commutative-reduce" not in text_of(app, "#command")
        await pilot.pause(0.5)
        await settle(pilot)
        assert text_of(app, "#plan-preview").endswith("2 cases, 6 arms, 22 windows")
        await press(pilot, "left", "left")
        assert "--opt local-argmax=off" in text_of(app, "#command")


@pytest.mark.parametrize("key", ["f5", "y", "q"])
async def test_keys_that_come_before_the_form_is_there(standing: type[Standing], key: str) -> None:
    app = dashboard(clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        app.post_message(events.Key(key, key))
        await settle(pilot)
        assert [run.words for run in standing.started] == ([["run", "--tp", "4"]] if key == "f5" else [])
        assert app.clipboard == ("mtpprof run --tp 4" if key == "y" else "")
        assert app._exit is (key == "q")


async def test_what_cannot_run_is_said_and_not_started(standing: type[Standing]) -> None:
    app = dashboard(clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app.screen.query_one("#field-tp", Input).value = "[/x"
        await pilot.pause(0.5)
        await settle(pilot)
        assert "[/x" in text_of(app, "#plan-preview")
        await press(pilot, "f5")
        assert standing.started == []
        assert app._notifications


async def test_a_form_in_error_is_not_started_until_it_is_mended(standing: type[Standing]) -> None:
    app = dashboard(clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app.screen.query_one("#field-models", Input).value = "no-such-model"
        await pilot.pause(0.5)
        await settle(pilot)
        assert text_of(app, "#plan-preview").startswith("! ")
        await press(pilot, "f5")
        assert standing.started == []
        assert any("no-such-model" in str(notice.message) for notice in app._notifications)
        app.screen.query_one("#field-models", Input).value = ""
        await pilot.pause(0.5)
        await settle(pilot)
        await pilot.press("f5")
        await pilot.pause()
        assert len(standing.started) == 1


async def test_the_command_line_is_copied(standing: type[Standing]) -> None:
    app = dashboard(clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "y")
        assert app.clipboard == "mtpprof run --tp 4"


@pytest.mark.parametrize(
    ("key", "left", "stopped"), [("l", True, False), ("s", True, True), ("escape", False, False)]
)
async def test_leaving_asks_about_a_run_in_progress(
    standing: type[Standing], tmp_path: Path, key: str, left: bool, stopped: bool
) -> None:
    app = dashboard(command=["run", "--tp", "2", "--out", str(tmp_path / "run")], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.3)
        assert "Starting the run" in text_of(app, "#progress")
        await pilot.press("q")
        await pilot.pause()
        assert isinstance(app.screen, LeaveDialog)
        await pilot.press(key)
        await pilot.pause()
        assert app._exit is left
        assert standing.started[0].stopped is stopped


async def test_a_run_that_did_not_start_says_why(standing: type[Standing], tmp_path: Path) -> None:
    app = dashboard(command=["run", "--tp", "0", "--out", str(tmp_path / "run")], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.3)
        standing.started[0].running = False
        app._tick()
        await pilot.pause()
        assert "--tp 0: must be from 1 to 65536" in text_of(app, "#progress")
        await pilot.press("q")
        await pilot.pause()
        assert app._exit


async def test_an_interrupted_run_is_resumed_and_a_live_one_is_not(
    standing: type[Standing], run: RunDirectory, tmp_path: Path
) -> None:
    shutil.copytree(run.root, tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    plain: dict[str, Any] = msgspec.to_builtins(directory.run())
    directory.write(directory.root / "run.json", {**plain, "status": "running"})
    app = dashboard([directory.root], clock=lambda: CLOCK_NS)
    lock = ExitStack()
    lock.enter_context(directory.locked())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "c")
        assert standing.started == []
        lock.close()
        for _ in range(100):
            await pilot.pause(0.05)
            if not app.store.running:
                break
        assert "its process is gone" in text_of(app, "#progress")
        await press(pilot, "c")
        assert standing.started[0].words == ["run", "--resume", str(directory.root)]


async def test_a_finished_run_cannot_be_stopped(run: RunDirectory) -> None:
    app = dashboard([run.root], page="live", clock=lambda: CLOCK_NS)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "x")
        assert notices(app) == ["No run is in progress."]


async def test_x_stops_a_run_that_was_started_here_only_while_it_is_in_sight(
    standing: type[Standing], elsewhere: tuple[RunDirectory, subprocess.Popen[str]], tmp_path: Path
) -> None:
    directory, process = elsewhere
    app = dashboard(command=["run", "--out", str(tmp_path / "mine")], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.3)
        app.loader.open([directory.root])
        await settle(pilot)
        await press(pilot, "x")
        assert isinstance(app.screen, StopDialog)
        assert str(directory.root) in str(app.screen.query_one("#stop-text", Static).render())
        await press(pilot, "escape", "1")
        assert words(text_of(app, "#launch-state")) == f"Running in {tmp_path / 'mine'}: O opens it."
        await press(pilot, "f5")
        assert f"open {tmp_path / 'mine'} (O)" in notices(app)[-1]
        assert [run.stopped for run in standing.started] == [False]
        app.loader.open([tmp_path / "mine"])
        await pilot.pause(0.3)
        await pilot.press("x")
        await pilot.pause()
        assert standing.started[0].stopped
        assert process.poll() is None


async def test_traces_that_are_opened_after_a_run_are_not_taken_for_it(
    standing: type[Standing], run: RunDirectory, tmp_path: Path
) -> None:
    app = dashboard(command=["run", "--out", str(tmp_path / "mine")], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.3)
        standing.started[0].running = False
        app.loader.open([run.arm(run.run().cases[0].id, "baseline")])
        await settle(pilot)
        app._tick()
        assert app.store.verdict is None
        await press(pilot, "1")
        assert text_of(app, "#launch-state") == ""


async def test_a_broken_run_says_why_while_another_is_in_progress(
    standing: type[Standing], tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    app = dashboard(command=["run", "--out", str(tmp_path / "mine")], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.3)
        app.loader.open([tmp_path / "broken"])
        await pilot.pause(0.5)
        assert app.store.verdict is not None
        assert "damaged" in app.store.verdict


async def test_an_answer_does_not_wait_for_another_run(
    standing: type[Standing], run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run.root, tmp_path / "other")
    (tmp_path / "other" / "report.json").unlink()
    computed: list[Path] = []

    def compute(directory: RunDirectory, *_: object) -> sources.Answer:
        computed.append(directory.root)
        return sources.Answer(differences={}, effects={}, notes=[], report=None)

    monkeypatch.setattr(sources, "computed_answer", compute)
    app = dashboard(command=["run", "--out", str(tmp_path / "mine")], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.3)
        app.loader.open([tmp_path / "other"])
        await pilot.pause(1.5)
        standing.started[0].running = False  # else the thread would wait for ever
        assert computed == [tmp_path / "other"]
        await settle(pilot)


async def test_rules_reach_the_sides_and_the_answer(tmp_path: Path) -> None:
    recipe = Recipe(models=("nemotron-3-super",), rounds=2, steps=2, profile_steps=2)
    made = hidden(finished_run(tmp_path / "run", recipe), "commutative-reduce", "layers.3")
    rules = tmp_path / "rules.toml"
    reading = sources.Reading(
        options=ReadOptions(rules=told(tmp_path)), words_for_run=("--rules", str(rules))
    )
    (made.root / REPORT_FILE).unlink()
    for shown, exact in (
        (sources.Reading(), False),
        (reading, True),
    ):  # the first leaves its answer in the run
        app = dashboard([made.root], page="collectives", reading=shown, clock=lambda: CLOCK_NS)
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            side = app.store.side("commutative-reduce")
            assert side is not None
            assert (side.doubt == "") is exact
            assert app.store.case_report is not None
            arms = {arm.name: arm for arm in app.store.case_report.arms}
            assert (arms["commutative-reduce"].doubt == "") is exact


async def test_the_traffic_is_found_once_though_it_fails(
    standing: type[Standing], run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunDirectory] = []

    def fail(directory: RunDirectory, *_: object) -> None:
        asked.append(directory)
        raise UsageError("no such switch")

    monkeypatch.setattr(sources, "arm_traffic", fail)
    app = dashboard([run.root], page="live", clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for _ in range(3):
            app.loader._take(Update(log_lines=("a line",)))
            await settle(pilot)
        assert len(asked) == 1
        assert notices(app) == ["no such switch"]


async def test_a_form_in_error_keeps_what_can_be_switched(standing: type[Standing]) -> None:
    app = dashboard(clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        switch = app.screen.query_one("#switch-commutative-reduce", Choice)
        switch.action_turn(1)
        app.screen.query_one("#field-models", Input).value = "nemotron-3-super"
        await pilot.pause(0.5)
        await settle(pilot)
        assert "--opt commutative-reduce=on" in text_of(app, "#command")
        switch.disabled = True
        app.screen.query_one("#field-more", Input).value = "--nosuch"
        await pilot.pause(0.5)
        await settle(pilot)
        assert text_of(app, "#plan-preview").startswith("! ")
        assert switch.disabled
        assert "commutative-reduce" not in text_of(app, "#command")


async def test_a_page_is_filled_once_as_it_is_mounted(
    standing: type[Standing], monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted: list[Page] = []
    plain = Page.on_mount

    def counted(page: Page) -> None:
        mounted.append(page)
        plain(page)

    monkeypatch.setattr(Page, "on_mount", counted)
    app = dashboard(clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert len(mounted) == 1


async def test_nothing_is_said_of_the_start_of_a_run_that_has_a_record(
    standing: type[Standing], run: RunDirectory
) -> None:
    app = dashboard(command=["run", "--resume", str(run.root), "--out", str(run.root)])
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.3)
        standing.started[0].running = False
        await press(pilot, "1")
        assert text_of(app, "#launch-state") == ""


HOLDS = """
import sys, time
from pathlib import Path
from mtpprof.rundir.directory import REPORT_FILE, RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("held", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
"""
"""A run in progress that was started elsewhere."""


@pytest.fixture
def elsewhere(run: RunDirectory, tmp_path: Path) -> Iterator[tuple[RunDirectory, subprocess.Popen[str]]]:
    shutil.copytree(run.root, tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    plain: dict[str, Any] = msgspec.to_builtins(directory.run())
    directory.write(directory.root / "run.json", {**plain, "status": "running"})
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(directory.root)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield directory, process
        process.kill()


def notices(app: DashboardApp) -> list[str]:
    return [str(notice.message) for notice in app._notifications]


async def test_a_run_that_was_started_elsewhere_is_stopped_after_asking(
    elsewhere: tuple[RunDirectory, subprocess.Popen[str]],
) -> None:
    directory, process = elsewhere
    app = dashboard([directory.root], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "x", "escape")
        assert process.poll() is None
        await press(pilot, "x")
        assert str(directory.root) in str(app.screen.query_one("#stop-text", Static).render())
        await press(pilot, "s")
        assert notices(app) == [f"Stopping (process {process.pid}): what is finished is kept."]
        assert process.wait(30) == 130


async def test_a_run_on_another_host_is_not_stopped_and_the_host_named(
    elsewhere: tuple[RunDirectory, subprocess.Popen[str]],
) -> None:
    directory, process = elsewhere
    lock = directory.root / ".lock"
    lock.write_bytes(msgspec.json.encode({**msgspec.json.decode(lock.read_bytes()), "host": "node7"}))
    app = dashboard([directory.root], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "x", "s")
        assert notices(app) == ["The run is carried out on node7; stop it from there."]
        lock.write_text("")
        await press(pilot, "x", "s")
        assert "does not say which process" in notices(app)[-1]
        assert process.poll() is None


async def test_another_run_is_opened_and_compared(run: RunDirectory, tmp_path: Path) -> None:
    other = finished_run(
        tmp_path / "other", Recipe(models=("nemotron-3-super",), rounds=3, seed=1, name="other")
    )
    app = dashboard([run.root], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("C")
        await pilot.pause()
        app.screen.query_one("#answer", Input).value = str(other.root)
        await press(pilot, "enter")
        assert isinstance(app.screen, TextDialog)
        assert "payload" in str(app.screen._text)
        await press(pilot, "escape", "O")
        app.screen.query_one("#answer", Input).value = str(other.root)
        await press(pilot, "enter")
        await pilot.pause(0.5)
        await settle(pilot)
        assert app.store.record is not None
        assert app.store.record.name == "other"


async def test_a_comparison_that_fails_is_a_sentence(run: RunDirectory) -> None:
    app = dashboard([run.root], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("C")
        await pilot.pause()
        app.screen.query_one("#answer", Input).value = "/no/such [/bold]"
        await press(pilot, "enter")
        assert any("/no/such [/bold]" in str(notice.message) for notice in app._notifications)
