"""Live: cases × arms × rounds with their state, first results, what each rank does, and the engine's log in a pane of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Static

from mtpprof.analyzers.live.run_state import PROFILE, SoFar, remaining_s, so_far, total_windows
from mtpprof.analyzers.numeric.stats import Claim
from mtpprof.cli.render.savings import interval_text
from mtpprof.cli.render.units import UNKNOWN, bytes_text, count_text, elapsed_text, time_text
from mtpprof.cli.tui.screens.page import Page
from mtpprof.cli.tui.sources import Traffic, case_title
from mtpprof.cli.tui.store import QUIET_S
from mtpprof.cli.tui.text import safe, sparkline
from mtpprof.cli.tui.widgets.log_pane import LogPane
from mtpprof.cli.tui.widgets.row_table import Column, Row, RowTable
from mtpprof.rundir.records import ArmRecord, CaseRecord

GLYPHS = {"waiting": "·", "running": "▶", "done": "✓"}
SPARK = 14
COLUMNS = (
    Column("arm"),
    Column("rounds"),
    Column("step", right=True, priority=1),
    Column("vs baseline", right=True, priority=3),
    Column("so far", priority=2),
    Column("step times", priority=4),
    Column("calls", priority=5),
    Column("payload", right=True, priority=6),
)
"""Calls and payload of one step on one rank."""


class LivePage(Page):
    """The page."""

    NAME = "live"
    SHOWS_CASE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "app.stop_run", "Stop", id="live.stop"),
        Binding("c", "app.resume_run", "Resume", id="live.resume"),
    ]

    def body(self) -> Iterable[Widget]:
        """Progress, grid, ranks, log."""
        yield Static(id="progress", markup=False)
        yield RowTable(id="grid", empty="No run is open: start one on Launch (1).")
        with Horizontal(id="live-lower"):
            yield RowTable(id="rank-states", empty="No rank has said anything yet.")
            yield LogPane(id="log")

    def show(self) -> None:
        """Draw the state of the run."""
        store = self.store
        self.query_one("#progress", Static).update(safe(self.progress_text()))
        rows: list[Row] = []
        for case in store.record.cases if store.record else []:
            rows.append(Row((case_title(case), *[""] * (len(COLUMNS) - 1)), tag=(case.id, ""), heading=True))
            rows += [self._row(case, arm) for arm in case.arms]
        self.query_one("#grid", RowTable).fill(COLUMNS, rows)
        now = self.dashboard.now_ns()
        finished = store.record is not None and store.record.status != "running"
        ranks = [
            Row(
                (
                    str(rank),
                    "-" if finished else time_since(now - state.since_ns),
                    state.doing.rpartition("/")[2],
                ),
                tag=rank,
            )
            for rank, state in sorted(store.live.ranks.items())
        ]
        columns = (Column("rank", right=True), Column("for", right=True), Column("last said"))
        self.query_one("#rank-states", RowTable).fill(columns, ranks)
        self.query_one("#log", LogPane).follow(list(store.log), store.log_count)

    def progress_text(self) -> str:
        """Windows done, elapsed, remaining; and what failed."""
        store, live = self.store, self.store.live
        if store.record is None:
            return self.dashboard.starting_text()
        now = self.dashboard.now_ns()
        total = total_windows(store.record)
        parts = [f"{live.done}/{total} windows"]
        end = now if store.running else live.last_ns
        if live.first_ns is not None and end is not None:
            parts.append(f"elapsed {elapsed_text((end - live.first_ns) / 1e9)}")
        if store.running:
            left = remaining_s(live, store.record, live.last_ns or now)
            parts.append(
                f"about {elapsed_text(left)} left" if left is not None else "time left not known yet"
            )
            quiet_s = (now - live.last_ns) / 1e9 if live.last_ns else 0
            if quiet_s > QUIET_S:
                parts.append(f"nothing heard for {elapsed_text(quiet_s)}: it may hang")
        else:
            parts.append(store.record.status)
        text = "  ".join(parts)
        reasons = [*live.failures, *filter(None, [live.damage, store.record.error])]
        return text + "".join(f"\n! {reason}" for reason in dict.fromkeys(reasons))

    def _row(self, case: CaseRecord, arm: ArmRecord) -> Row:
        live = self.store.live
        ended = self.store.record is not None and self.store.record.status != "running"
        # Of a run that has ended, a window may be finished that damaged events do not tell of.
        glyphs = {**GLYPHS, "waiting": "?"} if live.damage and ended else GLYPHS
        rounds = "".join(
            glyphs[live.cell(case.id, arm.name, number).state] for number in range(len(case.order))
        )
        if arm.repeats is None:
            rounds += f" P{glyphs[live.cell(case.id, arm.name, PROFILE).state]}"
        figures = so_far(live, case, arm.name)
        return Row(
            (
                f"  {arm.name}",
                rounds,
                time_text(round(figures.mean_ns)) if figures.mean_ns is not None else "",
                interval_text(figures.difference) if figures.difference else "",
                _claim(figures),
                sparkline(figures.step_ns, SPARK),
                *traffic_cells(self.store.traffic.get((case.id, arm.name))),
            ),
            tag=(case.id, arm.name),
        )

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """Enter on an arm goes to what it saved."""
        if event.table.id == "grid" and isinstance(event.row.tag, tuple):
            case, arm = event.row.tag
            self.dashboard.open_arm(str(case), str(arm))


def _claim(figures: SoFar) -> str:
    """What step times alone say: whether anything engaged, without which nothing was saved, the traces tell after the rounds."""
    if figures.judgement is None or figures.judgement.claim == Claim.UNKNOWN:
        return ""
    return "faster" if figures.judgement.claim == Claim.SAVED else str(figures.judgement.claim)


def traffic_cells(traffic: Traffic | None) -> tuple[str, str]:
    """Calls and payload of a step with where they are known from: the ledger, until the profiled window was seen."""
    if traffic is None:
        return "", ""
    seen, expected = traffic.seen, traffic.expected
    figures = seen or expected
    if figures is None:
        return UNKNOWN, UNKNOWN
    calls, payload = count_text(figures.calls), bytes_text(figures.payload_bytes)
    if seen is None:
        return f"{calls} expected", payload
    if expected is None:
        return f"{calls} seen", payload
    if seen.payload_bytes != expected.payload_bytes:
        payload += f", {bytes_text(expected.payload_bytes)} expected!"
    if seen.calls != expected.calls:
        return f"{calls} seen, {count_text(expected.calls)} expected!", payload
    return f"{calls} seen, ok", payload


def time_since(span_ns: int) -> str:
    """`12 s`; nothing for the future of a clock that differs."""
    return f"{max(0, span_ns) // 10**9} s"
