"""The answer of `mtpprof analyze` as values: everything that an attribution says but the single calls."""

from __future__ import annotations

from mtpprof.analyzers.calls.attribution import Attribution, Withheld
from mtpprof.analyzers.calls.match_ranks import Clock, GroupView
from mtpprof.analyzers.calls.unknown_names import Suspect
from mtpprof.analyzers.calls.waits import Straggler, WaitShare
from mtpprof.analyzers.measures import slowest as notable
from mtpprof.analyzers.measures import step_figures as stepviews
from mtpprof.analyzers.measures import sums as grouping
from mtpprof.analyzers.measures.slowest import Notable
from mtpprof.analyzers.measures.step_figures import StepFigure, StepTime
from mtpprof.analyzers.measures.sums import Group
from mtpprof.analyzers.traces.verdicts import Problem
from mtpprof.rundir.records import Record

ANALYSIS_SCHEMA_VERSION = 2
CENSUS = ("kind", "size_class", "implementation", "fused")
NOTABLE_CALLS = 10


class ProblemFound(Record, frozen=True, kw_only=True):
    """A verdict on one file, or on all of them."""

    verdict: str
    severity: str
    sentence: str
    remedy: str
    path: str
    """Empty: it is on all files together."""
    rank: int | None
    count: int | None
    """How many events, bytes or ranks it concerns, where that is a number."""


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


def analysis_of(found: Attribution, by: tuple[str, ...]) -> Analysis:
    """The values of an attribution, with its calls grouped by the columns `by` (of `grouping.BY`)."""
    calls, steps = found.calls, found.steps
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
        problems=[_problem(problem) for problem in found.problems],
    )


def _problem(problem: Problem) -> ProblemFound:
    return ProblemFound(
        verdict=str(problem.verdict),
        severity=problem.severity.name.lower(),
        sentence=problem.sentence,
        remedy=problem.remedy,
        path=problem.path,
        rank=problem.rank,
        count=problem.count,
    )
