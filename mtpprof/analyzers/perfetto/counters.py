"""Counters of a rank: payload bytes per second, collectives in flight, share of the time that is exposed
communication.

The decision: rates hold over the length of a call, so that the area under the curve is the sum of the bytes; a call
whose bytes are unknown adds nothing and is named in the counter's title, and where none is known there is no counter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.perfetto.communication import Rank, steps_of
from mtpprof.analyzers.traces.table import MISSING

WINDOWS = 100
"""Stretches over which the exposed share is taken where a trace tells no steps."""


def add_counters(rank: Rank, calls: Calls) -> None:
    """Counters made of the calls of a rank."""
    calls = calls.take(calls.dur_ns > 0)
    if not len(calls):
        return
    start = rank.arm.placed(rank.arm.own(calls.table, calls.ts_ns))
    known = calls.payload_bytes != MISSING
    if known.any():
        rate = calls.payload_bytes[known] / calls.dur_ns[known] * 1e9
        share = "" if known.all() else f" (of the {known.sum()} of {len(calls)} calls whose bytes are known)"
        title = f"collective payload bytes per second{share}"
        rank.layout.counter(
            rank.process, title, "B/s", *_sum_over_time(start[known], calls.dur_ns[known], rate)
        )
    in_flight = _sum_over_time(start, calls.dur_ns, np.ones(len(calls)))
    rank.layout.counter(rank.process, "collectives in flight", "calls", *in_flight)
    windows = _windows(rank, start, start + calls.dur_ns)
    shares = _shares(start, calls.dur_ns, calls.exposed_ns, windows)
    rank.layout.counter(rank.process, "exposed communication", "%", *shares)


def _sum_over_time(start: I64, dur_ns: I64, value: NDArray[np.float64]) -> tuple[I64, NDArray[np.float64]]:
    """The sum of the values of all that runs, at every time at which it changes."""
    times = np.concatenate([start, start + dur_ns])
    order = np.argsort(times, kind="stable")
    times = times[order]
    running = np.cumsum(np.repeat([1, -1], len(start))[order])
    total = np.cumsum(np.concatenate([value, -value])[order])
    last = np.append(times[1:] != times[:-1], True)
    # Differences of floating-point sums leave a remainder where nothing runs.
    return times[last], np.where(running > 0, np.maximum(total, 0.0), 0.0)[last]


def _windows(rank: Rank, start: I64, end: I64) -> tuple[I64, I64]:
    """Steps of the rank, else equal stretches from the first call to the last."""
    steps, rows = rank.arm.found.steps, steps_of(rank)
    if len(rows):
        begin = rank.arm.placed(rank.arm.own(steps.table[rows], steps.start_ns[rows]))
        length = (steps.end_ns - steps.start_ns)[rows]
        return begin[length > 0], (begin + length)[length > 0]
    edges = np.linspace(int(start.min()), int(end.max()), WINDOWS + 1).astype(np.int64)
    edges = np.unique(edges)
    return edges[:-1], edges[1:]


def _shares(
    start: I64, dur_ns: I64, exposed_ns: I64, windows: tuple[I64, I64]
) -> tuple[I64, NDArray[np.float64]]:
    """Percent of each window that is exposed communication, and 0 where windows leave a gap."""
    times, rate = _sum_over_time(start, dur_ns, exposed_ns / dur_ns)
    before = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(times))])
    begin, end = windows
    share = 100 * (np.interp(end, times, before) - np.interp(begin, times, before)) / (end - begin)
    gap = np.append(begin[1:] > end[:-1], True)[: len(end)]
    times, values = np.concatenate([begin, end[gap]]), np.concatenate([share, np.zeros(gap.sum())])
    order = np.argsort(times, kind="stable")
    return times[order], values[order]
