"""Watches over vLLM in the driver: no progress, or a worker that dies, ends the run with one sentence.

A thread of its own, since the main thread waits inside vLLM. What it finds is written as the run's `worker_failed` event, which is what
the parent tells the user.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mtpprof.rundir import logs
from mtpprof.rundir.directory import RunDirectory

POLL_S = 0.25
HEARTBEAT_S = 5.0
DEATH_GRACE_S = 5.0
"""After a worker's death vLLM may raise by itself; then its own words are told as well."""
ORPHAN_PATIENCE_S = 5.0


class Guard:
    """One per driver."""

    def __init__(
        self, directory: RunDirectory, timeout_s: float, clean_up: Callable[[], None] = lambda: None
    ) -> None:
        """Start to watch.

        Args:
            directory: of the run.
            timeout_s: how long a step may take.
            clean_up: what is left to do when the parent is gone, which else cleans up after this process.
        """
        self._directory = directory
        self._clean_up = clean_up
        self._parent = os.getppid()
        self._timeout_s = timeout_s
        self._limit_s = timeout_s
        self._doing = "starting"
        self._fed_s = self._beat_s = time.monotonic()
        self._workers: Sequence[Any] = ()
        self.logs: Sequence[Path] = ()
        """Where the workers print at present, beside the launcher's log."""
        self._died_s: float | None = None
        self._reported = False
        self._stopped = threading.Event()
        self._orphaned = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="mtpprof-guard").start()

    def feed(self, doing: str | None = None) -> None:
        """Progress was made."""
        self._fed_s = time.monotonic()
        if doing is not None:
            self._doing = doing

    @contextlib.contextmanager
    def patience(self, doing: str, limit_s: float) -> Iterator[None]:
        """Something that may take long without a sign of life."""
        outer = self._limit_s, self._doing
        self._limit_s = limit_s
        self.feed(doing)
        yield  # where this fails, `doing` stays what is told
        self._limit_s, doing = outer
        self.feed(doing)

    def watch(self, workers: Sequence[Any]) -> None:
        """Processes of the running engine (`multiprocessing.Process`)."""
        self._workers = workers
        self._died_s = None

    def stop(self) -> None:
        """No longer watch."""
        self._stopped.set()

    def report(self, message: str) -> None:
        """Tell the parent why the run failed; only the first word counts.

        Where the parent is gone, this does not return: the guard is ending the process, and whoever calls would end it too early.
        """
        if self._orphaned.is_set():
            threading.Event().wait()
        with self._lock:
            if self._reported:
                return
            self._reported = True
        self._directory.append_event("worker_failed", rank=0, exit_code=1, signal=None, message=message)

    def describe(self, error: BaseException) -> str:
        """One sentence for an error out of vLLM: the dead worker if there is one, else what vLLM said."""
        dead = self._wait_for_dead()
        if dead:
            return f"{dead}; {self._see_log()}"
        for log in (*self.logs, self._directory.launcher_log):
            said = root_cause(log)
            if said is not None:
                return f"vLLM failed while {self._doing}: {said}; see {log}."
        said = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
        return f"vLLM failed while {self._doing}: {said[:300]}; {self._see_log()}"

    def _see_log(self) -> str:
        return f"see {self._directory.launcher_log}."

    def _run(self) -> None:
        while not self._stopped.wait(POLL_S):
            now_s = time.monotonic()
            if now_s - self._beat_s >= HEARTBEAT_S:
                self._beat_s = now_s
                with contextlib.suppress(OSError):
                    self._directory.append_event("rank", rank=0, doing=self._doing)
            if os.getppid() != self._parent:
                self._end_orphaned()
            dead = self._dead()
            if dead and self._died_s is None:
                self._died_s = now_s
            if self._died_s is not None and now_s - self._died_s > DEATH_GRACE_S:
                self._give_up(f"{dead or 'a worker died'}; {self._see_log()}")
            if now_s - self._fed_s > self._limit_s:
                said = logs.last_line(self._directory.launcher_log) or "nothing"
                faulthandler.dump_traceback(all_threads=True)
                self._give_up(
                    f"vLLM made no progress for {self._limit_s:g} s while {self._doing}; its log ends with: {said!r}; "
                    f"{self._see_log()}"
                )

    def _end_orphaned(self) -> None:
        """The parent was killed: end the workers and whatever else runs in this group, and leave nothing behind."""
        self._orphaned.set()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join(ORPHAN_PATIENCE_S)
        self._clean_up()
        if os.getpgid(0) == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    def _give_up(self, sentence: str) -> None:
        self.report(f"RunError: {sentence}")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def _wait_for_dead(self) -> str:
        deadline_s = time.monotonic() + 1.0
        while time.monotonic() < deadline_s:
            dead = self._dead()
            if dead:
                return dead
            time.sleep(0.05)
        return ""

    def _dead(self) -> str:
        """What is to be said of the workers that died of themselves, signals first; empty: all live."""
        codes = [(rank, worker.exitcode) for rank, worker in enumerate(self._workers)]
        dead = [(rank, code) for rank, code in codes if code not in (None, 0)]
        # vLLM ends the others with SIGTERM once it notices, so that signal is the least telling.
        dead.sort(key=lambda item: (item[1] == -signal.SIGTERM, item[1] > 0, item[0]))
        if not dead:
            return ""
        rank, code = dead[0]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return f"rank {rank}: vLLM's worker {how} while {self._doing}"


MILD = re.compile(r"\b(WARNING|INFO|DEBUG) \d\d-\d\d ")
"""Lines of vLLM's log that are no errors, whatever they quote."""
POINTERS = ("root cause", "See root", "Engine core init", "cancelled", "EngineDeadError")
"""Words of exceptions that only point at another one."""


def root_cause(path: Path) -> str | None:
    """The last exception that a log tells of which is one of its own; None: it tells of none."""
    for line in reversed(logs.tail(path).splitlines()):
        if MILD.search(line):
            continue
        text = (line.partition("] ")[2] if "] " in line else line).strip()
        name, colon, _ = text.partition(": ")
        name = name.rpartition(".")[2]
        is_exception = colon and name.isidentifier() and name.endswith(("Error", "Exception"))
        if is_exception and not any(word in text for word in POINTERS):
            return text[:300]
    return None
