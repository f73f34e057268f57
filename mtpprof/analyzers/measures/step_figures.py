"""Figures per engine step, with their spread.

The decision: steps are put together by phase and batch (rows, sequences), which stand beside every figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mtpprof.analyzers.calls.steps import Steps
from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.numeric.arrays import I64, Bools
from mtpprof.analyzers.numeric.distinct import distinct_rows
from mtpprof.analyzers.numeric.words import counted
from mtpprof.analyzers.traces.table import MISSING

FORM = ("kind", "implementation", "fused")
"""What a collective is: columns of `Calls`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over the steps."""

    low: float
    """First quartile."""
    median: float
    high: float
    """Third quartile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What steps have in common. None: the trace does not tell."""

    phase: str | None
    rows: int | None
    sequences: int | None

    def __str__(self) -> str:
        sizes = ((self.rows, "row"), (self.sequences, "sequence"))
        known = [counted(number, name) for number, name in sizes if number is not None]
        return f"{self.phase or 'steps'} of {', '.join(known)}" if known else (self.phase or "steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Steps of one batch."""

    batch: Batch
    steps: int
    """Steps, counted on every rank."""
    dur_ns: Spread | None
    """Of the steps whose end the trace shows; None: of none."""
    collective_ns: Spread
    """Time in collectives per step."""
    calls: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigure:
    """One form of collective in the steps of one batch."""

    batch: Batch
    form: dict[str, str]
    steps: int
    calls: Spread
    """Calls per step; steps without any count as 0."""
    sum_ns: Spread
    exposed_ns: Spread
    call_ns: Spread
    """Of single calls."""
    transfer_ns: Spread | None
    """Of single calls whose wait is known."""
    payload_bytes: float | None
    """Per step, in the mean; None: not known of every call."""


def step_times(calls: Calls, steps: Steps) -> tuple[StepTime, ...]:
    """Length of the steps and the time in collectives, per batch; transients left out."""
    calls = _counted(calls)
    row = steps.rows_of(calls.table, calls.step)
    time, number = _per_step(calls.dur_ns, row, len(steps)), np.bincount(row, minlength=len(steps))
    found = []
    for batch, mine in _batches(steps):
        closed = mine & steps.closed
        length = (steps.end_ns - steps.start_ns)[closed]
        found.append(
            StepTime(
                batch=batch,
                steps=int(mine.sum()),
                dur_ns=_spread(length) if len(length) else None,
                collective_ns=_spread(time[mine]),
                calls=_spread(number[mine]),
            )
        )
    return tuple(found)


def per_step(calls: Calls, steps: Steps, form: tuple[str, ...] = FORM) -> tuple[StepFigure, ...]:
    """What each form of collective amounts to per step, batch by batch; transients left out."""
    calls = _counted(calls)
    row = steps.rows_of(calls.table, calls.step)
    found = []
    for batch, mine in _batches(steps):
        inside = mine[row]
        distinct = distinct_rows(*(getattr(calls, name)[inside] for name in form))
        index = np.flatnonzero(inside)
        for place, codes in enumerate(distinct.rows.tolist()):
            chosen = index[distinct.which == place]
            words = {name: calls.texts[code] for name, code in zip(form, codes, strict=True)}
            found.append(_figure(calls.take(chosen), row[chosen], batch, words, mine))
    return tuple(found)


def _counted(calls: Calls) -> Calls:
    return calls.take((calls.step != MISSING) & ~calls.transient)


def _figure(calls: Calls, row: I64, batch: Batch, form: dict[str, str], mine: Bools) -> StepFigure:
    total, waits = int(mine.sum()), calls.transfer_ns != MISSING
    known = (calls.payload_bytes != MISSING).all()
    return StepFigure(
        batch=batch,
        form=form,
        steps=total,
        calls=_spread(np.bincount(row, minlength=len(mine))[mine]),
        sum_ns=_spread(_per_step(calls.dur_ns, row, len(mine))[mine]),
        exposed_ns=_spread(_per_step(calls.exposed_ns, row, len(mine))[mine]),
        call_ns=_spread(calls.dur_ns),
        transfer_ns=_spread(calls.transfer_ns[waits]) if waits.any() else None,
        payload_bytes=int(calls.payload_bytes.sum()) / total if known else None,
    )


def _per_step(values: I64, row: I64, count: int) -> I64:
    total = np.zeros(count, np.int64)
    np.add.at(total, row, values)
    return total


def _spread(values: I64) -> Spread:
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return Spread(low=low, median=median, high=high)


def _batches(steps: Steps) -> Iterable[tuple[Batch, Bools]]:
    """Every kind of batch with the mask of its steps, in the order in which they first appear."""
    distinct = distinct_rows(steps.phase, steps.rows, steps.sequences)
    for place in np.argsort(distinct.first).tolist():
        phase, rows, sequences = distinct.rows[place].tolist()
        batch = Batch(
            phase=steps.texts[phase] or None,
            rows=rows if rows != MISSING else None,
            sequences=sequences if sequences != MISSING else None,
        )
        yield batch, np.asarray(distinct.which == place)
