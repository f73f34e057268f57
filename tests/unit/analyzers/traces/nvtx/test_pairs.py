"""Matching of pushes with pops and starts with ends, against the obvious way to do it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.traces.nvtx.pairs import pair_numbered, pair_stacks
from mtpprof.nvtxformat import EventKind

EVENTS = st.lists(
    st.tuples(st.sampled_from(EventKind), st.integers(1, 3), st.integers(0, 2), st.integers(1, 4)),
    max_size=60,
)
"""(kind, thread, domain, range id), in the order of time."""


def obvious(events: list[tuple[EventKind, int, int, int]]) -> tuple[dict[int, int], list[int], int]:
    """Partner of each beginning, depth of each push and mark, ends without a beginning: one stack per thread and domain."""
    stacks: dict[tuple[int, int], list[int]] = {}
    latest: dict[int, tuple[EventKind, int]] = {}
    partner: dict[int, int] = {}
    depth: list[int] = []
    lone = 0
    for row, (kind, thread, domain, number) in enumerate(events):
        stack = stacks.setdefault((thread, domain), [])
        depth.append(len(stack))
        if kind is EventKind.PUSH:
            stack.append(row)
        elif kind is EventKind.POP:
            if stack:
                partner[stack.pop()] = row
            else:
                lone += 1
        elif kind is EventKind.START:
            latest[number] = (kind, row)
        elif kind is EventKind.END:
            before, began = latest.get(number, (kind, row))
            latest[number] = (kind, row)
            if before is EventKind.START:
                partner[began] = row
            else:
                lone += 1
    return partner, depth, lone


@given(EVENTS)
def test_matches_a_stack_per_thread_and_domain(events: list[tuple[EventKind, int, int, int]]) -> None:
    kind = np.array([event[0] for event in events], np.uint8)
    thread = np.array([event[1] for event in events], np.int64)
    domain = np.array([event[2] for event in events], np.int32)
    number = np.array([event[3] for event in events], np.uint64)
    time = np.arange(len(events), dtype=np.int64)
    partner, depth, lone = obvious(events)
    stacked = pair_stacks(kind, thread, domain)
    starts, ends = np.flatnonzero(kind == EventKind.START), np.flatnonzero(kind == EventKind.END)
    numbered = pair_numbered(number[starts], time[starts], number[ends], time[ends])
    found = {row: p for row, p in enumerate(stacked.partner.tolist()) if p >= 0}
    found |= {int(starts[i]): int(ends[p]) for i, p in enumerate(numbered.tolist()) if p >= 0}
    assert found == partner
    assert int(stacked.lone.sum()) + len(ends) - int((numbered >= 0).sum()) == lone
    for row, event in enumerate(events):
        if event[0] in (EventKind.PUSH, EventKind.MARK):
            assert stacked.depth[row] == depth[row]
