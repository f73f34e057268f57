"""Merges the traces of all ranks, of one arm or of two, into one file.

The decision: one pass, rank after rank, into a writer that holds nothing back, so that memory is that of the tables;
the file appears under its name when it is whole. Everything that is shown comes from the tables and from `analyze`,
unrounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mtpprof.analyzers.calls.attribution import Window
from mtpprof.analyzers.calls.links import Launches
from mtpprof.analyzers.calls.table import Calls, Vocabulary
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.perfetto import communication
from mtpprof.analyzers.perfetto.communication import Rank
from mtpprof.analyzers.perfetto.compare import add_saved
from mtpprof.analyzers.perfetto.counters import add_counters
from mtpprof.analyzers.perfetto.events import ON_DEVICE, add_events
from mtpprof.analyzers.perfetto.files import Format, written
from mtpprof.analyzers.perfetto.model import Flow, Layout, Process
from mtpprof.analyzers.perfetto.timeline import Arm, StepPair, side_by_side
from mtpprof.analyzers.traces.readers.merged import KEY
from mtpprof.analyzers.traces.table import MISSING, Category, TraceMeta
from mtpprof.errors import UsageError

UI_SLICES = 10_000_000
"""Beyond about this many slices Perfetto's UI runs out of memory (section "Size" of docs/export.md has the measurement)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What of the traces goes into the file."""

    ranks: frozenset[int] | None = None
    """None: all."""
    window: Window = field(default_factory=Window)
    """Times from the first event of each arm, by the start of an event."""
    only_collectives: bool = False
    """Leave the events out; communication, steps, phases and counters stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    path: Path
    size_bytes: int
    events: int
    """Events of the traces that were asked for: each is one slice."""
    slices: int
    """All slices: events, and what mtpprof adds."""
    counter_values: int
    processes: int
    tracks: int
    clocks: tuple[tuple[str, str], ...]
    """Name of each process, and how its clock was aligned."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Member:
    """A rank to be written: its arm, its table, and what is shown of both."""

    arm: Arm
    table: int
    window_ns: tuple[int, int]
    rows: I64
    """Of the event table."""
    calls: Calls


class Export:
    """An export of arms, laid out and not written yet."""

    def __init__(self, arms: Sequence[Arm], options: Options | None = None, *, compare: bool = False) -> None:
        """Lay out.

        Args:
            arms: Runs, each placed on its own time; more than one are shown together.
            options: What of them.
            compare: The arms are two, and the second's saving against the first is shown.

        Raises:
            UsageError: a rank is asked for that no arm has, or nothing is left to show.
        """
        options = options or Options()
        self._options = options
        self._pairs: tuple[StepPair, ...] | None = None
        if compare:
            first, second = arms
            first, second, self._pairs = side_by_side(first, second)
            arms = (first, second)
        self._arms = tuple(arms)
        self._members = self._chosen()

    @property
    def events(self) -> int:
        """Events that will be slices."""
        return sum(len(member.rows) for member in self._members)

    @property
    def estimated_slices(self) -> int:
        """All slices, about: a call is at most itself, a wait and a transfer."""
        return self.events + 3 * sum(len(member.calls) for member in self._members)

    def estimated_bytes(self, form: Format) -> int:
        """Size of the file, about."""
        return self.estimated_slices * form.bytes_per_slice

    def write(self, path: Path, form: Format) -> Exported:
        """Write the file.

        Raises:
            InputError: the file cannot be written.
            MissingEnvironmentError: the format needs a package that is not installed.
        """
        texts = Vocabulary()
        with written(path, form, texts, self._metadata()) as writer:
            layout = Layout(writer=writer, texts=texts)
            clocks = self._write(layout)
        return Exported(
            path=path,
            size_bytes=path.stat().st_size,
            events=self.events,
            slices=layout.slices_written,
            counter_values=layout.values_written,
            processes=layout.processes,
            tracks=layout.tracks,
            clocks=tuple(clocks),
        )

    def _chosen(self) -> list[_Member]:
        """Every rank that is asked for: those of equal number beside each other, unknown ones last."""
        asked = self._options.ranks
        known = {rank for arm in self._arms for rank in arm.traces.ranks}
        if asked is not None and (absent := sorted(asked - known)):
            raise UsageError(f"--ranks: there is no trace of ranks {absent}; there are {sorted(known)}.")
        members = []
        for arm in self._arms:
            for index, table in enumerate(arm.traces.tables):
                if asked is None or table.meta.rank in asked:
                    members.append(self._member(arm, index))
        if not any(len(member.rows) or len(member.calls) for member in members):
            raise UsageError(
                "nothing of the traces lies in what was asked for; widen --window, --steps or --ranks."
            )
        ranks = [member.arm.traces.tables[member.table].meta.rank for member in members]
        order = sorted(range(len(members)), key=lambda i: (ranks[i] is None, ranks[i] or 0))
        return [members[index] for index in order]

    def _member(self, arm: Arm, index: int) -> _Member:
        window = self._window(arm, index)
        calls = arm.found.calls
        own = arm.own(calls.table, calls.ts_ns)
        shown = (calls.table == index) & (own >= window[0]) & (own < window[1])
        empty = np.empty(0, np.int64)
        return _Member(
            arm=arm,
            table=index,
            window_ns=window,
            rows=empty if self._options.only_collectives else _rows(arm, index, window),
            calls=calls.take(shown),
        )

    def _window(self, arm: Arm, index: int) -> tuple[int, int]:
        """What is shown of a rank, on its arm's own clock."""
        asked = self._options.window
        start = 0 if asked.start_ns is None else asked.start_ns
        end = np.iinfo(np.int64).max if asked.end_ns is None else asked.end_ns
        if asked.first_step is None and asked.last_step is None:
            return start, int(end)
        steps = arm.found.steps
        last = np.iinfo(np.int32).max if asked.last_step is None else asked.last_step
        wanted = (steps.number >= (asked.first_step or 0)) & (steps.number <= last)
        rows = np.flatnonzero((steps.table == index) & wanted)
        if not len(rows):
            return 0, 0
        first = arm.own(steps.table[rows], steps.start_ns[rows]).min()
        final = arm.own(steps.table[rows], steps.end_ns[rows]).max()
        return max(start, int(first)), min(int(end), int(final))

    def _write(self, layout: Layout) -> list[tuple[str, str]]:
        flows, next_flow = self._flows()
        clocks = []
        partners: dict[int, tuple[Rank, Calls]] = {}
        for member, flow in zip(self._members, flows, strict=True):
            process = self._process(layout, member)
            clocks.append((process.name, member.arm.alignments[member.table].sentence()))
            rank = Rank(
                layout=layout,
                process=process,
                arm=member.arm,
                table=member.table,
                window_ns=member.window_ns,
            )
            communication.add_steps(rank)
            number = member.arm.traces.tables[member.table].meta.rank
            if self._pairs is not None and number in partners:
                partner, calls = partners[number]
                add_saved(partner, rank, (calls, member.calls), self._pairs)
            elif number is not None:
                partners[number] = rank, member.calls
            if len(member.calls):
                communication.add_collectives(rank, member.calls, flow)
            communication.add_phases(rank)
            add_counters(rank, member.calls)
            communication.add_about(rank, _span(member))
            next_flow = add_events(layout, process, member.arm, member.table, member.rows, next_flow)
        return clocks

    def _process(self, layout: Layout, member: _Member) -> Process:
        table = member.arm.traces.tables[member.table]
        rank = table.meta.rank
        digits = len(str(max((rank for arm in self._arms for rank in arm.traces.ranks), default=0)))
        name = f"unknown rank ({Path(table.meta.path).name})" if rank is None else f"rank {rank:0{digits}}"
        if self._pairs is not None:
            letter = "AB"[self._arms.index(member.arm)]
            name = f"{name} {letter}: {member.arm.name}"
        elif len(self._arms) > 1:
            name = f"{name}: {member.arm.name}"
        return layout.process(name, member.arm.alignments[member.table].sentence())

    def _flows(self) -> tuple[list[Flow | None], int]:
        """Arrows that tie one collective over the ranks, for the calls of each member; and the next number free."""
        flows: list[Flow | None] = [None] * len(self._members)
        first = 1
        for arm in self._arms:
            places = [place for place, member in enumerate(self._members) if member.arm is arm]
            found, first = _arrows([self._members[place] for place in places], first)
            for place, flow in zip(places, found, strict=True):
                flows[place] = flow
        return flows, first

    def _metadata(self) -> dict[str, Any]:
        """What a reader of the JSON form needs to take it for the traces that it came from (`readers.merged`)."""
        processes = [_of_rank(member.arm.traces.tables[member.table].meta) for member in self._members]
        metadata: dict[str, Any] = {KEY: {"arms": [arm.name for arm in self._arms], "processes": processes}}
        if len(self._arms) == 1 and self._arms[0].zero_ns is not None:
            metadata["baseTimeNanoseconds"] = self._arms[0].zero_ns
        return metadata | processes[0] if len(processes) == 1 else metadata


def _rows(arm: Arm, index: int, window_ns: tuple[int, int]) -> I64:
    """Events that start in the window; on the CPU from the first launch of a kernel that does, since a device runs behind."""
    table = arm.traces.tables[index]
    own = table.ts_ns + arm.shift_ns[index]
    shown = (own >= window_ns[0]) & (own < window_ns[1])
    if shown.all():
        return np.arange(len(table))
    on_device = np.isin(table.category, ON_DEVICE)
    kernels = np.flatnonzero(shown & (table.category == Category.KERNEL))
    launch = Launches.of(table).row_of(table.correlation[kernels])
    launch = launch[launch != MISSING]
    if len(launch):
        shown |= ~on_device & (table.ts_ns >= table.ts_ns[launch].min()) & (own < window_ns[1])
    return np.flatnonzero(shown)


def _span(member: _Member) -> tuple[int, int]:
    """From the first to the last of what is shown of a rank, on the export's time."""
    arm, table = member.arm, member.arm.traces.tables[member.table]
    starts = np.concatenate([table.ts_ns[member.rows], _on_table(member)])
    ends = np.concatenate([table.end_ns[member.rows], _on_table(member) + member.calls.dur_ns])
    if not len(starts):
        return 0, 0
    first, last = arm.moved(member.table, np.array([starts.min(), ends.max()]))
    return int(first), int(last)


def _on_table(member: _Member) -> I64:
    """Starts of the calls on the clock of the table."""
    return member.calls.ts_ns - (member.arm.traces.tables[member.table].meta.base_time_ns or 0)


def _arrows(members: Sequence[_Member], first: int) -> tuple[list[Flow], int]:
    """One number for the calls of each collective that at least two of the ranks show."""
    match = np.concatenate([member.calls.match for member in members]).astype(np.int64)
    start = np.concatenate(
        [member.arm.placed(member.arm.own(member.calls.table, member.calls.ts_ns)) for member in members]
    )
    order = np.lexsort((start, match))
    order = order[match[order] != MISSING]
    groups, at, count = np.unique(match[order], return_index=True, return_counts=True)
    number, arrives, leaves = (
        np.zeros(len(match), np.int64),
        np.ones(len(match), bool),
        np.ones(len(match), bool),
    )
    number[order] = np.repeat(np.where(count > 1, first + np.arange(len(groups)), 0), count)
    arrives[order[at]] = False
    leaves[order[at + count - 1]] = False
    bounds = np.cumsum([len(member.calls) for member in members])[:-1]
    parts = (np.split(column, bounds) for column in (number, arrives, leaves))
    flows = [
        Flow(number=numbers, arrives=arriving, leaves=leaving)
        for numbers, arriving, leaving in zip(*parts, strict=True)
    ]
    return flows, first + len(groups)


def _of_rank(meta: TraceMeta) -> dict[str, Any]:
    """Metadata of one rank, as Kineto spells it."""
    distributed: dict[str, Any] = {
        key: value
        for key, value in (("rank", meta.rank), ("world_size", meta.world_size), ("backend", meta.backend))
        if value is not None
    }
    distributed["pg_config"] = [
        {
            "pg_name": group.name,
            "pg_desc": group.description,
            "pg_size": group.size,
            "ranks": list(group.ranks),
        }
        for group in meta.process_groups
    ]
    return {
        "distributedInfo": distributed,
        "deviceProperties": [{"name": name} for name in meta.devices],
        **({"host_name": meta.host} if meta.host else {}),
    }
