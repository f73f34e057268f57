"""What all pages share: the heading with the pages' names, the line with the chosen case and arms, the footer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Static

from mtpprof.cli.render.escapes import printable
from mtpprof.cli.tui.text import fitted

if TYPE_CHECKING:
    from mtpprof.cli.tui.shell import Shell
    from mtpprof.cli.tui.store import Store

PAGES = {
    "launch": "Launch",
    "live": "Live",
    "saved": "Saved",
    "collectives": "Collectives",
    "timeline": "Timeline",
    "ranks": "Ranks",
    "doctor": "Doctor",
}
"""Pages in the order of their keys, 1 to 7."""


class Page(Screen[None]):
    """A page of the dashboard."""

    NAME: ClassVar[str] = ""
    NEEDS_SIDES: ClassVar[bool] = False
    """Whether the page shows traces of the chosen arms."""
    SHOWS_CASE: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right_square_bracket", "case(1)", "Case", key_display="]", id="page.next_case"),
        Binding("left_square_bracket", "case(-1)", "Previous case", show=False, id="page.previous_case"),
        Binding("b", "arm_b", "Arm B", id="page.arm_b"),
        Binding("B", "arm_a", "Arm A", show=False, id="page.arm_a"),
        Binding("escape", "leave_field", "Leave the field", show=False, id="page.leave"),
    ]

    def __init__(self) -> None:
        super().__init__()
        # A page is styled as it is mounted. Textual takes one that it has not seen for one whose theme has changed, and would parse all
        # style sheets anew and style the page before it once more, twice, on the first visit of each.
        self._css_update_count = self.app._css_update_count

    @property
    def dashboard(self) -> Shell:
        """The app."""
        return cast("Shell", self.app)

    @property
    def store(self) -> Store:
        """What there is to show."""
        return self.dashboard.store

    def compose(self) -> ComposeResult:
        """Heading, body, footer."""
        yield Static(id="heading", markup=False)
        yield Static(id="tabs", markup=False)
        if self.SHOWS_CASE:
            yield Static(id="case-line", markup=False)
        yield Static(id="verdict", markup=False)
        yield from self.body()
        yield Footer(compact=True, show_command_palette=False)

    def body(self) -> Iterable[Widget]:
        """The page's own widgets, below the heading."""
        return ()

    def show(self) -> None:
        """Bring the page's own widgets up to date; for widgets that bring themselves up to date there is nothing to do."""

    def on_mount(self) -> None:
        """Show what there is."""
        self.refresh_page()

    async def on_screen_resume(self) -> None:
        """What there is may have changed while another page was on top."""
        self.refresh_page()
        # Textual has just styled the whole page, and will lay it out and draw it: whatever else waits gets its turn in between.
        await asyncio.sleep(0)

    def on_resize(self) -> None:
        """Texts are made for a width."""
        self.refresh_page()

    def refresh_page(self) -> None:
        """Bring everything up to date."""
        if not self.is_mounted or not self.query("#heading"):
            return
        if self.NEEDS_SIDES:
            self.call_after_refresh(
                self._read_sides
            )  # what reads takes turns away from a page that is being drawn
        width = max(1, self.size.width)
        self.query_one("#heading", Static).update(Text(fitted(self.dashboard.heading(), width)))
        self.query_one("#tabs", Static).update(tabs_text(self.NAME, width))
        if self.SHOWS_CASE:
            self.query_one("#case-line", Static).update(Text(fitted(self._case_line(), width)))
        verdict = self.query_one("#verdict", Static)
        banner = self.store.banner if self.SHOWS_CASE else self.store.verdict or ""
        verdict.update(Text(printable(banner)))
        verdict.display = bool(banner)
        self.show()

    def _read_sides(self) -> None:
        if self.dashboard.read_sides():
            self.refresh_page()

    def _case_line(self) -> str:
        return self._case_text(self.store.a, self.store.b)

    def _case_text(self, a: str | None, b: str | None) -> str:
        store = self.store
        if store.case is None:
            return ""
        count = len(store.cases)
        place = f"case {store.case_index % count + 1}/{count} " if count > 1 else ""
        sides = f"  A {a}" + (f"  B {b}" if b else "") if a else ""
        return f"{place}{store.case.title}{sides}"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Pages without a case do not offer to change it."""
        return self.SHOWS_CASE or action not in ("case", "arm_a", "arm_b")

    def action_case(self, direction: int) -> None:
        """Choose another case."""
        self.dashboard.choose_case(direction)

    def action_arm_b(self) -> None:
        """Choose another arm for side B."""
        self.dashboard.choose_arms(b=1)

    def action_arm_a(self) -> None:
        """Choose another arm for side A."""
        self.dashboard.choose_arms(a=1)

    def action_leave_field(self) -> None:
        """Give the keys back to the page."""
        self.set_focus(None)


def tabs_text(current: str, width: int) -> Text:
    """`1 Launch  2 Live [3 Saved] …`; on narrow terminals the others are numbers only."""
    full = [
        f"[{key} {label}]" if name == current else f" {key} {label} " for key, (name, label) in _numbered()
    ]
    line = "".join(full)
    if len(line) > width:
        line = "".join(
            f"[{key} {label}]" if name == current else f" {key} " for key, (name, label) in _numbered()
        )
    text = Text(fitted(line, width))
    start = line.find("[")
    if start >= 0:
        text.stylize("bold reverse", start, line.find("]") + 1)
    return text


def _numbered() -> list[tuple[int, tuple[str, str]]]:
    return list(enumerate(PAGES.items(), 1))
