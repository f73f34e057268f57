from __future__ import annotations

import gc
import weakref

from mtpprof.cli.tui import collector


class Ring:
    """Garbage that counting references does not free."""

    def __init__(self) -> None:
        self.me = self


def test_what_lives_is_left_out_of_collections_until_it_is_taken_back() -> None:
    ring = Ring()
    known = weakref.ref(ring)
    collector.set_aside()
    try:
        assert gc.get_freeze_count() > 0
        del ring
        gc.collect()
        assert known() is not None
    finally:
        collector.take_back()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert known() is None


def test_young_garbage_is_not_set_aside() -> None:
    known = weakref.ref(Ring())
    collector.set_aside()
    try:
        assert known() is None
    finally:
        collector.take_back()
