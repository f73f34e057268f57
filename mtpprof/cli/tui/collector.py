"""Python's garbage collector, kept out of the way of keys.

The decision: full collections happen when nobody types, and leave out what lives for as long as the dashboard does (modules, pages, traces
that were read). A full one walks all that the collector knows: 35 to 75 ms on a plain run, in whichever thread it falls, and no key is
answered meanwhile. Of what has come since the last one it takes under 20 ms.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

YOUNG = 1
"""Generations up to this one are small, and are collected as ever."""
NEVER = 1_000_000
"""Collections of the generation below that would have to pass before a full one comes by itself."""
QUIET_S = 2.0
"""Nobody types who has not typed for this long."""
EVERY_S = 60.0
"""A run that is watched makes garbage without any key."""


class Collector:
    """Collects when it is quiet."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._typed_s = self._collected_s = clock_s()
        self._before: tuple[int, int, int] | None = None

    def start(self) -> None:
        """From now on full collections do not come by themselves."""
        self._before = gc.get_threshold()
        gc.set_threshold(*self._before[:2], NEVER)
        self.set_aside()

    def stop(self) -> None:
        """As before `start`."""
        if self._before is not None:
            gc.set_threshold(*self._before)
            self._before = None
        gc.unfreeze()

    def typed(self) -> None:
        """Somebody uses the dashboard."""
        self._typed_s = self._clock_s()

    def set_aside(self) -> None:
        """Have later collections leave out what lives now; at once, so that only young garbage is looked for."""
        gc.collect(YOUNG)
        gc.freeze()

    def tidy(self) -> bool:
        """Collect everything that has come since the last time, if there is cause and nobody is typing; whether that was done."""
        now_s = self._clock_s()
        used = self._typed_s >= self._collected_s
        if now_s - self._typed_s < QUIET_S or not (used or now_s - self._collected_s >= EVERY_S):
            return False
        gc.collect()
        gc.freeze()
        self._collected_s = now_s
        return True
