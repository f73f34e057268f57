"""How the pages look: fixed data, frozen clock, three sizes, light and dark.

Made with textual 8.2; other versions draw their own widgets otherwise, so that pictures are compared with that one only. After a wanted
change: `pytest tests/functional/test_tui_snapshots.py --snapshot-update`, and look at the pictures.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from mtpprof.cli.tui.app import THEMES
from mtpprof.cli.tui.launch_form import LaunchForm
from mtpprof.cli.tui.plan_preview import PlanPreview
from mtpprof.rundir.directory import RunDirectory
from tests.functional.tui import CLOCK_NS, dashboard, finished_run, settle, write_events
from tests.runs import Recipe

pytestmark = pytest.mark.skipif(
    not version("textual").startswith("8.2."), reason="the pictures were made with textual 8.2"
)
SIZES = ((80, 24), (120, 40), (200, 60))
Compare = Callable[..., bool]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a finished run and one in progress, whose paths do not show."""
    found = tmp_path_factory.mktemp("pictures")
    recipe = Recipe(
        models=("deepseek-v3.2",), tp=4, name="pictures", speed=lambda arm: 0.8 if "local" in arm else 1.0
    )
    directory = finished_run(found / "run", recipe)
    shutil.copytree(directory.root, found / "live")
    live = RunDirectory(found / "live")
    live.write(live.root / "run.json", {**msgspec.to_builtins(live.run()), "status": "running"})
    write_events(live, until=14)
    live.log(0).parent.mkdir()
    live.log(0).write_text("".join(f"rank 0 says [line {number}]\n" for number in range(30)))
    with live.locked():
        yield found


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("page", ["live", "saved", "collectives", "timeline"])
def test_pages(
    snap_compare: Compare,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    page: str,
    size: tuple[int, int],
    theme: str,
) -> None:
    monkeypatch.chdir(folder)
    app = dashboard([Path("live" if page == "live" else "run")], page=page, clock=lambda: CLOCK_NS)

    async def before(pilot: Pilot[None]) -> None:
        app.theme = theme
        await settle(pilot)
        app.store.choose_arm("local-argmax")
        app.refresh_page()
        if page == "timeline":
            await pilot.press("full_stop", "full_stop", "full_stop")
        await settle(pilot)

    assert snap_compare(app, terminal_size=size, run_before=before)


PREVIEW = PlanPreview(
    sentence="engine reference on cpu: 4 cases, 14 arms, 52 windows",
    ok=True,
    eligible={
        "allreduce-norm-fusion": (True, "deepseek-v3.2"),
        "local-argmax": (True, "deepseek-v3.2 (not nemotron-3-super: it drafts no tokens)"),
        "commutative-reduce": (False, "deepseek-v3.2: its experts have no latent width of their own"),
    },
)
"""What a machine without a GPU would say, whatever the one that runs the tests has."""


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_launch(
    snap_compare: Compare, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], theme: str
) -> None:
    app = dashboard(plan=lambda form: PREVIEW, clock=lambda: CLOCK_NS)
    app.launch_form = LaunchForm(
        models="deepseek-v3.2",
        tp="4",
        concurrency="1, 16",
        settings={"local-argmax": "on"},
        more="--rounds 5 --name '[bold]a b'",
    )

    async def before(pilot: Pilot[None]) -> None:
        app.theme = theme
        await settle(pilot)
        while app.screen.query_one("#plan-preview", Static).render() == "":
            await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=before)


def test_keys(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    app = dashboard([Path("run")], page="timeline", clock=lambda: CLOCK_NS)

    async def before(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press("question_mark")
        await settle(pilot)

    assert snap_compare(app, terminal_size=(100, 40), run_before=before)


@pytest.mark.parametrize("page", ["ranks", "doctor"])
def test_tables(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch, folder: Path, page: str) -> None:
    monkeypatch.chdir(folder)
    app = dashboard([Path("run")], page=page, clock=lambda: CLOCK_NS, ascii_only=True)

    async def before(pilot: Pilot[None]) -> None:
        await settle(pilot)

    assert snap_compare(app, terminal_size=(120, 40), run_before=before)
