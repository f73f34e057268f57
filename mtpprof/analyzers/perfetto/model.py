"""What an export is made of, whatever its format: processes, tracks, slices, counters; and what a writer of a format
is.

The decision: columns, as everywhere. A batch of slices goes to one track and is already in the order and without the
collisions that the track can hold (`lanes`), so that a writer only writes. Numbers of processes and tracks are given
here, small and unique over the whole file: nobody's pid, tid or stream number is trusted to be unique, or to fit into
31 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.table import Vocabulary
from mtpprof.analyzers.numeric.arrays import I64, Bools

FIRST_TRACK = 1000
"""Tracks are numbered from here, processes from 1: no thread has its process's number, which would make it a main thread."""


class Values(Enum):
    """What the column of an argument holds, and which value means that a slice has none."""

    INTEGER = "integer"
    """int64; -1: absent."""
    TEXT = "text"
    """Codes into the export's texts; 0: absent."""
    JSON = "json"
    """Codes of texts that are JSON: kept as such where the format is JSON."""
    NUMBER = "number"
    """float64; NaN: absent."""


ABSENT: dict[Values, float] = {Values.INTEGER: -1, Values.TEXT: 0, Values.JSON: 0, Values.NUMBER: np.nan}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Argument:
    """One argument of all slices of a batch."""

    key: str
    kind: Values
    column: NDArray[Any]

    def present(self) -> Bools:
        """Which slices have it."""
        if self.kind is Values.NUMBER:
            return np.asarray(~np.isnan(self.column))
        return np.asarray(self.column != ABSENT[self.kind])

    def take(self, rows: NDArray[Any]) -> Argument:
        """The argument of some slices."""
        return Argument(key=self.key, kind=self.kind, column=self.column[rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """Arrows: slices of one number are tied to each other in order of time."""

    number: I64
    """Unique over the export, below 2^31; 0: no arrow."""
    arrives: Bools
    """An arrow ends here: the slice is not the first of its number."""
    leaves: Bools
    """An arrow starts here: the slice is not the last of its number."""

    def take(self, rows: NDArray[Any]) -> Flow:
        """The arrows of some slices."""
        return Flow(number=self.number[rows], arrives=self.arrives[rows], leaves=self.leaves[rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slices:
    """Slices of one track. Texts are codes into the export's vocabulary."""

    ts_ns: I64
    """Start, since the export's own zero; never negative."""
    dur_ns: I64
    name: NDArray[Any]
    category: NDArray[Any]
    arguments: tuple[Argument, ...] = ()
    flow: Flow | None = None

    def __len__(self) -> int:
        return len(self.ts_ns)

    def take(self, rows: NDArray[Any]) -> Slices:
        """Some of the slices."""
        return Slices(
            ts_ns=self.ts_ns[rows],
            dur_ns=self.dur_ns[rows],
            name=self.name[rows],
            category=self.category[rows],
            arguments=tuple(argument.take(rows) for argument in self.arguments),
            flow=None if self.flow is None else self.flow.take(rows),
        )


def joined(parts: Sequence[Slices]) -> Slices:
    """Several batches as one; an argument is absent where its batch does not have it."""
    flows = [part.flow or _no_flow(len(part)) for part in parts]
    return Slices(
        ts_ns=np.concatenate([part.ts_ns for part in parts]),
        dur_ns=np.concatenate([part.dur_ns for part in parts]),
        name=np.concatenate([part.name for part in parts]),
        category=np.concatenate([part.category for part in parts]),
        arguments=_joined_arguments(parts),
        flow=Flow(
            number=np.concatenate([flow.number for flow in flows]),
            arrives=np.concatenate([flow.arrives for flow in flows]),
            leaves=np.concatenate([flow.leaves for flow in flows]),
        ),
    )


def _no_flow(count: int) -> Flow:
    none = np.zeros(count, np.bool_)
    return Flow(number=np.zeros(count, np.int64), arrives=none, leaves=none)


def _joined_arguments(parts: Sequence[Slices]) -> tuple[Argument, ...]:
    kinds = {argument.key: argument.kind for part in parts for argument in part.arguments}
    columns: dict[str, list[NDArray[Any]]] = {key: [] for key in kinds}
    for part in parts:
        own = {argument.key: argument.column for argument in part.arguments}
        for key, kind in kinds.items():
            columns[key].append(own[key] if key in own else np.full(len(part), ABSENT[kind]))
    return tuple(
        Argument(key=key, kind=kind, column=np.concatenate(columns[key])) for key, kind in kinds.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A group of tracks: one rank of one arm. Its name also gives its place, since viewers sort groups by name."""

    number: int
    name: str
    description: str
    """Shown beside the name: how its clock was aligned, and how well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A row of the picture."""

    number: int
    process: int
    name: str
    order: int
    """Place among the tracks of its process."""
    unit: str | None = None
    """Unit of a counter; None: a track of slices."""


class Writer(Protocol):
    """One format. Calls come in any order, except that processes precede their tracks, and tracks what is on them."""

    def process(self, process: Process) -> None:
        """Declare a process."""

    def track(self, track: Track) -> None:
        """Declare a track."""

    def slices(self, track: Track, slices: Slices) -> None:
        """Add slices: ordered by start, then longest first, and none overlapping another halfway."""

    def counter(self, track: Track, ts_ns: I64, values: NDArray[np.float64]) -> None:
        """Add values of a counter, in order of time; each holds until the next."""

    def close(self) -> None:
        """Write what is left. The writer does not close the file."""


@dataclass(slots=True, kw_only=True)
class Layout:
    """Hands out numbers, declares what it names to the writer, and counts what goes through."""

    writer: Writer
    texts: Vocabulary = field(default_factory=Vocabulary)
    processes: int = 0
    tracks: int = 0
    slices_written: int = 0
    values_written: int = 0

    def process(self, name: str, description: str = "") -> Process:
        """A new process; viewers show processes in the order of their names."""
        self.processes += 1
        process = Process(number=self.processes, name=name, description=description)
        self.writer.process(process)
        return process

    def track(self, process: Process, name: str, *, unit: str | None = None) -> Track:
        """A new track; tracks of a process are shown in the order of their making."""
        track = Track(
            number=FIRST_TRACK + self.tracks, process=process.number, name=name, order=self.tracks, unit=unit
        )
        self.tracks += 1
        self.writer.track(track)
        return track

    def lanes(self, process: Process, name: str, slices: Slices, lanes: Sequence[I64]) -> None:
        """Tracks for slices that were sorted into lanes."""
        for number, rows in enumerate(lanes):
            self.slices(self.lane(process, name, number), slices.take(rows))

    def lane(self, process: Process, name: str, number: int) -> Track:
        """The track of a lane, counted from 0."""
        return self.track(process, f"{name} (lane {number + 1})" if number else name)

    def slices(self, track: Track, slices: Slices) -> None:
        """Slices of one track, in its order."""
        self.writer.slices(track, slices)
        self.slices_written += len(slices)

    def counter(
        self, process: Process, name: str, unit: str, ts_ns: I64, values: NDArray[np.float64]
    ) -> None:
        """A track with a counter; none where there are no values."""
        if len(ts_ns):
            self.writer.counter(self.track(process, name, unit=unit), ts_ns, values)
            self.values_written += len(ts_ns)

    def constant(self, text: str, count: int) -> NDArray[np.int32]:
        """A column of one text."""
        return np.full(count, self.texts.code(text), np.int32)
