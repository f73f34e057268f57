"""Lines up the collective calls of two ranks of one group, and their clocks.

The decision: the windows of two ranks may be cut differently, so the i-th call of one need not be the i-th of the
other. Calls of a group run in one order on all ranks, hence two sequences differ by a *shift*. Where calls carry
sequence numbers these tell it. Else every shift is tried at which kinds and known sizes agree throughout, and the
times decide among the few that are left: collectives end together, so at the right shift the differences of the ends
are constant but for microseconds, and at a wrong one they jitter with the steps. Where the times do not decide, the
ranks stay unmatched: a wrong pair is worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mtpprof.analyzers.numeric.arrays import I32, I64, Bools
from mtpprof.analyzers.traces.table import MISSING

MIN_OVERLAP = 0.5
"""Part of the shorter sequence that must have a partner."""
SAMPLES = 64
"""Positions at which all shifts are tried before the rest are tried in full."""
MAX_FULL_CHECKS = 256
CLEARLY = 2.0
"""How many times better a shift must fit than another one to be believed."""
CLOSE_NS = 2_000
"""Differences of ends that say nothing: the resolution of GPU timestamps and the run-out of a kernel."""


NEAR_NS = 1_000_000
"""Ends further apart than this do not tell the shift: clocks of hosts may differ by as much."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequence:
    """Calls of one rank on one group, in order."""

    kind: I32
    payload_bytes: I64
    """-1: not known."""
    seq: I64
    """-1: not recorded."""
    end_ns: I64

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Call i of one rank is call i + `by` of the other."""

    by: int
    spread_ns: int
    """Median deviation of the differences of the ends from their median."""
    offset_ns: int
    """Median difference of the ends: the other's clock minus this one's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Partners of two sequences; empty with a reason where they do not line up."""

    here: I64
    there: I64
    reason: str = ""


def align(here: Sequence, there: Sequence, *, one_clock: bool) -> Pairs:
    """Pairs the calls of two ranks.

    Args:
        here: One rank.
        there: Another rank of the same group.
        one_clock: Both files' times are on clocks that can be compared (roughly, as between hosts, is enough).
    """
    numbered = (here.seq >= 0).all() and (there.seq >= 0).all()
    if numbered and (np.diff(here.seq) > 0).all() and (np.diff(there.seq) > 0).all():
        return _by_number(here, there)
    shifts = [_measured(here, there, by) for by in _possible_shifts(here, there)]
    if not shifts:
        return _none("kinds and sizes of their calls do not line up at any shift")
    best = _best(shifts, one_clock=one_clock, equal_length=len(here) == len(there))
    if isinstance(best, str):
        return _none(best)
    start, stop = _overlap(len(here), len(there), best.by)
    index = np.arange(start, stop, dtype=np.int64)
    return Pairs(here=index, there=index + best.by)


def _best(shifts: list[Shift], *, one_clock: bool, equal_length: bool) -> Shift | str:
    """The shift at which the ends agree clearly best, or why there is none.

    Where several agree alike (evenly spaced calls, or ends that scatter as on a CPU), comparable clocks decide: windows of as
    many calls are taken as they are, else the shift counts whose ends are clearly nearest to each other.
    """
    least = min(shift.spread_ns for shift in shifts)
    alike = [shift for shift in shifts if shift.spread_ns <= CLEARLY * least + CLOSE_NS]
    if len(alike) == 1:
        return alike[0]
    if one_clock:
        unshifted = next((shift for shift in alike if shift.by == 0), None)
        if equal_length and unshifted is not None:
            return unshifted
        nearest, second = sorted(alike, key=lambda shift: abs(shift.offset_ns))[:2]
        if abs(nearest.offset_ns) * CLEARLY + CLOSE_NS < min(abs(second.offset_ns), NEAR_NS):
            return nearest
    return f"their calls line up at {len(alike)} shifts, and the times do not tell which is right"


def _none(reason: str) -> Pairs:
    empty = np.empty(0, np.int64)
    return Pairs(here=empty, there=empty, reason=reason)


def _by_number(here: Sequence, there: Sequence) -> Pairs:
    _, first, second = np.intersect1d(here.seq, there.seq, assume_unique=True, return_indices=True)
    if not len(first):
        return _none("their windows have no sequence number in common")
    if not _agree(here, there, first, second).all():
        return _none("calls of equal sequence number differ in kind or size")
    return Pairs(here=first, there=second)


def _agree(here: Sequence, there: Sequence, first: I64, second: I64) -> Bools:
    """Whether calls can be partners: one kind, and one size as far as both are known."""
    one, other = here.payload_bytes[first], there.payload_bytes[second]
    sizes = (one == other) | (one == MISSING) | (other == MISSING)
    return np.asarray((here.kind[first] == there.kind[second]) & sizes)


def _overlap(here: int, there: int, by: int) -> tuple[int, int]:
    return max(0, -by), min(here, there - by)


def _possible_shifts(here: Sequence, there: Sequence) -> list[int]:
    """Shifts at which all calls that then have a partner agree with it; the smallest shifts first."""
    if not len(here) or not len(there):
        return []
    shortest = max(1, int(min(len(here), len(there)) * MIN_OVERLAP))
    shifts = np.arange(shortest - len(here), len(there) - shortest + 1, dtype=np.int64)
    for place in np.linspace(0, len(here) - 1, SAMPLES, dtype=np.int64):
        partner = np.clip(place + shifts, 0, len(there) - 1)
        partnered = partner == place + shifts
        shifts = shifts[~partnered | _agree(here, there, np.full(len(shifts), place), partner)]
    found: list[int] = []
    for by in shifts[np.argsort(np.abs(shifts), kind="stable")].tolist():
        start, stop = _overlap(len(here), len(there), by)
        index = np.arange(start, stop, dtype=np.int64)
        if _agree(here, there, index, index + by).all():
            found.append(by)
            if len(found) == MAX_FULL_CHECKS:
                break
    return found


def _measured(here: Sequence, there: Sequence, by: int) -> Shift:
    start, stop = _overlap(len(here), len(there), by)
    difference = there.end_ns[start + by : stop + by] - here.end_ns[start:stop]
    offset = int(np.median(difference))
    return Shift(by=by, offset_ns=offset, spread_ns=int(np.median(np.abs(difference - offset))))
