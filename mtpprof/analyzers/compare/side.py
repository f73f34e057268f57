"""One side of a comparison: an arm of a run, or the traces of a run that somebody else made.

The decision: both are brought into one form, so that everything after this module compares sides and knows nothing of where they
came from. What a side does not have (timing without a profiler, outputs, the model) is None or empty, and the comparison says so.

Whether the traces of an arm are what the run recorded: of every rank one, each its own, and each whole.

The decision: only such traces are held against the ledger. A file that was cut off or copied over another would show collectives as
missing that did run, so it is a reason to answer nothing about its arm, and never a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from mtpprof.analyzers.calls.attribution import Attribution, analyze
from mtpprof.analyzers.calls.attribution import ReadOptions as ReadOptions
from mtpprof.analyzers.calls.classify import with_user_rules
from mtpprof.analyzers.calls.steps import Steps
from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.calls.unknown_names import suspicion
from mtpprof.analyzers.compare.replacements import Others, find_others
from mtpprof.analyzers.measures.batches import Stratum, find_disagreement, stratify
from mtpprof.analyzers.measures.serving import Serving, serving_of
from mtpprof.analyzers.measures.step_parts import Composition, Work, compose, find_work
from mtpprof.analyzers.traces.discover import open_traces
from mtpprof.analyzers.traces.table import MISSING, TraceSet
from mtpprof.analyzers.traces.verdicts import Answer, Problem, Verdict
from mtpprof.errors import InputError, UsageError
from mtpprof.models.ledger import Workload
from mtpprof.models.spec import BLOCK_KINDS, ModelSpec
from mtpprof.rundir.directory import RUN_FILE, RecordError, RecordT, RunDirectory
from mtpprof.rundir.records import ArmRecord, CaseRecord, OutputsRecord, RunRecord, TimingRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traces:
    """What the traces of a side say."""

    found: Attribution
    calls: Calls
    steps: Steps
    strata: list[Stratum]
    composition: Composition
    work: tuple[Work, ...]
    """What each rank computed, by trace."""
    others: Others
    """What else ran in the steps, by name."""
    apart: str = ""
    """Why steps are left out of `strata`: ranks that did not do the same in them; empty: none are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One side of a comparison."""

    label: str
    traces: Traces | None
    missing: str
    """Why `traces` is None; empty: it is not."""
    damaged: bool = False
    """`traces` is None because files are there that are not what the run recorded."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files of the run beside the traces that cannot be used, each with the reason: what they hold is missing here."""
    windows: dict[int, tuple[int, ...]]
    """Per round, the steps without a profiler: of each the slowest rank's time. Empty: none were measured."""
    repeat: dict[int, tuple[int, ...]]
    """The same of the baseline's repeat in this side's case; empty: it was not repeated."""
    baseline: dict[int, tuple[int, ...]]
    """The same of the baseline of this side's case, which `repeat` is held against."""
    profiled_ns: tuple[int, ...] = ()
    serving: Serving | None = None
    """The engine's own counters; None: it keeps none."""
    outputs: OutputsRecord | None = None
    enabled: frozenset[str] | None = None
    """Switches that were on; None: not known."""
    not_applicable: dict[str, str]
    unavailable: dict[str, str] = field(default_factory=dict)
    """Optimizations that the engine was known to fall back from, each with the reason."""
    spec: ModelSpec | None = None
    workload: Workload | None = None
    setting: dict[str, str]
    """What has to be the same on both sides for times to be comparable; empty: not known."""
    session: str = ""
    """Sides of one session were measured in turns and are paired by round."""
    case: str = ""
    device: str = ""
    """`cpu` or `cuda`; empty: not known."""
    shared_cores: bool | None = None
    """Whether ranks share CPU cores; None: not known."""
    note: str = ""
    """Which model it is held against where none is recorded, or why against none; empty: nothing to say."""

    @property
    def doubt(self) -> str:
        """Why the numbers of collectives are lower bounds, as half a sentence; empty: every one that is known is counted."""
        return suspicion(self.traces.found.suspects) if self.traces is not None else ""

    @property
    def medians(self) -> dict[int, float]:
        """The median step of every round."""
        return {number: float(median(steps)) for number, steps in self.windows.items()}


def read_traces(
    paths: Sequence[Path], options: ReadOptions | None = None, workload: Workload | None = None
) -> Traces:
    """Read and attribute the traces of one capture.

    Args:
        paths: Files, or directories that hold one run.
        options: Rules, window, ranks, model, rank map, limits.
        workload: Batch of the steps, where the traces do not tell it.

    Raises:
        InputError: nothing readable there, or several runs.
        UsageError: ranks, a window or a rank map that the traces do not have.
    """
    options = options or ReadOptions()
    opened = open_traces(paths, options.rank_map, options.load)
    return _inside(traces_of(_one_run(paths, opened), options, workload))


def _one_run(paths: Sequence[Path], opened: Sequence[TraceSet]) -> TraceSet:
    if len(opened) > 1:
        labels = ", ".join(traces.label for traces in opened)
        raise InputError(
            f"{', '.join(map(str, paths))}: holds several runs ({labels}); name the folder of one of them."
        )
    return opened[0]


def traces_of(
    traces: TraceSet, options: ReadOptions | None = None, workload: Workload | None = None
) -> Traces:
    """The attribution of a trace set in the form that comparisons take."""
    options = options or ReadOptions()
    found = analyze(traces, options)
    steps = found.steps if workload is None else _with_batch(found.steps, workload)
    return Traces(
        found=found,
        calls=found.calls,
        steps=steps,
        strata=stratify(found.calls, steps),
        composition=compose(traces, found),
        work=find_work(traces, found.calls),
        others=find_others(traces, found, with_user_rules(options.rules)),
    )


def _with_batch(steps: Steps, workload: Workload) -> Steps:
    """Steps with the batch of the run where the trace does not tell it."""
    rows = np.where(steps.rows == MISSING, workload.target_rows, steps.rows).astype(np.int32)
    sequences = np.where(steps.sequences == MISSING, workload.concurrency, steps.sequences).astype(np.int32)
    return replace(steps, rows=rows, sequences=sequences)


def run_side(
    directory: RunDirectory,
    run: RunRecord,
    case: CaseRecord,
    arm: ArmRecord,
    *,
    traces: bool = True,
    options: ReadOptions | None = None,
) -> Side:
    """An arm of a run, as far as the run has got and its files can be read.

    Of `options` the model and the rank map do not count: the run has recorded its own.

    Raises:
        InputError: the record of the run is damaged.
    """
    spec, workload = spec_of(directory, case), workload_of(case)
    unreadable: dict[str, str] = {}
    timing = _stored(directory.timing, case.id, arm.name, unreadable)
    outputs = _stored(directory.outputs, case.id, arm.name, unreadable)
    read: Traces | None = None
    missing, damaged = "the baseline's repeat is timed only", False
    if arm.repeats is None and traces:
        read, missing, damaged = _arm_traces(directory, case, arm, spec, options or ReadOptions())
    repeat = next((other for other in case.arms if other.repeats is not None), None)
    cpus = run.machine.get("cpus")
    return Side(
        label=arm.name,
        traces=read,
        missing=missing,
        damaged=damaged,
        unreadable=unreadable,
        windows=windows_of(timing),
        repeat=_windows(directory, case, repeat.name) if repeat else {},
        baseline=_windows(directory, case, repeat.repeats) if repeat and repeat.repeats else {},
        profiled_ns=slowest(timing.profiled_step_ns) if timing else (),
        serving=serving_of(timing, case.concurrency),
        outputs=outputs,
        enabled=frozenset(arm.enabled),
        not_applicable=case.not_applicable,
        unavailable=run.unavailable,
        spec=spec,
        workload=workload,
        setting=_setting(run, case, spec),
        session=run.id,
        case=case.id,
        device=run.device,
        shared_cores=case.tp > cpus if run.device == "cpu" and isinstance(cpus, int) else None,
    )


def _stored(
    read: Callable[[str, str], RecordT | None], case: str, arm: str, unreadable: dict[str, str]
) -> RecordT | None:
    """A record of an arm; None: there is none, or it cannot be used, which adds to `unreadable`."""
    try:
        return read(case, arm)
    except RecordError as error:
        unreadable[error.path.name] = error.finding
        return None


def _windows(directory: RunDirectory, case: CaseRecord, arm: str) -> dict[int, tuple[int, ...]]:
    """The timed windows of another arm of a case, whose own side says why there are none."""
    return windows_of(_stored(directory.timing, case.id, arm, {}))


def trace_side(paths: Sequence[Path], label: str, options: ReadOptions | None = None) -> Side:
    """Traces that are not from a run of ours; they are compared with the ledger of the model in `options`.

    Raises:
        InputError: nothing readable there, or several runs.
    """
    options = options or ReadOptions()
    return side_of(read_traces(paths, options), label, options.model)


def side_of(traces: Traces, label: str, spec: ModelSpec | None = None) -> Side:
    """A side that is traces alone."""
    device = "cuda" if traces.calls.on_device.any() else "cpu" if len(traces.calls) else ""
    return Side(
        label=label,
        traces=traces,
        missing="",
        windows={},
        repeat={},
        baseline={},
        not_applicable={},
        spec=spec,
        setting={},
        device=device,
    )


def _arm_traces(
    directory: RunDirectory,
    case: CaseRecord,
    arm: ArmRecord,
    spec: ModelSpec,
    options: ReadOptions,
) -> tuple[Traces | None, str, bool]:
    """The traces of an arm; None with the reason, and whether files are there that cannot be used."""
    paths = directory.captured(case.id, arm.name, case.tp)
    absent = [str(rank) for rank, path in enumerate(paths) if not path.is_file()]
    if absent:
        return None, f"no trace of rank {', '.join(absent)}", False
    ranked = [directory.trace(case.id, arm.name, rank) for rank in range(case.tp)]
    try:
        opened = open_traces(paths, options=options.load)
        if unfit := why_unfit(opened, case.tp, ranked):
            return None, unfit, True
        traces = traces_of(_one_run(paths, opened), replace(options, model=spec), workload_of(case))
        return _agreeing(_inside(traces)), "", False
    except InputError as error:
        return None, str(error), True


def _inside(traces: Traces) -> Traces:
    """The traces, where the window that was asked for holds something of them; else a UsageError with the reason."""
    if traces.found.outside_window:
        raise UsageError(traces.found.no_answer)
    return traces


def _agreeing(traces: Traces) -> Traces:
    """The traces without the strata of steps in which not all ranks did the same."""
    found = find_disagreement(traces.calls, traces.found.steps)
    kept = [stratum for stratum in traces.strata if not stratum.rows & found.rows]
    return replace(traces, strata=kept, apart=found.reason)


def spec_of(directory: RunDirectory, case: CaseRecord) -> ModelSpec:
    """The model of a case.

    Raises:
        InputError: the record is damaged.
    """
    try:
        spec = msgspec.convert(case.model, ModelSpec)
        _check_consistent(spec)
        return spec
    except ValueError as error:
        raise InputError(
            f"{directory.root / RUN_FILE}: the model of case {case.id} is damaged ({error}); run again."
        ) from error


_BLOCK_NEEDS = {"A": "mla", "*": "gqa", "K": "kda", "M": "mamba", "E": "moe"}
_COUNTS = ("heads", "kv_heads", "groups", "experts")


def _check_consistent(spec: ModelSpec) -> None:
    """Refuse a stored model whose blocks and dimensions do not belong together.

    Raises:
        ValueError: says what is missing or impossible.
    """
    for block in set(spec.all_blocks()):
        if block not in BLOCK_KINDS:
            raise ValueError(f"a block {block!r} is not known")
        if block in _BLOCK_NEEDS and getattr(spec, _BLOCK_NEEDS[block]) is None:
            raise ValueError(f"it has blocks {block!r} and no {_BLOCK_NEEDS[block]}")
    parts = [part for name in _BLOCK_NEEDS.values() if (part := getattr(spec, name)) is not None]
    counts = [getattr(part, name) for part in parts for name in _COUNTS if hasattr(part, name)]
    if min([spec.hidden_size, spec.vocab_size, *counts]) < 1:
        raise ValueError("a dimension is not positive")


def workload_of(case: CaseRecord) -> Workload:
    """The workload of a case."""
    return Workload(
        concurrency=case.concurrency, draft_tokens=case.draft_tokens, tp=case.tp, dtype=case.dtype
    )


def windows_of(timing: TimingRecord | None) -> dict[int, tuple[int, ...]]:
    """Per round, the slowest rank's time of every step."""
    if timing is None:
        return {}
    windows = {entry.round: slowest(entry.step_ns) for entry in timing.rounds}
    return {number: steps for number, steps in sorted(windows.items()) if steps}


def slowest(step_ns: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Per step, the time of the rank that took longest: what a user of the model would wait."""
    return tuple(max(ranks) for ranks in zip(*step_ns, strict=False))


def _setting(run: RunRecord, case: CaseRecord, spec: ModelSpec) -> dict[str, str]:
    return {
        "model": f"{spec.name} ({spec.scale}, {len(spec.blocks)} blocks, vocabulary {spec.vocab_size})",
        "TP": str(case.tp),
        "concurrency": str(case.concurrency),
        "draft tokens": str(case.draft_tokens),
        "dtype": case.dtype,
        "prompt length": str(case.prompt_len),
        "seed": str(run.seed),
        "acceptance length asked for": str(run.acceptance_length),
        "engine": run.engine,
        "device": run.device,
        "transport": run.transport,
        "machine": str(run.machine.get("host", "")),
    }


def find_case(run: RunRecord, name: str) -> CaseRecord:
    """The case of a run by its id.

    Raises:
        UsageError: there is none; names those there are.
    """
    for case in run.cases:
        if case.id == name:
            return case
    raise UsageError(
        f"run {run.name} has no case {name!r}; it has {', '.join(case.id for case in run.cases)}."
    )


def find_arm(case: CaseRecord, name: str) -> ArmRecord:
    """The arm of a case by its name.

    Raises:
        UsageError: there is none; names those there are.
    """
    for arm in case.arms:
        if arm.name == name:
            return arm
    raise UsageError(
        f"case {case.id} has no arm {name!r}; it has {', '.join(arm.name for arm in case.arms)}."
    )


_NOT_OF_THIS_RUN = frozenset({Verdict.DUPLICATE_RANK, Verdict.COPY, Verdict.STALE_FILE})


def why_unfit(opened: Sequence[TraceSet], ranks: int, ranked: Sequence[Path]) -> str:
    """Why traces must not be compared with what was expected of the run; empty: they may.

    Args:
        opened: What was read of the arm.
        ranks: Ranks of the run.
        ranked: Files that hold one rank each, in order of the ranks they must be; empty: the files are not one a rank.
    """
    problems = [problem for traces in opened for problem in traces.all_problems()]
    sentences = [*_of_other_ranks(opened, ranked), *(item.sentence for item in problems if _unfit(item))]
    seen = {rank for traces in opened for rank in traces.ranks}
    absent = sorted(set(range(ranks)) - seen)
    if not sentences and absent and ranks > 1:
        sentences = [f"{opened[0].label}: holds no trace of rank {', '.join(map(str, absent))}."]
    return " ".join(dict.fromkeys(sentences)).removesuffix(".")


def _unfit(problem: Problem) -> bool:
    return problem.left_out or Answer.COUNTS in problem.forbids or problem.verdict in _NOT_OF_THIS_RUN


def _of_other_ranks(opened: Sequence[TraceSet], ranked: Sequence[Path]) -> list[str]:
    place = {str(path): rank for rank, path in enumerate(ranked)}
    return [
        f"{table.meta.path}: it says that it is rank {table.meta.rank}, and stands in the place of rank {place[table.meta.path]}."
        for traces in opened
        for table in traces.tables
        if table.meta.rank not in (None, place.get(table.meta.path, table.meta.rank))
    ]
