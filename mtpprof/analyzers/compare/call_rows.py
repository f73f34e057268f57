"""Collectives of one or two sides as rows: A, B, difference, expected against observed, provenance of the bytes.

Figures are per step and rank, so that captures of different length compare. What is not known is None, shown as `?`. A side that has not
been read, or cannot be, says nothing of its calls: they are neither gone nor added.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.compare.side import Side
from mtpprof.analyzers.ledger.mismatches import shape_text
from mtpprof.analyzers.measures.sums import Group, group
from mtpprof.analyzers.measures.totals import steps_of
from mtpprof.analyzers.traces.table import MISSING
from mtpprof.models.optimizations.catalogue import expected_collectives

KEY = ("kind", "phase", "site", "shape", "dtype", "implementation", "fused")
BY_RANK = (*KEY, "rank")
MAX_ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Calls of one kind and place on one side, per step and rank."""

    calls: float
    payload_bytes: float | None
    """Of one call."""
    provenance: str
    wait_ns: float | None
    transfer_ns: float | None
    time_ns: float
    expected: int | None
    """Calls of the ledger; None: there is none for this side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One row of the table."""

    key: tuple[str, ...]
    """Values of `KEY`; empty: not known."""
    rank: int | None
    a: Figures | None
    """None: this side has no such call, or is not read."""
    b: Figures | None
    a_read: bool = True
    """Whether the side's traces are there to be looked at."""
    b_read: bool = True
    paired: bool = True
    """Whether there is a side B at all."""

    @property
    def payload_bytes(self) -> float | None:
        """Of one call, on whichever side has it."""
        return (self.a or self.b or _NONE).payload_bytes

    @property
    def comparable(self) -> bool:
        """Whether both sides are there to be held against each other."""
        return self.paired and self.a_read and self.b_read

    @property
    def calls_change(self) -> float | None:
        """B minus A; None: one of them is not known, or is not there."""
        if not self.comparable:
            return None
        return (self.b.calls if self.b else 0) - (self.a.calls if self.a else 0)

    @property
    def time_change_ns(self) -> float | None:
        """B minus A; a side without the call takes no time in it. None: as for the calls."""
        if not self.comparable:
            return None
        return (self.b.time_ns if self.b else 0) - (self.a.time_ns if self.a else 0)

    @property
    def as_expected(self) -> bool | None:
        """Whether the calls of the sides that are there are those of their ledgers; None: no ledger says."""
        sides = [side for side in (self.a, self.b) if side is not None and side.expected is not None]
        return all(side.calls == side.expected for side in sides) if sides else None


_NONE = Figures(
    calls=0, payload_bytes=None, provenance="", wait_ns=None, transfer_ns=None, time_ns=0, expected=None
)


def collective_rows(
    a: Side | None, b: Side | None, *, by_rank: bool = False, paired: bool = True
) -> list[CollectiveRow]:
    """Rows of two sides joined by what a call is; the longest time first.

    Args:
        a: None: not read.
        b: None: not read, or there is none.
        by_rank: Rows for each rank.
        paired: Whether there is a side B.
    """
    ours, theirs = _figures(a, by_rank), _figures(b, by_rank)
    keys = dict.fromkeys((*ours, *theirs))
    rows = [
        CollectiveRow(
            key=key[: len(KEY)],  # type: ignore[arg-type]
            rank=key[len(KEY)],  # type: ignore[arg-type]
            a=ours.get(key),
            b=theirs.get(key),
            a_read=_is_read(a),
            b_read=_is_read(b),
            paired=paired,
        )
        for key in keys
    ]
    rows.sort(key=lambda row: -max(row.a.time_ns if row.a else 0, row.b.time_ns if row.b else 0))
    return rows[:MAX_ROWS]


def _is_read(side: Side | None) -> bool:
    return side is not None and side.traces is not None


def _figures(side: Side | None, by_rank: bool) -> dict[tuple[str | int | None, ...], Figures]:
    if side is None or side.traces is None:
        return {}
    calls = side.traces.calls
    if len(side.traces.steps):
        calls = calls.take((calls.step != MISSING) & ~calls.transient)
    if not len(calls):
        return {}
    expected = _expected(side)
    divisors = _Divisors(calls, by_rank=by_rank, by_phase=expected is None)
    found = {}
    for entry in group(calls, side.traces.steps, BY_RANK if by_rank else KEY):
        key = tuple(str(entry.key[name] or "") for name in KEY)
        rank = entry.key.get("rank")
        count = divisors.of(key[1], rank)
        wanted = None if expected is None else expected.get((key[0], key[1], key[2], key[3], key[4]), 0)
        found[(*key, rank)] = _of(entry, count, wanted)
    return found


class _Divisors:
    """Steps that the calls of a phase and rank are spread over.

    An engine's step may have some of the phases only (a prefill drafts nothing), and what a phase does is said per step that has it. Where
    a ledger says what every step has to have, all steps count: a phase that is missing in one of them has to show.
    """

    def __init__(self, calls: Calls, *, by_rank: bool, by_phase: bool) -> None:
        self._by_rank, self._by_phase = by_rank, by_phase
        phases = np.unique(calls.phase).tolist() if by_phase else []
        masks = {calls.texts[code]: calls.phase == code for code in phases if calls.texts[code]}
        masks[""] = np.ones(len(calls), np.bool_)
        self._steps = {
            (phase, rank): max(1, steps_of(calls.take(mask if rank is None else mask & (calls.rank == rank))))
            for phase, mask in masks.items()
            for rank in (np.unique(calls.rank).tolist() if by_rank else [None])
        }

    def of(self, phase: str, rank: object) -> int:
        """Of the calls of one row."""
        return self._steps[
            (phase if self._by_phase else "", rank if self._by_rank and isinstance(rank, int) else None)
        ]


def _of(entry: Group, pairs: int, expected: int | None) -> Figures:
    known = entry.payload_bytes is not None and entry.bytes_known
    return Figures(
        calls=entry.calls / pairs,
        payload_bytes=entry.payload_bytes / entry.bytes_known
        if known and entry.payload_bytes is not None
        else None,
        provenance=_provenance(entry),
        wait_ns=None if entry.wait_ns is None else entry.wait_ns / pairs,
        transfer_ns=None if entry.transfer_ns is None else entry.transfer_ns / pairs,
        time_ns=entry.sum_ns / pairs,
        expected=expected,
    )


def _provenance(entry: Group) -> str:
    if not entry.bytes_known:
        return "unknown"
    word = "measured" if entry.bytes_measured == entry.bytes_known else "derived"
    return word if entry.bytes_known == entry.calls else f"{word}, some unknown"


def _expected(side: Side) -> Counter[tuple[str, str, str, str, str]] | None:
    if side.spec is None or side.workload is None or side.enabled is None:
        return None
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    for entry in expected_collectives(side.spec, side.workload, side.enabled):
        counts[(entry.kind, entry.phase, entry.site, shape_text(entry.shape), entry.dtype)] += entry.count
    return counts
