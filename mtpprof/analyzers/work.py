"""What each rank computed: the kernels, or the outermost CPU operations, that are no collectives.

The decision: the same events as those of which a step is composed, and the same parts. Of operations within operations only the
outermost count, since the inner ones are what the outer one does; one that holds a collective is no work by itself, and counts by what
else is in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mtpprof.analyzers.calls import Calls
from mtpprof.analyzers.composition import COUNTED, part_of, runs_on_device, work_rows
from mtpprof.analyzers.intervals import union
from mtpprof.analyzers.table import I8, I32, I64, MISSING, Category, EventTable, TraceSet


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """Kernels or operations of one trace, by start. All arrays have one entry each."""

    rank: int
    """-1: the trace does not say."""
    on_device: bool
    names: tuple[str, ...]
    name: I32
    """Code into `names`."""
    part: I8
    """Place in `COUNTED`."""
    start_ns: I64
    """On the clock of the calls."""
    end_ns: I64

    def __len__(self) -> int:
        return len(self.start_ns)


def find_work(traces: TraceSet, calls: Calls) -> tuple[Work, ...]:
    """The work of every trace of a set.

    Args:
        traces: The event tables.
        calls: The collectives found in them.
    """
    return tuple(_of(table, calls.take(calls.table == index)) for index, table in enumerate(traces.tables))


def _of(table: EventTable, calls: Calls) -> Work:
    on_device = runs_on_device(table, calls)
    rows = work_rows(table, calls, on_device=on_device)
    if not on_device:
        rows = rows[table.category[rows] == Category.CPU_OP]
        rows = _outermost(table, _apart(table, rows, calls))
    codes, which = np.unique(table.name[rows], return_inverse=True)
    parts = np.array([COUNTED.index(part_of(table.names[code])) for code in codes.tolist()], np.int8)
    base = table.meta.base_time_ns or 0
    return Work(
        rank=MISSING if table.meta.rank is None else table.meta.rank,
        on_device=on_device,
        names=table.names,
        name=table.name[rows],
        part=parts[which.reshape(-1)],
        start_ns=table.ts_ns[rows] + base,
        end_ns=table.end_ns[rows] + base,
    )


def _apart(table: EventTable, rows: I64, calls: Calls) -> I64:
    """The operations that neither lie in a collective of their thread nor hold one."""
    own = calls.row[np.isin(table.track[calls.row], table.track[rows])]
    first, last = union(table.ts_ns[own], table.end_ns[own])
    if not len(first):
        return rows
    start, end = table.ts_ns[rows], table.end_ns[rows]
    before = np.searchsorted(first, start, side="right")
    inside = (before > 0) & (start < last[np.maximum(before - 1, 0)])
    holds = np.searchsorted(first, end) > np.searchsorted(first, start)
    return rows[~inside & ~holds]


def _outermost(table: EventTable, rows: I64) -> I64:
    """Of operations on one thread, those that lie in no other."""
    if not len(rows):
        return rows
    order = rows[np.lexsort((-table.end_ns[rows], table.ts_ns[rows]))]
    reach = np.maximum.accumulate(table.end_ns[order])
    outer = np.concatenate([[True], table.ts_ns[order][1:] >= reach[:-1]])
    return np.asarray(order[outer])
