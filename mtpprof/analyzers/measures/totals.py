"""Sums over the collectives of a step, per rank: by kind, phase and form, and over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mtpprof.analyzers.calls.table import Calls, wire_bytes_of
from mtpprof.analyzers.numeric.arrays import Bools
from mtpprof.analyzers.numeric.distinct import distinct_rows
from mtpprof.analyzers.traces.table import MISSING
from mtpprof.rundir.records import Record


class Group(Record, frozen=True, kw_only=True):
    """Collectives of one kind, phase and form: per step and rank."""

    kind: str
    phase: str
    fused: str
    implementation: str
    algorithm: str
    calls: float
    payload_bytes: float | None
    """None: not known of every call."""
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


def steps_of(calls: Calls) -> int:
    """Number of (rank, step) pairs that the calls are spread over."""
    return len(distinct_rows(calls.rank, calls.step))


def groups_of(calls: Calls) -> list[Group]:
    """Calls, bytes and time per step and rank, by kind, phase and form; phases in the order in which they run."""
    inside = calls.take(calls.step >= 0)
    pairs = steps_of(inside)
    columns = ("kind", "phase", "fused", "implementation", "algorithm")
    distinct = distinct_rows(*(getattr(inside, name) for name in columns))
    wire = wire_bytes_of(inside)
    groups = []
    for index in np.argsort(distinct.first).tolist():
        members = distinct.which == index
        kind, phase, fused, implementation, algorithm = (
            inside.texts[code] for code in distinct.rows[index].tolist()
        )
        groups.append(
            Group(
                kind=kind,
                phase=phase,
                fused=fused,
                implementation=implementation,
                algorithm=algorithm,
                calls=int(members.sum()) / pairs,
                payload_bytes=_per_step(inside.payload_bytes, members, pairs),
                wire_bytes=_per_step(wire, members, pairs),
                time_ns=int(inside.dur_ns[members].sum()) / pairs,
            )
        )
    return groups


def totals_of(calls: Calls, pairs: int | None = None) -> Totals:
    """Sums over all collectives of the steps.

    Args:
        calls: Those outside any step are left out.
        pairs: (rank, step) pairs to divide by; None: those that the calls are spread over.
    """
    inside = calls.take(calls.step >= 0)
    pairs = max(1, pairs or steps_of(inside))
    everything = np.ones(len(inside), bool)
    fused = inside.fused != 0
    return Totals(
        calls=len(inside) / pairs,
        payload_bytes=_per_step(inside.payload_bytes, everything, pairs),
        wire_bytes=_per_step(wire_bytes_of(inside), everything, pairs),
        collective_ns=int(inside.dur_ns.sum()) / pairs,
        fused_ns=int(inside.dur_ns[fused].sum()) / pairs,
    )


def _per_step(values: Any, members: Bools, pairs: int) -> float | None:
    chosen = values[members]
    return None if (chosen == MISSING).any() else int(chosen.sum()) / pairs
