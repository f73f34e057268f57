"""The Textual app: opens a run or traces, keeps the store, and hands what is asked for to the background.

The decision: pages only draw the store; all that changes it passes through here, on the interface's thread, as results of work that was
done elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from os.path import expanduser
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import Screen

from mtpprof.cli.render.escapes import printable
from mtpprof.cli.render.format_names import ReportFormat
from mtpprof.cli.tui import exports
from mtpprof.cli.tui.background import Background, Finished
from mtpprof.cli.tui.collector import Collector
from mtpprof.cli.tui.launch_form import LaunchForm
from mtpprof.cli.tui.loader import Loader
from mtpprof.cli.tui.plan_preview import PlanPreview
from mtpprof.cli.tui.screens.collectives import CollectivesPage
from mtpprof.cli.tui.screens.dialogs import AskDialog, HelpDialog, LeaveDialog, StopDialog, TextDialog
from mtpprof.cli.tui.screens.doctor import DoctorPage
from mtpprof.cli.tui.screens.launch import LaunchPage
from mtpprof.cli.tui.screens.live import LivePage
from mtpprof.cli.tui.screens.page import PAGES, Page
from mtpprof.cli.tui.screens.ranks import RanksPage
from mtpprof.cli.tui.screens.saved import SavedPage
from mtpprof.cli.tui.screens.timeline import TimelinePage
from mtpprof.cli.tui.sources import Reading
from mtpprof.cli.tui.started_run import StartedRun, stop_run
from mtpprof.cli.tui.store import Store
from mtpprof.cli.tui.text import AsciiFilter
from mtpprof.errors import RunError

TICK_S = 1.0
COMPLAINT_S = 15.0
READ_PER_S = 10.0
"""Characters of a message that are given a second."""
WRITTEN_REPORTS = (ReportFormat.MD, ReportFormat.HTML, ReportFormat.CSV)
"""Formats in which a report is written beside a run, which has it as JSON already; the table is for terminals."""
THEMES = ("textual-dark", "textual-light")


class DashboardApp(App[None]):
    """The dashboard."""

    CSS_PATH = "app.tcss"
    TITLE = "mtpprof"
    MODES = {  # noqa: RUF012 - typed in the base class
        "launch": LaunchPage,
        "live": LivePage,
        "saved": SavedPage,
        "collectives": CollectivesPage,
        "timeline": TimelinePage,
        "ranks": RanksPage,
        "doctor": DoctorPage,
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(key), f"go('{name}')", label, show=False, id=f"app.{name}")
            for key, (name, label) in enumerate(PAGES.items(), 1)
        ),
        Binding("q", "leave", "Quit", id="app.quit"),
        Binding("ctrl+c", "leave", "Quit", show=False, priority=True, id="app.interrupt"),
        Binding("question_mark", "keys", "Keys", key_display="?", id="app.keys"),
        Binding("e", "export", "Export to Perfetto", show=False, id="app.export"),
        Binding("M", "report('md')", "Report as markdown", show=False, id="app.markdown"),
        Binding("W", "report('html')", "Report as web page", show=False, id="app.html"),
        Binding("C", "compare", "Compare with another run", show=False, id="app.compare"),
        Binding("O", "open", "Open a run or traces", show=False, id="app.open"),
        Binding("t", "theme", "Light or dark", show=False, id="app.theme"),
    ]

    def __init__(
        self,
        paths: Sequence[Path] = (),
        *,
        plan: Callable[[LaunchForm], PlanPreview],
        reading: Reading | None = None,
        command: Sequence[str] | None = None,
        page: str | None = None,
        ascii_only: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Make the app.

        Args:
            paths: A run directory, or traces; none: the launch page.
            plan: Tells what a launch form would do.
            reading: How traces are read; None: as they are without any option.
            command: Arguments of `mtpprof` that start a run, to be started at once.
            page: Page to begin with; None: the one that fits.
            ascii_only: Whether nothing but ASCII may be drawn.
            clock: Nanoseconds since the epoch.
        """
        super().__init__()
        self.store = Store()
        self.collector = Collector()
        self.background = Background(self, delivered=self.collector.set_aside)
        self.plan = plan
        self.reading = reading or Reading()
        self.launch_form = LaunchForm()
        self.started: StartedRun | None = None
        """The run that was started here last, whatever is open now."""
        self.loader = Loader(self)
        self._paths = tuple(paths)
        self._command = command
        self.first_page = page
        self._ascii = AsciiFilter(enabled=ascii_only)
        self._clock = clock

    def get_line_filters(self) -> Sequence[LineFilter]:
        """ASCII below everything else, where the terminal knows no more."""
        return [*super().get_line_filters(), *([self._ascii] if self._ascii.enabled else [])]

    def on_mount(self) -> None:
        """Open what was asked for."""
        self.collector.start()
        self.theme = THEMES[0]
        self.set_interval(TICK_S, self._tick)
        if self._command is not None:
            self.start_run(self._command)
        elif self._paths:
            self.loader.open(self._paths)
        else:
            self.go(self.first_page or "launch")

    def now_ns(self) -> int:
        """The time."""
        return self._clock()

    def heading(self) -> str:
        """The first line of every page."""
        record = self.store.record
        if record is not None and self.store.directory is not None:
            where = f"{record.engine} on {record.device}, {record.transport}"
            return f"mtpprof  {record.name}  {record.status}  {where}  {self.store.directory.root}"
        if self.store.directory is not None:
            return f"mtpprof  {self.store.directory.root}"
        return (
            f"mtpprof  {', '.join(map(str, self.store.paths)) or 'nothing is open: O opens a run or traces'}"
        )

    @property
    def started_in_sight(self) -> StartedRun | None:
        """The run that is open, where it was started here; None: something else is open."""
        started, directory = self.started, self.store.directory
        if started is None or directory is None:
            return None
        return started if started.directory.root.absolute() == directory.root.absolute() else None

    def starting_text(self) -> str:
        """What there is to say before a run has a record."""
        started = self.started_in_sight
        if started is None:
            return "No run is open." if self.store.directory is None else ""
        if started.running:
            return "Starting the run: its first words come within seconds."
        return f"! The run did not start: {started.last_words() or f'exit code {started.exit_code}'}"

    def action_analyze(self) -> None:
        """Analyze the run as far as it has got."""
        if self.store.directory is None:
            self.complain("Only a run can be analyzed again.")
            return
        self.loader.analyze_again()

    def read_sides(self) -> bool:
        """Read the traces of the chosen arms, where they are not read yet; whether there was anything to begin with."""
        return self.loader.read_sides()

    # Choosing and going

    def refresh_page(self) -> None:
        """Draw the page in sight again."""
        if isinstance(self.screen, Page):
            self.screen.refresh_page()

    def go(self, name: str) -> None:
        """Show a page."""
        if self.current_mode != name:
            for page in self._screen_stacks.get(name, ()):
                # Shown again, a page is styled anew in any case; Textual would parse all style sheets once more after a change of theme.
                page._css_update_count = self._css_update_count
            self.switch_mode(name)

    def action_go(self, name: str) -> None:
        """Show a page."""
        self.go(name)

    def choose_case(self, direction: int) -> None:
        """The next case."""
        if self.store.cases:
            self.store.case_index = (self.store.case_index + direction) % len(self.store.cases)
            self.store.arm_a, self.store.arm_b = 0, 1
            self.refresh_page()

    def choose_arms(self, *, a: int = 0, b: int = 0) -> None:
        """The next arm on a side."""
        self.store.arm_a += a
        self.store.arm_b += b
        self.refresh_page()

    def open_arm(self, case: str, arm: str) -> None:
        """Show what an arm saved."""
        index = next((i for i, known in enumerate(self.store.cases) if known.id == case), None)
        if index is not None:
            self.store.case_index = index
            if arm not in self.store.cases[index].arms:
                self.say(f"{arm} repeats another arm, to tell the noise: it has no row on Saved.")
            self.store.choose_arm(arm)
            self.go("saved")

    def open_collectives(self, words: str) -> None:
        """Show the collectives that fit a filter."""
        self.store.filter = words
        self.go("collectives")

    # Running

    def start_run(self, words: Sequence[str]) -> None:
        """Start a run in a process of its own and follow it."""
        if self.started is not None and self.started.running:
            hint = "x" if self.started_in_sight else f"open {self.started.directory.root} (O), then x"
            self.complain(f"A run is in progress already: {hint} stops it.")
            return
        try:
            self.started = StartedRun(words)
        except RunError as error:
            self.complain(str(error))
            self.go("launch")
            return
        self.first_page = None
        self.loader.open([self.started.directory.root])

    def action_stop_run(self) -> None:
        """Stop the run in sight; one that was started elsewhere only after asking."""
        started = self.started_in_sight
        if started is not None and started.running:
            started.stop()
            self.notify("Stopping: what is finished is kept.", markup=False)
            return
        directory = self.store.directory
        if directory is None or not self.store.running:
            self.complain("No run is in progress.")
            return

        def asked(answer: str | None) -> None:
            if answer == "stop":
                self.background.start("stop", lambda: stop_run(directory), self.say, self.complain)

        self.push_screen(StopDialog(str(directory.root)), asked)

    def action_resume_run(self) -> None:
        """Finish a run that did not get to its end."""
        directory, record = self.store.directory, self.store.record
        if directory is None or record is None or record.status == "complete":
            self.complain("There is no unfinished run open that could be resumed.")
            return
        started = self.started_in_sight
        if record.status == "running" or (started is not None and started.running):
            self.complain("The run is in progress.")
            return
        self.start_run(["run", "--resume", str(directory.root.absolute())])

    async def on_event(self, event: events.Event) -> None:
        """Take note of keys and of the mouse."""
        if isinstance(event, events.InputEvent):
            self.collector.typed()
        await super().on_event(event)

    def _tick(self) -> None:
        self.collector.tidy()
        if self.started is not None:
            self.started.move_log()
        started = self.started_in_sight
        if started is not None and not started.running and self.store.record is None:
            self.store.verdict = self.starting_text().removeprefix("! ")
        if isinstance(self.screen, LivePage | LaunchPage) and (
            self.store.running or self.started is not None
        ):
            self.refresh_page()

    # Leaving

    def action_leave(self) -> None:
        """Leave at once; a run that was started here and is in progress is asked about."""
        if self.started is None or not self.started.running:
            self.exit()
            return
        if not isinstance(self.screen, LeaveDialog):
            self.push_screen(LeaveDialog(str(self.started.directory.root)), self._leave)

    def _leave(self, answer: str | None) -> None:
        if answer == "stop" and self.started is not None:
            self.started.stop()
        if answer in ("leave", "stop"):
            self.exit()

    def on_unmount(self) -> None:
        """Leave nothing behind but a run that was left running."""
        if self.started is not None:
            self.started.move_log()
        self.loader.close()
        self.background.close()
        self.collector.stop()

    # Exports and the rest

    def complain(self, sentence: str) -> None:
        """Show what could not be done, for as long as it takes to read it in peace."""
        timeout = max(COMPLAINT_S, len(sentence) / READ_PER_S)
        self.notify(printable(sentence), severity="error", markup=False, timeout=timeout)

    def on_finished(self, message: Finished) -> None:
        """Results of the background."""
        message.deliver()

    def say(self, sentence: str) -> None:
        """Show what was done."""
        self.notify(printable(sentence), markup=False, timeout=10)

    def _chosen_export(self) -> exports.Chosen:
        store = self.store
        return exports.Chosen(
            run=store.directory.root if store.directory else None,
            traces=() if store.directory else store.paths,
            case=store.case.id if store.case else None,
            a=store.a,
            b=store.b if store.b != store.a else None,
        )

    def action_export(self) -> None:
        """Write a trace for Perfetto."""
        chosen = self._chosen_export()
        self.notify("Exporting…", markup=False)
        self.background.start(
            "export",
            lambda: exports.export_perfetto(self.background.command, chosen, self.reading),
            self.say,
            self.complain,
        )

    def action_report(self, style: str) -> None:
        """Write the report beside the run."""
        run = self.store.directory.root if self.store.directory else None
        self.background.start(
            "report",
            lambda: exports.export_report(self.background.command, run, style, self.reading),
            self.say,
            self.complain,
        )

    def action_compare(self) -> None:
        """Hold what is open against another run."""
        if not self.store.paths:
            self.complain("Nothing is open that could be compared.")
            return
        here = self.store.paths[0]
        words = self.reading.words_for_run if self.store.directory else self.reading.words_for_traces

        def asked(other: str | None) -> None:
            if other:
                other = expanduser(other)  # noqa: PTH111 - a user that does not exist is no error here
                self.notify("Comparing…", markup=False)
                self.background.start(
                    "compare",
                    lambda: exports.compare_with(self.background.command, here, other, words),
                    lambda text: self._show_text(f"{other} (A) against {here} (B)", text),
                    self.complain,
                )

        self.push_screen(AskDialog("Compare with (run, RUN:ARM, or folder of traces), as baseline:"), asked)

    def _show_text(self, title: str, text: str) -> None:
        self.push_screen(TextDialog(title, text))

    def action_open(self) -> None:
        """Open something else."""

        def asked(path: str | None) -> None:
            if path:
                self.first_page = None
                self.loader.open([Path(expanduser(path))])  # noqa: PTH111 - as above

        self.push_screen(AskDialog("Open (run directory, folder of traces, trace file):", "runs/"), asked)

    def action_theme(self) -> None:
        """Light or dark."""
        self.theme = THEMES[1] if self.theme == THEMES[0] else THEMES[0]

    def action_keys(self) -> None:
        """List the keys."""
        if isinstance(self.screen, Page):
            self.push_screen(HelpDialog(self.screen))  # type: ignore[arg-type]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the command palette offers."""
        for name, label in PAGES.items():
            yield SystemCommand(f"Go to {label}", f"The page {label}", partial(self.go, name))
        yield SystemCommand(
            "Export to Perfetto", "Both arms in one trace, beside the run", self.action_export
        )
        for style in WRITTEN_REPORTS:
            yield SystemCommand(
                f"Report as {style}",
                f"Written beside the run as report.{style}",
                partial(self.action_report, style),
            )
        yield SystemCommand("Compare with another run", "Savings of this one against it", self.action_compare)
        yield SystemCommand("Open", "A run directory or traces", self.action_open)
        yield SystemCommand("Light or dark", "The other theme", self.action_theme)
        yield SystemCommand("Keys", "What each key does here", self.action_keys)
        yield SystemCommand("Quit", "Leave the dashboard", self.action_leave)
