"""The answer of a run: per case and arm what was seen, whether it is what was expected, and what each optimization saved.

Pure data, versioned: `report.json` and `--format json` are this, every view renders it, and its schema is published in the package
(`mtpprof/schemas`). Calls and bytes are those of one rank in one step, exact; times are means over the ranks and steps of the profiled
window, except step times, which come from windows without a profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import numpy as np

from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.calls.unknown_names import Suspect, suspicion
from mtpprof.analyzers.compare.difference import Difference, compare_sides
from mtpprof.analyzers.compare.effects import Effect, FactorialArm, factorial_effects
from mtpprof.analyzers.compare.engagement import Engagement, doubted, engagement_of
from mtpprof.analyzers.compare.same_output import Acceptance, SameOutput, acceptance, same_output
from mtpprof.analyzers.compare.side import Side, Traces, run_side
from mtpprof.analyzers.ledger.excess import Excess, check_workload
from mtpprof.analyzers.ledger.mismatches import (
    Mismatch,
    compare,
    expected_counts,
    observed_counts,
    observed_entries,
)
from mtpprof.analyzers.measures.serving import Serving
from mtpprof.analyzers.measures.step_parts import PARTS, Composition
from mtpprof.analyzers.measures.totals import Group, Totals, groups_of, totals_of
from mtpprof.analyzers.traces.nvtx_beside import NvtxBeside, summary
from mtpprof.analyzers.traces.table import MISSING
from mtpprof.errors import InputError
from mtpprof.models.ledger import Workload
from mtpprof.models.optimizations.catalogue import CATALOGUE, OPT_IN, expected_collectives
from mtpprof.models.spec import ModelSpec
from mtpprof.rundir.directory import OUTPUTS_FILE, TIMING_FILE, RunDirectory
from mtpprof.rundir.records import BASELINE, ArmRecord, CaseRecord, OutputsRecord, Record, RunRecord

REPORT_SCHEMA_VERSION = 2

ReadSide = Callable[[RunDirectory, RunRecord, CaseRecord, ArmRecord], Side]


class StepTimes(Record, frozen=True, kw_only=True):
    """Step times without a profiler, the slowest rank of each step."""

    mean_ns: float
    """Mean over the rounds of each round's median step: what differences are differences of."""
    median_ns: float
    """Of all steps."""
    low_ns: float
    """First quartile."""
    high_ns: float
    """Third quartile."""
    steps: int
    rounds_ns: dict[str, list[int]]
    """Every step, by round."""


class RankTimes(Record, frozen=True, kw_only=True):
    """Mean step of one rank in the profiled window, and its parts."""

    rank: int
    step_ns: float
    parts_ns: dict[str, float]
    """By part (`mtpprof.analyzers.measures.step_parts.PARTS`); they add up to `step_ns`."""


class Throughput(Record, frozen=True, kw_only=True):
    """Tokens of all sequences per second, from step times without a profiler."""

    tokens_per_s: float
    per_acceptance: float
    """Divided by the acceptance length: what a change of acceptance cannot move."""


class ArmReport(Record, frozen=True, kw_only=True):
    """One arm."""

    name: str
    enabled: list[str]
    repeats: str | None
    missing: str | None
    """Why some of the figures are not known; None: all are."""
    damaged: bool = False
    """What the run recorded of it is not there as it was recorded, or in a complete run not at all; `missing` says what and why."""
    groups: list[Group]
    totals: Totals | None
    partial: bool = False
    """Whether `groups` and `totals` leave out batches in whose steps not all ranks did the same, which those of other arms may hold."""
    as_expected: bool | None
    """Whether every rank's collectives of every step equal the ledger; None: no trace."""
    mismatches: list[Mismatch]
    excess: list[Excess]
    """Collectives that another setting of the switches does without, each with the optimization that removes it."""
    suspects: tuple[Suspect, ...] = ()
    """Names that look like communication and that no rule knows: while there are any, calls and bytes are lower bounds."""
    engagement: dict[str, Engagement]
    step: StepTimes | None
    profiled_step_ns: float | None
    ranks: list[RankTimes]
    acceptance_length: float | None
    acceptance: Acceptance | None
    throughput: Throughput | None
    serving: Serving | None = None
    """The engine's own counters; None: it keeps none."""
    output: SameOutput | None

    @property
    def doubt(self) -> str:
        """Why calls and bytes are lower bounds, as half a sentence; empty: they are not."""
        return suspicion(self.suspects)


class CaseReport(Record, frozen=True, kw_only=True):
    """One case."""

    id: str
    model: str
    scale: str
    tp: int
    concurrency: int
    draft_tokens: int
    dtype: str
    arms: list[ArmReport]
    differences: list[Difference]
    effects: list[Effect]
    """Of a factorial design; empty for others."""
    not_applicable: dict[str, str]


class Report(Record, frozen=True, kw_only=True):
    """The answer of a run."""

    schema_version: int
    run: dict[str, Any]
    cases: list[CaseReport]
    deviations: list[str]
    """In what the engine runs something else than was asked for."""
    notes: list[str]

    @property
    def as_expected(self) -> bool:
        """No arm with a trace differs from its ledger."""
        return all(arm.as_expected is not False for case in self.cases for arm in case.arms)

    @property
    def damaged(self) -> list[str]:
        """One sentence for every arm of which figures are missing because a file of it is damaged or gone."""
        return [
            f"{case.id}, {arm.name}: {arm.missing}" for case in self.cases for arm in case.arms if arm.damaged
        ]


def make_report(directory: RunDirectory, read_side: ReadSide = run_side) -> Report:
    """Analyze a run directory, finished or not.

    Args:
        directory: The run.
        read_side: Reads one arm; another one than `run_side` serves tests.

    Raises:
        InputError: not a run directory, or a file of it is damaged.
    """
    run = directory.run()
    captures: list[NvtxBeside] = []

    def read(directory: RunDirectory, run: RunRecord, case: CaseRecord, arm: ArmRecord) -> Side:
        side = read_side(directory, run, case, arm)
        captures.extend(side.traces.found.nvtx if side.traces is not None else ())
        return side

    cases = [_case_report(directory, run, case, read) for case in run.cases]
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        run={
            "id": run.id,
            "name": run.name,
            "status": run.status,
            "error": run.error,
            "created_utc": run.created_utc,
            "engine": run.engine,
            "engine_reason": run.engine_reason,
            "device": run.device,
            "transport": run.transport,
            "seed": run.seed,
            "steps": run.steps,
            "rounds": run.rounds,
            "profile_steps": run.profile_steps,
            "machine": run.machine,
            "versions": run.versions,
        },
        cases=cases,
        deviations=run.deviations,
        notes=[*_notes(run, cases), *filter(None, [run.capture_note]), *summary(captures)],
    )


def _notes(run: RunRecord, cases: Sequence[CaseReport]) -> Iterable[str]:
    if run.status != "complete":
        yield f"The run is {run.status}" + (f": {run.error}" if run.error else ".")
    if run.device == "cpu":
        ranks, cpus = max((case.tp for case in run.cases), default=0), run.machine.get("cpus")
        shared = f" {ranks} ranks share {cpus} cores:" if isinstance(cpus, int) and ranks > cpus else ""
        yield (
            f"Calls and bytes are exact. Times are a CPU's:{shared} the time in a collective is mostly waiting for the other "
            "ranks' turn, and no saving on a GPU follows from it."
        )
    if any(difference.step.noise is None for case in cases for difference in case.differences):
        yield "Where the baseline was not repeated in two rounds or more, the noise of step times is not known."


def _case_report(
    directory: RunDirectory, run: RunRecord, case: CaseRecord, read_side: ReadSide
) -> CaseReport:
    sides = {arm.name: read_side(directory, run, case, arm) for arm in case.arms}
    if BASELINE not in sides:
        raise InputError(
            f"{directory.root}: case {case.id} has no arm {BASELINE!r}; the record of the run is damaged, run again."
        )
    base = sides[BASELINE]
    arms = [_arm_report(run, case, arm, sides[arm.name], base.outputs) for arm in case.arms]
    differences = [
        compare_sides(base, sides[arm.name]) for arm in case.arms if arm.name != BASELINE and not arm.repeats
    ]
    factorial = [
        FactorialArm(
            enabled=frozenset(arm.enabled),
            idle=frozenset(name for name, found in arm.engagement.items() if found.requested and found.idle),
            medians=sides[arm.name].medians,
            totals=None if arm.suspects or arm.partial else arm.totals,
        )
        for arm in arms
        if not arm.repeats
    ]
    noise = next((difference.step.noise for difference in differences), None)
    spec = base.spec
    assert spec is not None
    return CaseReport(
        id=case.id,
        model=spec.name,
        scale=spec.scale,
        tp=case.tp,
        concurrency=case.concurrency,
        draft_tokens=case.draft_tokens,
        dtype=case.dtype,
        arms=arms,
        differences=differences,
        effects=factorial_effects(factorial, noise, shared_cores=bool(base.shared_cores)),
        not_applicable=case.not_applicable,
    )


def _arm_report(
    run: RunRecord, case: CaseRecord, arm: ArmRecord, side: Side, reference: OutputsRecord | None
) -> ArmReport:
    spec, workload, traces = side.spec, side.workload, side.traces
    assert spec is not None
    assert workload is not None
    missing = _missing(run, arm, side)
    calls = numbered_calls(traces) if traces else None
    mismatches = [] if calls is None else _mismatches(calls, case, spec, workload, arm)
    counted = _counted(traces, calls) if traces and calls is not None else None
    accepted = acceptance(side.outputs)
    return ArmReport(
        name=arm.name,
        enabled=arm.enabled,
        repeats=arm.repeats,
        missing="; ".join([*missing, *_apart(traces)]) or None,
        damaged=side.damaged or bool(side.unreadable) or (run.status == "complete" and bool(missing)),
        groups=[] if counted is None else groups_of(counted),
        totals=None if counted is None else totals_of(counted),
        partial=traces is not None and bool(traces.apart),
        as_expected=None if calls is None else not mismatches,
        mismatches=mismatches,
        excess=_excess(traces, spec, workload) if traces else [],
        suspects=traces.found.suspects if traces else (),
        engagement={}
        if calls is None
        else doubted(_engagement(calls, case, arm, side.unavailable), side.doubt),
        step=step_times(side.windows),
        profiled_step_ns=float(median(side.profiled_ns)) if side.profiled_ns else None,
        ranks=rank_times(traces) if traces else [],
        acceptance_length=accepted.mean if accepted else None,
        acceptance=accepted,
        throughput=throughput(side, accepted),
        serving=side.serving,
        output=None if arm.name == BASELINE else same_output(side.outputs, reference, case.dtype),
    )


def _missing(run: RunRecord, arm: ArmRecord, side: Side) -> list[str]:
    """What of an arm is not known, with the reasons."""
    missing = [side.missing] if side.traces is None and arm.repeats is None else []
    missing += side.unreadable.values()
    timed, given = len(side.windows), len(side.outputs.rounds) if side.outputs else 0
    if timed < run.rounds and TIMING_FILE not in side.unreadable:
        missing.append(f"{timed} of {run.rounds} rounds timed")
    if given < timed and OUTPUTS_FILE not in side.unreadable:
        missing.append(f"outputs of {given} of {timed} rounds")
    return missing


def _apart(traces: Traces | None) -> Iterable[str]:
    if traces is not None and traces.apart:
        what = "are those of other batches" if traces.strata else "are not one number"
        yield f"calls and bytes {what}: {traces.apart}"


def _counted(traces: Traces, calls: Calls) -> Calls | None:
    """Those of the numbered calls that figures are made of: of batches in whose steps all ranks did the same; None: no such batch."""
    if not traces.apart:
        return calls
    if not traces.strata:
        return None
    agreed = np.array(sorted(row for stratum in traces.strata for row in stratum.rows), np.int64)
    return calls.take(np.isin(traces.steps.rows_of(traces.calls.table, traces.calls.step), agreed))


def numbered_calls(traces: Traces) -> Calls:
    """The calls with `step` as the number that the run gave it; -1: outside the counted steps."""
    calls, steps = traces.calls, traces.steps
    rows = steps.rows_of(calls.table, calls.step)
    inside = rows != MISSING
    number = np.full(len(calls), MISSING, np.int32)
    number[inside] = steps.number[rows[inside]]
    return replace(calls, step=number)


def _mismatches(
    calls: Calls, case: CaseRecord, spec: ModelSpec, workload: Workload, arm: ArmRecord
) -> list[Mismatch]:
    expected = expected_counts(expected_collectives(spec, workload, frozenset(arm.enabled)))
    observed = observed_counts(calls)
    for rank in range(case.tp):
        # A rank without a single collective in any step would otherwise be no difference at all.
        if case.tp > 1 and not any(seen == rank for seen, _ in observed):
            observed[(rank, 0)] = type(expected)()
    return compare(observed, expected)


def _excess(traces: Traces, spec: ModelSpec, workload: Workload) -> list[Excess]:
    return [entry for stratum in traces.strata for entry in check_workload(stratum, spec, workload).excess]


def _engagement(
    calls: Calls, case: CaseRecord, arm: ArmRecord, unavailable: Mapping[str, str]
) -> dict[str, Engagement]:
    entries = observed_entries(calls)
    return {
        name: engagement_of(entries, name, requested=name in arm.enabled, fallback=unavailable.get(name, ""))
        for name in (*CATALOGUE, *(name for name in OPT_IN if name in case.switched))
        if name not in case.not_applicable
    }


def step_times(windows: dict[int, tuple[int, ...]]) -> StepTimes | None:
    """Median and quartiles of all timed steps of an arm; None: none were timed."""
    steps = [step for window in windows.values() for step in window]
    if not steps:
        return None
    low, middle, high = np.percentile(steps, [25, 50, 75]).tolist()
    return StepTimes(
        mean_ns=fmean(median(window) for window in windows.values()),
        median_ns=middle,
        low_ns=low,
        high_ns=high,
        steps=len(steps),
        rounds_ns={str(number): list(window) for number, window in windows.items()},
    )


def rank_times(traces: Traces) -> list[RankTimes]:
    """Mean step of every rank with its parts."""
    composition, steps = traces.composition, traces.steps
    rank = steps.rank[composition.step]
    return [_rank_times(int(number), composition.take(rank == number)) for number in np.unique(rank)]


def _rank_times(rank: int, composition: Composition) -> RankTimes:
    count = len(composition)
    return RankTimes(
        rank=rank,
        step_ns=int(composition.length_ns.sum()) / count,
        parts_ns={name: int(composition.parts_ns[name].sum()) / count for name in PARTS},
    )


def throughput(side: Side, accepted: Acceptance | None) -> Throughput | None:
    """Tokens per second of all sequences; None: no step times, or no outputs."""
    medians = side.medians
    if not medians or accepted is None or side.workload is None:
        return None
    step_s = sum(medians.values()) / len(medians) / 1e9
    steps_per_s = side.workload.concurrency / step_s
    return Throughput(tokens_per_s=steps_per_s * accepted.mean, per_acceptance=steps_per_s)
