"""The answer of `mtpprof analyze` as values: everything that an attribution says but the single calls.

The decision: every format shows these values and computes none. Of two captures the second holds its comparison with the first, made by
the very functions that `mtpprof compare` uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mtpprof.analyzers.answers.examination import ProblemFound, problem_found
from mtpprof.analyzers.calls.attribution import Attribution, ReadOptions, Withheld, analyze
from mtpprof.analyzers.calls.match_ranks import Clock as Clock
from mtpprof.analyzers.calls.match_ranks import GroupView
from mtpprof.analyzers.calls.unknown_names import Suspect
from mtpprof.analyzers.calls.waits import Straggler as Straggler
from mtpprof.analyzers.calls.waits import WaitShare
from mtpprof.analyzers.compare.side import side_of, traces_of
from mtpprof.analyzers.compare.targets import Comparison, comparison_of
from mtpprof.analyzers.measures import slowest as notable
from mtpprof.analyzers.measures import step_figures as stepviews
from mtpprof.analyzers.measures import sums as grouping
from mtpprof.analyzers.measures.slowest import Notable
from mtpprof.analyzers.measures.step_figures import StepFigure, StepTime
from mtpprof.analyzers.measures.sums import Group
from mtpprof.analyzers.traces.table import TraceSet
from mtpprof.rundir.records import Record

ANALYSIS_SCHEMA_VERSION = 2
CENSUS = ("kind", "size_class", "implementation", "fused")
NOTABLE_CALLS = 10


class Analysis(Record, frozen=True, kw_only=True):
    """What the traces of one run say of its communication. None: not known."""

    schema_version: int
    label: str
    world_size: int | None
    ranks: list[int]
    missing_ranks: list[int]
    paths: list[str]
    no_answer: str | None
    """Why the traces say nothing at all; None: they say something."""
    collective_calls: int | None
    counts_are_exact: bool
    """Otherwise they are lower bounds."""
    by: list[str]
    """What `groups` are by."""
    groups: tuple[Group, ...]
    step_times: tuple[StepTime, ...]
    per_step: tuple[StepFigure, ...]
    census: tuple[Group, ...]
    """By kind, message size, implementation and what is fused to it."""
    slowest: tuple[Notable, ...]
    most_skewed: tuple[Notable, ...]
    waits: WaitShare
    waits_by_kind: dict[str, WaitShare]
    stragglers: tuple[Straggler, ...]
    clocks: tuple[Clock, ...]
    process_groups: tuple[GroupView, ...]
    suspects: tuple[Suspect, ...]
    """Names that look like communication and that no rule knows."""
    withheld: tuple[Withheld, ...]
    transients: tuple[str, ...]
    notes: tuple[str, ...]
    problems: list[ProblemFound]
    fused_calls: int | None = None
    """Calls that are fused with what follows."""
    by_rank: tuple[Group, ...] = ()
    outside_window: bool = False
    """There is no answer because the window that was asked for holds nothing of the traces."""
    comparison: Comparison | None = None
    """With the first of two captures, negative is saved; None: it is the first, there are not two, or one gives no answer."""


def analyses_of(
    captures: Sequence[TraceSet], by: tuple[str, ...], options: ReadOptions | None = None
) -> list[Analysis]:
    """The answers of `analyze`, in the order of the captures.

    Args:
        captures: The event tables of each run.
        by: What calls are grouped by, columns of `sums.BY`.
        options: Rules, window, ranks, model.

    Raises:
        UsageError: a rank is asked for that a capture does not have.
    """
    if len(captures) != 2:
        return [analysis_of(analyze(traces, options), by) for traces in captures]
    sides = [side_of(traces_of(traces, options), traces.label) for traces in captures]
    base, arm = (analysis_of(side.traces.found, by) for side in sides if side.traces is not None)
    if not (base.no_answer or arm.no_answer):
        arm = msgspec.structs.replace(arm, comparison=comparison_of(*sides))
    return [base, arm]


def analysis_of(found: Attribution, by: tuple[str, ...]) -> Analysis:
    """The values of an attribution, with its calls grouped by the columns `by` (of `sums.BY`)."""
    calls, steps = found.calls, found.steps
    by_rank = grouping.group(calls, steps, ("rank",))
    return Analysis(
        schema_version=ANALYSIS_SCHEMA_VERSION,
        label=found.label,
        world_size=found.world_size,
        ranks=list(found.ranks),
        missing_ranks=list(found.missing_ranks),
        paths=list(found.paths),
        no_answer=found.no_answer or None,
        collective_calls=None if found.no_answer else len(calls),
        counts_are_exact=found.counts_are_exact,
        by=list(by),
        groups=grouping.group(calls, steps, by),
        step_times=() if found.no_answer else stepviews.step_times(calls, steps),
        per_step=stepviews.per_step(calls, steps),
        census=grouping.group(calls, steps, CENSUS),
        slowest=notable.slowest(calls, steps, NOTABLE_CALLS),
        most_skewed=notable.most_skewed(calls, steps, NOTABLE_CALLS),
        waits=found.waits,
        waits_by_kind=found.waits_by_kind,
        stragglers=found.stragglers,
        clocks=found.clocks,
        process_groups=found.groups,
        suspects=found.suspects,
        withheld=found.withheld,
        transients=found.transients,
        notes=found.notes,
        problems=[problem_found(problem) for problem in found.problems],
        fused_calls=None if found.no_answer else sum(entry.fused_calls for entry in by_rank),
        by_rank=by_rank,
        outside_window=found.outside_window,
    )
