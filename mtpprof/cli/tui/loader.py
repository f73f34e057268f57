"""Opens what is to be shown, follows it, and has read and computed what the pages need: the only module that fills the store.

The decision: while a run is in progress its traces are not read unless asked for, since that takes cores away from what is measured;
once it has ended, the answer that the run itself writes is waited for before one is computed here.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mtpprof.analyzers.live.run_state import advance
from mtpprof.cli.tui import sources
from mtpprof.cli.tui.background import Finished
from mtpprof.cli.tui.shell import Shell
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.follow import RunFollower, Update
from mtpprof.rundir.records import RunRecord

POLL_S = 0.2


class Loader:
    """Fills the store of one dashboard."""

    def __init__(self, app: Shell) -> None:
        self._app = app
        self._following: threading.Event | None = None
        self._reading: set[tuple[str, str]] = set()

    def open(self, paths: Sequence[Path]) -> None:
        """Open a run directory or traces."""
        app = self._app
        self.close()
        app.store.forget()
        self._reading.clear()
        app.background.forget()
        app.store.paths = tuple(paths)
        own = app.started is not None and [app.started.directory.root] == list(paths)
        if own or (len(paths) == 1 and sources.is_run(paths[0])):
            self._follow(RunDirectory(paths[0]))
            app.go(app.first_page or "live")
            return
        app.store.answer_state = "Reading the traces…"
        app.go(app.first_page or "collectives")
        app.background.start(
            "open", lambda: sources.open_anything(paths, app.reading.options), self._take_traces, self._refuse
        )

    def close(self) -> None:
        """Follow nothing any more."""
        if self._following is not None:
            self._following.set()
            self._following = None

    def _follow(self, directory: RunDirectory) -> None:
        self._app.store.directory = directory
        follower = RunFollower(directory)
        self._following = stop = threading.Event()

        def follow() -> None:
            while True:
                update = follower.poll()
                if update is not None:
                    self._app.post_message(Finished(partial(self._take_from, stop, update)))
                if stop.wait(POLL_S):
                    return

        threading.Thread(target=follow, name="dashboard-follow", daemon=True).start()

    def _take_from(self, stop: threading.Event, update: Update) -> None:
        if not stop.is_set():  # else something else was opened since
            self._take(update)

    def _take(self, update: Update) -> None:
        """What is new in the run directory."""
        app, store = self._app, self._app.store
        store.live = advance(store.live, update.events, update.unreadable)
        store.log.extend(update.log_lines)
        store.log_count += len(update.log_lines)
        started = app.started_in_sight
        starting = started is not None and started.running and store.record is None
        store.verdict = None if starting or update.record is not None else update.problem or store.verdict
        profiled = any(event.get("event") == "profile_finished" for event in update.events)
        if profiled:
            self._forget_missing()
        first = update.record is not None and store.record is None
        if update.record is not None:
            before = store.record.status if store.record else None
            store.record = update.record
            store.cases = sources.run_cases(update.record)
            if update.record.status != "running" and update.record.status != before:
                self._ended(first)
        if store.record is not None and (profiled or first):
            self._find_traffic(store.record)
        app.refresh_page()

    def _find_traffic(self, record: RunRecord) -> None:
        directory, windows = self._app.store.directory, self._app.store.live.profiled()
        if directory is not None:
            self._app.background.start(
                "traffic",
                lambda: sources.arm_traffic(directory, record, windows),
                self._take_traffic,
                self._app.complain,
            )

    def _take_traffic(self, found: dict[tuple[str, str], sources.Traffic]) -> None:
        self._app.store.traffic = found
        self._app.refresh_page()

    def _ended(self, first: bool) -> None:
        app, record = self._app, self._app.store.record
        self._find_answer(stored=True)
        if record is None or record.status != "complete":
            return
        if not first:
            app.say("The run is complete: Saved (3) has its answer.")
        elif app.first_page is None:
            app.go("saved")

    def _forget_missing(self) -> None:
        """Sides that had no traces may have them now."""
        store = self._app.store
        store.side_problems.clear()
        store.sides = {key: side for key, side in store.sides.items() if side.side.traces is not None}

    def _refuse(self, sentence: str) -> None:
        self._app.store.verdict = self._app.store.answer_state = sentence
        self._app.refresh_page()

    def _take_traces(self, opened: sources.OpenedTraces) -> None:
        store = self._app.store
        store.trace_problems = opened.problems
        if not opened.sides:
            reasons = [problem.sentence for problem in opened.problems]
            self._refuse("No trace could be read: " + " ".join(reasons))
            return
        store.cases = sources.trace_cases(opened)
        store.sides = {
            (sources.TRACES, side.label): sources.Loaded(case=sources.TRACES, arm=side.label, side=side)
            for side in opened.sides
        }
        store.answer_state = "One capture has nothing to be held against: open two folders."
        if len(opened.sides) > 1:
            store.answer_state = "Comparing…"
            self._app.background.start(
                "answer", lambda: sources.answer_of_traces(opened), self._take_answer, self._no_answer
            )
        self._app.refresh_page()

    def analyze_again(self) -> None:
        """Analyze the run as far as it has got."""
        self._app.store.sides.clear()
        self._app.store.side_problems.clear()
        self._find_answer(stored=False)
        self._app.refresh_page()

    def _find_answer(self, *, stored: bool) -> None:
        app, store = self._app, self._app.store
        directory, record, started = store.directory, store.record, app.started_in_sight
        if directory is None or record is None:
            return
        store.answer_state = "Analyzing the run…"

        def work() -> sources.Answer:
            kept = None
            if stored and not app.reading.words_for_run:  # the run wrote its answer without them
                kept = sources.stored_answer(directory, record)
                while kept is None and started is not None and started.wait(POLL_S):
                    kept = sources.stored_answer(directory, record)
            return kept or sources.computed_answer(directory, app.background.command, app.reading)

        app.background.start("answer", work, self._take_answer, self._no_answer)

    def _take_answer(self, answer: sources.Answer) -> None:
        self._app.store.answer, self._app.store.answer_state = answer, ""
        self._app.refresh_page()

    def _no_answer(self, sentence: str) -> None:
        self._app.store.answer_state = sentence
        self._app.refresh_page()

    def read_sides(self) -> bool:
        """Read the traces of the chosen arms, where they are not read yet; whether there was anything to begin with."""
        store = self._app.store
        directory, record, case = store.directory, store.record, store.case
        if directory is None or record is None or case is None:
            return False
        before = len(self._reading)
        for arm in dict.fromkeys(name for name in (store.a, store.b) if name is not None):
            key = (case.id, arm)
            if key in store.sides or key in store.side_problems or key in self._reading:
                continue
            self._reading.add(key)
            self._app.background.start(
                f"side {case.id} {arm}",
                partial(sources.load_side, directory, record, case.id, arm, self._app.reading.options),
                self._take_side,
                partial(self._no_side, key),
            )
        return len(self._reading) > before

    def _take_side(self, loaded: sources.Loaded) -> None:
        self._reading.discard((loaded.case, loaded.arm))
        self._app.store.sides[(loaded.case, loaded.arm)] = loaded
        self._app.refresh_page()

    def _no_side(self, key: tuple[str, str], sentence: str) -> None:
        self._reading.discard(key)
        self._app.store.side_problems[key] = sentence
        self._app.refresh_page()
