"""Progress of a run on stderr: a live bar on a terminal, a line per case and round elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mtpprof.cli.render.output import stderr_console
from mtpprof.cli.render.units import elapsed_text, time_text


class RunProgress:
    """Turns a run's events into progress."""

    def __init__(self, total_windows: int) -> None:
        self._console = stderr_console()
        self._total = total_windows
        self._done = 0
        self._start_s = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._said = ""

    @contextmanager
    def live(self) -> Iterator[RunProgress]:
        """Show the bar while inside."""
        if not self._console.is_terminal:
            yield self
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("starting the workers", total=self._total)
        with self._bar:
            yield self
        self._bar = None

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text)

    def on_event(self, event: dict[str, Any]) -> None:
        """Take in one event of the run."""
        kind = event.get("event")
        if kind == "workers_ready":
            self._state(f"{event.get('ranks')} ranks ready, transport {event.get('transport')}")
        elif kind == "case_started":
            self._state(f"{event.get('case')}: loading")
        elif kind == "visit_started":
            self._state(
                f"{event.get('case')}: {event.get('arm')}, round {int(event.get('round', 0)) + 1}", quiet=True
            )
        elif kind == "profile_started":
            self._state(f"{event.get('case')}: {event.get('arm')}, profiling", quiet=True)
        elif kind in ("visit_finished", "profile_finished"):
            self._done += 1
            if self._bar is not None:
                self._bar.update(self._task, completed=self._done)
            else:
                self._plain_line(event)

    def _state(self, text: str, *, quiet: bool = False) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        elif not quiet:
            self._console.print(f"[{elapsed_text(time.monotonic() - self._start_s)}] {text}")

    def _plain_line(self, event: dict[str, Any]) -> None:
        """One line a case and round, so that a log stays readable; it says what is left."""
        what = (
            "profiling" if event["event"] == "profile_finished" else f"round {int(event.get('round', 0)) + 1}"
        )
        line = f"{event.get('case')}: {what}"
        if line == self._said:
            return
        self._said = line
        elapsed_s = time.monotonic() - self._start_s
        left_s = elapsed_s / max(self._done, 1) * (self._total - self._done)
        steps = event.get("step_ns") or []
        pace = f", {time_text(sorted(steps)[len(steps) // 2])} a step" if steps else ""
        self._console.print(
            f"[{elapsed_text(elapsed_s)}] {line} ({self._done}/{self._total} windows, about {elapsed_text(left_s)} left{pace})"
        )
