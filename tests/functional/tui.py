"""Driving the dashboard in tests: settling, reading the screen as text."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from mtpprof.analyzers.answers.run_report import make_report
from mtpprof.cli.commands.run import read_options
from mtpprof.cli.tui.app import DashboardApp
from mtpprof.cli.tui.plan_preview import preview
from mtpprof.cli.tui.widgets.row_table import RowTable
from mtpprof.rundir.directory import REPORT_FILE, RunDirectory
from tests.runs import BASE_NS, Recipe, write_run

HOSTILE = "[/bold]op[b\x1b[31m\u202eevil🔥[link=x"
"""Markup, an escape sequence, a right-to-left override, an emoji, an unterminated tag."""
CLOCK_NS = BASE_NS + 90 * 10**9


def dashboard(paths: Sequence[Path] = (), **options: Any) -> DashboardApp:
    """The app as the command starts it."""
    options.setdefault("plan", lambda form: preview(form, read_options))
    return DashboardApp(paths, **options)


def finished_run(root: Path, recipe: Recipe | None = None, *, events: bool = True) -> RunDirectory:
    """A finished run with its events and its report."""
    directory = write_run(root, recipe or Recipe())
    if events:
        write_events(directory)
    directory.write(root / REPORT_FILE, make_report(directory))
    return directory


def write_events(directory: RunDirectory, *, until: int | None = None) -> None:
    """The events that a run's engine would have written, at fixed times; `until`: only so many windows finished."""
    run = directory.run()
    lines: list[dict[str, object]] = [
        {"event": "workers_ready", "ranks": run.cases[0].tp, "transport": "shm"}
    ]
    windows: list[list[dict[str, object]]] = []
    for case in run.cases:
        for number, names in enumerate(case.order):
            for name in names:
                timing = directory.timing(case.id, name)
                assert timing is not None
                steps = [max(ranks) for ranks in zip(*timing.rounds[number].step_ns, strict=True)]
                fields: dict[str, object] = {"case": case.id, "arm": name, "round": number}
                windows.append(
                    [
                        {"event": "visit_started", **fields},
                        *(
                            {"event": "rank", "rank": rank, "doing": f"{case.id}/{name}: round {number}"}
                            for rank in range(case.tp)
                        ),
                        {"event": "visit_finished", "step_ns": steps, **fields},
                    ]
                )
        for arm in case.arms:
            if arm.repeats is None:
                fields = {"case": case.id, "arm": arm.name}
                windows.append(
                    [{"event": "profile_started", **fields}, {"event": "profile_finished", **fields}]
                )
    for index, window in enumerate(windows):
        if until is None or index < until:
            lines += window
        elif index == until:
            lines += window[:-1]
    text = "".join(
        json.dumps({"t_ns": BASE_NS + place * 10**8, **line}) + "\n" for place, line in enumerate(lines)
    )
    (directory.root / "events.jsonl").write_text(text)


def with_name(source: Path, target: Path, find: str, name: str) -> Path:
    """A copy of a run in which a text of its records, reports and traces is a hostile one."""
    shutil.copytree(source, target)
    spelled = json.dumps(name)[1:-1]
    for path in target.rglob("*.json*"):
        if path.name.endswith(".gz"):
            text = gzip.decompress(path.read_bytes()).decode()
            path.write_bytes(gzip.compress(text.replace(find, spelled).encode(), 1, mtime=0))
        else:
            path.write_text(path.read_text().replace(find, spelled))
    return target


async def settle(pilot: Pilot[None]) -> None:
    """Wait until nothing is being read or computed and all messages are handled."""
    app = pilot.app
    assert isinstance(app, DashboardApp)
    quiet = 0
    for _ in range(1500):
        await pilot.pause(0.02)
        read = app.store.record is not None or app.store.directory is None
        quiet = quiet + 1 if read and not app.background.busy else 0
        if quiet == 3:
            break
    await pilot.pause()


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys and settle."""
    await pilot.press(*keys)
    await settle(pilot)


def screen_text(app: DashboardApp) -> str:
    """What the screen shows, line by line."""
    strips = app.screen._compositor.render_strips()
    lines = []
    for strip in strips:
        segments = list(strip)
        for line_filter in app.get_line_filters():
            segments = line_filter.apply(segments, app.screen.background_colors[1])
        lines.append("".join(segment.text for segment in segments).rstrip())
    return "\n".join(lines)


def text_of(app: DashboardApp, selector: str) -> str:
    """Text of one Static of the page."""
    return str(app.screen.query_one(selector, Static).render())


def cells(app: DashboardApp, selector: str) -> list[tuple[str, ...]]:
    """Cells of a table of the page."""
    return [row.cells for row in app.screen.query_one(selector, RowTable).rows]


def words(text: str) -> str:
    """`text` with every stretch of blanks as one."""
    return re.sub(r"\s+", " ", text)
