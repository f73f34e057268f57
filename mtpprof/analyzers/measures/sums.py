"""Views of calls: sums by any columns, figures per step, census of implementations by message size.

The decision: every view is a pure function of the call columns, made with a few array operations, whatever it groups
by. What is not known is None with the number of calls of which it is known beside it; sums are over the known ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.steps import Steps
from mtpprof.analyzers.calls.table import TEXT_COLUMNS, Calls, Provenance, wire_bytes_of
from mtpprof.analyzers.numeric import intervals
from mtpprof.analyzers.numeric.arrays import I64, Bools
from mtpprof.analyzers.numeric.distinct import Distinct, distinct_rows
from mtpprof.analyzers.traces.table import MISSING
from mtpprof.models.traffic import Kind, busbw_factor

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
    keys = [_column(calls, steps, name) for name in by]
    distinct = distinct_rows(*keys)
    sums = _Sums(calls, distinct)
    groups = [
        sums.group(index, {name: _value(calls, name, code) for name, code in zip(by, key, strict=True)})
        for index, key in enumerate(distinct.rows.tolist())
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


class _Sums:
    """Figures of all groups at once, one array an entry of `Group`: a table may have as many groups as calls."""

    def __init__(self, calls: Calls, groups: Distinct) -> None:
        self._which, self._groups = groups.which, len(groups)
        known = calls.payload_bytes != MISSING
        wire = wire_bytes_of(calls)
        waits = calls.wait_ns != MISSING
        self.calls = groups.counts
        self.fused = self._count(calls.fused != 0)
        self.transient = self._count(calls.transient)
        self.ranks = np.bincount(distinct_rows(self._which, calls.table).rows[:, 0])
        self.known, self.payload = self._count(known), self._sum(calls.payload_bytes, known)
        self.measured = self._count(calls.provenance == Provenance.MEASURED)
        self.wire_known, self.wire = self._count(wire != MISSING), self._sum(wire, wire != MISSING)
        self.time, self.exposed = self._sum(calls.dur_ns), self._sum(calls.exposed_ns)
        self.waits, self.wait = self._count(waits), self._sum(calls.wait_ns, waits)
        self.transfer = self._sum(calls.transfer_ns, waits)
        self.busy = _busy(calls, groups)
        order = np.lexsort((calls.dur_ns, self._which))
        last = np.cumsum(self.calls)
        first = last - self.calls
        by_time = calls.dur_ns[order]
        self.shortest, self.longest = by_time[first], by_time[last - 1]
        below, above = by_time[(first + last - 1) // 2], by_time[(first + last) // 2]
        self.median = below + (above - below) // 2
        self.unknown = self._reasons(calls, ~known)
        self.busbw, self.basis = self._busbw(calls)

    def group(self, index: int, key: dict[str, Value]) -> Group:
        """One group."""
        return Group(
            key=key,
            calls=int(self.calls[index]),
            fused_calls=int(self.fused[index]),
            transient_calls=int(self.transient[index]),
            ranks=int(self.ranks[index]),
            payload_bytes=int(self.payload[index]) if self.known[index] else None,
            bytes_known=int(self.known[index]),
            bytes_measured=int(self.measured[index]),
            bytes_unknown=tuple(self.unknown.get(index, ())),
            wire_bytes=int(self.wire[index]) if self.wire_known[index] else None,
            wire_known=int(self.wire_known[index]),
            sum_ns=int(self.time[index]),
            busy_ns=int(self.busy[index]),
            exposed_ns=int(self.exposed[index]),
            wait_ns=int(self.wait[index]) if self.waits[index] else None,
            transfer_ns=int(self.transfer[index]) if self.waits[index] else None,
            wait_known=int(self.waits[index]),
            min_ns=int(self.shortest[index]),
            median_ns=int(self.median[index]),
            max_ns=int(self.longest[index]),
            busbw_gb_per_s=float(self.busbw[index]) if self.busbw[index] else None,
            busbw_basis=("duration", "transfer")[int(self.basis[index])] if self.busbw[index] else "",
        )

    def _count(self, chosen: Bools) -> I64:
        return np.bincount(self._which[chosen], minlength=self._groups).astype(np.int64)

    def _sum(self, column: I64, chosen: Bools | None = None) -> I64:
        """Exact, unlike the sums of `np.bincount`, which are floats."""
        found = np.zeros(self._groups, np.int64)
        rows = slice(None) if chosen is None else chosen
        np.add.at(found, self._which[rows], column[rows])
        return found

    def _reasons(self, calls: Calls, unknown: Bools) -> dict[int, list[Unknown]]:
        found: dict[int, list[Unknown]] = {}
        reasons = distinct_rows(self._which[unknown], calls.how[unknown])
        for (index, code), count in zip(reasons.rows.tolist(), reasons.counts.tolist(), strict=True):
            found.setdefault(index, []).append(Unknown(reason=calls.texts[code], calls=count))
        return found

    def _busbw(self, calls: Calls) -> tuple[NDArray[np.float64], Bools]:
        """Bus bandwidth of each group, 0 where it is not known, and whether it is over transfer times."""
        usable = (calls.payload_bytes > 0) & (calls.group_size > 1) & ~calls.transient & (calls.dur_ns > 0)
        waits = usable & (calls.wait_ns != MISSING) & (calls.transfer_ns > 0)
        matched = self._count(waits) > 0
        chosen = np.where(matched[self._which], waits, usable)
        time = self._sum(np.where(matched[self._which], calls.transfer_ns, calls.dur_ns), chosen)
        kinds = distinct_rows(calls.kind[chosen], calls.group_size[chosen])
        factors = np.array(
            [busbw_factor(Kind(calls.texts[kind]), size) or 0.0 for kind, size in kinds.rows.tolist()]
        )
        moved = np.bincount(
            self._which[chosen], calls.payload_bytes[chosen] * factors[kinds.which], minlength=self._groups
        )
        return moved / np.maximum(time, 1), matched


def _busy(calls: Calls, groups: Distinct) -> I64:
    """Union of the calls of each group on each rank, summed over ranks: one sweep, with every (group, rank) on its own stretch."""
    lanes = distinct_rows(groups.which, calls.table)
    lane, owner = lanes.which, lanes.rows[:, 0]
    origin, span = int(calls.ts_ns.min()), int(calls.end_ns.max() - calls.ts_ns.min()) + 1
    found = np.zeros(len(groups), np.int64)
    if span * len(lanes) < np.iinfo(np.int64).max:
        start = calls.ts_ns - origin + lane * span
        start, end = intervals.union(start, start + calls.dur_ns)
        np.add.at(found, owner[start // span], end - start)
        return found
    for index in range(len(lanes)):
        mine = lane == index
        found[owner[index]] += intervals.busy(calls.ts_ns[mine], calls.end_ns[mine])
    return found
