"""Python's garbage collector, kept out of the way of keys.

The decision: what lives for as long as the dashboard does (modules, pages, traces that were read) is set aside. A full collection walks
all that the collector knows: 35 to 75 ms on a plain run, in whichever thread it falls, and no key is answered meanwhile. Without what is
set aside it takes under 5 ms.
"""

from __future__ import annotations

import gc

YOUNG = 1
"""Generations up to this one are small: garbage is taken out of them first, since what is set aside is never looked at again."""


def set_aside() -> None:
    """Have later collections leave out everything that lives now."""
    gc.collect(YOUNG)
    gc.freeze()


def take_back() -> None:
    """Have them look at everything again."""
    gc.unfreeze()
