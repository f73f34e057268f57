"""How the dashboard answers on large captures: time to first content, table scrolling, timeline panning, and its longest silence.

    python benchmarks/bench_dashboard.py [calls]

A run is written whose report is ready (opening it must not wait for its traces), and a capture of as many collectives as asked for
(default 1,000,000), with as much work beside them, is made up in memory for table and timeline. Times are those of handling a key and
drawing the widget anew. The silence is the longest time for which the event loop answered nothing after a key that goes to a page: the
first visit of each page, later ones, and an empty screen of Textual's own with a footer, which is its floor.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mtpprof.analyzers.compare.call_rows import collective_rows
from mtpprof.analyzers.compare.side import Side, run_side
from mtpprof.analyzers.measures.step_parts import Work
from mtpprof.cli.commands.run import read_options
from mtpprof.cli.tui.app import DashboardApp
from mtpprof.cli.tui.lanes import make_lanes
from mtpprof.cli.tui.plan_preview import preview
from mtpprof.cli.tui.widgets.row_table import Row, RowTable
from mtpprof.cli.tui.widgets.timeline_view import TimelineView
from tests.functional.tui import finished_run
from tests.runs import Recipe

MAX_FIRST_S, MAX_KEY_S, MAX_SILENCE_S = 2.0, 0.1, 0.05
KEYS = 40
BEAT_S = 0.005
VISIT_S = 0.6
"""After a key, what it set going is listened to for this long."""


class Empty(Screen[None]):
    """Nothing but a footer."""

    def compose(self) -> ComposeResult:
        """The footer."""
        yield Footer()


class Listener:
    """Beats in the event loop and notices when a beat comes late."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        last_s = time.perf_counter()
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = time.perf_counter()
            self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s

    async def after(self, action: Callable[[], object]) -> float:
        """The longest silence after an action."""
        self.longest_s = 0.0
        action()
        await asyncio.sleep(VISIT_S)
        return self.longest_s

    def close(self) -> None:
        """Stop."""
        self._task.cancel()


async def silences(app: DashboardApp) -> dict[str, float]:
    """Of the first visits, of later ones, and of an empty screen."""
    listener = Listener()

    async def visit(key: str) -> float:
        return await listener.after(lambda: app.post_message(events.Key(key, key)))

    first, later = [[await visit(key) for key in "1234567"] for _ in range(2)]
    floor = await listener.after(lambda: app.push_screen(Empty()))
    listener.close()
    app.pop_screen()
    return {
        "silence, first visits": max(first),
        "silence, later visits": max(later),
        "silence, empty screen": floor,
    }


def large_side(side: Side, calls: int) -> Side:
    """The same side with its calls repeated end to end."""
    traces = side.traces
    assert traces is not None
    times = -(-calls // len(traces.calls))
    span = int(traces.calls.end_ns.max() - traces.calls.ts_ns.min())
    order = np.tile(np.arange(len(traces.calls)), times)
    shift = np.repeat(np.arange(times, dtype=np.int64), len(traces.calls)) * span
    many = traces.calls.take(order)
    work = tuple(repeated(item, -(-calls // sum(map(len, traces.work))), span) for item in traces.work)
    return replace(side, traces=replace(traces, calls=replace(many, ts_ns=many.ts_ns + shift), work=work))


def repeated(work: Work, times: int, span_ns: int) -> Work:
    """The same work end to end."""
    shift = np.repeat(np.arange(times, dtype=np.int64), len(work)) * span_ns
    return replace(
        work,
        name=np.tile(work.name, times),
        part=np.tile(work.part, times),
        start_ns=np.tile(work.start_ns, times) + shift,
        end_ns=np.tile(work.end_ns, times) + shift,
    )


def drawn(widget: RowTable | TimelineView, action: Callable[[], None]) -> float:
    """Seconds for handling a key and drawing every line of the widget."""
    start_s = time.perf_counter()
    action()
    for y in range(widget.size.height):
        widget.render_line(y)
    return time.perf_counter() - start_s


async def measure(folder: Path, calls: int) -> dict[str, float]:
    """All figures, in seconds."""
    directory = finished_run(folder / "run", Recipe(models=("deepseek-v3.2",), tp=4))
    run = directory.run()
    case = run.cases[0]
    side = large_side(run_side(directory, run, case, case.arms[0]), calls)
    figures: dict[str, float] = {}
    start_s = time.perf_counter()
    app = DashboardApp([directory.root], plan=lambda form: preview(form, read_options))
    async with app.run_test(size=(200, 60)) as pilot:
        while not (
            app.current_mode == "saved"
            and app.screen.query("#arms")
            and app.screen.query_one("#arms", RowTable).rows
        ):
            await asyncio.sleep(0.01)
        figures["first content"] = time.perf_counter() - start_s
        figures |= await silences(app)
        start_s = time.perf_counter()
        lanes = make_lanes(side, "A")
        figures["lanes made (background)"] = time.perf_counter() - start_s
        start_s = time.perf_counter()
        rows = collective_rows(side, None, by_rank=True)
        figures["rows made (background)"] = time.perf_counter() - start_s
        app.go("timeline")
        await pilot.pause(0.5)
        view = app.screen.query_one(TimelineView)
        start_s = time.perf_counter()
        view.show(lanes)
        figures["timeline shown"] = time.perf_counter() - start_s
        view.action_all()
        actions = [
            lambda: view.action_pan(1),
            lambda: view.action_zoom(1),
            lambda: view.action_call(1),
            lambda: view.action_zoom(-1),
        ]
        figures["timeline key"] = max(drawn(view, actions[index % 4]) for index in range(KEYS))
        app.go("collectives")
        await pilot.pause(0.5)
        table = app.screen.query_one("#collectives", RowTable)
        start_s = time.perf_counter()
        table.fill(
            table._columns,
            [Row(table.rows[0].cells, table.rows[0].keys, tag=index) for index in range(100_000)],
        )
        figures["100,000 rows filled"] = time.perf_counter() - start_s
        times = [drawn(table, lambda: table.action_page(1)) for _ in range(KEYS)]
        figures["table key"] = max(times)
        figures["table key, median"] = median(times)
        figures["rows of the capture"] = len(rows)
    return figures


def main() -> int:
    """Print the figures; 1 where one that a person waits for is over its limit."""
    os.environ.setdefault("MTPPROF_CACHE", "0")
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Path(folder), calls))
    for name, value in figures.items():
        print(
            f"{name:28} {value:10.0f}" if name.startswith("rows of") else f"{name:28} {value * 1000:10.1f} ms"
        )
    slow = (
        figures["first content"] > MAX_FIRST_S
        or max(figures["timeline key"], figures["table key"]) > MAX_KEY_S
        or figures["silence, first visits"] > MAX_SILENCE_S
    )
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
