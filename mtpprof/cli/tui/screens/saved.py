"""Saved: per optimization the rungs of the answer in the order in which they can be trusted, the waterfall as bars, the effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from mtpprof.analyzers.compare.difference import Difference
from mtpprof.analyzers.compare.waterfall import REST, Waterfall, drawn
from mtpprof.analyzers.measures.step_parts import MEANING
from mtpprof.cli.render.savings import (
    change_row,
    effect_notes,
    effects_table,
    engaged_text,
    kernels_text,
    memory_text,
    merged_drafts,
    noise_text,
    output_sentence,
    output_text,
    step_text,
    verdict_text,
)
from mtpprof.cli.render.units import bytes_text, count_text, signed, time_text
from mtpprof.cli.tui.screens.page import Page
from mtpprof.cli.tui.text import bar, fitted, safe
from mtpprof.cli.tui.widgets.row_table import Column, Row, RowTable

ARM_COLUMNS = (
    Column("arm"),
    Column("engaged", priority=1),
    Column("calls", right=True, priority=4),
    Column("payload", right=True, priority=5),
    Column("wire", right=True, priority=6),
    Column("step time", right=True, priority=3),
    Column("verdict", priority=2),
    Column("output", priority=7),
)
COLLECTIVE_PARTS = {
    "transfer": "",
    "wait": "",
    "collective": "",
    "fused collective": "rmsnorm",
    "argmax": "lm_head",
}
"""Filter of the collectives page that belongs to a part of the waterfall; parts that are no collectives have none."""


class SavedPage(Page):
    """The page."""

    NAME = "saved"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "app.analyze", "Analyze again", id="saved.analyze"),
        Binding("T", "per_token", "Per token", show=False, id="saved.per_token"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._per_token = False

    def body(self) -> Iterable[Widget]:
        """Arms, rungs, bars, effects, notes."""
        yield RowTable(id="arms")
        with VerticalScroll(id="saved-detail"):
            yield Static(id="rungs", markup=False)
            yield Static(id="bars-title", markup=False)
            yield RowTable(id="bars")
            yield Static(id="effects-title", markup=False)
            yield RowTable(id="effects")
            yield Static(id="notes", markup=False)

    def show(self) -> None:
        """Draw the answer."""
        store = self.store
        rows = [
            Row(
                (
                    difference.arm,
                    engaged_text(difference),
                    signed(count_text(difference.calls)),
                    signed(bytes_text(difference.payload_bytes)),
                    signed(bytes_text(difference.wire_bytes)),
                    step_text(difference.step),
                    verdict_text(difference.step),
                    output_text(difference.output),
                ),
                (
                    difference.arm,
                    engaged_text(difference),
                    difference.calls,
                    difference.payload_bytes,
                    difference.wire_bytes,
                    difference.step_ns,
                    verdict_text(difference.step),
                    output_text(difference.output),
                ),
                tag=difference,
            )
            for difference in store.differences
        ]
        self.query_one("#arms", RowTable).fill(ARM_COLUMNS, rows, empty=self._empty())
        table = self.query_one("#arms", RowTable)
        table.styles.height = min(max(2, len(rows) + 1), max(3, self.size.height // 3))
        place = next(
            (
                i
                for i, row in enumerate(table.rows)
                if isinstance(row.tag, Difference) and row.tag.arm == store.b
            ),
            None,
        )
        if place is not None and table.current is not table.rows[place]:
            table.select(place)
        self._show_detail()

    def _case_line(self) -> str:
        """The page holds every arm against the baseline, whatever the sides of the other pages are."""
        difference = self.chosen if self.store.differences else None
        if difference is None:
            return super()._case_line()
        return self._case_text(difference.base, difference.arm)

    def refresh_page(self) -> None:
        """The heading says what the rows are of, so it is written after them."""
        super().refresh_page()
        if self.is_mounted and self.query("#case-line"):
            self._head()

    def _head(self) -> None:
        line = fitted(self._case_line(), max(1, self.size.width)).rstrip()
        self.query_one("#case-line", Static).update(safe(line))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Side A is the baseline here."""
        return action != "arm_a" and super().check_action(action, parameters)

    def action_arm_b(self) -> None:
        """The next arm that is held against the baseline."""
        table = self.query_one("#arms", RowTable)
        tags = [row.tag for row in table.rows]
        if self.chosen in tags:
            table.select((tags.index(self.chosen) + 1) % len(tags))

    def _empty(self) -> str:
        store = self.store
        if store.answer_state:
            return store.answer_state
        if store.running:
            return "The run is in progress: step times so far are on Live (2); r analyzes what is finished."
        if store.answer is not None:
            return "Nothing to compare: this case has one arm."
        return "No answer yet."

    @property
    def chosen(self) -> Difference | None:
        """The difference that the details are of."""
        row = self.query_one("#arms", RowTable).current
        return row.tag if row is not None and isinstance(row.tag, Difference) else None

    def _show_detail(self) -> None:
        difference = self.chosen
        for name in ("#rungs", "#bars-title", "#bars", "#effects-title", "#effects"):
            self.query_one(name).display = difference is not None
        self.query_one("#notes", Static).update(safe("\n".join(self._notes(difference))))
        if difference is None:
            return
        self.query_one("#rungs", Static).update(safe("\n".join(rungs(difference))))
        fall = difference.waterfall_per_token if self._per_token else difference.waterfall
        title = (
            f"Where the time of {_article(fall.unit)} {fall.unit} went, by {fall.basis}"
            if fall
            else "No waterfall"
        )
        why = "" if fall else f": {difference.no_waterfall or 'tokens per step are not known'}."
        self.query_one("#bars-title", Static).update(safe(title + why))
        bars = self.query_one("#bars", RowTable)
        bars.display = fall is not None
        if fall is not None:
            width = max(10, min(100, self.size.width - 60))
            bars.fill(BAR_COLUMNS, bar_rows(fall, width))
            bars.styles.height = len(bars.rows) + 1
        effects = self.query_one("#effects", RowTable)
        effects.fill_table(effects_table("", self.store.effects))
        effects.styles.height = len(effects.rows) + 1
        effects.display = bool(self.store.effects)
        heading = ["Each optimization by itself, from all arms", *effect_notes(self.store.effects)]
        self.query_one("#effects-title", Static).update(
            safe("\n".join(heading) if self.store.effects else "")
        )

    def _notes(self, difference: Difference | None) -> Iterator[str]:
        if difference is not None:
            for change in merged_drafts(difference.changes):
                if change.what != "moved":
                    yield "change: " + "  ".join(cell.strip() for cell in change_row(change) if cell.strip())
            for caveat in difference.caveats:
                yield f"! {caveat}"
        if self.store.record is not None and self.store.record.deviations:
            yield "! The engine runs something else than was asked for: Doctor (7) tells what."
        for note in self.store.answer.notes if self.store.answer else []:
            yield f"! {note}"
        if self.store.case is not None:
            for name, reason in self.store.case.not_applicable.items():
                yield f"not applicable: {name} ({reason})"

    def action_per_token(self) -> None:
        """Bars per step, or per accepted token."""
        self._per_token = not self._per_token
        self._show_detail()

    def on_row_table_moved(self, event: RowTable.Moved) -> None:
        """Details follow the cursor."""
        if event.table.id == "arms" and isinstance(event.row.tag, Difference):
            self.store.choose_arm(event.row.tag.arm)
            self._head()
            self._show_detail()

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """Enter on an arm goes to its bars, on a bar to the collectives behind it."""
        if event.table.id == "arms":
            self.query_one("#bars").focus()
        elif event.table.id == "bars" and isinstance(event.row.tag, str):
            words = COLLECTIVE_PARTS.get(event.row.tag)
            if words is None:
                self.notify(
                    f"{event.row.tag}: {MEANING.get(event.row.tag, 'no part of the trace')}; no collective is behind it.",
                    markup=False,
                )
            else:
                self.dashboard.open_collectives(words)


BAR_COLUMNS = (
    Column("part"),
    Column("A", right=True, priority=1),
    Column("change", right=True),
    Column("█ more  ░ less", widest=200),
)


def _article(noun: str) -> str:
    return "an" if noun[:1] in "aeiou" else "a"


def rungs(difference: Difference) -> Iterator[str]:
    """The six rungs, one line each."""
    engaged = [
        f"{name} {found.verdict} ({found.reason})"
        for name, found in difference.engagement.items()
        if name in difference.optimizations
    ]
    step = difference.step
    yield f"1 Engaged?      {'; '.join(engaged) or engaged_text(difference)}"
    yield (
        f"2 Calls         {signed(count_text(difference.calls))} per step and rank; beside them {kernels_text(difference)}"
    )
    yield (
        f"3 Bytes         payload {signed(bytes_text(difference.payload_bytes))}, "
        f"wire {signed(bytes_text(difference.wire_bytes))}; memory traffic of kernels {memory_text(difference)}"
    )
    times = f"step {time_text(step.base_ns)} to {time_text(step.arm_ns)}: {step_text(step)}"
    yield f"4 Time          {times}; in collectives {signed(time_text(difference.collective_ns))}"
    noise = f" {noise_text(step.noise, paired=step.paired)}" if step.noise else ""
    yield f"5 Above noise?  {verdict_text(step)}: {step.reason}.{noise}"
    yield f"6 Same output?  {output_sentence(difference.output)}"


def bar_rows(fall: Waterfall, width: int) -> list[Row]:
    """The waterfall as rows; start and end are full bars, and the scale shows the part in which something changes."""
    lines = drawn(fall)
    levels = [
        fall.start_ns,
        fall.end_ns,
        *(level for line in lines for level in (line.before_ns, line.after_ns)),
    ]
    spread = max(levels) - min(levels)
    low = max(0, min(levels) - spread // 4) if spread else 0
    high = max(levels) + spread // 8 or 1
    base = {part.name: part.base_ns for part in fall.parts}
    rows = [
        Row((f"{fall.unit} before", time_text(fall.start_ns), "", bar(low, fall.start_ns, low, high, width)))
    ]
    rows += [
        Row(
            (
                line.name,
                "" if line.name == REST else time_text(base.get(line.name)),
                signed(time_text(line.delta_ns)),
                bar(line.before_ns, line.after_ns, low, high, width),
            ),
            tag=line.name,
        )
        for line in lines
    ]
    rows.append(
        Row((f"{fall.unit} after", time_text(fall.end_ns), "", bar(low, fall.end_ns, low, high, width)))
    )
    return rows
