"""vLLM's own counters over one window: they are cumulative, so a window is the difference of two snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mtpprof.rundir.records import EngineMetrics

TOKENS = "vllm:generation_tokens"
DRAFTS = "vllm:spec_decode_num_drafts"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
LATENCY = "vllm:inter_token_latency_seconds"
"""A histogram; with speculation one observation is one step, which gives several tokens at once."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters by name, and sum and number of observations of the histograms."""

    counters: dict[str, float]
    histograms: dict[str, tuple[float, int]]

    @staticmethod
    def of(metrics: Iterable[Any]) -> Snapshot:
        """Take in `LLM.get_metrics()`; metrics of one name and several label sets are added up."""
        counters: dict[str, float] = {}
        histograms: dict[str, tuple[float, int]] = {}
        for metric in metrics:
            if hasattr(metric, "buckets"):
                total, count = histograms.get(metric.name, (0.0, 0))
                histograms[metric.name] = total + metric.sum, count + metric.count
            elif hasattr(metric, "value"):
                counters[metric.name] = counters.get(metric.name, 0) + metric.value
        return Snapshot(counters, histograms)

    def since(self, before: Snapshot, steps: int) -> EngineMetrics:
        """What was counted between two snapshots with `steps` engine steps in between."""

        def counted(name: str) -> int | None:
            if name not in self.counters:
                return None
            return round(self.counters[name] - before.counters.get(name, 0))

        total, count = self.histograms.get(LATENCY, (0.0, 0))
        total_before, count_before = before.histograms.get(LATENCY, (0.0, 0))
        observed = count - count_before
        return EngineMetrics(
            steps=steps,
            generation_tokens=counted(TOKENS),
            drafts=counted(DRAFTS),
            draft_tokens=counted(DRAFT_TOKENS),
            accepted_tokens=counted(ACCEPTED),
            inter_token_ns=(total - total_before) * 1e9 / observed if observed > 0 else None,
        )
