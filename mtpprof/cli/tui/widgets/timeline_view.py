"""Lanes of collectives and of compute over time, with a cursor; drawn out of the lanes' own index, one bisection per column."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mtpprof.analyzers.measures.step_parts import ARGMAX, COMPUTE, COPY, NORM
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.cli.render.units import time_text
from mtpprof.cli.tui import lanes
from mtpprof.cli.tui.lanes import Lane, WorkLane
from mtpprof.cli.tui.text import fitted

LABEL = 9
MAX_LANE_HEIGHT = 3
GLYPHS = {
    lanes.WAIT: "░",
    lanes.TRANSFER: "█",
    lanes.FUSED: "▓",
    lanes.UNSPLIT: "▒",
    COMPUTE: "▄",
    NORM: "n",
    COPY: "c",
    ARGMAX: "a",
    lanes.STEP: "·",
    "": " ",
}
LEGEND = "█ transfer ░ wait ▓ fused ▒ unsplit · none  ▄ comp n norm c copy a argmax"
SPARSE = "╎"
"""Column of which less than a tenth is covered."""
SPARSE_SHARE = 0.1
MIN_SPAN_NS = 200
ZOOM = 2.0


class TimelineView(ScrollView, can_focus=True):
    """The lanes of one step or more."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "cursor(-1)", "Left", show=False, id="timeline.left"),
        Binding("right,l", "cursor(1)", "Right", show=False, id="timeline.right"),
        Binding("up,k", "lane(-1)", "Lane up", show=False, id="timeline.up"),
        Binding("down,j", "lane(1)", "Lane down", show=False, id="timeline.down"),
        Binding("plus,equals_sign,i", "zoom(1)", "Zoom in", key_display="+", id="timeline.in"),
        Binding("minus,o", "zoom(-1)", "Zoom out", key_display="-", id="timeline.out"),
        Binding("shift+left,H", "pan(-1)", "Pan left", show=False, id="timeline.pan_left"),
        Binding("shift+right,L", "pan(1)", "Pan right", show=False, id="timeline.pan_right"),
        Binding("comma", "call(-1)", "Previous call", show=False, id="timeline.previous_call"),
        Binding("full_stop", "call(1)", "Next call", key_display=".", id="timeline.next_call"),
        Binding("p", "step(-1)", "Previous step", show=False, id="timeline.previous_step"),
        Binding("n", "step(1)", "Next step", id="timeline.next_step"),
        Binding("0,home", "fit", "Whole step", id="timeline.fit"),
        Binding("a", "all", "All steps", id="timeline.all"),
        Binding("c", "compute", "Compute", id="timeline.compute"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "timeline--axis",
        "timeline--a",
        "timeline--b",
        "timeline--wait-a",
        "timeline--wait-b",
        "timeline--cursor",
    }
    DEFAULT_CSS = """
    TimelineView { height: 1fr; min-height: 4; overflow-x: hidden; }
    TimelineView .timeline--axis { color: $text-muted; }
    TimelineView .timeline--a { color: $primary; }
    TimelineView .timeline--b { color: $success; }
    TimelineView .timeline--wait-a { color: $warning; }
    TimelineView .timeline--wait-b { color: $warning; }
    TimelineView .timeline--cursor { text-style: reverse bold; }
    """

    class Pointed(Message):
        """The cursor stands elsewhere."""

        def __init__(self, lane: Lane | None, event: int | None) -> None:
            super().__init__()
            self.lane, self.event = lane, event

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._all: list[Lane] = []
        self._lanes: list[Lane] = []
        """Those in sight."""
        self._compute: bool | None = None
        """Whether lanes of compute are shown; None: where all lanes have room."""
        self._step = 0
        self._start_ns = 0.0
        self._span_ns = 1.0
        self._cursor = 0
        self._lane = 0
        self._lane_height = 1
        self._held: int | None = None
        """Column at which the mouse holds the view; None: it does not."""
        self._dragged = False

    @property
    def window_ns(self) -> tuple[float, float]:
        """Start and length of what is in sight, from the start of the step."""
        return self._start_ns, self._span_ns

    @property
    def step(self) -> int:
        """Index of the step in sight."""
        return self._step

    def show(self, found: list[Lane]) -> None:
        """Show other lanes, from their first closed step on."""
        self._all, self._lanes = found, []
        self._step, self._lane, self._cursor = 0, 0, 0
        self._lay_out()
        self.action_fit()

    @property
    def shows_compute(self) -> bool:
        """Whether lanes of compute are in sight."""
        return any(isinstance(lane, WorkLane) for lane in self._lanes)

    def _lay_out(self) -> None:
        """Lanes are as high as there is room, with a blank line between them where they are more than a line."""
        shown = len(self._all) <= self.size.height - 1 if self._compute is None else self._compute
        held = self._lanes[self._lane] if self._lane < len(self._lanes) else None
        self._lanes = [lane for lane in self._all if shown or not isinstance(lane, WorkLane)]
        if held is not None:
            same = (
                i for i, lane in enumerate(self._lanes) if (lane.side, lane.rank) == (held.side, held.rank)
            )
            self._lane = self._lanes.index(held) if held in self._lanes else next(same, 0)
        room = max(1, self.size.height - 1) // max(1, len(self._lanes))
        self._lane_height = room if 1 < room <= MAX_LANE_HEIGHT else MAX_LANE_HEIGHT if room > 1 else 1
        self.virtual_size = Size(self.size.width, len(self._lanes) * self._lane_height + 1)

    @property
    def _columns(self) -> int:
        return max(4, self.size.width - LABEL - 1)

    @property
    def _step_count(self) -> int:
        return max((len(lane.steps) for lane in self._lanes), default=0)

    def _origin(self, lane: Lane) -> int:
        """Where the step begins on a side: at the first of its ranks, so that the ranks of a side stay comparable."""
        starts = [
            int(other.steps[self._step, 0])
            for other in self._lanes
            if other.side == lane.side and len(other.steps) > self._step
        ]
        return min(starts, default=0)

    def _step_length(self) -> float:
        lengths = [
            int(lane.steps[self._step, 1]) - self._origin(lane)
            for lane in self._lanes
            if len(lane.steps) > self._step
        ]
        return float(max(lengths, default=0)) or self._whole()

    def _whole(self) -> float:
        return float(max((int(lane.reach_ns[-1]) for lane in self._lanes if len(lane.reach_ns)), default=1))

    def _edges(self, lane: Lane) -> I64:
        edges = np.linspace(self._start_ns, self._start_ns + self._span_ns, self._columns + 1)
        return (edges + self._origin(lane)).astype(np.int64)

    def render_line(self, y: int) -> Strip:
        """The axis, then a lane a line."""
        width = self.size.width
        if y == 0:
            style = self.get_component_rich_style("timeline--axis")
            return Strip([Segment(fitted(self._axis(), width), style)])
        index, line = divmod(self.scroll_offset.y + y - 1, self._lane_height)
        if not 0 <= index < len(self._lanes):
            return Strip.blank(width, self.rich_style)
        if line == self._lane_height - 1 and line:
            return Strip.blank(width, self.rich_style)
        return (
            self._lane_strip(index, labelled=line == 0)
            .crop(0, width)
            .extend_cell_length(width, self.rich_style)
        )

    def _axis(self) -> str:
        if not self._lanes:
            return ""
        marks = 4
        number = next(
            (lane.numbers[self._step] for lane in self._lanes if len(lane.numbers) > self._step), None
        )
        first = f"step {number}" if number is not None else "time"
        text = fitted(first, LABEL)
        stride = max(10, self._columns // marks)
        for column in range(0, self._columns, stride):
            time_ns = self._start_ns + column * self._span_ns / self._columns
            text = fitted(text, LABEL + column) + f"|{time_text(round(time_ns))}"
        place = (
            LABEL + self._cursor
        )  # the cursor's mark, for eyes and terminals that do not see a reversed cell
        text = fitted(text, LABEL + self._columns)
        return text[:place] + "▼" + text[place + 1 :]

    def _lane_strip(self, index: int, *, labelled: bool) -> Strip:
        lane = self._lanes[index]
        names, share = lane.columns(self._edges(lane))
        mine = index == self._lane
        rank = f"{lane.side} r{lane.rank if lane.rank >= 0 else '?'}"
        label = f"{'▶' if mine else ' '}{'  comp' if isinstance(lane, WorkLane) else rank}"
        letter = lane.side.lower()
        segments = [Segment(fitted(label if labelled else "", LABEL), self.rich_style)]
        plain = self.get_component_rich_style(f"timeline--{letter}")
        waiting = self.get_component_rich_style(f"timeline--wait-{letter}")
        cursor = self.get_component_rich_style("timeline--cursor")
        cells = []
        for column, name in enumerate(names.tolist()):
            sparse = name in lane.order and share[column] < SPARSE_SHARE
            style = waiting if name == lanes.WAIT else plain
            cells.append(
                (SPARSE if sparse else GLYPHS[name], cursor if mine and column == self._cursor else style)
            )
        # Neighbours of one style are one segment: a terminal is sent a tenth of the bytes.
        segments += [
            Segment("".join(glyph for glyph, _ in run), style)
            for style, run in groupby(cells, key=itemgetter(1))
        ]
        return Strip(segments)

    def _changed(self) -> None:
        self._cursor = max(0, min(self._cursor, self._columns - 1))
        self._span_ns = max(float(MIN_SPAN_NS), self._span_ns)
        self.refresh()
        if not self._lanes:
            self.post_message(self.Pointed(None, None))
            return
        self._lane = max(0, min(self._lane, len(self._lanes) - 1))
        lane = self._lanes[self._lane]
        edges = self._edges(lane)
        event = lane.event_in(int(edges[self._cursor]), int(edges[self._cursor + 1]))
        self.post_message(self.Pointed(lane, event))

    def _time_at(self, column: int) -> float:
        return self._start_ns + (column + 0.5) * self._span_ns / self._columns

    def action_cursor(self, columns: int) -> None:
        """Move the cursor; at the edge the view moves."""
        target = self._cursor + columns
        if not 0 <= target < self._columns:
            self._start_ns += columns * self._span_ns / 8
            target = max(0, min(target, self._columns - 1))
        self._cursor = target
        self._changed()

    def action_lane(self, lanes_down: int) -> None:
        """Move the cursor to another lane."""
        self._lane = max(0, min(self._lane + lanes_down, len(self._lanes) - 1))
        top, height = self.scroll_offset.y, max(1, self.size.height - 1)
        first, last = self._lane * self._lane_height, (self._lane + 1) * self._lane_height - 1
        if first < top:
            self.scroll_to(y=first, animate=False, immediate=True)
        elif last >= top + height:
            self.scroll_to(y=last - height + 1, animate=False, immediate=True)
        self._changed()

    def action_zoom(self, direction: int) -> None:
        """Zoom around the cursor."""
        self._zoom_at(self._cursor, direction)

    def _zoom_at(self, column: int, direction: int) -> None:
        time_ns = self._time_at(column)
        factor = 1 / ZOOM if direction > 0 else ZOOM
        span = min(max(self._span_ns * factor, float(MIN_SPAN_NS)), 4 * max(self._whole(), 1.0))
        self._start_ns = time_ns - (column + 0.5) * span / self._columns
        self._span_ns = span
        self._changed()

    def action_pan(self, direction: int) -> None:
        """Move the view by a quarter."""
        self._start_ns += direction * self._span_ns / 4
        self._changed()

    def action_call(self, direction: int) -> None:
        """Put the cursor on the next event of the lane, moving the view where it is out of sight."""
        if not self._lanes:
            return
        lane = self._lanes[self._lane]
        edges = self._edges(lane)
        time_ns = int(edges[self._cursor + 1]) - 1 if direction > 0 else int(edges[self._cursor])
        index = lane.neighbour(time_ns, direction)
        if index is None:
            return
        start = float(lane.start_ns[index] - self._origin(lane))
        if not self._start_ns <= start < self._start_ns + self._span_ns:
            self._start_ns = start - self._span_ns / 2
        self._cursor = int((start - self._start_ns) * self._columns / self._span_ns)
        self._changed()

    def action_step(self, direction: int) -> None:
        """Show another step at the same zoom."""
        self._step = max(0, min(self._step + direction, self._step_count - 1))
        self._changed()

    def action_fit(self) -> None:
        """Show the whole step."""
        self._start_ns, self._span_ns = 0.0, self._step_length() * 1.02
        self._changed()

    def action_all(self) -> None:
        """Show all steps."""
        self._step = 0
        self._start_ns, self._span_ns = 0.0, self._whole() * 1.02
        self._changed()

    def action_compute(self) -> None:
        """Show or hide what the ranks compute."""
        self._compute = not self.shows_compute
        self._lay_out()
        self._changed()

    def on_resize(self, event: events.Resize) -> None:
        """Columns are others now, times are not."""
        self._lay_out()
        self._changed()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Take hold of the view."""
        if event.button == 1 and self._lanes:
            self._held = event.x
            self._dragged = False
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """What is held moves with the mouse."""
        if self._held is None or event.x == self._held:
            return
        self._start_ns -= (event.x - self._held) * self._span_ns / self._columns
        self._held, self._dragged = event.x, True
        self._changed()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Let go."""
        self._held = None
        self.release_mouse()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is; where it let go after moving the view, leave it."""
        if self._dragged:
            return
        offset = event.get_content_offset(self)
        if offset is None or offset.y == 0 or not self._lanes:
            return
        line = self.scroll_offset.y + offset.y - 1
        self._lane = max(0, min(line // self._lane_height, len(self._lanes) - 1))
        self._cursor = offset.x - LABEL
        self._changed()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out under the mouse; with shift, pan."""
        self._wheel(event, -1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in under the mouse; with shift, pan."""
        self._wheel(event, 1)

    def _wheel(self, event: events.MouseEvent, direction: int) -> None:
        event.stop()
        event.prevent_default()
        if event.shift or event.ctrl:
            self.action_pan(-direction)
        else:
            self._zoom_at(max(0, min(event.x - LABEL, self._columns - 1)), direction)
