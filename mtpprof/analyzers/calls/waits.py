"""Transfer or waiting? Verdicts, artefacts of the start of profiling, and who keeps the others waiting.

The words are those of vLLM's request for this very split: *transfer-dominated*, *skew-dominated*, *mixed*,
*inconclusive*. A verdict is given only where it survives the uncertainty of the clocks: the wait of every call is
moved by the residual in both directions, and if the verdict changes it is inconclusive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.traces.table import MISSING

MOSTLY = 2 / 3
TRANSIENT_TIMES = 20
"""How many times the usual length a first call must have to be an artefact of the start of profiling."""
TRANSIENT_NS = 1_000_000
"""Shorter first calls are left alone."""


class WaitVerdict(StrEnum):
    """What the time in collectives mostly was."""

    TRANSFER = "transfer-dominated"
    SKEW = "skew-dominated"
    MIXED = "mixed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitShare:
    """Waiting in the collectives of some calls."""

    calls: int
    """Calls whose wait is known; the others are left out."""
    wait_ns: int
    transfer_ns: int
    share: float | None
    """Part of the time that was waiting; None: no wait is known."""
    share_low: float | None
    """The same if every wait were shorter by the residual."""
    share_high: float | None
    verdict: WaitVerdict
    reason: str
    """Why inconclusive; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """How often a rank came last, and what the others waited for it."""

    rank: int
    last: int
    """Collectives to which it came last."""
    of: int
    """Collectives whose waits are known."""
    caused_ns: int
    """Sum of the other ranks' waits in those."""


def wait_share(calls: Calls, residual_ns: int, reason: str = "") -> WaitShare:
    """The verdict on some calls; `reason` says why waits are unknown, where they are."""
    known = (calls.wait_ns >= 0) & ~calls.transient
    wait, time = calls.wait_ns[known], calls.dur_ns[known]
    total = int(time.sum())
    if not total:
        return WaitShare(
            calls=0,
            wait_ns=0,
            transfer_ns=0,
            share=None,
            share_low=None,
            share_high=None,
            verdict=WaitVerdict.INCONCLUSIVE,
            reason=reason or "no wait is known",
        )
    low = int(np.clip(wait - residual_ns, 0, time).sum()) / total
    high = int(np.clip(wait + residual_ns, 0, time).sum()) / total
    verdict = _verdict(low) if _verdict(low) is _verdict(high) else WaitVerdict.INCONCLUSIVE
    unsure = (
        f"between {low:.0%} and {high:.0%} of the time, as ends agree to {residual_ns / 1000:,.1f} µs only"
    )
    return WaitShare(
        calls=int(known.sum()),
        wait_ns=int(wait.sum()),
        transfer_ns=total - int(wait.sum()),
        share=int(wait.sum()) / total,
        share_low=low,
        share_high=high,
        verdict=verdict,
        reason=unsure if verdict is WaitVerdict.INCONCLUSIVE else "",
    )


def _verdict(share: float) -> WaitVerdict:
    if share >= MOSTLY:
        return WaitVerdict.SKEW
    return WaitVerdict.TRANSFER if share <= 1 - MOSTLY else WaitVerdict.MIXED


def mark_transients(calls: Calls) -> tuple[Calls, tuple[str, ...]]:
    """Marks first calls that are artefacts of the start of profiling, and names them.

    The profiler does not start on all ranks at once: in the first collective of the window the ranks that were profiled first
    wait for the others, for up to seconds. Such a call is the first of its rank, and both `TRANSIENT_TIMES` the median of
    its like and longer than `TRANSIENT_NS`. Its matches on the other ranks are marked with it.
    """
    marked = np.zeros(len(calls), np.bool_)
    sentences = []
    for table in np.unique(calls.table):
        mine = np.flatnonzero(calls.table == table)
        first = int(mine[np.argmin(calls.ts_ns[mine])])
        like = mine[(calls.kind[mine] == calls.kind[first]) & (mine != first)]
        if not len(like):
            continue
        usual, length = float(np.median(calls.dur_ns[like])), int(calls.dur_ns[first])
        if length < TRANSIENT_NS or length < TRANSIENT_TIMES * usual:
            continue
        marked[first] = True
        if calls.match[first] != MISSING:
            marked |= calls.match == calls.match[first]
        sentences.append(
            f"{_who(int(calls.rank[first]))}: the first {calls.text('kind', first)} of the window lasts {length / 1e6:,.1f} ms, the "
            f"others {usual / 1e6:,.3f} ms in the median: taken for the start of profiling and left out of waits, "
            f"bandwidths and per-step figures (totals include it)."
        )
    return replace(calls, transient=marked), tuple(sentences)


def _who(rank: int) -> str:
    return f"rank {rank}" if rank != MISSING else "a trace of unknown rank"


def stragglers(calls: Calls) -> tuple[Straggler, ...]:
    """The ranks by what the others waited for them, the worst first; empty where no wait is known."""
    known = np.flatnonzero((calls.wait_ns >= 0) & (calls.match != MISSING) & ~calls.transient)
    if not len(known):
        return ()
    order = known[np.lexsort((calls.wait_ns[known], calls.match[known]))]
    match = calls.match[order]
    starts = np.flatnonzero(np.concatenate([[True], match[1:] != match[:-1]]))
    last_rank = calls.rank[order[starts]]
    caused = np.add.reduceat(calls.wait_ns[order], starts)
    return tuple(
        sorted(
            (
                Straggler(
                    rank=int(rank),
                    last=int(np.count_nonzero(last_rank == rank)),
                    of=len(starts),
                    caused_ns=int(caused[last_rank == rank].sum()),
                )
                for rank in np.unique(calls.rank[known])
            ),
            key=lambda item: (-item.caused_ns, item.rank),
        )
    )


def most_waited(calls: Calls, count: int) -> I64:
    """The `count` calls with the longest known wait, the longest first."""
    known = np.flatnonzero((calls.wait_ns > 0) & ~calls.transient)
    return known[np.argsort(-calls.wait_ns[known], kind="stable")][:count].astype(np.int64)


def longest(calls: Calls, count: int) -> I64:
    """The `count` longest calls, the longest first; transients are among them."""
    return np.argsort(-calls.dur_ns, kind="stable")[:count].astype(np.int64)
