"""What pages and the loader use of the app that they are part of, so that none of them imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from textual.message import Message

from mtpprof.cli.tui.background import Background
from mtpprof.cli.tui.launch_form import LaunchForm
from mtpprof.cli.tui.plan_preview import PlanPreview
from mtpprof.cli.tui.sources import Reading
from mtpprof.cli.tui.started_run import StartedRun
from mtpprof.cli.tui.store import Store


class Shell(Protocol):
    """The app, as its parts see it."""

    store: Store
    background: Background
    reading: Reading
    plan: Callable[[LaunchForm], PlanPreview]
    """What a launch form would do."""
    launch_form: LaunchForm
    started: StartedRun | None
    """The run that was started here last, whatever is open now."""
    first_page: str | None
    """Page to begin with; None: the one that fits."""

    @property
    def started_in_sight(self) -> StartedRun | None:
        """The run that is open, where it was started here; None: something else is open."""

    def now_ns(self) -> int:
        """The time."""

    def heading(self) -> str:
        """The first line of every page."""

    def starting_text(self) -> str:
        """What there is to say before a run has a record."""

    def go(self, name: str) -> None:
        """Show a page."""

    def refresh_page(self) -> None:
        """Draw the page in sight again."""

    def read_sides(self) -> bool:
        """Read the traces of the chosen arms, where they are not read yet; whether there was anything to begin with."""

    def choose_case(self, direction: int) -> None:
        """The next case."""

    def choose_arms(self, *, a: int = 0, b: int = 0) -> None:
        """The next arm on a side."""

    def open_arm(self, case: str, arm: str) -> None:
        """Show what an arm saved."""

    def open_collectives(self, words: str) -> None:
        """Show the collectives that fit a filter."""

    def start_run(self, words: Sequence[str]) -> None:
        """Start a run in a process of its own and follow it."""

    def complain(self, sentence: str) -> None:
        """Show what could not be done."""

    def say(self, sentence: str) -> None:
        """Show what was done."""

    def post_message(self, message: Message) -> bool:
        """Hand a message to the interface's thread."""
