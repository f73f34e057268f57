"""One collective over its ranks: which calls belong together, whose clock is off by how much, who waited for whom.

The decision: nothing is assumed that the traces do not offer. Calls are matched by `alignment`; clocks are taken as
they are where the files share a base and the ends agree, corrected by the median difference of the ends where they do
not, and the residual is published. Of a rank's time in a collective, *wait* lasts from its own arrival to the last
rank's, *transfer* from there to the end. Both are known only if every rank of the group was seen: the last arrival
may be that of a missing rank, so what the others show is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import numpy as np

from mtpprof.analyzers.calls.align import Pairs, Sequence, align
from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.numeric.arrays import I64, Bools
from mtpprof.analyzers.traces.table import MISSING, TraceMeta
from mtpprof.models.traffic import Kind

ALL_RANKS = "all ranks"
SYNCHRONOUS = (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.BARRIER)
"""Kinds in which no rank can end before all have arrived; of the others waiting cannot be told from the ends."""
IMPOSSIBLE = 0.05
"""Part of the collectives that may end before the last arrival (by more than the residual) before clocks are distrusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How a rank's clock was brought to that of the reference rank of its group."""

    group: str
    rank: int
    reference: int
    offset_ns: int
    """Taken off the rank's times."""
    residual_ns: int
    """90 % of the ends of matched collectives agree with the reference's to this much."""
    method: str
    matched: int
    """Collectives that the two have in common in this window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """What can be said of one communicator over its ranks."""

    group: str
    size: int | None
    """Ranks that it has."""
    ranks: tuple[int, ...]
    """Ranks whose calls were matched."""
    missing: tuple[int, ...]
    """Members without a trace."""
    matched: int
    """Collectives that all of `ranks` have."""
    residual_ns: int
    skew_ns: int
    """Sum over the matched collectives of the time between the first and the last arrival among `ranks`."""
    waits_known: bool
    reason: str
    """Why waits are not known; empty: they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """The calls with their matches, and how they were found."""

    calls: Calls
    clocks: tuple[Clock, ...]
    groups: tuple[GroupView, ...]
    reasons: tuple[str, ...]
    """Why some ranks were not matched, one sentence each."""


def match_ranks(
    calls: Calls, metas: Items[TraceMeta], world_size: int | None, forbidden: str = ""
) -> Matching:
    """Match calls over ranks and split their time into wait and transfer.

    Args:
        calls: Calls of all tables, times since the epoch where the base is known.
        metas: Metadata of each table of the set.
        world_size: Ranks of the run; None: unknown.
        forbidden: Why waits must not be told, whatever the calls show; empty: they may.
    """
    ranks = sorted({meta.rank for meta in metas if meta.rank is not None})
    present = [table for table, meta in enumerate(metas) if meta.rank is not None]
    if len(ranks) != len(present):
        return _unmatched(calls, "two traces claim one rank, so calls are not matched over ranks")
    if len(ranks) < 2:
        return _unmatched(calls, "one rank alone does not show waiting")
    world = tuple(range(world_size)) if world_size else tuple(ranks)
    return _Work(calls=calls, metas=tuple(metas), world=world, forbidden=forbidden).run()


def _unmatched(calls: Calls, reason: str) -> Matching:
    return Matching(calls=calls, clocks=(), groups=(), reasons=(reason,))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Member:
    """The calls of one rank in one group: indices into `Calls`, and the indices among them that are matched."""

    rank: int
    index: I64
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Work:
    calls: Calls
    metas: tuple[TraceMeta, ...]
    world: tuple[int, ...]
    forbidden: str

    def run(self) -> Matching:
        columns = {name: getattr(self.calls, name).copy() for name in ("match", "wait_ns", "transfer_ns")}
        clocks: list[Clock] = []
        views: list[GroupView] = []
        reasons: list[str] = []
        next_match = 0
        for name, chosen in self._groups():
            members, failures = self._members(name, chosen)
            reasons += failures
            if len(members) < 2:
                continue
            common = np.stack([member.index for member in members])
            columns["match"][common] = next_match + np.arange(common.shape[1], dtype=np.int32)
            next_match += common.shape[1]
            clocks += [member.clock for member in members[1:]]
            view, waits = self._waits(name, chosen, members, common, bool(failures))
            views.append(view)
            if waits is not None:
                known = waits >= 0
                columns["wait_ns"][common[known]] = waits[known]
                columns["transfer_ns"][common[known]] = self.calls.dur_ns[common[known]] - waits[known]
        return Matching(
            calls=replace(self.calls, **columns),
            clocks=tuple(clocks),
            groups=tuple(views),
            reasons=tuple(reasons),
        )

    def _groups(self) -> list[tuple[str, Bools]]:
        """Communicators of more than one rank, with their calls; what does not name its group is taken for all ranks."""
        everybody = ",".join(map(str, self.world))
        names = np.array(
            [ALL_RANKS if text in ("", everybody) else text for text in self.calls.texts], dtype=object
        )[self.calls.group]
        several = (self.calls.group_size != 1) & (self.calls.rank != MISSING)
        return [(name, (names == name) & several) for name in sorted(set(names[several].tolist()))]

    def _ranks_of(self, name: str) -> tuple[int, ...]:
        parts = name.split(",")
        return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else self.world

    def _members(self, name: str, chosen: Bools) -> tuple[list[_Member], list[str]]:
        """The ranks of a group that line up, restricted to the collectives that all of them have."""
        per_rank = {
            int(rank): np.flatnonzero(chosen & (self.calls.rank == rank))
            for rank in np.unique(self.calls.rank[chosen])
        }
        reference = max(per_rank, key=lambda rank: (len(per_rank[rank]), -rank))
        order = [reference, *(rank for rank in per_rank if rank != reference)]
        pairs: dict[int, Pairs] = {}
        reasons = []
        for rank in order[1:]:
            pair = align(
                self._sequence(per_rank[reference]),
                self._sequence(per_rank[rank]),
                one_clock=self._one_clock(reference, rank),
            )
            if pair.reason:
                reasons.append(f"{name}: rank {rank} is not matched with rank {reference}: {pair.reason}.")
            else:
                pairs[rank] = pair
        shared = np.arange(len(per_rank[reference]))
        for pair in pairs.values():
            shared = np.intersect1d(shared, pair.here, assume_unique=True)
        if not pairs or not len(shared):
            return [], reasons
        members = [
            self._member(name, reference, reference, per_rank[reference][shared], per_rank[reference][shared])
        ]
        for rank, pair in pairs.items():
            theirs = per_rank[rank][pair.there[np.searchsorted(pair.here, shared)]]
            members.append(self._member(name, rank, reference, theirs, per_rank[reference][shared]))
        return members, reasons

    def _sequence(self, index: I64) -> Sequence:
        calls = self.calls
        return Sequence(
            kind=calls.kind[index],
            payload_bytes=calls.payload_bytes[index],
            seq=calls.seq[index],
            end_ns=calls.end_ns[index],
        )

    def _meta(self, rank: int) -> TraceMeta:
        return next(meta for meta in self.metas if meta.rank == rank)

    def _one_clock(self, one: int, other: int) -> bool:
        return self._meta(one).base_time_ns is not None and self._meta(other).base_time_ns is not None

    def _member(self, name: str, rank: int, reference: int, theirs: I64, ours: I64) -> _Member:
        calls = self.calls
        waiting = np.isin(calls.kind[ours], [calls.code(kind) for kind in SYNCHRONOUS])
        difference = (calls.end_ns[theirs] - calls.end_ns[ours])[waiting]
        if not len(difference):
            difference = np.zeros(1, np.int64)
        offset = int(np.median(difference))
        residual = int(np.percentile(np.abs(difference - offset), 90))
        hosts = {self._meta(rank).host, self._meta(reference).host}
        one_clock, one_host = self._one_clock(rank, reference), len(hosts) == 1 and None not in hosts
        if one_clock and (abs(offset) <= residual or (one_host and not calls.on_device[theirs].any())):
            offset, method = 0, "the files' common time base"
            residual = int(np.percentile(np.abs(difference), 90))
        else:
            method = "ends of the collectives"
        clock = Clock(
            group=name,
            rank=rank,
            reference=reference,
            offset_ns=offset,
            residual_ns=residual,
            method=method,
            matched=len(theirs),
        )
        return _Member(rank=rank, index=theirs, clock=clock)

    def _waits(
        self, name: str, chosen: Bools, members: list[_Member], common: I64, partial: bool
    ) -> tuple[GroupView, I64 | None]:
        """Wait of each member in each common collective (-1: not known), if they can be known at all."""
        calls = self.calls
        offset = np.array([[member.clock.offset_ns] for member in members], np.int64)
        arrival, end = calls.ts_ns[common] - offset, calls.end_ns[common] - offset
        last = arrival.max(axis=0)
        residual = max(member.clock.residual_ns for member in members)
        seen = {member.rank for member in members}
        size = int(calls.group_size[chosen].max())
        missing = tuple(rank for rank in self._ranks_of(name) if rank not in seen)
        told = {meta.rank for meta in self.metas}
        waiting = np.isin(calls.kind[common[0]], [calls.code(kind) for kind in SYNCHRONOUS])
        impossible = float(np.mean((end.min(axis=0) < last - residual)[waiting])) if waiting.any() else 0.0
        reason = self.forbidden or _why_not(missing, told, partial, size, len(members), impossible)
        if not reason and not waiting.any():
            reason = "ranks need not arrive together for its collectives to end, so waiting does not show"
        view = GroupView(
            group=name,
            size=size if size != MISSING else None,
            ranks=tuple(sorted(seen)),
            missing=tuple(rank for rank in missing if rank not in told),
            matched=common.shape[1],
            residual_ns=residual,
            skew_ns=int((last - arrival.min(axis=0))[waiting].sum()),
            waits_known=not reason,
            reason=reason,
        )
        if reason:
            return view, None
        waits = np.clip(last - arrival, 0, calls.dur_ns[common])
        return view, np.where(waiting, waits, MISSING)


def _why_not(
    missing: tuple[int, ...], told: set[int | None], partial: bool, size: int, seen: int, impossible: float
) -> str:
    absent = [rank for rank in missing if rank not in told]
    if absent:
        return f"no trace of ranks {_ranges(absent)}: the last to arrive may be one of them"
    if partial or missing:
        return "not all of its ranks could be matched"
    if size != MISSING and size != seen:
        return f"the group has {size} ranks, of which {seen} were seen"
    if impossible > IMPOSSIBLE:
        return f"{impossible:.0%} of its collectives end before the last rank arrives: the clocks cannot be trusted"
    return ""


def _ranges(ranks: Items[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
