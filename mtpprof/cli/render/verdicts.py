"""Verdicts on traces, file by file."""

from __future__ import annotations

from mtpprof.analyzers.answers.examination import Examination
from mtpprof.cli.render.output import Table
from mtpprof.cli.render.units import UNKNOWN


def verdicts_table(found: Examination) -> Table:
    """A row for every verdict."""
    columns = ("file", "rank", "verdict", "severity", "no answer on", "what is so", "what to do")
    return Table(
        title=found.label,
        columns=columns,
        rows=[
            (
                problem.path or found.label,
                UNKNOWN if problem.rank is None else str(problem.rank),
                problem.verdict,
                problem.severity,
                ", ".join(problem.forbids) or "-",
                problem.sentence,
                problem.remedy,
            )
            for problem in found.verdicts
        ],
        note=f"No answer: {found.no_answer}" if found.no_answer else "",
    )
