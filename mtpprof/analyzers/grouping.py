"""Views of calls: sums by any columns, figures per step, census of implementations by message size.

The decision: every view is a pure function of the call columns, made with a few array operations, whatever it groups
by. What is not known is None with the number of calls of which it is known beside it; sums are over the known ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers import intervals
from mtpprof.analyzers.calls import I64, TEXT_COLUMNS, Calls, Provenance
from mtpprof.analyzers.steps import Steps
from mtpprof.analyzers.table import MISSING, Bools
from mtpprof.models.traffic import Algorithm, Kind, busbw_factor, wire_bytes

BY = (*(name for name in TEXT_COLUMNS if name != "how"), "rank", "step", "size", "size_class")
"""What calls can be grouped by. `size` is the payload, `size_class` the next power of two; `step` is the step's number."""

Value = str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Why the bytes of some calls are not known."""

    reason: str
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Calls that agree in what they were grouped by."""

    key: dict[str, Value]
    """None: the trace does not tell."""
    calls: int
    fused_calls: int
    transient_calls: int
    ranks: int
    """Ranks that have such calls."""
    payload_bytes: int | None
    """Of the calls whose payload is known; None: of none."""
    bytes_known: int
    bytes_measured: int
    """Calls whose payload came with the call; the rest of `bytes_known` is derived."""
    bytes_unknown: tuple[Unknown, ...]
    wire_bytes: int | None
    """What the ranks sent, by the algorithms that ran; None: known of no call."""
    wire_known: int
    sum_ns: int
    busy_ns: int
    """Union over each rank's calls, summed over the ranks."""
    exposed_ns: int
    wait_ns: int | None
    transfer_ns: int | None
    wait_known: int
    min_ns: int
    median_ns: int
    max_ns: int
    busbw_gb_per_s: float | None
    """GB/s as nccl-tests defines bus bandwidth, over the calls whose payload and group size are known, without transients."""
    busbw_basis: str
    """`transfer`: over transfer times; `duration`: over whole durations, which include waiting: a lower bound; empty: none."""


def group(calls: Calls, steps: Steps, by: tuple[str, ...]) -> tuple[Group, ...]:
    """Sums of the calls by the columns `by` (of `BY`).

    Returns:
        Groups in the order of their keys for ranks, steps and sizes, else the longest time first.

    Raises:
        ValueError: a name that is not in `BY`.
    """
    if not len(calls):
        return ()
    keys = np.stack([_column(calls, steps, name) for name in by], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.reshape(-1)
    wire = wire_bytes_of(calls)
    busy = _busy(calls, which, len(distinct))
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(len(distinct) + 1))
    groups = [
        _group(
            calls.take(order[bounds[index] : bounds[index + 1]]),
            wire[order[bounds[index] : bounds[index + 1]]],
            int(busy[index]),
            {name: _value(calls, name, int(code)) for name, code in zip(by, distinct[index], strict=True)},
        )
        for index in range(len(distinct))
    ]
    if not any(name in ("rank", "step", "size", "size_class") for name in by):
        groups.sort(key=lambda item: -item.sum_ns)
    return tuple(groups)


def _column(calls: Calls, steps: Steps, name: str) -> NDArray[Any]:
    if name in TEXT_COLUMNS and name in BY:
        return np.asarray(getattr(calls, name), np.int64)
    if name == "rank":
        return calls.rank.astype(np.int64)
    if name == "step":
        inside = calls.step != MISSING
        number = np.full(len(calls), MISSING, np.int64)
        number[inside] = steps.number[steps.rows_of(calls.table[inside], calls.step[inside])]
        return number
    if name == "size":
        return calls.payload_bytes
    if name == "size_class":
        return size_class(calls.payload_bytes)
    raise ValueError(f"calls cannot be grouped by {name!r}; choose of {', '.join(BY)}")


def size_class(payload_bytes: I64) -> I64:
    """The smallest power of two that is not below each payload; -1 for unknown, 0 for nothing."""
    below = np.maximum(payload_bytes - 1, 0)
    for bits in (1, 2, 4, 8, 16, 32):
        below |= (
            below >> bits
        )  # ends with every bit below the highest one set; floats would round above 2**53
    return np.where(payload_bytes > 0, below + 1, payload_bytes)


def _value(calls: Calls, name: str, code: int) -> Value:
    if name in TEXT_COLUMNS:
        return calls.texts[code] or (None if name != "fused" else "")
    return code if code != MISSING else None


def _group(calls: Calls, wire: I64, busy_ns: int, key: dict[str, Value]) -> Group:
    known = calls.payload_bytes != MISSING
    waits = calls.wait_ns != MISSING
    reasons, counts = np.unique(calls.how[~known], return_counts=True)
    busbw, basis = _busbw(calls)
    return Group(
        key=key,
        calls=len(calls),
        fused_calls=int(np.count_nonzero(calls.fused)),
        transient_calls=int(np.count_nonzero(calls.transient)),
        ranks=len(np.unique(calls.table)),
        payload_bytes=_sum_or_none(calls.payload_bytes, known),
        bytes_known=int(known.sum()),
        bytes_measured=int(np.count_nonzero(calls.provenance == Provenance.MEASURED)),
        bytes_unknown=tuple(
            Unknown(reason=calls.texts[code], calls=count)
            for code, count in zip(reasons.tolist(), counts.tolist(), strict=True)
        ),
        wire_bytes=_sum_or_none(wire, wire != MISSING),
        wire_known=int(np.count_nonzero(wire != MISSING)),
        sum_ns=int(calls.dur_ns.sum()),
        busy_ns=busy_ns,
        exposed_ns=int(calls.exposed_ns.sum()),
        wait_ns=_sum_or_none(calls.wait_ns, waits),
        transfer_ns=_sum_or_none(calls.transfer_ns, waits),
        wait_known=int(waits.sum()),
        min_ns=int(calls.dur_ns.min()),
        median_ns=int(np.median(calls.dur_ns)),
        max_ns=int(calls.dur_ns.max()),
        busbw_gb_per_s=busbw,
        busbw_basis=basis,
    )


def _sum_or_none(column: I64, known: Bools) -> int | None:
    return int(column[known].sum()) if known.any() else None


def _busy(calls: Calls, which: I64, groups: int) -> I64:
    """Union of the calls of each group on each rank, summed over ranks: one sweep, with every (group, rank) on its own stretch."""
    _, lane = np.unique(np.stack([which, calls.table.astype(np.int64)], axis=1), axis=0, return_inverse=True)
    lane = lane.reshape(-1)
    origin, span = int(calls.ts_ns.min()), int(calls.end_ns.max() - calls.ts_ns.min()) + 1
    found = np.zeros(groups, np.int64)
    if span * (int(lane.max()) + 1) < np.iinfo(np.int64).max:
        start = calls.ts_ns - origin + lane * span
        start, end = intervals.union(start, start + calls.dur_ns)
        owner = np.zeros(int(lane.max()) + 1, np.int64)
        owner[lane] = which
        np.add.at(found, owner[start // span], end - start)
        return found
    for index in np.unique(lane):
        mine = lane == index
        found[which[mine][0]] += intervals.busy(calls.ts_ns[mine], calls.end_ns[mine])
    return found


def _distinct(*columns: NDArray[Any]) -> tuple[list[list[int]], I64]:
    distinct, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return distinct.tolist(), which.reshape(-1)


def wire_bytes_of(calls: Calls) -> I64:
    """Bytes that the rank of each call sends, by the algorithm that ran; -1: not known."""
    if not len(calls):
        return np.empty(0, np.int64)
    distinct, which = _distinct(calls.kind, calls.algorithm, calls.payload_bytes, calls.group_size)
    sent = []
    for kind, algorithm, payload, size in distinct:
        unknown = MISSING in (payload, size) or not algorithm
        found = (
            None
            if unknown
            else wire_bytes(Kind(calls.texts[kind]), Algorithm(calls.texts[algorithm]), payload, size)
        )
        sent.append(MISSING if found is None else found)
    return np.array(sent, np.int64)[which]


def _busbw(calls: Calls) -> tuple[float | None, str]:
    usable = (calls.payload_bytes > 0) & (calls.group_size > 1) & ~calls.transient & (calls.dur_ns > 0)
    waits = usable & (calls.wait_ns != MISSING) & (calls.transfer_ns > 0)
    chosen, time, basis = (
        (waits, calls.transfer_ns, "transfer") if waits.any() else (usable, calls.dur_ns, "duration")
    )
    if not chosen.any():
        return None, ""
    distinct, which = _distinct(calls.kind[chosen], calls.group_size[chosen])
    factors = np.array([busbw_factor(Kind(calls.texts[kind]), size) or 0.0 for kind, size in distinct])
    moved = float((calls.payload_bytes[chosen] * factors[which]).sum())
    return (moved / int(time[chosen].sum()), basis) if moved else (None, "")
