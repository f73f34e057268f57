"""Reader of Nsight Systems databases, as `nsys export --type sqlite` writes them.

One file holds every process that was profiled. The decision: one table per process and device, because that is what a rank
is; the CPU's calls and NVTX ranges of a process that drives several devices stay with its first. The file does not say
ranks, so where it holds several tables they are numbered in order of device, and said to be.

Versions of Nsight Systems differ in columns and in numbers behind the names of tables: whatever a version lacks is passed over, of
several columns for a name the first that tells it is taken, and a name that none tells stays empty, which the checks then say.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.traces.readers import database, foreign
from mtpprof.analyzers.traces.readers.base import Limits, Peek, TraceFormatError
from mtpprof.analyzers.traces.readers.columns import Interner
from mtpprof.analyzers.traces.table import (
    EVENT_COLUMNS,
    MISSING,
    Category,
    Collectives,
    EventTable,
    TraceMeta,
    Track,
)
from mtpprof.analyzers.traces.verdicts import Problem, Verdict

_BATCH_ROWS = 50_000
_NVTX_RANGES = (59, 60)
"""Event types of push/pop and start/end ranges; the others are marks and definitions."""
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A table of the database whose records become rows."""

    table: str
    category: Category
    owner: str
    """Column of the global process or thread id."""
    names: tuple[str, ...] = ()
    """Columns of the event's name, an id into `StringIds` or a text: of those that there are, the first that tells it."""
    title: str = "null"
    """SQL of the name where no column tells it."""
    on_device: bool = True
    where: str = "1"


_SOURCES = (
    _Source(
        table=_KERNELS,
        category=Category.KERNEL,
        owner="globalPid",
        names=("demangledName", "shortName", "mangledName", "name", "nameId"),
    ),
    _Source(
        table="CUPTI_ACTIVITY_KIND_MEMCPY",
        category=Category.MEMCPY,
        owner="globalPid",
        title="'Memcpy kind ' || copyKind",
    ),
    _Source(
        table="CUPTI_ACTIVITY_KIND_MEMSET", category=Category.MEMSET, owner="globalPid", title="'Memset'"
    ),
    _Source(
        table="CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        category=Category.SYNC,
        owner="globalPid",
        title="'Sync type ' || syncType",
    ),
    _Source(
        table="CUPTI_ACTIVITY_KIND_RUNTIME",
        category=Category.RUNTIME,
        owner="globalTid",
        names=("nameId",),
        on_device=False,
    ),
    _Source(
        table="PROFILER_OVERHEAD",
        category=Category.OVERHEAD,
        owner="globalTid",
        names=("nameId",),
        on_device=False,
    ),
    _Source(
        table="NVTX_EVENTS",
        category=Category.NVTX,
        owner="globalTid",
        names=("text", "textId"),
        on_device=False,
        where=f"eventType in {_NVTX_RANGES} and end is not null",
    ),
)
"""Registry of what is read; a table that the export lacks is passed over."""

_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COLUMNS = ("ts_ns", "end_ns", "device", "stream", "correlation", "process", "thread", "name", "category")


class NsysReader:
    """Nsight Systems SQLite exports."""

    name = "nsys"
    version = 2
    suffixes = (".sqlite", ".sqlite3", ".db")

    def recognises(self, head: bytes, path: Path) -> bool:
        """The magic of an SQLite database; what else it may be is said when it is opened."""
        return head.startswith(database.SQLITE_MAGIC)

    def peek(self, path: Path, limits: Limits) -> Peek:
        """Host and start of the capture; ranks are numbered when the file is read."""
        with database.opened(path) as connection:
            export = _Export(path, connection)
            meta = export.meta()
            several = export.processes() > 1
        return Peek(
            path=path,
            reader=self.name,
            host=meta.host,
            start_ns=meta.base_time_ns,
            size_bytes=path.stat().st_size,
            several=several,
        )

    def read(self, path: Path, limits: Limits) -> tuple[EventTable, ...]:
        """One table per process and device; processes without a device only where no process has one."""
        with database.opened(path) as connection:
            export = _Export(path, connection)
            records = export.records()
            meta = export.meta()
            problems = export.problems()
            shares = list(_shares(records))
            tables = [export.table(records, keep, meta, problems) for keep in shares]
        if len(tables) < 2:
            return tuple(tables) or (_empty(meta, problems),)
        return tuple(_numbered(table, rank, len(tables)) for rank, table in enumerate(tables))


class _Export:
    """An open export."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = str(path)
        self._connection = connection
        self._tables = database.tables(connection)
        if not any(database.variants(source.table, list(self._tables)) for source in _SOURCES):
            raise _other_database(self._path, self._tables)
        self._unread: list[Problem] = []
        self._names: Interner[Any] = Interner()
        self._strings = dict(self._rows("StringIds", "id, value"))
        self._thread_names = {
            tid: self._strings.get(name) for tid, name in self._rows("ThreadNames", "globalTid, nameId")
        }
        self._process_names = dict(self._rows("PROCESSES", "globalPid, name"))

    def meta(self) -> TraceMeta:
        """What the export says about itself."""
        environment = dict(self._rows("TARGET_INFO_SYSTEM_ENV", "name, value"))
        export = dict(self._rows("META_DATA_EXPORT", "name, value"))
        starts = [start for (start,) in self._rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
        version = export.get("EXPORT_PRODUCT_VERSION")
        host = environment.get("Hostname")
        return TraceMeta(
            path=self._path,
            reader=NsysReader.name,
            host=str(host) if host else None,
            base_time_ns=starts[0] if starts and isinstance(starts[0], int) else None,
            devices=tuple(str(name) for (name,) in self._rows("TARGET_INFO_GPU", "name")),
            producer={"nsys_version": str(version)} if version else {},
        )

    def processes(self) -> int:
        """Number of processes that ran kernels, or used NVTX where none did."""
        for base, column, shift in ((_KERNELS, "globalPid", 0), ("NVTX_EVENTS", "globalTid", 24)):
            owners: set[int] = set()
            for table in database.variants(base, list(self._tables)):
                wanted = f"select distinct {database.number(column, self._tables[table])} >> {shift}"
                owners |= {
                    owner for (owner,) in self._connection.execute(f"{wanted} from {database.quoted(table)}")
                }
            if owners:
                return len(owners)
        return 0

    def records(self) -> dict[str, NDArray[Any]]:
        """All rows of all processes, as columns in order of time."""
        parts = [part for source in _SOURCES for part in self._source(source)]
        columns = np.concatenate(parts, axis=1) if parts else np.empty((len(_COLUMNS), 0), np.int64)
        order = np.argsort(columns[0], kind="stable")
        return {name: columns[index][order] for index, name in enumerate(_COLUMNS)}

    def problems(self) -> tuple[Problem, ...]:
        """What Nsight Systems itself says went wrong, graphs that were not looked into, and records that could not be read."""
        found = [*self._unread]
        for (text,) in self._rows("DIAGNOSTIC_EVENT", "text"):
            if any(word in str(text).lower() for word in ("not all", "dropped", "lost", "missing")):
                found.append(self._problem(Verdict.DROPPED_EVENTS, f'Nsight Systems says "{text}"'))
        graphs = sum(1 for _ in self._rows(_GRAPHS, "start"))
        if graphs:
            found.append(
                self._problem(
                    Verdict.OPAQUE_GRAPHS,
                    f"{graphs:,} CUDA graphs were traced as a whole, their kernels are not in it",
                )
            )
        return tuple(found)

    def table(
        self,
        records: dict[str, NDArray[Any]],
        keep: NDArray[Any],
        meta: TraceMeta,
        problems: tuple[Problem, ...],
    ) -> EventTable:
        """The rows `keep` as a table."""
        part = {name: column[keep] for name, column in records.items()}
        dur_ns = part["end_ns"] - part["ts_ns"]
        negative = int(np.count_nonzero(dur_ns < 0))
        if negative:
            found = self._problem(
                Verdict.CORRUPT_DURATIONS, f"{negative:,} events have a negative length", negative
            )
            problems = (*problems, found)
        codes, names = _compact(part["name"], self._names)
        # A device's lane is its stream, a process's lane its thread; bit 62 keeps the two apart.
        lanes = np.where(part["device"] >= 0, part["stream"] | 1 << 62, part["thread"])
        unique, tracks = np.unique(lanes, return_inverse=True)
        columns = {
            "ts_ns": part["ts_ns"],
            "dur_ns": np.maximum(dur_ns, 0),
            "name": codes,
            "category": part["category"],
            "track": tracks.reshape(-1),
            "device": part["device"],
            "stream": np.where((part["stream"] >= 0) & (part["stream"] < 1 << 31), part["stream"], MISSING),
            "correlation": part["correlation"],
        }
        absent = np.full(len(keep), MISSING)
        arrays: dict[str, Any] = {
            name: columns.get(name, absent).astype(dtype) for name, dtype in EVENT_COLUMNS.items()
        }
        process = int(part["process"][0]) if len(keep) else 0
        return EventTable(
            **arrays,
            names=names,
            tracks=tuple(self._track(int(lane), process) for lane in unique),
            shapes=(),
            strings=(),
            collectives=Collectives.empty(),
            meta=replace(meta, events_total=len(keep), phases={"X": len(keep)}),
            problems=problems,
        )

    def _track(self, lane: int, process: int) -> Track:
        on_device = bool(lane & 1 << 62) and lane >= 0
        name = "" if on_device else str(self._thread_names.get(lane) or "")
        return Track(
            pid=_process_id(process),
            tid=lane & ~(1 << 62) if on_device else lane & 0xFFFFFF,
            process=str(self._process_names.get(process) or ""),
            thread=f"stream {lane & ~(1 << 62)}" if on_device else name,
        )

    def _source(self, source: _Source) -> Iterator[NDArray[Any]]:
        """The records of one kind, in batches of shape (columns, rows)."""
        for table in database.variants(source.table, list(self._tables)):
            present = self._tables[table]
            usable = _usable(source, present)
            asked = source.where if present >= _mentioned(source) else "1"
            unread = database.count(self._connection, table, f"({asked}) and not ({usable})")
            if unread:
                sentence = f"{unread:,} records of {table} hold text or nothing where a number belongs, and are missing"
                self._unread.append(self._problem(Verdict.DAMAGED_EVENTS, sentence, unread))
            device = [
                database.number(name, present) if source.on_device else str(MISSING)
                for name in ("deviceId", "streamId")
            ]
            names = [database.quoted(name) for name in source.names if name in present] or [source.title]
            wanted = (
                database.number("start", present),
                database.number("end", present),
                *device,
                database.number("correlationId", present),
                database.number(source.owner, present, "0"),
                *names,
            )
            query = f"select {', '.join(wanted)} from {database.quoted(table)} where ({asked}) and ({usable})"
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(_BATCH_ROWS):
                yield self._batch(rows, source.category)

    def _batch(self, rows: list[tuple[Any, ...]], category: Category) -> NDArray[Any]:
        columns = list(zip(*rows, strict=True))
        batch = np.empty((len(_COLUMNS), len(rows)), np.int64)
        batch[:5] = np.array(columns[:5], np.int64)
        owners = np.array(columns[5], np.int64)
        batch[5] = owners & ~0xFFFFFF
        batch[6] = owners
        batch[7] = [self._names[self._told(options)] for options in zip(*columns[6:], strict=True)]
        batch[8] = category
        return batch

    def _told(self, options: tuple[Any, ...]) -> str:
        """The first name that one of the options is or refers to; empty: its text is not in the file."""
        for option in options:
            text = self._strings.get(option) if isinstance(option, int) else option
            if text and isinstance(text, str):
                return text
        return ""

    def _rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        """Some columns of a small table; nothing where this export lacks the table or a column."""
        if table not in self._tables:
            return []
        wanted = columns.split(", ")
        if not self._tables[table] >= set(wanted):
            return []
        return database.rows(self._connection, table, wanted)

    def _problem(self, verdict: Verdict, sentence: str, count: int | None = None) -> Problem:
        return Problem(verdict=verdict, sentence=f"{self._path}: {sentence}.", path=self._path, count=count)


def _usable(source: _Source, present: frozenset[str]) -> str:
    """SQL of the condition that a record can be read."""
    times = [
        database.is_number(name, present, low=-database.MAX_NS, high=database.MAX_NS)
        for name in ("start", "end")
    ]
    device = [
        database.is_number("deviceId", present, low=0, high=np.iinfo(np.int16).max, optional=True),
        database.is_number("streamId", present, low=-_LARGEST, high=_LARGEST, optional=True),
    ]
    others = [
        database.is_number(name, present, low=-_LARGEST, high=_LARGEST, optional=True)
        for name in ("correlationId", source.owner)
    ]
    return " and ".join([*times, *(device if source.on_device else ()), *others])


def _mentioned(source: _Source) -> frozenset[str]:
    """Columns that a source's condition asks of."""
    return frozenset({"eventType", "end"}) if source.where != "1" else frozenset()


def _other_database(path: str, tables: dict[str, frozenset[str]]) -> TraceFormatError:
    """What a database is that is no export of Nsight Systems."""
    found = foreign.by_tables(tables)
    if found is not None:
        return TraceFormatError(path, f"is {found.what}", verdict=Verdict.OTHER_FORMAT, advice=found.advice)
    shown = ", ".join(sorted(tables)[:5])
    reason = (
        f"is an SQLite database of another program (tables: {shown})"
        if shown
        else "is an SQLite database without tables"
    )
    return TraceFormatError(path, reason, verdict=Verdict.NOT_A_TRACE)


def _shares(records: dict[str, NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Row numbers of every process and device, in order of device."""
    process, device, category = records["process"], records["device"], records["category"]
    # Synchronizations name device 0 whatever the process's device is, so they do not make a share.
    worked = np.isin(category, (Category.KERNEL, Category.MEMCPY, Category.MEMSET))
    pairs = np.unique(np.stack([device, process])[:, worked], axis=1).T.tolist()
    if not pairs:
        for owner in np.unique(process[category == Category.NVTX]):
            yield np.flatnonzero(process == owner)
        return
    served: set[int] = set()
    for number, owner in pairs:
        others = [other for other, same in pairs if same == owner and other != number]
        mine = device == number if owner in served else ~np.isin(device, others)
        served.add(owner)
        yield np.flatnonzero((process == owner) & mine)


def _compact(codes: NDArray[Any], names: Interner[Any]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Codes and names of one table, out of those of the whole file."""
    every = list(names)
    used, compact = np.unique(codes, return_inverse=True)
    return compact.reshape(-1), tuple(
        "" if every[code] is None else str(every[code]) for code in used.tolist()
    )


def _process_id(global_id: int) -> int:
    return global_id >> 24 & 0xFFFFFF


def _numbered(table: EventTable, rank: int, count: int) -> EventTable:
    kernels = table.rows(Category.KERNEL)
    what = f"device {int(table.device[kernels[0]])}" if len(kernels) else f"process {table.tracks[0].pid}"
    path = table.meta.path
    sentence = (
        f"{path}: it holds {count} processes and does not say their ranks; {what} is taken as rank {rank}."
    )
    problem = Problem(verdict=Verdict.ASSUMED_RANK, sentence=sentence, path=path, rank=rank)
    return table.with_rank(rank).with_problems(problem)


def _empty(meta: TraceMeta, problems: tuple[Problem, ...]) -> EventTable:
    arrays: dict[str, Any] = {name: np.empty(0, dtype) for name, dtype in EVENT_COLUMNS.items()}
    return EventTable(
        **arrays,
        names=(),
        tracks=(),
        shapes=(),
        strings=(),
        collectives=Collectives.empty(),
        meta=meta,
        problems=problems,
    )
