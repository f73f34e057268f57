"""Work beside the interface: in daemon threads, the newest of a kind counts, errors arrive as sentences.

The decision: not Textual's thread workers, because the event loop waits for those when it ends, and `q` has to leave at once whatever
is being read. Programs that are started for some work are ended with the dashboard.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from textual.message import Message

from mtpprof.errors import InterruptedRunError, MtpprofError, RunError

if TYPE_CHECKING:
    from textual.app import App

ResultT = TypeVar("ResultT")


class Finished(Message):
    """Work has ended; `deliver` is called on the interface's thread."""

    def __init__(self, deliver: Callable[[], None]) -> None:
        super().__init__()
        self.deliver = deliver


class Background:
    """Starts work and hands its results to the app."""

    def __init__(self, app: App[None], delivered: Callable[[], None] = lambda: None) -> None:
        """Make it.

        Args:
            app: Where results go.
            delivered: Called after each result.
        """
        self._app, self._delivered = app, delivered
        self._newest: dict[str, int] = {}
        self._running = 0
        self._closed = False
        self._children: set[subprocess.Popen[str]] = set()

    @property
    def busy(self) -> bool:
        """Whether results are still to come."""
        return self._running > 0

    def start(
        self,
        key: str,
        work: Callable[[], ResultT],
        done: Callable[[ResultT], None],
        failed: Callable[[str], None],
    ) -> None:
        """Do `work` in a thread, then call `done` with its result or `failed` with a sentence.

        Args:
            key: Of several pieces of work with one key only the newest reports.
            work: Runs in the thread.
            done: Runs on the interface's thread.
            failed: The same.
        """
        number = self._newest[key] = self._newest.get(key, 0) + 1
        self._running += 1

        def deliver(call: Callable[[], None]) -> None:
            self._running -= 1
            if self._newest[key] == number and not self._closed:
                call()
                self._delivered()

        def run() -> None:
            call: Callable[[], None] = lambda: failed(f"internal error while working on {key}")  # noqa: E731
            try:
                result = work()
                call = lambda: done(result)  # noqa: E731
            except (MtpprofError, OSError, MemoryError) as error:
                sentence = str(error) or type(error).__name__
                call = lambda: failed(sentence)  # noqa: E731
            finally:
                self._app.post_message(Finished(lambda: deliver(call)))

        threading.Thread(target=run, name=f"dashboard-{key}", daemon=True).start()

    def forget(self) -> None:
        """Results of what was started up to now are not wanted any more."""
        for key in self._newest:
            self._newest[key] += 1

    def command(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command of mtpprof to its end; called from `work`.

        Raises:
            RunError: it could not be started.
            InterruptedRunError: the dashboard ends.
        """
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "mtpprof", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise RunError(f"{sys.executable}: cannot be started ({error.strerror}).") from error
        self._children.add(child)
        try:
            if self._closed:
                child.terminate()
            out, err = child.communicate()
        finally:
            self._children.discard(child)
        if self._closed:
            raise InterruptedRunError("the dashboard ends")
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def close(self) -> None:
        """End what was started; no result arrives any more."""
        self._closed = True
        for child in tuple(self._children):
            child.terminate()
