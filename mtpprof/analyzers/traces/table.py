"""The event table: what every reader produces and every analysis starts from.

The decision: NumPy columns of integers, one row per complete event, strings interned once and referred to by code, and no
Python object per event past the reader. Analyses therefore look at a name once per *distinct* name, and at times with
array operations. Rows are sorted by start time (stable: events that start together keep the order of the file). The
arguments that only collectives carry are sparse and live in `Collectives`, keyed by row.

Times are integer nanoseconds relative to the file's own base; `ts_ns + meta.base_time_ns` is comparable between files
whose `meta.base_time_ns` is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I8, I32, I64
from mtpprof.analyzers.traces.nvtx_beside import NvtxBeside
from mtpprof.analyzers.traces.verdicts import Problem

I16 = NDArray[np.int16]

MISSING = -1
"""Marks an absent value in a column of codes or ids."""


class Category(IntEnum):
    """What kind of thing an event is, whatever the producer calls it. Stored, so numbers are never reused."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    CPU_OP = 3
    USER_ANNOTATION = 4
    GPU_USER_ANNOTATION = 5
    RUNTIME = 6
    """A CUDA or HIP runtime or driver call on the CPU: launches, graph launches, waits."""
    SYNC = 7
    """A synchronization seen from the device: neither communication nor computation."""
    PYTHON = 8
    OVERHEAD = 9
    """The profiler's own cost."""
    NVTX = 10
    """A range of Nsight Systems; Kineto has user annotations in its place."""
    OTHER = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A lane of the trace: a thread on the CPU, or a stream on a device."""

    pid: int | str
    tid: int | str
    process: str = ""
    """Name of the process where the file gives one."""
    thread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A communicator as the file describes it."""

    name: str
    description: str
    size: int
    ranks: tuple[int, ...]
    """Global ranks; empty where the file does not list them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMeta:
    """What the file says about itself. None and empty mean that it does not say."""

    path: str
    reader: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    trace_id: str | None = None
    base_time_ns: int | None = None
    """To be added to `ts_ns` for nanoseconds since the epoch; None: times of this file compare with no other file's."""
    ts_exact: bool = True
    """False: times are good to `ts_resolution_ns` only."""
    ts_resolution_ns: int = 1
    backend: str | None = None
    process_groups: tuple[ProcessGroup, ...] = ()
    devices: tuple[str, ...] = ()
    """Names of the devices that the file lists, e.g. `NVIDIA B200`."""
    producer: Mapping[str, str] = field(default_factory=dict)
    """Versions and settings of what wrote the file: `vllm_version`, `nccl_version`, `record_shapes`, …"""
    events_total: int = 0
    """Events of every kind in the file, also those that make no row."""
    phases: Mapping[str, int] = field(default_factory=dict)
    """Number of events by Chrome phase letter (`X`, `M`, `s`, …)."""
    window_ns: tuple[int, int] | None = None
    """Start and end of the profiler's window, on the clock of `ts_ns`."""
    events_refused: int = 0
    """Events that should have made a row and could not (no usable time, damaged beyond repair)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collectives:
    """Arguments that only collectives carry: one entry per row that has any. Codes point into `EventTable.strings`."""

    row: I32
    """Row of the table; strictly increasing."""
    name: I32
    """Code of the collective's name, e.g. `allreduce`, `_allgather_base`, `wait`; -1: not given."""
    in_elems: I64
    """Elements of this rank's input; -1: not given."""
    out_elems: I64
    dtype: I32
    """Code of the element type as the producer spells it, e.g. `BFloat16`, `Float`; -1: not given."""
    group_size: I32
    group: I32
    """Code of the process group's name; -1: not given."""
    group_ranks: I32
    """Code of the text of the group's ranks, e.g. `[0, 1]`, possibly shortened by the producer; -1: not given."""
    seq: I64
    """Sequence number of the call on its group; -1: not given."""

    def __len__(self) -> int:
        return len(self.row)

    @staticmethod
    def empty() -> Collectives:
        """No entries."""
        return Collectives(**{name: np.empty(0, dtype) for name, dtype in COLLECTIVE_COLUMNS.items()})

    def take(self, keep: NDArray[Any], row: I32) -> Collectives:
        """The entries `keep` (mask or indices), placed on the rows `row`."""
        columns = {name: getattr(self, name)[keep] for name in COLLECTIVE_COLUMNS}
        return Collectives(**{**columns, "row": row})


COLLECTIVE_COLUMNS: dict[str, type[np.signedinteger[Any]]] = {
    "row": np.int32,
    "name": np.int32,
    "in_elems": np.int64,
    "out_elems": np.int64,
    "dtype": np.int32,
    "group_size": np.int32,
    "group": np.int32,
    "group_ranks": np.int32,
    "seq": np.int64,
}

EVENT_COLUMNS: dict[str, type[np.signedinteger[Any]]] = {
    "ts_ns": np.int64,
    "dur_ns": np.int64,
    "name": np.int32,
    "category": np.int8,
    "track": np.int32,
    "device": np.int16,
    "stream": np.int32,
    "correlation": np.int64,
    "external_id": np.int64,
    "dims": np.int32,
    "types": np.int32,
}


@dataclass(frozen=True, slots=False, kw_only=True, eq=False)
class EventTable:
    """One rank's events (or one file's, where it does not say which rank). All columns have one length."""

    ts_ns: I64
    """Start, relative to the file's base; not decreasing."""
    dur_ns: I64
    """Length, never negative."""
    name: I32
    """Code into `names`."""
    category: I8
    """A `Category`."""
    track: I32
    """Code into `tracks`."""
    device: I16
    """Device number; -1 for events on the CPU."""
    stream: I32
    """Stream number; -1 for events on the CPU, or where the producer's stream is not a number."""
    correlation: I64
    """Joins a launch on the CPU with what it launched; all kernels of a graph replay share the launch's; -1: none."""
    external_id: I64
    """Joins a kernel and its launch with the CPU operation around them; -1: none."""
    dims: I32
    """Code into `shapes` of the operation's input dimensions; -1: not recorded."""
    types: I32
    """Code into `shapes` of the operation's input types; -1: not recorded."""
    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    shapes: tuple[str, ...]
    """Interned JSON texts of input dimensions and types, e.g. `[[], [8, 256]]`; read with `input_dims`, `input_types`."""
    strings: tuple[str, ...]
    """Interned texts of `collectives`."""
    collectives: Collectives
    meta: TraceMeta
    problems: tuple[Problem, ...] = ()
    nvtx: NvtxBeside | None = None
    """The NVTX capture of the same process; not saved. None: there is none."""

    def __len__(self) -> int:
        return len(self.ts_ns)

    @cached_property
    def end_ns(self) -> I64:
        """End of every event, on the clock of `ts_ns`."""
        return self.ts_ns + self.dur_ns

    def absolute_ns(self) -> I64 | None:
        """Start of every event in nanoseconds since the epoch; None where the file does not tell its base."""
        if self.meta.base_time_ns is None:
            return None
        return self.ts_ns + self.meta.base_time_ns

    def rows(self, *categories: Category) -> I64:
        """Row numbers of the events of these categories, in order of time."""
        return np.flatnonzero(np.isin(self.category, categories))

    def count(self, category: Category) -> int:
        """Number of events of one category."""
        return int(np.count_nonzero(self.category == category))

    def input_dims(self, code: int) -> tuple[Any, ...] | None:
        """Input dimensions behind a code of `dims`, nested lists as nested tuples; None: not recorded or unreadable."""
        return _parse_shape(self.shapes[code]) if code != MISSING else None

    def input_types(self, code: int) -> tuple[Any, ...] | None:
        """Input types behind a code of `types`, e.g. `("c10::BFloat16", "Scalar")`; None: not recorded or unreadable."""
        return _parse_shape(self.shapes[code]) if code != MISSING else None

    def text(self, code: int) -> str | None:
        """Text behind a code of `collectives`; None for -1."""
        return self.strings[code] if code != MISSING else None

    def collective_entries(self, rows: NDArray[Any]) -> I64:
        """For every row of `rows`, its entry in `collectives`, or -1."""
        if not len(self.collectives):
            return np.full(len(rows), MISSING, np.int64)
        found = np.searchsorted(self.collectives.row, rows)
        found = np.minimum(found, len(self.collectives) - 1)
        return np.where(self.collectives.row[found] == rows, found, MISSING).astype(np.int64)

    def select(self, keep: NDArray[Any]) -> EventTable:
        """The rows of a mask (or of increasing row numbers), with their collective arguments; interned texts stay."""
        rows = np.flatnonzero(keep) if keep.dtype == np.bool_ else keep
        entries = self.collective_entries(rows)
        present = np.flatnonzero(entries != MISSING)
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in EVENT_COLUMNS},
            collectives=self.collectives.take(entries[present], present.astype(np.int32)),
        )

    def with_problems(self, *problems: Problem) -> EventTable:
        """The same table with further problems."""
        return replace(self, problems=(*self.problems, *problems))

    def with_rank(self, rank: int | None) -> EventTable:
        """The same table, said to be of another rank."""
        return replace(self, meta=replace(self.meta, rank=rank))

    def save(self, file: IO[bytes]) -> None:
        """Write the table as an uncompressed npz archive."""
        head = _Head(
            names=self.names,
            tracks=self.tracks,
            shapes=self.shapes,
            strings=self.strings,
            meta=self.meta,
            problems=self.problems,
        )
        arrays: dict[str, Any] = {name: getattr(self, name) for name in EVENT_COLUMNS}
        arrays |= {f"collective_{name}": getattr(self.collectives, name) for name in COLLECTIVE_COLUMNS}
        arrays["head"] = np.frombuffer(msgspec.json.encode(head), np.uint8)
        np.savez(file, **arrays)

    @staticmethod
    def load(file: IO[bytes] | Path) -> EventTable:
        """Read what `save` wrote.

        Raises:
            ValueError, KeyError, OSError, zipfile.BadZipFile: the archive is damaged or of another layout.
        """
        with np.load(file, allow_pickle=False) as archive:
            head = msgspec.json.decode(archive["head"].tobytes(), type=_Head)
            columns: dict[str, Any] = {
                name: _column(archive, name, dtype) for name, dtype in EVENT_COLUMNS.items()
            }
            sparse = {
                name: _column(archive, f"collective_{name}", dtype)
                for name, dtype in COLLECTIVE_COLUMNS.items()
            }
        if len({len(column) for column in columns.values()}) != 1:
            raise ValueError("columns of unequal length")
        _check_codes(columns, head)
        texts = {item.name: getattr(head, item.name) for item in fields(_Head)}
        return EventTable(**columns, collectives=Collectives(**sparse), **texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What `save` keeps beside the columns."""

    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    shapes: tuple[str, ...]
    strings: tuple[str, ...]
    meta: TraceMeta
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceSet:
    """The tables of one run: at most one per known rank, ordered by rank, files of unknown rank last."""

    label: str
    """What the set is called on reports: its directory or file."""
    tables: tuple[EventTable, ...]
    world_size: int | None
    """Ranks of the run, where at least one file says it; None: unknown."""
    problems: tuple[Problem, ...] = ()
    """Problems of the set and of files that gave no table; each table has its own beside these."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The known ranks, in order."""
        return tuple(table.meta.rank for table in self.tables if table.meta.rank is not None)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world without a table; empty also where the world's size is unknown."""
        return tuple(sorted(set(range(self.world_size or 0)) - set(self.ranks)))

    def table(self, rank: int) -> EventTable:
        """The table of `rank`.

        Raises:
            KeyError: the set has none.
        """
        for table in self.tables:
            if table.meta.rank == rank:
                return table
        raise KeyError(rank)

    def all_problems(self) -> tuple[Problem, ...]:
        """Problems of the set, then of each table."""
        return self.problems + tuple(problem for table in self.tables for problem in table.problems)


def _column(
    archive: Mapping[str, NDArray[Any]], name: str, dtype: type[np.signedinteger[Any]]
) -> NDArray[Any]:
    column = archive[name]
    if column.dtype != dtype or column.ndim != 1:
        raise ValueError(f"column {name} has dtype {column.dtype}, not {np.dtype(dtype)}")
    return column


def _check_codes(columns: Mapping[str, NDArray[Any]], head: _Head) -> None:
    sizes = {
        "name": len(head.names),
        "track": len(head.tracks),
        "dims": len(head.shapes),
        "types": len(head.shapes),
    }
    for name, size in sizes.items():
        codes = columns[name]
        if len(codes) and not -1 <= codes.min() <= codes.max() < size:
            raise ValueError(f"column {name} has codes without a text")


def _parse_shape(text: str) -> tuple[Any, ...] | None:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return _tuples(value) if isinstance(value, list) else None


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuples(item) if isinstance(item, list) else item for item in value)
