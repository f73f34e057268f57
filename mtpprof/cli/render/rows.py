"""Answers as rows of plain values, for CSV: a row a thing, units in the names of columns, nothing where nothing is known.

What is for people (tables with rounded figures and signs) is no data, so it is not what CSV holds; everything else that an answer
says is in its JSON. Where names that no rule knows look like communication, figures are lower bounds: a column of its own says so,
since a number cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mtpprof.analyzers.answers.analysis import Analysis
from mtpprof.analyzers.answers.run_report import ArmReport, Report
from mtpprof.analyzers.compare.difference import Difference, StratumDifference
from mtpprof.analyzers.compare.engagement import Engaged, Engagement
from mtpprof.analyzers.compare.targets import Comparison

Row = dict[str, Any]
GROUP_FIGURES = (
    "calls",
    "fused_calls",
    "transient_calls",
    "ranks",
    "payload_bytes",
    "bytes_known",
    "bytes_measured",
    "wire_bytes",
    "wire_known",
    "sum_ns",
    "busy_ns",
    "exposed_ns",
    "wait_ns",
    "transfer_ns",
    "wait_known",
    "min_ns",
    "median_ns",
    "max_ns",
    "busbw_gb_per_s",
    "busbw_basis",
)
CASE_FIELDS = ("model", "scale", "tp", "concurrency", "draft_tokens", "dtype")
TOTALS = ("calls", "payload_bytes", "wire_bytes", "collective_ns")
CHANGES = {
    "calls_change": "calls",
    "payload_change_bytes": "payload_bytes",
    "wire_change_bytes": "wire_bytes",
    "collective_change_ns": "collective_ns",
    "kernels_change": "kernels_change",
    "memory_change_bytes": "memory_bytes",
}
"""Columns of what an arm changes, each with its figure in `Difference`."""
STEP_COLUMNS = ("step_change_ns", "step_change_low_ns", "step_change_high_ns", "noise_floor_ns", "claim")
REPORT_COLUMNS = (
    "case",
    *CASE_FIELDS,
    "arm",
    "repeats",
    "enabled",
    "engaged",
    "as_expected",
    *TOTALS,
    "lower_bound",
    "step_mean_ns",
    "step_median_ns",
    "profiled_step_ns",
    "acceptance_length",
    "tokens_per_s",
    "same_output",
    "output",
    "base",
    *CHANGES,
    *STEP_COLUMNS,
    "missing",
)
STRATUM_FIELDS = ("batch", "arm_batch", "same_batch", "base_steps", "arm_steps")
COMPARISON_COLUMNS = (
    "title",
    "base",
    "arm",
    "engaged",
    *STRATUM_FIELDS,
    *(f"{side}_{name}" for name in TOTALS for side in ("base", "arm")),
    "base_lower_bound",
    "arm_lower_bound",
    "base_kernels",
    "arm_kernels",
    "memory_change_bytes",
    *STEP_COLUMNS,
)


def group_columns(by: Iterable[str]) -> tuple[str, ...]:
    """The columns of `group_rows`."""
    return ("traces", *by, *GROUP_FIGURES, "lower_bound")


def group_rows(found: Analysis) -> Iterator[Row]:
    """Sums of the calls of one run by the columns `found.by`, all ranks together; a known sum is of the `…_known` calls."""
    for entry in found.groups:
        yield {
            "traces": found.label,
            **{name: entry.key[name] for name in found.by},
            **{name: getattr(entry, name) for name in GROUP_FIGURES},
            "lower_bound": bool(found.suspects),
        }


def report_rows(report: Report) -> Iterator[Row]:
    """A row an arm: what it does in a step and rank, and its difference to its baseline."""
    for case in report.cases:
        differences = {difference.arm: difference for difference in case.differences}
        for arm in case.arms:
            yield {
                "case": case.id,
                **{name: getattr(case, name) for name in CASE_FIELDS},
                "arm": arm.name,
                "repeats": arm.repeats,
                "enabled": "+".join(arm.enabled),
                **_arm(arm),
                "base": differences[arm.name].base if arm.name in differences else None,
                **{
                    column: getattr(differences.get(arm.name), name, None) for column, name in CHANGES.items()
                },
                **_step_change(differences.get(arm.name)),
                "missing": arm.missing,
            }


def _arm(arm: ArmReport) -> Row:
    return {
        "engaged": _engaged(arm.engagement),
        "as_expected": arm.as_expected,
        **{name: getattr(arm.totals, name, None) for name in TOTALS},
        "lower_bound": bool(arm.suspects) if arm.totals else None,
        "step_mean_ns": arm.step.mean_ns if arm.step else None,
        "step_median_ns": arm.step.median_ns if arm.step else None,
        "profiled_step_ns": arm.profiled_step_ns,
        "acceptance_length": arm.acceptance_length,
        "tokens_per_s": arm.throughput.tokens_per_s if arm.throughput else None,
        "same_output": arm.output.same if arm.output else None,
        "output": arm.output.sentence if arm.output else None,
    }


def _engaged(engagement: dict[str, Engagement]) -> str:
    return "+".join(name for name, found in engagement.items() if found.verdict == Engaged.ENGAGED)


def _step_change(difference: Difference | None) -> Row:
    step = difference.step if difference else None
    interval = step.difference if step else None
    return {
        "step_change_ns": step.difference_ns if step else None,
        "step_change_low_ns": interval.low if interval else None,
        "step_change_high_ns": interval.high if interval else None,
        "noise_floor_ns": difference.noise_ns if difference else None,
        "claim": step.claim if step else None,
    }


def comparison_rows(comparisons: Iterable[Comparison]) -> Iterator[Row]:
    """A row a batch of each comparison, per step and rank; where nothing compares, one row without a batch."""
    for comparison in comparisons:
        difference = comparison.difference
        for stratum in difference.strata or (None,):
            yield {
                "title": comparison.title,
                "base": comparison.base.name,
                "arm": comparison.arm.name,
                "engaged": _engaged(difference.engagement),
                **_stratum(stratum),
                "base_lower_bound": bool(comparison.base.suspects) if stratum else None,
                "arm_lower_bound": bool(comparison.arm.suspects) if stratum else None,
                **_kernels(stratum),
                **_step_change(difference),
            }


def _kernels(stratum: StratumDifference | None) -> Row:
    found = stratum.kernel_change if stratum is not None else None
    return {
        "base_kernels": found.base if found is not None else None,
        "arm_kernels": found.arm if found is not None else None,
        "memory_change_bytes": stratum.memory_bytes if stratum is not None else None,
    }


def _stratum(stratum: StratumDifference | None) -> Row:
    return {
        **{name: getattr(stratum, name, None) for name in STRATUM_FIELDS},
        **{
            f"{side}_{name}": getattr(getattr(stratum, side, None), name, None)
            for name in TOTALS
            for side in ("base", "arm")
        },
    }
