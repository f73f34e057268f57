"""What is asked and shown on top of a page: leaving while a run is in progress, a text to type, keys, and long texts."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from mtpprof.cli.tui.text import safe
from mtpprof.cli.tui.widgets.row_table import Column, Row, RowTable


class QuestionDialog(ModalScreen[str]):
    """A question about a run that is answered with a key."""

    TEXT_ID: ClassVar[str]
    QUESTION: ClassVar[str]
    """With `{folder}` for the run's."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def compose(self) -> ComposeResult:
        """The question."""
        with Vertical(classes="dialog"):
            yield Static(safe(self.QUESTION.format(folder=self._folder)), id=self.TEXT_ID)

    def action_answer(self, answer: str) -> None:
        """Close with the answer."""
        self.dismiss(answer)


class LeaveDialog(QuestionDialog):
    """A run is in progress: `leave`, `stop` or `stay`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "answer('leave')", "Leave it running", id="leave.leave"),
        Binding("s", "answer('stop')", "Stop it", id="leave.stop"),
        Binding("escape,n", "answer('stay')", "Stay", id="leave.stay"),
        Binding(
            "q,ctrl+c", "answer('leave')", "Leave it running", show=False, priority=True, id="leave.again"
        ),
    ]
    TEXT_ID = "leave-text"
    QUESTION = (
        "A run is in progress in {folder}.\n\n"
        "l  leave it running (mtpprof dashboard shows it again)\n"
        "s  stop it; what is finished is kept\n"
        "escape  stay here"
    )


class StopDialog(QuestionDialog):
    """A run that somebody started elsewhere is to be stopped: `stop` or `stay`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "answer('stop')", "Stop it", id="stop.stop"),
        Binding("escape,n,q", "answer('stay')", "Let it run", id="stop.stay"),
    ]
    TEXT_ID = "stop-text"
    QUESTION = (
        "The run in {folder} was not started here.\n\n"
        "s  stop it; what is finished is kept, and c resumes it\n"
        "escape  let it run"
    )


class AskDialog(ModalScreen[str | None]):
    """A line to type; None: never mind."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Never mind", id="ask.cancel")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        """Question and field."""
        with Vertical(classes="dialog"):
            yield Static(safe(self._question))
            yield Input(self._value, id="answer", compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter answers."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


class TextDialog(ModalScreen[None]):
    """A long text to scroll through: sentences are wrapped, tables are not."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "close", "Close", id="text.close")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        """Title and text."""
        with Vertical(classes="dialog large"):
            yield Static(safe(self._title), classes="title")
            with VerticalScroll(id="long-text"):
                for prose, text in passages(self._text):
                    passage = Static(safe(text), classes="prose" if prose else "drawn")
                    if prose:
                        passage.styles.width = "100%"
                    yield passage

    def on_mount(self) -> None:
        """Keys scroll the text."""
        self.query_one("#long-text").focus()

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)


class HelpDialog(ModalScreen[None]):
    """The keys that work on the page below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "close", "Close", priority=True, id="help.close")
    ]

    def __init__(self, page: Screen[object]) -> None:
        super().__init__()
        self._rows = key_rows(page)

    def compose(self) -> ComposeResult:
        """A table of keys."""
        with Vertical(classes="dialog large"):
            yield Static(safe("Keys (escape closes)"), classes="title")
            yield RowTable(id="keys")

    def on_mount(self) -> None:
        """Fill it."""
        table = self.query_one("#keys", RowTable)
        table.fill((Column("key"), Column("what it does"), Column("where")), self._rows)
        table.focus()

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)


def passages(text: str) -> list[tuple[bool, str]]:
    """The text in stretches of sentences (True) and of lines whose columns stand below each other."""
    lines = ((not _is_drawn(line), line) for line in text.splitlines())
    return [
        (prose, "\n".join(line for _, line in group)) for prose, group in groupby(lines, key=itemgetter(0))
    ]


def _is_drawn(line: str) -> bool:
    return not line.strip() or line.startswith(" ") or "  " in line.strip() or "─" in line


def key_rows(page: Screen[object]) -> list[Row]:
    """Every key of a page and of the widgets on it, from their bindings."""
    rows: dict[tuple[str, str], Row] = {}
    nodes = [page.app, page, *(node for node in page.query("RowTable, TimelineView, Choice"))]
    for node in nodes:
        where = {
            "DashboardApp": "everywhere",
            "RowTable": "tables",
            "TimelineView": "timeline",
            "Choice": "switches",
        }
        place = where.get(type(node).__name__, "this page")
        keys: dict[str, list[str]] = {}
        texts: dict[str, str] = {}
        for _, binding in node._bindings:
            if binding.system or not binding.description:
                continue
            keys.setdefault(binding.action, []).append(page.app.get_key_display(binding))
            texts[binding.action] = binding.description
        for action, names in keys.items():
            shown = " ".join(dict.fromkeys(names))
            rows.setdefault((shown, place), Row((shown, texts[action], place)))
    return list(rows.values())
