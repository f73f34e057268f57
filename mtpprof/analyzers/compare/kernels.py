"""Kernels beside the collectives and their memory traffic: what a fusion saves, since it changes neither calls nor payload.

The decision: how many kernels run is counted in the traces. What they move is not in any trace: it follows from the optimizations'
own description of the kernels that come and go with a collective, applied to the collectives that were seen on each side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtpprof.analyzers.compare.changes import Change
from mtpprof.analyzers.compare.side import Side, Traces
from mtpprof.analyzers.measures.batches import Pairing, Stratum
from mtpprof.analyzers.measures.step_parts import COUNTED, Composition
from mtpprof.models.ledger import LedgerEntry, Workload
from mtpprof.models.optimizations.allreduce_norm_fusion import PASSES_OF_NORM
from mtpprof.models.optimizations.base import FUSED_RESIDUAL_RMSNORM, FUSED_UNKNOWN
from mtpprof.models.optimizations.catalogue import all_optimizations
from mtpprof.models.traffic import DTYPE_BYTES, Kind
from mtpprof.rundir.records import Record


class KernelCount(Record, frozen=True, kw_only=True):
    """Kernels of one part of a step, per step and rank."""

    part: str
    base: float
    arm: float


class KernelChange(Record, frozen=True, kw_only=True):
    """Kernels beside the collectives in the steps that are compared, per step and rank; negative is saved."""

    what: str
    """`kernels`; without a device `operations`: those on the CPU that compute."""
    base: float
    arm: float
    difference: float


def kernel_counts(base: Traces, arm: Traces, pairing: Pairing) -> list[KernelCount]:
    """Kernels by part of the step, in both sides' steps of a pair; empty: a trace of them does not show kernels."""
    ours, theirs = (
        _steps_in(traces.composition, stratum.rows)
        for traces, stratum in ((base, pairing.base), (arm, pairing.arm))
    )
    if not len(ours) or not len(theirs) or not (ours.counted.all() and theirs.counted.all()):
        return []
    return [
        KernelCount(part=name, base=float(ours.kernels[name].mean()), arm=float(theirs.kernels[name].mean()))
        for name in COUNTED
    ]


def kernel_change(base: Traces, arm: Traces, counts: Sequence[KernelCount]) -> KernelChange | None:
    """All parts together; None: they are not known, or the sides ran on different kinds of device."""
    on_device = {bool(traces.calls.on_device.any()) for traces in (base, arm)}
    if not counts or len(on_device) > 1:
        return None
    before, after = sum(count.base for count in counts), sum(count.arm for count in counts)
    return KernelChange(
        what="kernels" if on_device == {True} else "operations",
        base=before,
        arm=after,
        difference=after - before,
    )


def memory_change(base: Side, arm: Side, pairing: Pairing, changed: Sequence[Change]) -> float | None:
    """Bytes that the kernels beside the collectives read and write more or less, per step and rank; None: not known.

    Where the model of both sides is known, all kernels that the optimizations tell of; else those that fusions took away.
    """
    before, after = _moved(base, pairing.base), _moved(arm, pairing.arm)
    if before is not None and after is not None:
        return after - before
    return memory_of_fusions(changed)


def memory_of_fusions(changed: Sequence[Change]) -> float | None:
    """The same of the norms that fusions took away or gave back; None: there are none, or their sizes are not told."""
    total = 0.0
    for change in changed:
        sign = _norms_taken_away(change)
        size = _bytes_of(change) if sign else 0
        if size is None:
            return None
        total -= sign * PASSES_OF_NORM * change.calls * size
    return total if any(map(_norms_taken_away, changed)) else None


def _moved(side: Side, stratum: Stratum) -> float | None:
    """What the kernels move that go with a side's collectives; None: its model is not known, or the collectives are not told in full."""
    if side.spec is None or side.workload is None:
        return None
    entries = _entries(stratum, side.workload)
    if entries is None:
        return None
    return sum(
        work.moved_bytes
        for optimization in all_optimizations().values()
        for _, work in optimization.kernels(entries, side.spec, side.workload)
    )


def _entries(stratum: Stratum, workload: Workload) -> tuple[LedgerEntry, ...] | None:
    """The collectives of a step as a ledger, in the order in which they run; None: steps differ, or sizes or fusions are not told."""
    entries = []
    for form in stratum.forms:
        rate = stratum.rate(form)
        if (
            rate.denominator != 1
            or not form.shape
            or form.dtype not in DTYPE_BYTES
            or form.fused == FUSED_UNKNOWN
        ):
            return None
        entries.append(
            LedgerEntry(
                kind=Kind(form.kind),
                site=form.site,
                phase=form.phase,
                shape=tuple(int(size) for size in form.shape.split("x")),
                dtype=form.dtype,
                group_size=workload.tp,
                count=int(rate),
                fused=form.fused,
            )
        )
    return tuple(entries)


def _norms_taken_away(change: Change) -> int:
    """1: fused with a norm on the second side only; -1: on the first only; 0: neither."""
    before, after = (
        form is not None and FUSED_RESIDUAL_RMSNORM in form.fused for form in (change.before, change.after)
    )
    return int(after) - int(before) if change.before is not None and change.after is not None else 0


def _bytes_of(change: Change) -> int | None:
    form = change.after
    if form is None or form.shape is None or form.dtype not in DTYPE_BYTES:
        return None
    size = DTYPE_BYTES[form.dtype]
    for length in form.shape:
        size *= length
    return size


def _steps_in(composition: Composition, rows: frozenset[int]) -> Composition:
    return composition.take(np.isin(composition.step, np.fromiter(rows, np.int64)))
