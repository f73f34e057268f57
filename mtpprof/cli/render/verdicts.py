"""Verdicts on traces, file by file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mtpprof.analyzers.traces.table import TraceSet
from mtpprof.analyzers.traces.verdicts import Problem, Verdict
from mtpprof.cli.render.output import Table
from mtpprof.cli.render.units import UNKNOWN


def verdicts_table(traces: TraceSet) -> Table:
    """A row for every verdict; files without any are fine."""
    columns = ("file", "rank", "verdict", "severity", "no answer on", "what is so", "what to do")
    return Table(
        title=traces.label,
        columns=columns,
        rows=[
            (
                problem.path or traces.label,
                UNKNOWN if problem.rank is None else str(problem.rank),
                str(problem.verdict),
                problem.severity.name.lower(),
                ", ".join(sorted(problem.forbids)) or "-",
                problem.sentence,
                problem.remedy,
            )
            for problem in _all(traces)
        ],
    )


def as_values(traces: TraceSet) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "label": traces.label,
        "world_size": traces.world_size,
        "ranks": list(traces.ranks),
        "missing_ranks": list(traces.missing_ranks),
        "verdicts": [
            {
                "path": problem.path,
                "rank": problem.rank,
                "verdict": str(problem.verdict),
                "severity": problem.severity.name.lower(),
                "forbids": sorted(problem.forbids),
                "sentence": problem.sentence,
                "remedy": problem.remedy,
                "count": problem.count,
            }
            for problem in _all(traces)
        ],
    }


def _all(traces: TraceSet) -> Iterable[Problem]:
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
