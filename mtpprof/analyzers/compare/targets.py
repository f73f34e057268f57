"""`compare A B`: which sides two names stand for, and everything that can be said of each pair.

A name is a run (`runs/mine`), an arm of it (`runs/mine:all-on`, `runs/mine:<case>/all-on`) or a folder or file of traces that anybody
made. Two runs are compared case by case and arm by arm, as far as both have them; two arms of one run, in every case that has both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mtpprof.analyzers.calls.attribution import ReadOptions
from mtpprof.analyzers.calls.unknown_names import Suspect
from mtpprof.analyzers.compare.difference import Difference, compare_sides
from mtpprof.analyzers.compare.side import Side, Traces, find_arm, find_case, run_side, trace_side
from mtpprof.analyzers.ledger.excess import (
    Excess,
    LedgerCheck,
    check_ledger,
    check_workload,
    misfit,
    unproved,
)
from mtpprof.analyzers.traces.discover import maps_below
from mtpprof.errors import InputError, UsageError
from mtpprof.models.spec import ModelSpec
from mtpprof.rundir.directory import RUN_FILE, RunDirectory
from mtpprof.rundir.records import CaseRecord, Record, RunRecord

COMPARISON_SCHEMA_VERSION = 1


class SideSummary(Record, frozen=True, kw_only=True):
    """What one side is."""

    name: str
    """As it was given, with case and arm."""
    ranks: list[int]
    missing_ranks: list[int]
    steps: int
    """Steps of the capture, as one rank counts them."""
    setting: dict[str, str]
    """What the run's record says; empty: a capture without one."""
    enabled: list[str] | None
    """Switches that were on; None: not known."""
    ledger: dict[str, list[str]]
    """By batch, the optimizations with which the model's ledger equals what was seen, call for call."""
    excess: list[Excess]
    """Collectives that the ledger with every exact optimization on does not have; empty also where no model is known."""
    unchecked: list[str]
    """Batches that were not held against the ledger, with the reason."""
    suspects: tuple[Suspect, ...] = ()
    """Names that look like communication and that no rule knows: while there are any, calls and bytes are lower bounds."""
    note: str = ""
    """Which model the side is held against where none is recorded, or why against none; empty: nothing to say."""


class Comparison(Record, frozen=True, kw_only=True):
    """Two sides and their difference; negative is saved."""

    title: str
    """The case, or what is compared."""

    base: SideSummary
    arm: SideSummary
    difference: Difference
    capture_calls: float | None
    """Calls more or fewer per rank over all compared steps of the capture, at the base's number of steps; None: not known."""
    capture_steps: int


class ComparisonReport(Record, frozen=True, kw_only=True):
    """The answer of `compare`."""

    schema_version: int
    comparisons: list[Comparison]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a name on the command line stands for."""

    text: str
    path: Path
    case: str | None = None
    arm: str | None = None

    @property
    def is_run(self) -> bool:
        """Whether the path is a run directory."""
        return (self.path / RUN_FILE).is_file()


def parse_target(text: str) -> Target:
    """Read `PATH`, `RUN:ARM` or `RUN:CASE/ARM`.

    Raises:
        InputError: the path does not exist.
        UsageError: an arm is named of something that is no run.
    """
    path = Path(text)
    if path.exists():
        return Target(text=text, path=path)
    head, colon, tail = text.rpartition(":")
    if not colon or not Path(head).exists():
        raise InputError(
            f"{text}: there is no such file or directory; give a run, RUN:ARM or a folder of traces."
        )
    case, slash, arm = tail.rpartition("/")
    target = Target(text=text, path=Path(head), case=case if slash else None, arm=arm)
    if not target.is_run:
        raise UsageError(
            f"{text}: {head} is not a run directory, so it has no arm {tail!r}; name the folder alone."
        )
    return target


def compare_targets(base: Target, arm: Target, options: ReadOptions | None = None) -> ComparisonReport:
    """Compare everything that two names have in common.

    Args:
        base: The side that savings are counted from.
        arm: The other one.
        options: How traces are read; the model is that of traces without a run record.

    Raises:
        UsageError: the names have nothing in common, or do not say which arm is meant.
        InputError: unreadable runs or traces.
    """
    pairs = list(_pairs(base, arm, options or ReadOptions()))
    return ComparisonReport(
        schema_version=COMPARISON_SCHEMA_VERSION,
        comparisons=[comparison_of(first, second) for first, second in pairs],
    )


def _pairs(base: Target, arm: Target, options: ReadOptions) -> Iterator[tuple[Side, Side]]:
    if not base.is_run and not arm.is_run:
        first, second = _short_names(base.path, arm.path)
        ours, theirs = _divided(options, base.path, arm.path)
        yield trace_side([base.path], first, ours), trace_side([arm.path], second, theirs)
    elif base.is_run and arm.is_run:
        yield from _run_pairs(base, arm, options)
    else:
        run, other = (base, arm) if base.is_run else (arm, base)
        side = _only_arm(run, options)
        traces = trace_side([other.path], other.path.name, options)
        if options.model is None:
            traces = _lent(traces, side, other.path, options)
        yield (side, traces) if base.is_run else (traces, side)


def _divided(options: ReadOptions, base: Path, arm: Path) -> tuple[ReadOptions, ReadOptions]:
    """The options of each of two captures: an entry of the rank map is of the one whose files it matches.

    Raises:
        UsageError: an entry matches no file of either.
    """
    ours = {entry: rank for entry, rank in options.rank_map.items() if maps_below(entry, base)}
    theirs = {
        entry: rank for entry, rank in options.rank_map.items() if entry not in ours or maps_below(entry, arm)
    }
    return replace(options, rank_map=ours), replace(options, rank_map=theirs)


def _lent(traces: Side, run: Side, path: Path, options: ReadOptions) -> Side:
    """A capture without a model with that of the run, where its messages show that it is of it; else as it was, with the reason."""
    if run.spec is None or traces.traces is None:
        return traces
    if reason := _strange(traces.traces, run.spec):
        return replace(traces, note=f"{reason}: not held against the ledger of {run.label}; give --model")
    note = (
        f"no model is recorded; all-reduces are as wide as those of {run.spec.name} ({run.spec.scale}), the model of {run.label}, "
        f"which is taken for it"
    )
    return replace(trace_side([path], traces.label, replace(options, model=run.spec)), note=note)


def _strange(traces: Traces, spec: ModelSpec) -> str:
    """Why traces are not taken for those of a model, as half a sentence; empty: they may well be."""
    try:
        spec.check_tp(traces.found.world_size or len(traces.found.ranks))
    except UsageError as error:
        return str(error).rstrip(".")
    return unproved(traces.strata, spec) or misfit(traces.strata, spec)


def _short_names(base: Path, arm: Path) -> tuple[str, str]:
    """The last parts of two paths, as many as it takes to tell them apart."""
    ours, theirs = base.resolve().parts, arm.resolve().parts
    for count in range(1, max(len(ours), len(theirs))):
        if ours[-count:] != theirs[-count:]:
            return "/".join(ours[-count:]), "/".join(theirs[-count:])
    return str(base), str(arm)


def sides_of(target: Target, options: ReadOptions | None = None) -> list[Side]:
    """Every side that a name stands for: the arms of a run (without repeats), or a capture.

    Raises:
        UsageError: a case or an arm that the run does not have.
        InputError: unreadable runs or traces.
    """
    if not target.is_run:
        return [trace_side([target.path], target.path.name, options)]
    directory = RunDirectory(target.path)
    run = directory.run()
    sides = [
        run_side(directory, run, case, arm, options=options)
        for case in _cases(run, target)
        for arm in case.arms
        if arm.repeats is None and target.arm in (None, arm.name)
    ]
    if not sides:
        raise UsageError(f"{target.text}: the run has no such arm; leave the arm out to take all.")
    return sides


def _only_arm(target: Target, options: ReadOptions) -> Side:
    run = RunDirectory(target.path).run()
    cases = _cases(run, target)
    if target.arm is None or len(cases) != 1:
        names = ", ".join(f"{case.id}/{arm.name}" for case in cases for arm in case.arms if not arm.repeats)
        raise UsageError(f"{target.text}: name the one arm to compare, as RUN:CASE/ARM; it has {names}.")
    return _side(target, run, cases[0], target.arm, options)


def _run_pairs(base: Target, arm: Target, options: ReadOptions) -> Iterator[tuple[Side, Side]]:
    ours, theirs = RunDirectory(base.path).run(), RunDirectory(arm.path).run()
    if base.path.samefile(arm.path) and base.arm is None and arm.arm is None:
        raise UsageError(
            f"{base.text}: is compared with itself; name two arms, such as {base.text}:baseline {base.text}:all-on."
        )
    found = False
    for first, second in _matched_cases(_cases(ours, base), _cases(theirs, arm)):
        for name, other in _matched_arms(base, arm, first, second):
            found = True
            apart = not base.path.samefile(arm.path)
            yield (
                _side(base, ours, first, name, options, run_name=apart),
                _side(arm, theirs, second, other, options, run_name=apart),
            )
    if not found:
        raise UsageError(
            f"{base.text} and {arm.text} have no arm of the same case in common; name cases and arms."
        )


def _cases(run: RunRecord, target: Target) -> list[CaseRecord]:
    return [find_case(run, target.case)] if target.case else run.cases


def _matched_cases(
    ours: list[CaseRecord], theirs: list[CaseRecord]
) -> Iterator[tuple[CaseRecord, CaseRecord]]:
    if len(ours) == len(theirs) == 1:
        yield ours[0], theirs[0]
        return
    by_id = {case.id: case for case in theirs}
    for case in ours:
        if case.id in by_id:
            yield case, by_id[case.id]


def _matched_arms(
    base: Target, arm: Target, first: CaseRecord, second: CaseRecord
) -> Iterator[tuple[str, str]]:
    name, other = base.arm or arm.arm, arm.arm or base.arm
    if name is None or other is None:
        theirs = {entry.name for entry in second.arms}
        for entry in first.arms:
            if entry.repeats is None and entry.name in theirs:
                yield entry.name, entry.name
        return
    known = [{entry.name for entry in case.arms} for case in (first, second)]
    if name in known[0] and other in known[1]:
        yield name, other


def _side(
    target: Target,
    run: RunRecord,
    case: CaseRecord,
    name: str,
    options: ReadOptions,
    *,
    run_name: bool = False,
) -> Side:
    side = run_side(RunDirectory(target.path), run, case, find_arm(case, name), options=options)
    return replace(side, label=f"{target.path.name}:{name}") if run_name else side


def comparison_of(base: Side, arm: Side) -> Comparison:
    """Everything that can be said of two sides.

    Raises:
        UsageError: a model cannot be run at its side's tensor-parallel size.
        InputError: messages are those of another model than the one that was named for them.
    """
    difference = compare_sides(base, arm)
    calls = [(stratum.arm.calls - stratum.base.calls) * stratum.base_steps for stratum in difference.strata]
    return Comparison(
        title=base.case if base.case and base.case == arm.case else f"{base.label} → {arm.label}",
        base=_summary(base),
        arm=_summary(arm),
        difference=difference,
        capture_calls=sum(calls) if calls and not (base.doubt or arm.doubt) else None,
        capture_steps=sum(stratum.base_steps for stratum in difference.strata),
    )


def _summary(side: Side) -> SideSummary:
    checked = side_ledger(side)
    found = side.traces.found if side.traces else None
    return SideSummary(
        name=side.label,
        ranks=list(found.ranks) if found else [],
        missing_ranks=list(found.missing_ranks) if found else [],
        steps=sum(stratum.steps for stratum in side.traces.strata) if side.traces else 0,
        setting=side.setting,
        enabled=None if side.enabled is None else sorted(side.enabled),
        ledger=checked.enabled,
        excess=checked.excess,
        unchecked=checked.skipped,
        suspects=found.suspects if found else (),
        note=side.note,
    )


def side_ledger(side: Side) -> LedgerCheck:
    """What a side's steps are against its model's ledger; empty where no model is known.

    Raises:
        UsageError: the model cannot be run at the side's tensor-parallel size.
        InputError: the messages are those of another model.
    """
    found = LedgerCheck(excess=[], enabled={}, skipped=[])
    if side.spec is None or side.traces is None:
        return found
    if side.doubt:
        reason = "names that no rule knows look like communication, and may be what it has"
        found.skipped.extend(f"{stratum.batch.text}: {reason}" for stratum in side.traces.strata)
        return found
    if side.workload is not None:
        for stratum in side.traces.strata:
            part = check_workload(stratum, side.spec, side.workload)
            found.excess.extend(part.excess)
            found.enabled.update(part.enabled)
        return found
    if reason := misfit(side.traces.strata, side.spec):
        raise InputError(f"{side.label}: {reason}: not this model; give its own with --model.")
    tp = side.traces.found.world_size or len(side.traces.found.ranks)
    side.spec.check_tp(tp)
    drafts = side.traces.steps.draft_tokens
    return check_ledger(side.traces.strata, side.spec, tp, max(0, int(drafts.max())) if len(drafts) else 0)
