"""The answer of a run: per case and arm what was seen, whether it is what was expected, and the difference to the baseline.

Pure data, versioned: `report.json` and `--format json` are this, every view renders it. Calls and bytes are those of one rank in one
step, exact; times are means over the ranks and steps of the profiled window, except step times, which come from windows without a
profiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec
import numpy as np

from mtpprof.analyzers.calls import Calls
from mtpprof.analyzers.expected import Mismatch, compare, expected_counts, observed_counts, observed_entries
from mtpprof.analyzers.table import Bools
from mtpprof.errors import InputError
from mtpprof.models.ledger import Workload
from mtpprof.models.optimizations import CATALOGUE, expected_collectives
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import Algorithm, Kind, wire_bytes
from mtpprof.rundir import ArmRecord, CaseRecord, OutputsRecord, Record, RunDirectory, RunRecord, TimingRecord

REPORT_SCHEMA_VERSION = 1
BASELINE = "baseline"


class Group(Record, frozen=True, kw_only=True):
    """Collectives of one kind, phase and form: per step and rank."""

    kind: str
    phase: str
    fused: str
    implementation: str
    algorithm: str
    calls: float
    payload_bytes: float | None
    wire_bytes: float | None
    """What one rank sends, by `algorithm`; None: not known for it."""
    time_ns: float


class Totals(Record, frozen=True, kw_only=True):
    """Sums over all groups: per step and rank."""

    calls: float
    payload_bytes: float | None
    wire_bytes: float | None
    collective_ns: float
    """Time in collectives, fused kernels included."""
    fused_ns: float
    """Time in fused kernels alone."""


class StepTimes(Record, frozen=True, kw_only=True):
    """Step times without a profiler, the slowest rank of each step."""

    median_ns: float
    low_ns: float
    """First quartile."""
    high_ns: float
    """Third quartile."""
    steps: int


class Engagement(Record, frozen=True, kw_only=True):
    """Whether an optimization did what it is for, proved from the trace."""

    requested: bool
    verdict: str
    """ENGAGED, PARTLY, NOT ENGAGED, or UNKNOWN (the trace can say nothing about it)."""
    engaged_calls: int
    opportunities: int


class SameOutput(Record, frozen=True, kw_only=True):
    """Tokens held against the baseline's."""

    same: bool
    tokens: int
    """Tokens compared."""
    agreeing: int
    first_difference: tuple[int, int] | None
    """(sequence, position) of the first token that differs."""


class ArmReport(Record, frozen=True, kw_only=True):
    """One arm."""

    name: str
    enabled: list[str]
    repeats: str | None
    missing: str | None
    """Why some of the figures are not known; None: all are."""
    groups: list[Group]
    totals: Totals | None
    as_expected: bool | None
    """Whether every rank's collectives of every step equal the ledger; None: no trace."""
    mismatches: list[dict[str, Any]]
    engagement: dict[str, Engagement]
    step: StepTimes | None
    profiled_step_ns: float | None
    acceptance_length: float | None
    output: SameOutput | None


class Difference(Record, frozen=True, kw_only=True):
    """An arm minus its baseline; negative is saved."""

    arm: str
    optimizations: list[str]
    calls: float | None
    payload_bytes: float | None
    wire_bytes: float | None
    collective_ns: float | None
    step_ns: float | None
    noise_ns: float | None
    """The same difference between the baseline and its repeat."""


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
    not_applicable: dict[str, str]


class Report(Record, frozen=True, kw_only=True):
    """The answer of a run."""

    schema_version: int
    run: dict[str, Any]
    cases: list[CaseReport]
    notes: list[str]

    @property
    def as_expected(self) -> bool:
        """No arm with a trace differs from its ledger."""
        return all(arm.as_expected is not False for case in self.cases for arm in case.arms)


def make_report(directory: RunDirectory, read_calls: Any) -> Report:
    """Analyze a run directory, finished or not.

    Args:
        directory: The run.
        read_calls: `(directory, case, arm) -> (Calls, reason)`: the calls of an arm's traces, or None and why.

    Raises:
        InputError: not a run directory.
    """
    run = directory.run()
    cases = [_case_report(directory, run, case, read_calls) for case in run.cases]
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        run={
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
        notes=list(_notes(run, cases)),
    )


def _notes(run: RunRecord, cases: Sequence[CaseReport]) -> Iterable[str]:
    if run.status != "complete":
        yield f"The run is {run.status}" + (f": {run.error}" if run.error else ".")
    ranks, cpus = max(case.tp for case in run.cases), run.machine.get("cpus")
    if run.device == "cpu":
        shared = f" {ranks} ranks share {cpus} cores:" if isinstance(cpus, int) and ranks > cpus else ""
        yield (
            f"Calls and bytes are exact. Times are a CPU's:{shared} the time in a collective is mostly waiting for the other "
            "ranks' turn, and no saving on a GPU follows from it."
        )
    if not all(case.differences and all(d.noise_ns is not None for d in case.differences) for case in cases):
        yield "Where the baseline was not repeated, the noise of step times is not known."


def _case_report(directory: RunDirectory, run: RunRecord, case: CaseRecord, read_calls: Any) -> CaseReport:
    try:
        spec = msgspec.convert(case.model, ModelSpec)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{directory.root}: the model of case {case.id} is damaged ({error}); run again."
        ) from error
    workload = Workload(
        concurrency=case.concurrency, draft_tokens=case.draft_tokens, tp=case.tp, dtype=case.dtype
    )
    reference = directory.outputs(case.id, BASELINE)
    arms = [
        _arm_report(directory, run, case, arm, spec, workload, reference, read_calls) for arm in case.arms
    ]
    return CaseReport(
        id=case.id,
        model=spec.name,
        scale=spec.scale,
        tp=case.tp,
        concurrency=case.concurrency,
        draft_tokens=case.draft_tokens,
        dtype=case.dtype,
        arms=arms,
        differences=list(_differences(arms)),
        not_applicable=case.not_applicable,
    )


def _arm_report(
    directory: RunDirectory,
    run: RunRecord,
    case: CaseRecord,
    arm: ArmRecord,
    spec: ModelSpec,
    workload: Workload,
    reference: OutputsRecord | None,
    read_calls: Any,
) -> ArmReport:
    timing, outputs = directory.timing(case.id, arm.name), directory.outputs(case.id, arm.name)
    missing = []
    calls: Calls | None = None
    if arm.repeats is None:
        calls, reason = read_calls(directory, case, arm)
        if calls is None:
            missing.append(reason)
    if timing is None or len(timing.rounds) < run.rounds:
        missing.append(f"{len(timing.rounds) if timing else 0} of {run.rounds} rounds timed")
    ledger = expected_collectives(spec, workload, frozenset(arm.enabled))
    mismatches = [] if calls is None else _mismatches(calls, case, ledger)
    return ArmReport(
        name=arm.name,
        enabled=arm.enabled,
        repeats=arm.repeats,
        missing="; ".join(missing) or None,
        groups=[] if calls is None else groups_of(calls),
        totals=None if calls is None else totals_of(calls),
        as_expected=None if calls is None else not mismatches,
        mismatches=[msgspec.to_builtins(mismatch) for mismatch in mismatches],
        engagement={} if calls is None else _engagement(calls, case, arm),
        step=step_times(timing),
        profiled_step_ns=_profiled(timing),
        acceptance_length=_acceptance_length(outputs),
        output=None if arm.name == BASELINE else same_output(outputs, reference),
    )


def _mismatches(calls: Calls, case: CaseRecord, ledger: Any) -> list[Mismatch]:
    observed = observed_counts(calls)
    for rank in range(case.tp):
        # A rank without a single collective in any step would otherwise be no difference at all.
        if case.tp > 1 and not any(seen == rank for seen, _ in observed):
            observed[(rank, 0)] = type(expected_counts(ledger))()
    return compare(observed, expected_counts(ledger))


def _engagement(calls: Calls, case: CaseRecord, arm: ArmRecord) -> dict[str, Engagement]:
    entries = observed_entries(calls)
    result = {}
    for name, optimization in CATALOGUE.items():
        if name in case.not_applicable:
            continue
        evidence = optimization.evidence(entries)
        if not evidence.opportunities:
            verdict = "UNKNOWN"
        elif evidence.engaged:
            verdict = "ENGAGED"
        else:
            verdict = "PARTLY" if evidence.partial else "NOT ENGAGED"
        result[name] = Engagement(
            requested=name in arm.enabled,
            verdict=verdict,
            engaged_calls=evidence.engaged_calls,
            opportunities=evidence.opportunities,
        )
    return result


def _per_step(calls: Calls) -> int:
    """Number of (rank, step) pairs that the calls are spread over."""
    return len(np.unique(np.stack([calls.rank, calls.step], axis=1), axis=0))


def groups_of(calls: Calls) -> list[Group]:
    """Calls, bytes and time per step and rank, by kind, phase and form; phases in the order in which they run."""
    inside = calls.take(calls.step >= 0)
    pairs = _per_step(inside)
    columns = ("kind", "phase", "fused", "implementation", "algorithm")
    table = np.stack([getattr(inside, name) for name in columns], axis=1)
    rows, first, where = np.unique(table, axis=0, return_index=True, return_inverse=True)
    groups = []
    for index in np.argsort(first, kind="stable").tolist():
        members = where.reshape(-1) == index
        kind, phase, fused, implementation, algorithm = (inside.texts[code] for code in rows[index].tolist())
        groups.append(
            Group(
                kind=kind,
                phase=phase,
                fused=fused,
                implementation=implementation,
                algorithm=algorithm,
                calls=int(members.sum()) / pairs,
                payload_bytes=_per_step_or_none(inside.payload_bytes[members], pairs),
                wire_bytes=_wire(inside, members, pairs),
                time_ns=int(inside.dur_ns[members].sum()) / pairs,
            )
        )
    return groups


def totals_of(calls: Calls) -> Totals:
    """Sums over all collectives of the steps: per step and rank."""
    inside = calls.take(calls.step >= 0)
    pairs = max(1, _per_step(inside))
    everything = np.ones(len(inside), bool)
    fused = inside.fused != 0
    return Totals(
        calls=len(inside) / pairs,
        payload_bytes=_per_step_or_none(inside.payload_bytes, pairs),
        wire_bytes=_wire(inside, everything, pairs),
        collective_ns=int(inside.dur_ns.sum()) / pairs,
        fused_ns=int(inside.dur_ns[fused].sum()) / pairs,
    )


def _per_step_or_none(payload: Any, pairs: int) -> float | None:
    return None if (payload < 0).any() else int(payload.sum()) / pairs


def _wire(calls: Calls, members: Bools, pairs: int) -> float | None:
    """Sum of the bytes that one rank sends; None as soon as one call's are not known."""
    names = ("kind", "algorithm", "payload_bytes", "group_size")
    table = np.stack([getattr(calls, name)[members].astype(np.int64) for name in names], axis=1)
    rows, counts = np.unique(table, axis=0, return_counts=True)
    total = 0
    for (kind, algorithm, payload, size), count in zip(rows.tolist(), counts.tolist(), strict=True):
        if payload < 0 or size < 1:
            return None
        wire = wire_bytes(Kind(calls.texts[kind]), Algorithm(calls.texts[algorithm]), payload, size)
        if wire is None:
            return None
        total += wire * count
    return total / pairs


def step_times(timing: TimingRecord | None) -> StepTimes | None:
    """Median and quartiles of all timed steps of an arm."""
    if timing is None or not timing.rounds:
        return None
    slowest = [max(ranks) for entry in timing.rounds for ranks in zip(*entry.step_ns, strict=True)]
    low, middle, high = np.percentile(slowest, [25, 50, 75]).tolist()
    return StepTimes(median_ns=middle, low_ns=low, high_ns=high, steps=len(slowest))


def _profiled(timing: TimingRecord | None) -> float | None:
    if timing is None or not timing.profiled_step_ns:
        return None
    return float(median(max(ranks) for ranks in zip(*timing.profiled_step_ns, strict=True)))


def _acceptance_length(outputs: OutputsRecord | None) -> float | None:
    counts = [
        count for entry in (outputs.rounds if outputs else []) for step in entry.accepted for count in step
    ]
    return sum(counts) / len(counts) if counts else None


def same_output(outputs: OutputsRecord | None, reference: OutputsRecord | None) -> SameOutput | None:
    """Token agreement of every round with the reference's first round, as far as both go."""
    if outputs is None or reference is None or not outputs.rounds or not reference.rounds:
        return None
    expected = reference.rounds[0].tokens
    compared = agreeing = 0
    first: tuple[int, int] | None = None
    for entry in outputs.rounds:
        for sequence, (mine, theirs) in enumerate(zip(entry.tokens, expected, strict=True)):
            for position, (token, other) in enumerate(zip(mine, theirs, strict=False)):
                compared += 1
                if token == other:
                    agreeing += 1
                elif first is None:
                    first = (sequence, position)
    return SameOutput(same=first is None, tokens=compared, agreeing=agreeing, first_difference=first)


def _differences(arms: Sequence[ArmReport]) -> Iterable[Difference]:
    by_name = {arm.name: arm for arm in arms}
    base = by_name[BASELINE]
    repeat = next((arm for arm in arms if arm.repeats == BASELINE), None)
    noise = _minus(repeat.step, base.step) if repeat else None
    for arm in arms:
        if arm is base or arm.repeats:
            continue
        yield Difference(
            arm=arm.name,
            optimizations=sorted(set(arm.enabled) - set(base.enabled)),
            calls=_total_minus(arm, base, "calls"),
            payload_bytes=_total_minus(arm, base, "payload_bytes"),
            wire_bytes=_total_minus(arm, base, "wire_bytes"),
            collective_ns=_total_minus(arm, base, "collective_ns"),
            step_ns=_minus(arm.step, base.step),
            noise_ns=noise,
        )


def _minus(step: StepTimes | None, base: StepTimes | None) -> float | None:
    return step.median_ns - base.median_ns if step and base else None


def _total_minus(arm: ArmReport, base: ArmReport, name: str) -> float | None:
    if arm.totals is None or base.totals is None:
        return None
    mine, theirs = getattr(arm.totals, name), getattr(base.totals, name)
    return None if mine is None or theirs is None else mine - theirs
