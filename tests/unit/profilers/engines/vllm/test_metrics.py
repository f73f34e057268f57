"""Counters of vLLM are cumulative: a window is a difference."""

from __future__ import annotations

from dataclasses import dataclass, field

from mtpprof.profilers.engines.vllm.metrics import ACCEPTED, DRAFTS, LATENCY, TOKENS, Snapshot


@dataclass
class Counter:
    name: str
    value: int


@dataclass
class Histogram:
    name: str
    sum: float
    count: int
    buckets: dict[str, int] = field(default_factory=dict)


@dataclass
class Vector:
    name: str
    values: list[int]


def test_a_window_is_the_difference_of_two_snapshots() -> None:
    before = Snapshot.of([Counter(TOKENS, 10), Counter(DRAFTS, 4), Histogram(LATENCY, 1.0, 10)])
    after = Snapshot.of(
        [Counter(TOKENS, 26), Counter(DRAFTS, 8), Histogram(LATENCY, 1.5, 20), Vector("vllm:x", [1])]
    )
    found = after.since(before, 5)
    assert (found.steps, found.generation_tokens, found.drafts) == (5, 16, 4)
    assert found.inter_token_ns == 50_000_000


def test_label_sets_of_one_name_are_added() -> None:
    assert Snapshot.of([Counter(TOKENS, 1), Counter(TOKENS, 2)]).counters == {TOKENS: 3}
    two = Snapshot.of([Histogram(LATENCY, 1.0, 1), Histogram(LATENCY, 2.0, 3)])
    assert two.histograms == {LATENCY: (3.0, 4)}


def test_what_is_not_counted_is_unknown_and_not_zero() -> None:
    empty = Snapshot.of([])
    found = Snapshot.of([Counter(TOKENS, 5)]).since(empty, 1)
    assert found.generation_tokens == 5
    assert found.accepted_tokens is None
    assert found.inter_token_ns is None
    same = Snapshot.of([Counter(ACCEPTED, 7), Histogram(LATENCY, 3.0, 9)])
    assert same.since(same, 1).accepted_tokens == 0
    assert same.since(same, 1).inter_token_ns is None
