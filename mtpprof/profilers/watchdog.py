"""A watchdog on every rank: a rank that makes no progress writes its stack to its log and exits.

`faulthandler` does it from a thread of its own that needs no interpreter lock, so that a rank stuck in native code is caught too. A
rank that was stopped from outside cannot catch itself; the others then report it as missing from their collective.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable

REARM_S = 1.0
HEARTBEAT_S = 5.0
MARK = "Timeout ("
"""What faulthandler writes first when time is up (CPython, Modules/faulthandler.c)."""


class Watchdog:
    """Ends this process with its stack in its log when it is not fed for `timeout_s`."""

    def __init__(self, timeout_s: float, heartbeat: Callable[[str], None] | None = None) -> None:
        self._timeout_s = timeout_s
        self._heartbeat = heartbeat
        self._doing = "starting"
        self._armed_s = self._beat_s = 0.0
        self.feed(self._doing)

    def feed(self, doing: str | None = None) -> None:
        """Progress was made. Cheap when called often: arms at most once a second."""
        now_s = time.monotonic()
        if doing is not None:
            self._doing = doing
        elif now_s - self._armed_s < REARM_S:
            return
        self._armed_s = now_s
        faulthandler.dump_traceback_later(self._timeout_s, exit=True)
        if self._heartbeat and (doing is not None or now_s - self._beat_s >= HEARTBEAT_S):
            self._beat_s = now_s
            self._heartbeat(self._doing)

    def stop(self) -> None:
        """No longer watch."""
        faulthandler.cancel_dump_traceback_later()
