"""The events of one trace as tracks: a track per stream and per thread, with sibling lanes where events overlap.

Every event of the table becomes exactly one slice. Arguments carry Kineto's own keys, so that a JSON export reads
back as the trace that it came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.links import Launches
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.perfetto import lanes
from mtpprof.analyzers.perfetto.model import Argument, Flow, Layout, Process, Slices, Values
from mtpprof.analyzers.perfetto.timeline import Arm
from mtpprof.analyzers.traces.table import MISSING, Category, EventTable, Track

CATEGORY_NAMES: dict[Category, str] = {
    Category.KERNEL: "kernel",
    Category.MEMCPY: "gpu_memcpy",
    Category.MEMSET: "gpu_memset",
    Category.CPU_OP: "cpu_op",
    Category.USER_ANNOTATION: "user_annotation",
    Category.GPU_USER_ANNOTATION: "gpu_user_annotation",
    Category.RUNTIME: "cuda_runtime",
    Category.SYNC: "cuda_sync",
    Category.PYTHON: "python_function",
    Category.OVERHEAD: "overhead",
    Category.NVTX: "nvtx",
    Category.OTHER: "other",
}
"""What Kineto calls them."""

ON_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.GPU_USER_ANNOTATION, Category.SYNC)

STRETCHED = "dur_before_alignment_ns"
"""Length that a range had before the steps of two arms were aligned; only on ranges that reach over the start of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """Events of one track that share a track of the export."""

    categories: frozenset[Category]
    suffix: str
    on_device: bool
    nests: bool
    """False: slices follow each other, for a kernel is not the child of a kernel."""


_CLASSES = (
    _Class(
        categories=frozenset({Category.KERNEL, Category.MEMCPY, Category.MEMSET}),
        suffix="",
        on_device=True,
        nests=False,
    ),
    _Class(
        categories=frozenset({Category.GPU_USER_ANNOTATION}),
        suffix=": annotations",
        on_device=True,
        nests=True,
    ),
    _Class(categories=frozenset({Category.SYNC}), suffix=": synchronization", on_device=True, nests=True),
    _Class(categories=frozenset({Category.NVTX}), suffix=": NVTX", on_device=False, nests=True),
    _Class(
        categories=frozenset(
            {
                Category.CPU_OP,
                Category.USER_ANNOTATION,
                Category.RUNTIME,
                Category.PYTHON,
                Category.OVERHEAD,
                Category.OTHER,
            }
        ),
        suffix="",
        on_device=False,
        nests=True,
    ),
)
_CLASS_OF = np.array(
    [next(i for i, item in enumerate(_CLASSES) if category in item.categories) for category in Category],
    np.int64,
)


def add_events(
    layout: Layout, process: Process, arm: Arm, table_index: int, rows: I64, first_flow: int
) -> int:
    """Add the events `rows` of a table to a process.

    Args:
        layout: Where to.
        process: The rank.
        arm: Of which the table is one.
        table_index: Index of the table in the arm.
        rows: Increasing row numbers.
        first_flow: The first number free for arrows.

    Returns:
        The next number free for arrows.
    """
    table = arm.traces.tables[table_index]
    columns = _Columns.of(layout, arm, table_index, first_flow)
    key = _CLASS_OF[table.category[rows]] * len(table.tracks) + table.track[rows]
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    for part in np.split(rows[order], bounds) if len(rows) else ():
        kind = _CLASSES[_CLASS_OF[table.category[part[0]]]]
        split = lanes.nested if kind.nests else lanes.following
        name = _title(table, int(part[0]), kind) + kind.suffix
        for number, lane in enumerate(split(*columns.times(part, kind.on_device))):
            layout.slices(layout.lane(process, name, number), columns.slices(part[lane], kind.on_device))
    return columns.next_flow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Columns:
    """Makes slices of rows of one table."""

    arm: Arm
    index: int
    table: EventTable
    names: NDArray[np.int32]
    """Codes of the export for the names of the table."""
    categories: NDArray[np.int32]
    shapes: NDArray[np.int32]
    strings: NDArray[np.int32]
    flow: I64
    """Number of the arrow from launch to kernel, by row; 0: none."""
    next_flow: int

    @staticmethod
    def of(layout: Layout, arm: Arm, index: int, first_flow: int) -> _Columns:
        table, texts = arm.traces.tables[index], layout.texts
        flow, next_flow = _launch_flows(table, first_flow)
        return _Columns(
            arm=arm,
            index=index,
            table=table,
            names=texts.codes(table.names),
            categories=texts.codes(CATEGORY_NAMES[category] for category in Category),
            shapes=texts.codes(table.shapes),
            strings=texts.codes(table.strings),
            flow=flow,
            next_flow=next_flow,
        )

    def times(self, rows: I64, on_device: bool) -> tuple[I64, I64]:
        """Start and length of the rows on the export's time."""
        ts, dur = self.arm.moved(self.index, self.table.ts_ns[rows]), self.table.dur_ns[rows]
        if on_device or not len(self.arm.bounds_ns):
            return ts, dur
        # The last nanosecond of a range belongs to the step before the one that starts at its end.
        end = self.arm.moved(self.index, self.table.end_ns[rows] - 1) + 1
        return ts, np.where(dur > 0, end - ts, 0)

    def slices(self, rows: I64, on_device: bool) -> Slices:
        """The rows, at their places on the export's time."""
        table = self.table
        ts, dur = self.times(rows, on_device)
        before = table.dur_ns[rows]
        arguments = self._arguments(rows)
        arguments.append(
            Argument(key=STRETCHED, kind=Values.INTEGER, column=np.where(before != dur, before, MISSING))
        )
        category = table.category[rows]
        number = self.flow[rows]
        return Slices(
            ts_ns=ts,
            dur_ns=dur,
            name=self.names[table.name[rows]],
            category=self.categories[category],
            arguments=tuple(argument for argument in arguments if argument.present().any()),
            flow=Flow(
                number=number,
                arrives=np.asarray(category == Category.KERNEL),
                leaves=np.asarray(category == Category.RUNTIME),
            )
            if number.any()
            else None,
        )

    def _arguments(self, rows: I64) -> list[Argument]:
        table = self.table
        numbers: dict[str, NDArray[Any]] = {
            "External id": table.external_id,
            "correlation": table.correlation,
            "device": table.device,
            "stream": table.stream,
        }
        found = [
            Argument(key=key, kind=Values.INTEGER, column=column[rows]) for key, column in numbers.items()
        ]
        found += [
            Argument(key=key, kind=Values.JSON, column=_decoded(self.shapes, codes[rows]))
            for key, codes in (("Input Dims", table.dims), ("Input type", table.types))
        ]
        entries = table.collective_entries(rows)
        if (entries != MISSING).any():
            found += self._collective_arguments(entries)
        return found

    def _collective_arguments(self, entries: I64) -> list[Argument]:
        sparse = self.table.collectives
        numbers: dict[str, NDArray[Any]] = {
            "In msg nelems": sparse.in_elems,
            "Out msg nelems": sparse.out_elems,
            "Group size": sparse.group_size,
            "Seq": sparse.seq,
        }
        texts = {
            "Collective name": sparse.name,
            "dtype": sparse.dtype,
            "Process Group Name": sparse.group,
            "Process Group Ranks": sparse.group_ranks,
        }
        absent = entries == MISSING
        return [
            Argument(key=key, kind=Values.INTEGER, column=np.where(absent, MISSING, column[entries]))
            for key, column in numbers.items()
        ] + [
            Argument(
                key=key,
                kind=Values.TEXT,
                column=_decoded(self.strings, np.where(absent, MISSING, column[entries])),
            )
            for key, column in texts.items()
        ]


def _decoded(texts: NDArray[np.int32], codes: NDArray[Any]) -> NDArray[np.int32]:
    """Codes of the export for codes of the table; 0 where the table has none: the missing code, -1, is the last."""
    return np.asarray(np.append(texts, 0)[codes], np.int32)


def _launch_flows(table: EventTable, first: int) -> tuple[I64, int]:
    """Numbers for arrows from a launch to its kernel; the launch of a graph has no arrows to its hundreds of kernels."""
    flow = np.zeros(len(table), np.int64)
    kernels = table.rows(Category.KERNEL)
    correlation, index, count = np.unique(table.correlation[kernels], return_index=True, return_counts=True)
    alone = kernels[index[(count == 1) & (correlation != MISSING)]]
    launch = Launches.of(table).row_of(table.correlation[alone])
    alone, launch = alone[launch != MISSING], launch[launch != MISSING]
    numbers = np.arange(first, first + len(alone))
    flow[alone] = flow[launch] = numbers
    return flow, first + len(alone)


def _title(table: EventTable, row: int, kind: _Class) -> str:
    if kind.on_device and table.device[row] != MISSING and table.stream[row] != MISSING:
        return f"GPU {table.device[row]} stream {table.stream[row]}"
    track: Track = table.tracks[table.track[row]]
    thread, process = track.thread or "thread", track.process or "process"
    name = thread if str(track.tid) in thread else f"{thread} {track.tid}"
    return name if track.pid == track.tid else f"{name} of {process} {track.pid}"
