"""Matching of NVTX events: which pop closes which push, which end which start, and how deep everything lies.

The decision: all threads at once by sorting, without a Python object per event. Within a thread and domain the depth is a
running sum (clamped at zero, so that a pop without its push starts afresh); on one level pushes and pops alternate, hence
a push belongs to the next pop of its level. Starts and ends are matched by their number, whatever thread they are on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I32, I64, Bools
from mtpprof.nvtxformat import EventKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """Pushes and pops of some events."""

    partner: I64
    """Of each push the pop that closes it; -1: none."""
    depth: I32
    """Of each push and mark the number of push/pop ranges around it."""
    lone: Bools
    """Pops that close nothing."""


def pair_stacks(kind: NDArray[np.uint8], thread: I64, domain: I32) -> Stacked:
    """Match pushes with pops.

    Args:
        kind: An `EventKind` of each event.
        thread: Thread of each event; the events of one thread are in their order.
        domain: Domain code of each event.
    """
    depth, level = stack_depths(kind, thread, domain)
    partner = np.full(len(kind), -1, np.int64)
    stacked = np.flatnonzero(level > 0)
    stacked = stacked[np.lexsort((stacked, level[stacked], domain[stacked], thread[stacked]))]
    opener, closer = stacked[:-1], stacked[1:]
    matched = (kind[opener] == EventKind.PUSH) & (kind[closer] == EventKind.POP)
    for key in (thread, domain, level):
        matched &= key[opener] == key[closer]
    partner[opener[matched]] = closer[matched]
    return Stacked(partner=partner, depth=depth, lone=(kind == EventKind.POP) & (level == 0))


def pair_numbered(
    start_id: NDArray[np.uint64], start_ns: I64, end_id: NDArray[np.uint64], end_ns: I64
) -> I64:
    """Of each start the place of its end; -1: it has none. An end belongs to the last start of its number before it.

    Args:
        start_id: Number of each start.
        start_ns: Its time.
        end_id: Number of each end.
        end_ns: Its time.
    """
    count = len(start_id)
    number = np.concatenate((start_id, end_id))
    time = np.concatenate((start_ns, end_ns))
    is_end = np.arange(len(number)) >= count
    order = np.lexsort((is_end, time, number))
    opener, closer = order[:-1], order[1:]
    matched = ~is_end[opener] & is_end[closer] & (number[opener] == number[closer])
    partner = np.full(count, -1, np.int64)
    partner[opener[matched]] = closer[matched] - count
    return partner


def stack_depths(kind: NDArray[np.uint8], thread: I64, domain: I32) -> tuple[I32, I32]:
    """Push/pop ranges around every event, and the level that a push opens or a pop closes.

    In each (thread, domain) the depth is the running sum of +1 and -1 less its running minimum, where that is negative.

    Returns:
        Depth of every event, and its level: from 1; 0 for other events and for pops of nothing.
    """
    count = len(kind)
    depths, levels = np.zeros(count, np.int32), np.zeros(count, np.int32)
    if count == 0:
        return depths, levels
    order = np.lexsort((np.arange(count), domain, thread))
    step = (kind[order] == EventKind.PUSH).astype(np.int64) - (kind[order] == EventKind.POP)
    first = np.ones(count, np.bool_)
    first[1:] = (thread[order[1:]] != thread[order[:-1]]) | (domain[order[1:]] != domain[order[:-1]])
    group = np.cumsum(first) - 1
    total = np.cumsum(step)
    local = total - (total - step)[first][group]
    # Every group is put below the one before it, so that one running minimum serves them all.
    apart = group * (count + 1)
    floor = np.minimum.accumulate(np.minimum(local, 0) - apart) + apart
    floor_before = np.where(first, 0, np.concatenate(([0], floor[:-1])))
    after = local - floor
    closes = (step < 0) & (floor == floor_before)
    depths[order] = np.where(step > 0, after - 1, after)
    levels[order] = np.where(step > 0, after, np.where(closes, after + 1, 0))
    return depths, levels
