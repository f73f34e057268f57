"""NVTX capture and torch trace of one rank on one clock.

mtpprof emits every range of its own to both, NVTX's around torch's. Both are on the real-time clock, so no shift is estimated
to make them fit; how far the clocks can be apart is measured instead. Since the NVTX range encloses the other, no start of the
trace can precede NVTX's and no end can follow it: the earliest start and the latest end of all pairs bracket the shift of the
clocks, and a process that lost its core in between does not widen the bracket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.table import Category, EventTable
from mtpprof.ranges import PREFIX

SLACK_NS = 50_000_000
"""Ranges of one name that lie further apart are not the same."""

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvtxJoin:
    """Which rows are the same range."""

    nvtx_row: I64
    """Rows of the NVTX table, in order of time."""
    trace_row: I64
    """Row of the trace of each."""
    only_nvtx: int
    """Ranges within the trace's window that the trace lacks."""
    only_trace: int
    shift_ns: tuple[int, int] | None
    """The trace's clock less NVTX's lies between these (the first above the second: they moved meanwhile); None: no pair."""

    @property
    def residual_ns(self) -> int | None:
        """By how much the clocks may disagree at most; None: nothing is in both."""
        return None if self.shift_ns is None else max(abs(bound) for bound in self.shift_ns)

    def __len__(self) -> int:
        return len(self.nvtx_row)


def join(nvtx: EventTable, trace: EventTable) -> NvtxJoin:
    """Pair mtpprof's own ranges of two tables of one rank.

    Args:
        nvtx: From an NVTX capture, which may hold more than the trace's window.
        trace: From the torch profiler.
    """
    codes: dict[str, int] = {}
    a_row, a_code, a_ts = _own_ranges(nvtx, codes)
    b_row, b_code, b_ts = _own_ranges(trace, codes)
    if len(b_ts):
        inside = (a_ts >= b_ts.min() - SLACK_NS) & (a_ts <= b_ts.max() + SLACK_NS)
        a_row, a_code, a_ts = a_row[inside], a_code[inside], a_ts[inside]
    else:
        a_row, a_code, a_ts = a_row[:0], a_code[:0], a_ts[:0]
    a_at, b_at = _pairs(a_code, a_ts, b_code, b_ts)
    order = np.argsort(a_ts[a_at], kind="stable")
    a_at, b_at = a_at[order], b_at[order]
    nvtx_row, trace_row = a_row[a_at], b_row[b_at]
    start_distance = b_ts[b_at] - a_ts[a_at]
    end_distance = start_distance + trace.dur_ns[trace_row] - nvtx.dur_ns[nvtx_row]
    return NvtxJoin(
        nvtx_row=nvtx_row,
        trace_row=trace_row,
        only_nvtx=_unpaired_inside(a_ts, a_at, b_ts),
        only_trace=len(b_ts) - len(b_at),
        shift_ns=(int(end_distance.max()), int(start_distance.min())) if len(nvtx_row) else None,
    )


def _own_ranges(table: EventTable, codes: dict[str, int]) -> tuple[I64, I64, I64]:
    """Rows, name codes and absolute starts of mtpprof's own ranges; none where the file does not tell its base."""
    starts = table.absolute_ns()
    if starts is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    own = np.array(
        [codes.setdefault(name, len(codes)) if name.startswith(PREFIX) else -1 for name in table.names],
        np.int64,
    )
    rows = table.rows(Category.NVTX, Category.USER_ANNOTATION)
    rows = rows[own[table.name[rows]] >= 0] if len(rows) else rows
    return rows, own[table.name[rows]] if len(rows) else np.empty(0, np.int64), starts[rows]


def _pairs(a_code: I64, a_ts: I64, b_code: I64, b_ts: I64) -> tuple[I64, I64]:
    """Positions that belong together: each range of the trace with the nearest of its name that no earlier one has taken."""
    a_order, b_order = np.lexsort((a_ts, a_code)), np.lexsort((b_ts, b_code))
    found_a: list[int] = []
    found_b: list[int] = []
    codes = np.intersect1d(a_code, b_code)
    a_edges = np.searchsorted(a_code[a_order], [codes, codes + 1])
    b_edges = np.searchsorted(b_code[b_order], [codes, codes + 1])
    for a_first, a_end, b_first, b_end in zip(*a_edges.tolist(), *b_edges.tolist(), strict=True):
        a, b = a_order[a_first:a_end], b_order[b_first:b_end]
        free = 0
        for position, start in zip(b.tolist(), b_ts[b].tolist(), strict=True):
            at = free + int(np.searchsorted(a_ts[a[free:]], start, side="right"))
            near = min(
                (k for k in (at - 1, at) if free <= k < len(a)),
                key=lambda k: abs(int(a_ts[a[k]]) - start),
                default=-1,
            )
            if near >= 0 and abs(int(a_ts[a[near]]) - start) <= SLACK_NS:
                found_a.append(int(a[near]))
                found_b.append(position)
                free = near + 1
    return np.array(found_a, np.int64), np.array(found_b, np.int64)


def _unpaired_inside(a_ts: I64, a_at: I64, b_ts: I64) -> int:
    """NVTX ranges between the first and the last of the trace that have no partner there."""
    if not len(b_ts):
        return 0
    inside = (a_ts >= b_ts.min()) & (a_ts <= b_ts.max())
    inside[a_at] = False
    return int(np.count_nonzero(inside))
