"""The answer of `mtpprof doctor PATH` as values: the verdicts on every file of a run."""

from __future__ import annotations

from collections.abc import Iterable

from mtpprof.analyzers.traces.table import TraceSet
from mtpprof.analyzers.traces.verdicts import Problem, Severity, Verdict
from mtpprof.rundir.records import Record


class ProblemFound(Record, frozen=True, kw_only=True):
    """A verdict on one file, or on all of them."""

    verdict: str
    severity: str
    """`ok`, `note`, `warning` or `error`."""
    sentence: str
    remedy: str
    path: str
    """Empty: it is on all files together."""
    rank: int | None
    count: int | None
    """How many events, bytes or ranks it concerns, where that is a number."""
    forbids: tuple[str, ...] = ()
    """Answers that are withheld because of it."""

    @property
    def level(self) -> int:
        """How bad it is: 0 for `ok` to 3 for `error`."""
        return int(Severity[self.severity.upper()])

    @property
    def limits(self) -> bool:
        """Whether answers are withheld or weakened because of it."""
        return self.level >= Severity.WARNING


class Examination(Record, frozen=True, kw_only=True):
    """What is right and wrong with the traces of one run."""

    label: str
    world_size: int | None
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    verdicts: tuple[ProblemFound, ...]
    """At least one on every file."""
    no_answer: str = ""
    """Why the traces say nothing about communication; empty: they say something."""


def problem_found(problem: Problem) -> ProblemFound:
    """A verdict as values."""
    return ProblemFound(
        verdict=str(problem.verdict),
        severity=problem.severity.name.lower(),
        sentence=problem.sentence,
        remedy=problem.remedy,
        path=problem.path,
        rank=problem.rank,
        count=problem.count,
        forbids=tuple(sorted(problem.forbids)),
    )


def examination_of(traces: TraceSet, no_answer: str = "") -> Examination:
    """The verdicts on a set of traces; files on which there is none are fine."""
    return Examination(
        label=traces.label,
        world_size=traces.world_size,
        ranks=traces.ranks,
        missing_ranks=traces.missing_ranks,
        verdicts=tuple(problem_found(problem) for problem in _verdicts(traces)),
        no_answer=no_answer,
    )


def _verdicts(traces: TraceSet) -> Iterable[Problem]:
    problems = traces.all_problems()
    yield from problems
    named = {problem.path for problem in problems if problem.path}
    for table in traces.tables:
        if table.meta.path not in named:
            yield Problem(
                verdict=Verdict.FINE,
                sentence=f"{len(table)} events were read.",
                path=table.meta.path,
                rank=table.meta.rank,
            )
