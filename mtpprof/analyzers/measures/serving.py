"""What people who serve models look at, from an engine's own counters over the timed windows.

With speculation an output is all tokens of a step: the inter-token latency is then one between outputs, and the time per output token
is that divided by the tokens of an output. Both sides of a comparison are best held against each other per step, and the throughput
divided by the acceptance length, which a communication optimization does not change.
"""

from __future__ import annotations

from collections.abc import Iterable

from mtpprof.rundir.records import EngineMetrics, Record, TimingRecord


class Serving(Record, frozen=True, kw_only=True):
    """Means over all timed windows of an arm; None: the engine does not count it."""

    steps: int
    """Steps that the counters cover."""
    inter_token_ns: float | None
    """Between two outputs of a sequence."""
    time_per_output_token_ns: float | None
    output_tokens_per_s: float | None
    """Of all sequences together."""
    acceptance_length: float | None
    """Tokens that a step gives a sequence: 1 + accepted drafts / times drafted."""
    acceptance_rate: float | None
    """Accepted drafts / drafts."""
    tokens_per_s_per_acceptance: float | None
    """Output tokens per second divided by the acceptance length."""


def serving_of(timing: TimingRecord | None, concurrency: int) -> Serving | None:
    """An arm's figures from its windows; None: its engine keeps no counters.

    Args:
        timing: of the arm.
        concurrency: sequences decoded together.
    """
    windows = [entry.metrics for entry in timing.rounds if entry.metrics is not None] if timing else []
    if not windows:
        return None
    steps = sum(window.steps for window in windows)
    latency_ns = _mean_latency(windows)
    tokens = _total(window.generation_tokens for window in windows)
    drafts, accepted = (
        _total(getattr(window, name) for window in windows) for name in ("drafts", "accepted_tokens")
    )
    drafted = _total(window.draft_tokens for window in windows)
    per_output = None if tokens is None else tokens / (steps * concurrency)
    per_token_ns = latency_ns / per_output if latency_ns and per_output else None
    tokens_per_s = concurrency * 1e9 / per_token_ns if per_token_ns else None
    length = 1 + accepted / drafts if drafts and accepted is not None else None
    return Serving(
        steps=steps,
        inter_token_ns=latency_ns,
        time_per_output_token_ns=per_token_ns,
        output_tokens_per_s=tokens_per_s,
        acceptance_length=length,
        acceptance_rate=accepted / drafted if drafted and accepted is not None else None,
        tokens_per_s_per_acceptance=tokens_per_s / length if tokens_per_s and length else None,
    )


def _mean_latency(windows: Iterable[EngineMetrics]) -> float | None:
    known = [(window.inter_token_ns, window.steps) for window in windows if window.inter_token_ns is not None]
    return (
        sum(latency * steps for latency, steps in known) / sum(steps for _, steps in known) if known else None
    )


def _total(values: Iterable[int | None]) -> int | None:
    """Sum; None as soon as one is not known."""
    known = list(values)
    return (
        None if any(value is None for value in known) else sum(value for value in known if value is not None)
    )
