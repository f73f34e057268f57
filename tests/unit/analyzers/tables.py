"""Event tables for tests, written down event by event. All times are integer nanoseconds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mtpprof.analyzers.traces.table import (
    COLLECTIVE_COLUMNS,
    EVENT_COLUMNS,
    MISSING,
    Category,
    Collectives,
    EventTable,
    ProcessGroup,
    TraceMeta,
    TraceSet,
    Track,
)

MAIN, WORKER, DEVICE = 0, 1, 2
TRACKS = (Track(pid=1, tid=1), Track(pid=1, tid=2), Track(pid=0, tid=7))
NCCL_AR = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NCCL_AG = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_64x8_64x16_2x4_h_bz_TNT"


class Trace:
    """Collects events; `table()` makes the table."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._correlation = 0

    def add(self, name: str, ts: int, dur: int, category: Category, track: int = MAIN, **fields: Any) -> None:
        """Any event."""
        self._events.append(
            {"name": name, "ts_ns": ts, "dur_ns": dur, "category": category, "track": track, **fields}
        )

    def op(self, name: str, ts: int, dur: int, dims: Any = None, types: Any = None, **fields: Any) -> None:
        """An operation on the CPU."""
        self.add(name, ts, dur, Category.CPU_OP, dims=dims, types=types, **fields)

    def note(self, name: str, ts: int, dur: int, **fields: Any) -> None:
        """A user annotation."""
        self.add(name, ts, dur, Category.USER_ANNOTATION, **fields)

    def kernel(
        self,
        name: str,
        ts: int,
        dur: int,
        *,
        launched: int | None = None,
        graph: int | None = None,
        **fields: Any,
    ) -> None:
        """A kernel, with its launch on the main thread at `launched`, or replayed by the graph launch `graph`."""
        self._correlation += 1
        correlation = self._correlation if graph is None else graph
        if launched is not None:
            self.add("cudaLaunchKernel", launched, 2, Category.RUNTIME, correlation=correlation)
        fields = {"device": 0, "stream": 7, "correlation": correlation, **fields}
        self.add(name, ts, dur, Category.KERNEL, DEVICE, **fields)

    def graph_launch(self, ts: int, correlation: int) -> None:
        """A launch of a whole graph; use correlations from 1000 up."""
        self.add("cudaGraphLaunch", ts, 5, Category.RUNTIME, correlation=correlation)

    def table(
        self,
        rank: int | None = 0,
        world: int | None = 2,
        *,
        base: int | None = 0,
        host: str | None = None,
        groups: tuple[ProcessGroup, ...] = (),
    ) -> EventTable:
        """The table of all events so far."""
        events = sorted(self._events, key=lambda event: int(event["ts_ns"]))
        names, shapes, strings = _Interned(), _Interned(), _Interned()
        columns: dict[str, list[int]] = {name: [] for name in EVENT_COLUMNS}
        sparse: dict[str, list[int]] = {name: [] for name in COLLECTIVE_COLUMNS}
        for row, event in enumerate(events):
            values = {**event, "name": names.code(event["name"])}
            for key in ("dims", "types"):
                given = event.get(key)
                values[key] = MISSING if given is None else shapes.code(json.dumps(given))
            for key, column in columns.items():
                column.append(int(values.get(key, MISSING)))
            if "record" in event:
                record = {**event["record"], "row": row}
                for key, column in sparse.items():
                    value = record.get(key, MISSING)
                    column.append(strings.code(value) if isinstance(value, str) else int(value))
        meta = TraceMeta(
            path=f"rank{rank}.json",
            reader="test",
            rank=rank,
            world_size=world,
            base_time_ns=base,
            host=host,
            process_groups=groups,
        )
        arrays: dict[str, Any] = {
            key: np.array(column, EVENT_COLUMNS[key]) for key, column in columns.items()
        }
        return EventTable(
            **arrays,
            names=names.texts,
            tracks=TRACKS,
            shapes=shapes.texts,
            strings=strings.texts,
            collectives=Collectives(
                **{key: np.array(column, COLLECTIVE_COLUMNS[key]) for key, column in sparse.items()}
            ),
            meta=meta,
        )


class _Interned:
    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._codes)


def record(
    name: str = "allreduce",
    in_elems: int = MISSING,
    out_elems: int = MISSING,
    dtype: str = "BFloat16",
    group_size: int = 2,
    ranks: str = "[0, 1]",
    seq: int = MISSING,
) -> dict[str, Any]:
    """A communication record."""
    return {
        "name": name,
        "in_elems": in_elems,
        "out_elems": out_elems,
        "dtype": dtype,
        "group_size": group_size,
        "group": "3",
        "group_ranks": ranks,
        "seq": seq,
    }


def one_run(*tables: EventTable, world: int | None = None) -> TraceSet:
    """A set of the tables of one run."""
    return TraceSet(label="run", tables=tables, world_size=len(tables) if world is None else world)
