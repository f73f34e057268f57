"""Serving figures from an engine's counters."""

from __future__ import annotations

import pytest

from mtpprof.analyzers.measures.serving import serving_of
from mtpprof.rundir.records import EngineMetrics, RoundTiming, TimingRecord


def timing(*metrics: EngineMetrics | None) -> TimingRecord:
    return TimingRecord(
        schema_version=1,
        rounds=[
            RoundTiming(round=index, position=index, step_ns=[[1]], metrics=entry)
            for index, entry in enumerate(metrics)
        ],
    )


def test_figures_follow_from_the_counters() -> None:
    window = EngineMetrics(
        steps=10, generation_tokens=50, drafts=20, draft_tokens=60, accepted_tokens=30, inter_token_ns=10e6
    )
    found = serving_of(timing(window, window), concurrency=2)
    assert found is not None
    assert found.steps == 20
    assert found.inter_token_ns == 10e6
    assert found.time_per_output_token_ns == pytest.approx(4e6)
    assert found.output_tokens_per_s == pytest.approx(500)
    assert (found.acceptance_length, found.acceptance_rate) == (2.5, 0.5)
    assert found.tokens_per_s_per_acceptance == pytest.approx(200)


def test_without_drafts_there_is_no_acceptance() -> None:
    window = EngineMetrics(steps=4, generation_tokens=8, inter_token_ns=5e6)
    found = serving_of(timing(window), concurrency=2)
    assert found is not None
    assert found.time_per_output_token_ns == pytest.approx(5e6)
    assert (found.acceptance_length, found.acceptance_rate, found.tokens_per_s_per_acceptance) == (None,) * 3


def test_what_one_window_does_not_count_is_unknown() -> None:
    full = EngineMetrics(steps=4, generation_tokens=8, inter_token_ns=5e6)
    found = serving_of(timing(full, EngineMetrics(steps=4)), concurrency=2)
    assert found is not None
    assert found.output_tokens_per_s is None
    assert found.inter_token_ns == 5e6


def test_latencies_are_weighted_by_steps() -> None:
    short, long = EngineMetrics(steps=1, inter_token_ns=1e6), EngineMetrics(steps=3, inter_token_ns=5e6)
    found = serving_of(timing(short, long), concurrency=1)
    assert found is not None
    assert found.inter_token_ns == pytest.approx(4e6)


def test_an_engine_without_counters_has_no_figures() -> None:
    assert serving_of(None, 1) is None
    assert serving_of(timing(None), 1) is None
