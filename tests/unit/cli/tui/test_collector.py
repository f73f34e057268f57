from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from mtpprof.cli.tui.collector import EVERY_S, NEVER, QUIET_S, Collector


class Ring:
    """Garbage that counting references does not free."""

    def __init__(self) -> None:
        self.me = self


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(clock: Clock) -> Iterator[Collector]:
    found = Collector(clock)
    before = gc.get_threshold()
    found.start()
    yield found
    found.stop()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_full_collections_do_not_come_by_themselves(collector: Collector) -> None:
    assert gc.isenabled()
    assert gc.get_threshold()[2] == NEVER


def test_what_lives_is_left_out_until_it_is_taken_back(collector: Collector) -> None:
    ring = Ring()
    known = weakref.ref(ring)
    collector.set_aside()
    del ring
    gc.collect()
    assert known() is not None
    collector.stop()
    gc.collect()
    assert known() is None


def test_young_garbage_is_not_set_aside(collector: Collector) -> None:
    known = weakref.ref(Ring())
    collector.set_aside()
    assert known() is None


def test_it_is_tidied_once_when_typing_has_ended(collector: Collector, clock: Clock) -> None:
    ring = Ring()
    known = weakref.ref(ring)
    collector.typed()
    for _ in range(2):
        gc.collect(1)  # now it is old
    del ring
    clock.now_s += QUIET_S / 2
    assert not collector.tidy()
    assert known() is not None
    clock.now_s += QUIET_S
    assert collector.tidy()
    assert known() is None
    assert not collector.tidy()


def test_it_is_tidied_now_and_then_where_nobody_types(collector: Collector, clock: Clock) -> None:
    clock.now_s += QUIET_S
    assert collector.tidy()
    clock.now_s += EVERY_S / 2
    assert not collector.tidy()
    clock.now_s += EVERY_S / 2
    assert collector.tidy()
