"""Launch: what to run, each optimization as a switch with its eligibility beside it, and the command line that does the same."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from mtpprof.cli.tui.launch_form import LaunchForm, command_text
from mtpprof.cli.tui.plan_preview import PlanPreview
from mtpprof.cli.tui.screens.page import Page
from mtpprof.cli.tui.text import safe
from mtpprof.cli.tui.widgets.choice import Choice
from mtpprof.errors import UsageError
from mtpprof.models.optimizations.catalogue import CATALOGUE

PAUSE_S = 0.25
"""A form is checked when nothing has been typed for this long: the check resolves models and asks for devices."""
DRAWN_S = 0.1
"""The first check waits until the page is drawn, since it takes turns away from that."""
FIELDS = (
    ("models", "model", "deepseek-v3.2, nemotron-3-super"),
    ("tp", "TP", "4"),
    ("concurrency", "concurrency", "1, 8 (GPU: 1, 64)"),
    ("draft_tokens", "draft tokens", "3 for DeepSeek-like MTP models, else 0"),
    ("more", "more options", "--rounds 5 --scale tiny …"),
)
"""Field of the form, label, what an empty field means."""


class LaunchPage(Page):
    """The page."""

    NAME = "launch"
    AUTO_FOCUS = ""  # digits and letters are keys until a field is entered
    SHOWS_CASE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r,f5", "start", "Start", key_display="F5", id="launch.start"),
        Binding("y", "copy", "Copy the command", id="launch.copy"),
        Binding("x", "app.stop_run", "Stop", id="launch.stop"),
        Binding("c", "app.resume_run", "Resume", id="launch.resume"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._filled = False
        self._checked = False
        self._pending: Timer | None = None
        self._refused: tuple[LaunchForm, str] | None = None
        """A form in error, and what the page says of it."""

    def body(self) -> Iterable[Widget]:
        """Fields, switches, command line: they come after the page itself, one by one, so that no key waits for all of them."""
        yield VerticalScroll(id="form", can_focus=False)

    def on_mount(self) -> None:
        """Fill the form as soon as there is something to see; Textual calls the page's own `on_mount` besides."""
        self.call_after_refresh(self._fill)

    async def _fill(self) -> None:
        form = self.query_one("#form")
        for widget in self._form_widgets():
            if not form.is_attached:  # the dashboard was left meanwhile
                return
            await form.mount(widget)
        self._filled = True
        self.show()

    def _form_widgets(self) -> Iterable[Widget]:
        for name, label, placeholder in FIELDS:
            value = getattr(self.dashboard.launch_form, name)
            field = Input(value, placeholder=placeholder, id=f"field-{name}", compact=True)
            yield Horizontal(Label(label, markup=False), field, classes="field")
        for name in CATALOGUE:
            setting = self.dashboard.launch_form.settings.get(name, "both")
            yield Horizontal(
                Label(name, markup=False),
                Choice(("both", "on", "off"), setting, id=f"switch-{name}"),
                Static(id=f"why-{name}", classes="why", markup=False),
                classes="field switch",
            )
        for name in ("plan-preview", "command", "launch-state"):
            yield Static(id=name, markup=False)

    def show(self) -> None:
        """Draw what the form means; the state of the run that was started."""
        if not self._filled:
            return
        self._update_command()
        self.query_one("#launch-state", Static).update(safe(self._state()))

    def _state(self) -> str:
        store = self.store
        started = self.dashboard.started
        if started is not None and started.running:
            in_sight = self.dashboard.started_in_sight is started
            keys = "Live (2) shows it, x stops it" if in_sight else "O opens it"
            return f"Running in {started.directory.root}: {keys}."
        if store.record is not None and store.record.status in ("interrupted", "failed"):
            return f"{store.record.name} is {store.record.status}: c resumes it."
        if store.record is not None or self.dashboard.started_in_sight is None:
            return ""
        return self.dashboard.starting_text()

    def form(self) -> LaunchForm:
        """What is filled in; a switch that no model can use is not asked for, since `run` would refuse it."""
        if not self._filled:
            return self.dashboard.launch_form
        texts = {name: self.query_one(f"#field-{name}", Input).value for name, _, _ in FIELDS}
        switches = {name: self.query_one(f"#switch-{name}", Choice) for name in CATALOGUE}
        settings = {name: switch.value for name, switch in switches.items() if not switch.disabled}
        return LaunchForm(settings=settings, **texts)  # type: ignore[arg-type]

    def _update_command(self) -> None:
        form = self.form()
        try:
            line = command_text(form.words())
        except UsageError as error:
            line = str(error)
        self.query_one("#command", Static).update(safe(f"$ {line}"))
        if form != self.dashboard.launch_form or not self._checked:
            self.dashboard.launch_form = form
            if self._pending is not None:
                self._pending.stop()
            self._pending = self.set_timer(PAUSE_S if self._checked else DRAWN_S, self._check)
            self._checked = True

    def _check(self) -> None:
        form, self._pending = self.dashboard.launch_form, None
        self.dashboard.background.start(
            "plan", lambda: self.dashboard.plan(form), partial(self._take, form), self.dashboard.complain
        )

    def _take(self, form: LaunchForm, found: PlanPreview) -> None:
        self._refused = None if found.ok else (form, found.sentence)
        self.query_one("#plan-preview", Static).update(safe(("" if found.ok else "! ") + found.sentence))
        for name in CATALOGUE if found.ok else ():  # else what can be switched is not known anew
            able, why = found.eligible.get(name, (True, ""))
            self.query_one(f"#switch-{name}", Choice).disabled = not able
            self.query_one(f"#why-{name}", Static).update(safe(f"{'' if able else 'not eligible: '}{why}"))
        self._update_command()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The command line follows."""
        self.show()

    def on_choice_changed(self, event: Choice.Changed) -> None:
        """The command line follows."""
        self._update_command()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes to the next field."""
        self.focus_next()

    def action_start(self) -> None:
        """Start the run."""
        try:
            form = self.form()
            words = form.words()
        except UsageError as error:
            self.dashboard.complain(str(error))
            return
        if self._refused is not None and self._refused[0] == form:
            self.dashboard.complain(f"Not started: {self._refused[1]}")
            self._check()  # what was in the way outside the form may be gone
            return
        self.dashboard.start_run(words)

    def action_copy(self) -> None:
        """Put the command line on the clipboard."""
        try:
            self.app.copy_to_clipboard(command_text(self.form().words()))
        except UsageError as error:
            self.dashboard.complain(str(error))
        else:
            self.notify("The command line is on the clipboard.", markup=False)
