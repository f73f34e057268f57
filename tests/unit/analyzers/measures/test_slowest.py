"""Calls that stand out, described."""

from __future__ import annotations

from mtpprof.analyzers.measures.slowest import most_skewed, slowest
from tests.unit.analyzers.measures.test_sums import some_calls


def test_the_slowest_calls_come_first_and_are_described() -> None:
    found = some_calls()
    entries = slowest(found.calls, found.steps, 3)
    assert [entry.dur_ns for entry in entries] == [6_000, 5_000, 5_000]
    assert (entries[0].rank, entries[0].kind, entries[0].payload_bytes) == (0, "all_reduce", 2048)
    assert entries[0].step is None


def test_the_longest_waits_are_those_of_the_rank_that_came_first() -> None:
    found = some_calls()
    entries = most_skewed(found.calls, found.steps, 10)
    assert entries
    assert {entry.rank for entry in entries} == {0}
    assert all(entry.wait_ns == 1_000 for entry in entries)


def test_unknown_stays_unknown() -> None:
    found = some_calls()
    entries = slowest(found.calls, found.steps, 100)
    assert any(entry.payload_bytes is None for entry in entries)
