"""A run that the dashboard starts, from its command line, in a process of its own.

The decision: the dashboard starts what a user would type (`mtpprof run …`), in its own session and with its output in a file of the
run directory, and then follows that directory. So the run outlives the dashboard, and nothing it prints can reach the screen.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from mtpprof.cli.tui.sources import last_sentence
from mtpprof.errors import ExitCode, RunError
from mtpprof.profilers.run import DEFAULT_ROOT
from mtpprof.rundir.directory import LOGS, RUN_FILE, RunDirectory
from mtpprof.rundir.holder import interrupt

RUN_LOG = "run.log"
"""What the run's own command printed, beside the logs of the ranks."""


def run_folder(words: Sequence[str], now: datetime | None = None) -> Path:
    """Where a run goes: what `--out` or `--resume` says, else a new folder below `runs`."""
    for option in ("--out", "--resume"):
        for index, word in enumerate(words):
            if word == option and index + 1 < len(words):
                return Path(words[index + 1]).absolute()
            if word.startswith(f"{option}="):
                return Path(word.partition("=")[2]).absolute()
    models = [words[index + 1] for index, word in enumerate(words[:-1]) if word == "--model"]
    name = "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name).strip("-.") for model in models)[:60]
    stamp = now or datetime.now(UTC)
    return (DEFAULT_ROOT / f"{stamp:%Y%m%dT%H%M%SZ}-{name or 'run'}").absolute()


def stop_run(directory: RunDirectory) -> str:
    """Ask a run that was started elsewhere to stop as Ctrl-C would; what is finished is kept.

    Returns:
        What was done, as a sentence.

    Raises:
        RunError: it cannot be stopped from here, and why.
    """
    holder = directory.holder()
    if holder is None:
        reason = (
            "the run does not say which process carries it out" if directory.is_locked() else "it has ended"
        )
        raise RunError(f"{directory.root}: {reason}; nothing was stopped.")
    interrupt(holder)
    return f"Stopping (process {holder.pid}): what is finished is kept."


class StartedRun:
    """A run that this dashboard started."""

    def __init__(self, words: Sequence[str]) -> None:
        """Start it.

        Raises:
            RunError: the folder cannot be written, or the process not started.
        """
        folder = run_folder(words)
        self.directory = RunDirectory(folder)
        given = any(word.partition("=")[0] in ("--out", "--resume") for word in words)
        line = [sys.executable, "-m", "mtpprof", *words, *([] if given else ["--out", str(folder)])]
        # A new run wants its folder empty: until it has written its record, what it prints goes beside the folder.
        resumed = (folder / RUN_FILE).exists()
        self._words: str | None = None
        """What it said last, where the log is gone."""
        self._log = log = folder / LOGS / RUN_LOG if resumed else folder.with_name(f"{folder.name}.log")
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as stream:
                self._process = subprocess.Popen(
                    line, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
                )
        except OSError as error:
            raise RunError(f"{folder}: the run cannot be started there ({error.strerror}).") from error

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code; None: it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait a while; whether it still runs then."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.running

    def stop(self) -> None:
        """Ask it to stop as Ctrl-C would; what is finished is kept."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGINT)

    def move_log(self) -> None:
        """Put what the command prints among the run's logs, as soon as the run has its folder; keep no file of a refused start."""
        target = self.directory.root / LOGS / RUN_LOG
        if self._log == target:
            return
        refused = self.exit_code in (ExitCode.USAGE, ExitCode.BAD_INPUT, ExitCode.ENVIRONMENT)
        if (self.directory.root / RUN_FILE).exists():
            with suppress(OSError):
                target.parent.mkdir(exist_ok=True)
                self._log.replace(target)  # an open file follows its name
                self._log = target
        elif refused and self._words is None:
            self._words = self.last_words()
            with suppress(OSError):
                self._log.unlink()

    def last_words(self) -> str:
        """What its command said last."""
        if self._words is not None:
            return self._words
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return last_sentence(text)
