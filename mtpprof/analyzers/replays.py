"""Which of our ranges tells of which kernel of a replayed graph.

Around every replay the emitter tells the graph's collectives once more, in the order of their capture, as ranges within one
`mtpprof::graph` range. The kernels of a replay start in that order too. Where the numbers differ (kernels dropped at the edge of a
window, a collective that no rule knows), nothing is matched: a shift by one would make every figure wrong.
"""

from __future__ import annotations

import numpy as np

from mtpprof import ranges
from mtpprof.analyzers.evidence import RANGES, OwnRanges
from mtpprof.analyzers.links import Nest
from mtpprof.analyzers.table import I64, MISSING, EventTable


def ranges_of_replays(
    table: EventTable, own: OwnRanges, rows: I64, launch: I64, graph: I64
) -> tuple[I64, int, int]:
    """Our range that tells of each kernel, for those that a graph replayed.

    Args:
        table: The trace.
        own: Its collective ranges of ours.
        rows: Rows of the collective kernels, in order of start.
        launch: Row of each one's launch; -1: not in the file.
        graph: What tells replays apart, for each kernel; -1: not replayed.

    Returns:
        Position in `own.nest` for each kernel, or -1; replays that were told of; those of them whose numbers differ.
    """
    around = np.full(len(rows), MISSING, np.int64)
    replays = _graph_ranges(table)
    told = differing = 0
    for replay in np.unique(graph[(graph != MISSING) & (launch != MISSING)]).tolist():
        kernels = np.flatnonzero(graph == replay)
        start = launch[kernels[:1]]
        position = replays.innermost(table.track[start], table.ts_ns[start])
        if position[0] == MISSING:
            continue
        told += 1
        children = _within(own.nest, replays, int(position[0]))
        if len(children) == len(kernels):
            around[kernels] = children
        else:
            differing += 1
    return around, told, differing


def _graph_ranges(table: EventTable) -> Nest:
    rows = table.rows(*RANGES)
    codes = [
        code
        for code in np.unique(table.name[rows]).tolist()
        if (parts := ranges.split(table.names[code])) is not None and parts[0] == ranges.GRAPH
    ]
    return Nest.of(table, rows[np.isin(table.name[rows], codes)])


def _within(nest: Nest, replays: Nest, position: int) -> I64:
    """Positions of the ranges of `nest` inside one replay, in order."""
    track, start, end = replays.track[position], replays.start[position], replays.end[position]
    low, high = np.searchsorted(nest.track, [track, track + 1])
    first = low + np.searchsorted(nest.start[low:high], start, side="left")
    last = low + np.searchsorted(nest.start[low:high], end, side="right")
    return np.arange(first, last, dtype=np.int64)
