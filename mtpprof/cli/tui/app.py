"""The Textual app: opens a run or traces, keeps the store, and hands what is asked for to the background.

The decision: pages only draw the store; all that changes it passes through here, on the interface's thread, as results of work that was
done elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import Screen

from mtpprof.cli.output import Format, printable
from mtpprof.cli.tui import exporting, subject
from mtpprof.cli.tui.background import Background, Finished
from mtpprof.cli.tui.follow import RunFollower, Update
from mtpprof.cli.tui.launching import LaunchForm, StartedRun
from mtpprof.cli.tui.live import advance
from mtpprof.cli.tui.screens.collectives import CollectivesPage
from mtpprof.cli.tui.screens.dialogs import AskDialog, HelpDialog, LeaveDialog, TextDialog
from mtpprof.cli.tui.screens.doctor import DoctorPage
from mtpprof.cli.tui.screens.launch import LaunchPage
from mtpprof.cli.tui.screens.live import LivePage
from mtpprof.cli.tui.screens.page import PAGES, Page
from mtpprof.cli.tui.screens.ranks import RanksPage
from mtpprof.cli.tui.screens.saved import SavedPage
from mtpprof.cli.tui.screens.timeline import TimelinePage
from mtpprof.cli.tui.store import Store
from mtpprof.cli.tui.text import AsciiFilter
from mtpprof.errors import RunError
from mtpprof.rundir import RunDirectory

POLL_S = 0.2
TICK_S = 1.0
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
        Binding("C", "compare", "Compare with another run", show=False, id="app.compare"),
        Binding("O", "open", "Open a run or traces", show=False, id="app.open"),
        Binding("t", "theme", "Light or dark", show=False, id="app.theme"),
    ]

    def __init__(
        self,
        paths: Sequence[Path] = (),
        *,
        command: Sequence[str] | None = None,
        page: str | None = None,
        ascii_only: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Make the app.

        Args:
            paths: A run directory, or traces; none: the launch page.
            command: Arguments of `mtpprof` that start a run, to be started at once.
            page: Page to begin with; None: the one that fits.
            ascii_only: Whether nothing but ASCII may be drawn.
            clock: Nanoseconds since the epoch.
        """
        super().__init__()
        self.store = Store()
        self.background = Background(self)
        self.launch_form = LaunchForm()
        self.form_checked = False
        self.started: StartedRun | None = None
        self._paths = tuple(paths)
        self._command = command
        self._first_page = page
        self._ascii = AsciiFilter(enabled=ascii_only)
        self._clock = clock
        self._following: threading.Event | None = None
        self._reading: set[tuple[str, str]] = set()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """ASCII below everything else, where the terminal knows no more."""
        return [*super().get_line_filters(), *([self._ascii] if self._ascii.enabled else [])]

    def on_mount(self) -> None:
        """Open what was asked for."""
        self.theme = THEMES[0]
        self.set_interval(TICK_S, self._tick)
        if self._command is not None:
            self.start_run(self._command)
        elif self._paths:
            self.open_paths(self._paths)
        else:
            self.go(self._first_page or "launch")

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

    def starting_text(self) -> str:
        """What there is to say before a run has a record."""
        if self.started is None:
            return "No run is open." if self.store.directory is None else ""
        if self.started.running:
            return "Starting the run: its first words come within seconds."
        return (
            f"! The run did not start: {self.started.last_words() or f'exit code {self.started.exit_code}'}"
        )

    # Opening

    def open_paths(self, paths: Sequence[Path]) -> None:
        """Open a run directory or traces."""
        self._stop_following()
        self.store.forget()
        self._reading.clear()
        self.background.forget()
        self.store.paths = tuple(paths)
        if len(paths) == 1 and (subject.is_run(paths[0]) or self._is_own(paths[0])):
            self._open_run(RunDirectory(paths[0]))
            return
        self.store.answer_state = "Reading the traces…"
        self.go(self._first_page or "collectives")
        self.background.start("open", lambda: subject.open_anything(paths), self._take_traces, self._refuse)

    def _is_own(self, path: Path) -> bool:
        return self.started is not None and self.started.directory.root == path

    def _open_run(self, directory: RunDirectory) -> None:
        self.store.directory = directory
        follower = RunFollower(directory)
        self._following = stop = threading.Event()

        def follow() -> None:
            while True:
                update = follower.poll()
                if update is not None:
                    self.post_message(Finished(partial(self._take_from, stop, update)))
                if stop.wait(POLL_S):
                    return

        threading.Thread(target=follow, name="dashboard-follow", daemon=True).start()
        self.go(self._first_page or "live")

    def _take_from(self, stop: threading.Event, update: Update) -> None:
        if not stop.is_set():  # else something else was opened since
            self._take(update)

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.set()
            self._following = None

    def _refuse(self, sentence: str) -> None:
        self.store.verdict = sentence
        self.store.answer_state = sentence
        self.refresh_page()

    def _take_traces(self, opened: subject.OpenedTraces) -> None:
        store = self.store
        store.trace_problems = opened.problems
        if not opened.sides:
            reasons = [problem.sentence for problem in opened.problems]
            self._refuse("No trace could be read: " + " ".join(reasons))
            return
        store.cases = subject.trace_cases(opened)
        store.sides = {
            (subject.TRACES, side.label): subject.Loaded(case=subject.TRACES, arm=side.label, side=side)
            for side in opened.sides
        }
        store.answer_state = (
            "One capture has nothing to be held against: open two folders."
            if len(opened.sides) < 2
            else "Comparing…"
        )
        self.refresh_page()
        if len(opened.sides) > 1:
            self.background.start(
                "answer", lambda: subject.answer_of_traces(opened), self._take_answer, self._no_answer
            )

    def _take(self, update: Update) -> None:
        """What is new in the run directory."""
        store = self.store
        store.live = advance(store.live, update.events)
        store.log.extend(update.log_lines)
        store.log_count += len(update.log_lines)
        starting = self.started is not None and self.started.running and store.record is None
        store.verdict = None if starting or update.record is not None else update.problem or store.verdict
        if update.record is not None:
            first, before = store.record is None, store.record.status if store.record else None
            store.record = update.record
            store.cases = subject.run_cases(update.record)
            if update.record.status != "running" and update.record.status != before:
                self._find_answer(stored=first)
                if first and self._first_page is None and update.record.status == "complete":
                    self.go("saved")
        self.refresh_page()

    # Answers and sides

    def _find_answer(self, *, stored: bool) -> None:
        store = self.store
        directory, record = store.directory, store.record
        if directory is None or record is None:
            return
        store.answer_state = "Analyzing the run…"

        def work() -> subject.Answer:
            kept = subject.stored_answer(directory, record) if stored else None
            return kept or subject.computed_answer(directory, self.background.command)

        self.background.start("answer", work, self._take_answer, self._no_answer)

    def _take_answer(self, answer: subject.Answer) -> None:
        self.store.answer, self.store.answer_state = answer, ""
        self.refresh_page()

    def _no_answer(self, sentence: str) -> None:
        self.store.answer_state = sentence
        self.refresh_page()

    def action_analyze(self) -> None:
        """Analyze the run as far as it has got."""
        if self.store.directory is None:
            self.complain("Only a run can be analyzed again.")
            return
        self.store.sides.clear()
        self.store.side_problems.clear()
        self._find_answer(stored=False)
        self.refresh_page()

    def read_sides(self) -> None:
        """Read the traces of the chosen arms, where they are not read yet."""
        store = self.store
        directory, record, case = store.directory, store.record, store.case
        if directory is None or record is None or case is None:
            return
        for arm in dict.fromkeys(name for name in (store.a, store.b) if name is not None):
            key = (case.id, arm)
            if key in store.sides or key in store.side_problems or key in self._reading:
                continue
            self._reading.add(key)

            def failed(sentence: str, key: tuple[str, str] = key) -> None:
                self._reading.discard(key)
                self.store.side_problems[key] = sentence
                self.refresh_page()

            def work(arm: str = arm) -> subject.Loaded:
                return subject.load_side(directory, record, case.id, arm)

            self.background.start(f"side {case.id} {arm}", work, self._take_side, failed)

    def _take_side(self, loaded: subject.Loaded) -> None:
        self._reading.discard((loaded.case, loaded.arm))
        self.store.sides[(loaded.case, loaded.arm)] = loaded
        self.refresh_page()

    # Choosing and going

    def refresh_page(self) -> None:
        """Draw the page in sight again."""
        if isinstance(self.screen, Page):
            self.screen.refresh_page()

    def go(self, name: str) -> None:
        """Show a page."""
        if self.current_mode != name:
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
            self.complain("A run is in progress already: x stops it.")
            return
        try:
            self.started = StartedRun(words)
        except RunError as error:
            self.complain(str(error))
            self.go("launch")
            return
        self._first_page = None
        self.open_paths([self.started.directory.root])

    def action_stop_run(self) -> None:
        """Stop the run that was started here."""
        if self.started is None or not self.started.running:
            self.complain("No run that was started here is in progress; stop others where they were started.")
            return
        self.started.stop()
        self.notify("Stopping: what is finished is kept.", markup=False)

    def action_resume_run(self) -> None:
        """Finish a run that did not get to its end."""
        directory, record = self.store.directory, self.store.record
        if directory is None or record is None or record.status == "complete":
            self.complain("There is no unfinished run open that could be resumed.")
            return
        if self.started is not None and self.started.running:
            self.complain("The run is in progress.")
            return
        self.start_run(["run", "--resume", str(directory.root.absolute())])

    def _tick(self) -> None:
        if self.started is not None and not self.started.running and self.store.record is None:
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
        self._stop_following()
        self.background.close()

    # Exports and the rest

    def complain(self, sentence: str) -> None:
        """Show what could not be done."""
        self.notify(printable(sentence), severity="error", markup=False)

    def on_finished(self, message: Finished) -> None:
        """Results of the background."""
        message.deliver()

    def _say(self, sentence: str) -> None:
        self.notify(printable(sentence), markup=False, timeout=10)

    def _chosen_export(self) -> exporting.Chosen:
        store = self.store
        return exporting.Chosen(
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
            lambda: exporting.export_perfetto(self.background.command, chosen),
            self._say,
            self.complain,
        )

    def action_report(self, style: str) -> None:
        """Write the report beside the run."""
        run = self.store.directory.root if self.store.directory else None
        self.background.start(
            "report",
            lambda: exporting.export_report(self.background.command, run, style),
            self._say,
            self.complain,
        )

    def action_compare(self) -> None:
        """Hold what is open against another run."""
        if not self.store.paths:
            self.complain("Nothing is open that could be compared.")
            return
        here = self.store.paths[0]

        def asked(other: str | None) -> None:
            if other:
                self.background.start(
                    "compare",
                    lambda: exporting.compare_with(self.background.command, here, other),
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
                self._first_page = None
                self.open_paths([Path(path).expanduser()])

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
        for style in Format:
            if style in ("md", "html"):
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
