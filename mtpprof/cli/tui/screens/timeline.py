"""Timeline: what the ranks exchange and compute in one step, baseline above optimized, with what is under the cursor described."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Static

from mtpprof.analyzers.compare.side import Side
from mtpprof.analyzers.measures.step_parts import COUNTED, MEANING
from mtpprof.cli.render.units import bytes_text, time_text
from mtpprof.cli.tui.lanes import CallFacts, CallLane, Lane, WorkLane, make_lanes
from mtpprof.cli.tui.screens.page import Page
from mtpprof.cli.tui.text import safe
from mtpprof.cli.tui.widgets.timeline_view import LEGEND, TimelineView

LONGEST_NAME = 160
"""Names of kernels with all their template arguments would fill the screen."""


class TimelinePage(Page):
    """The page."""

    NAME = "timeline"
    NEEDS_SIDES = True

    def __init__(self) -> None:
        super().__init__()
        self._made_of: tuple[Side | None, Side | None] | None = None
        self._empty = True
        """Whether there is no lane."""

    def body(self) -> Iterable[Widget]:
        """Legend, lanes, description."""
        yield Static(id="legend", markup=False)
        yield TimelineView(id="timeline")
        yield Static(id="call-line", markup=False)

    def show(self) -> None:
        """Draw the lanes of both sides; they are made in the background."""
        store = self.store
        wanted = (store.side(store.a), store.side(store.b))
        self.query_one("#legend", Static).update(safe(LEGEND))
        if self._made_of is None or any(x is not y for x, y in zip(wanted, self._made_of, strict=True)):
            self._made_of = wanted
            a, b = wanted
            self.dashboard.background.start(
                "lanes", lambda: _lanes(a, b), self._take, self.dashboard.complain
            )
        if self._empty:
            self.query_one("#call-line", Static).update(safe(self._nothing()))

    def _take(self, found: list[Lane]) -> None:
        self.query_one(TimelineView).show(found)

    def on_timeline_view_pointed(self, event: TimelineView.Pointed) -> None:
        """Describe what the cursor is on; which side is not drawn the banner says."""
        self._empty = event.lane is None
        text = self._nothing() if event.lane is None else describe(event.lane, event.event)
        self.query_one("#call-line", Static).update(safe(text))

    def _nothing(self) -> str:
        if self.store.missing_sides:
            return "; ".join(self.store.missing_sides)
        return "Reading the traces…" if self.dashboard.background.busy else "There is no trace to draw."


def _lanes(a: Side | None, b: Side | None) -> list[Lane]:
    return [
        *(make_lanes(a, "A") if a is not None else []),
        *(make_lanes(b, "B") if b is not None and b is not a else []),
    ]


def describe(lane: Lane, event: int | None) -> str:
    """What is under the cursor, in two lines."""
    who = f"{lane.side} ({lane.arm}) rank {lane.rank if lane.rank >= 0 else '?'}"
    if isinstance(lane, WorkLane):
        return f"{who}: {_work_text(lane, event)}"
    if event is None or not isinstance(lane, CallLane):
        return f"{who}: no collective under the cursor; . and , go to the next and the previous one."
    return f"{who}: {_call_text(lane.facts(event))}"


def _work_text(lane: WorkLane, event: int | None) -> str:
    what = "kernel" if lane.on_device else "operation"
    if event is None:
        return f"no {what} under the cursor; . and , go to the next and the previous one."
    start, end = lane.start_ns[event : event + 1], lane.end_ns[event : event + 1]
    beside = int(lane.beside.within(start, end)[0])
    part = COUNTED[int(lane.part[event])]
    name = lane.names[int(lane.name[event])]
    name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    text = f"{what} {name}\n{time_text(int(end[0] - start[0]))}: {part} ({MEANING[part]})"
    return text + (f"; {time_text(beside)} of it beside a collective of this rank" if beside else "")


def _call_text(call: CallFacts) -> str:
    fused = f" fused with {call.fused}" if call.fused else ""
    first = (
        f"{call.kind}{fused} [{call.shape or '?'}] {call.dtype or '?'} by {call.implementation or '?'} "
        f"in {call.phase or '?'} at {call.site or '?'}"
    )
    split = (
        "waiting not known"
        if call.wait_ns is None
        else f"waited {time_text(call.wait_ns)} for the last rank, then {time_text(call.transfer_ns)}"
    )
    size = f"payload {bytes_text(call.payload_bytes)} ({call.provenance})"
    return f"{first}\n{time_text(call.dur_ns)}: {split}; {size}"
