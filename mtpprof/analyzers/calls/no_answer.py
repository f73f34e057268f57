"""Whether traces answer at all: what makes a count of zero a statement, and what makes it a question.

The decision: "no collective was found" is said only of traces that would have shown one. Where every file is in error, where the
window lies beside the traces, or where nothing was counted and something is known to be missing, there is no answer, with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mtpprof.analyzers.calls.steps import Steps
from mtpprof.analyzers.traces.table import TraceSet
from mtpprof.analyzers.traces.verdicts import Answer, Problem, Severity, withheld, worst


def in_error(traces: TraceSet) -> str:
    """The sentence on the first file where all files of a set are in error; empty: one of them gives an answer."""
    if any(worst(table.problems) < Severity.ERROR for table in traces.tables):
        return ""
    problems = (problem for problem in traces.all_problems() if problem.severity is Severity.ERROR)
    return next((problem.sentence for problem in problems), f"{traces.label}: no trace could be read.")


def nothing_counted(calls: int, uncounted: Iterable[str], problems: Iterable[Problem]) -> str:
    """Why finding no call does not mean that there was none; empty: there are calls, or there were none.

    Args:
        calls: Calls found in all traces.
        uncounted: What was seen of collectives and not counted, with the reason.
        problems: Of the set and of its tables.
    """
    if calls:
        return ""
    forbidding = [problem.sentence for problem in withheld(problems, Answer.COUNTS)]
    return next(iter([*forbidding, *uncounted]), "")


def beside_time(traces: TraceSet, origin_ns: int, start_ns: int | None, end_ns: int | None) -> str:
    """Why a window in time holds nothing of the traces; empty: it holds some of them.

    Args:
        traces: The event tables.
        origin_ns: Start of the first event, from which the window counts.
        start_ns: Start of the window; None: no bound.
        end_ns: Its end; None: no bound.
    """
    ends = [int(table.end_ns.max()) + (table.meta.base_time_ns or 0) for table in traces.tables if len(table)]
    length_ns = max(ends, default=origin_ns) - origin_ns
    if (start_ns or 0) <= length_ns and (end_ns is None or end_ns > 0):
        return ""
    return (
        f"{traces.label}: the window asked for lies outside the traces, which last from 0 to "
        f"{length_ns / 1e6:,.3f} ms."
    )


def beside_steps(label: str, steps: Steps, first: int | None, last: int | None) -> str:
    """Why a range of steps holds none of the traces' steps; empty: it holds some."""
    if first is None and last is None:
        return ""
    if not len(steps):
        return f"{label}: steps were asked for, and nothing in the traces tells their steps."
    low, high = int(steps.number.min()), int(steps.number.max())
    inside = (steps.number >= (low if first is None else first)) & (
        steps.number <= (high if last is None else last)
    )
    if np.any(inside):
        return ""
    return f"{label}: the steps asked for are not in the traces, which hold steps {low} to {high}."
