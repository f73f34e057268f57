"""What the time of a step consists of: every nanosecond of every rank's step in exactly one part.

The decision: a step is partitioned, not sampled or summed. Each instant belongs to the first part in an order of precedence that
has something running, so the parts add up to the step by construction, overlapping kernels are counted once, and what hides
behind other work costs nothing. On a device, computation comes first: a collective is charged only for the time at which nothing
else of the rank ran. On a CPU a collective is an operation with operations inside it, so it comes first.

A collective's time is split where the waits are known: until the last rank's arrival it is waiting, after it transfer (for a fused
kernel: transfer and norm together, which the kernel does not separate). Where they are not known it is one part of its own.

What each rank computed: the kernels, or the outermost CPU operations, that are no collectives.

The decision: the same events as those of which a step is composed, and the same parts. Of operations within operations only the
outermost count, since the inner ones are what the outer one does; one that holds a collective is no work by itself, and counts by what
else is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtpprof import ranges
from mtpprof.analyzers.calls.attribution import Attribution
from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.numeric.arrays import I8, I32, I64
from mtpprof.analyzers.numeric.intervals import coverage, union
from mtpprof.analyzers.traces.table import MISSING, Category, EventTable, TraceSet

TRANSFER = "transfer"
WAIT = "wait"
FUSED = "fused collective"
UNSPLIT = "collective"
NORM = "norm"
COPY = "copy"
ARGMAX = "argmax"
COMPUTE = "other compute"
IDLE = "idle or host"

PARTS = (TRANSFER, WAIT, UNSPLIT, FUSED, NORM, COPY, ARGMAX, COMPUTE, IDLE)
"""In the order in which a waterfall shows them."""

MEANING = {
    TRANSFER: "in plain collectives, after the last rank arrived",
    WAIT: "in collectives, for the last rank to arrive",
    UNSPLIT: "in collectives whose waiting is not known",
    FUSED: "in kernels that do a collective and a norm, after the last rank arrived",
    NORM: "norm kernels of their own",
    COPY: "copies, concatenations, layout changes, fills",
    ARGMAX: "the choice of tokens out of logits",
    COMPUTE: "every other kernel or operation",
    IDLE: "nothing of this rank ran",
}

CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (ARGMAX, re.compile(r"arg_?max", re.IGNORECASE)),
    (NORM, re.compile(r"(?:rms|layer)_?norm", re.IGNORECASE)),
    (
        COPY,
        re.compile(
            r"^Mem(?:cpy|set)|direct_copy_kernel|CatArrayBatchedCopy|^(?:aten::)?(?:cat|copy_|_to_copy|clone|contiguous)$"
            r"|FillFunctor|transpose_kernel",
            re.IGNORECASE,
        ),
    ),
)
"""Kernels and operations that an optimization of communication brings or takes along, by name; the first match decides."""

COUNTED = (NORM, COPY, ARGMAX, COMPUTE)
"""Parts whose kernels are counted as well: an optimization may take away a kernel that hid behind another. Without a device, the
operations are counted that compute: those that hold no other, and neither allocate nor look at memory in another way."""

NO_WORK = re.compile(
    r"^aten::(?:empty\w*|new_empty\w*|as_strided\w*|view\w*|_unsafe_view|_reshape_alias|reshape|flatten|unflatten|t|transpose|permute"
    r"|expand\w*|slice|select|narrow|split\w*|chunk|unbind|squeeze\w*|unsqueeze|diagonal|detach\w*|alias|resolve_\w+|lift_fresh"
    r"|to|contiguous|resize_|set_|is_\w+|item|numpy_T|mT|result_type|can_cast|broadcast_tensors|meshgrid|size|stride|record_stream)$"
)
"""Operations that move no data where nothing is inside them."""

_ON_DEVICE = (COMPUTE, NORM, ARGMAX, COPY, FUSED, TRANSFER, UNSPLIT, WAIT)
_ON_CPU = (FUSED, TRANSFER, UNSPLIT, WAIT, ARGMAX, NORM, COPY, COMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Composition:
    """The steps whose time is known, with their parts. All arrays have one entry per step and rank."""

    table: I64
    step: I64
    """Row in the steps of the analysis."""
    length_ns: I64
    parts_ns: dict[str, I64]
    """By part of `PARTS`; they add up to `length_ns`."""
    kernels: dict[str, I64]
    """Kernels, copies and fills (without a device: operations that compute) that started in the step, beside the collectives, by part of
    `COUNTED`."""
    counted: NDArray[np.bool_]
    """Whether the trace shows them: a rank without a device whose operations were not recorded has none, which is not none done."""
    left_out: int
    """Steps without an end in the trace, or with an artefact of the start of profiling."""

    def take(self, keep: NDArray[np.bool_]) -> Composition:
        """The steps of a mask."""
        return Composition(
            table=self.table[keep],
            step=self.step[keep],
            length_ns=self.length_ns[keep],
            parts_ns={name: values[keep] for name, values in self.parts_ns.items()},
            kernels={name: values[keep] for name, values in self.kernels.items()},
            counted=self.counted[keep],
            left_out=self.left_out,
        )

    def __len__(self) -> int:
        return len(self.step)


def compose(traces: TraceSet, found: Attribution) -> Composition:
    """Partition every step of every rank that has an end.

    Args:
        traces: The event tables that `found` was made from.
        found: Its calls and steps.
    """
    steps, calls = found.steps, found.calls
    usable = steps.closed & (steps.end_ns > steps.start_ns)
    disturbed = steps.rows_of(calls.table, calls.step)[calls.transient]
    usable[disturbed[disturbed != MISSING]] = False
    rows = np.flatnonzero(usable)
    columns: dict[str, list[I64]] = {name: [] for name in PARTS}
    counts: dict[str, list[I64]] = {name: [] for name in COUNTED}
    lengths: list[I64] = []
    counted: list[NDArray[np.bool_]] = []
    for index, table in enumerate(traces.tables):
        mine = rows[steps.table[rows] == index]
        base = table.meta.base_time_ns or 0
        start, end = steps.start_ns[mine] - base, steps.end_ns[mine] - base
        layers = _layers(table, calls.take(calls.table == index))
        parts = _partition(layers, start, end)
        lengths.append(end - start)
        for name in PARTS:
            columns[name].append(parts[name])
        for name in COUNTED:
            counts[name].append(_started(layers.starts[name], start, end))
        counted.append(np.full(len(mine), layers.on_device or table.count(Category.CPU_OP) > 0))
    return Composition(
        table=steps.table[rows].astype(np.int64),
        step=rows.astype(np.int64),
        length_ns=_joined(lengths),
        parts_ns={name: _joined(pieces) for name, pieces in columns.items()},
        kernels={name: _joined(pieces) for name, pieces in counts.items()},
        counted=np.concatenate(counted) if counted else np.zeros(0, np.bool_),
        left_out=len(steps) - len(rows),
    )


def _joined(pieces: list[I64]) -> I64:
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layers:
    """What ran on one rank, by part: starts and ends."""

    on_device: bool
    intervals: dict[str, list[tuple[I64, I64]]]
    starts: dict[str, I64]
    """Of what is counted, in order."""


def runs_on_device(table: EventTable, calls: Calls) -> bool:
    """Whether a rank's work is its kernels; else it is its operations on the CPU."""
    return bool(calls.on_device.any()) if len(calls) else table.count(Category.KERNEL) > 0


def _layers(table: EventTable, calls: Calls) -> _Layers:
    on_device = runs_on_device(table, calls)
    found: dict[str, list[tuple[I64, I64]]] = {name: [] for name in PARTS}
    for name, first, last in (*_collectives(table, calls), *_work(table, calls, on_device)):
        found[name].append((first, last))
    starts = _kernel_starts(found) if on_device else _operation_starts(table, calls)
    return _Layers(on_device=on_device, intervals=found, starts=starts)


def _kernel_starts(intervals: dict[str, list[tuple[I64, I64]]]) -> dict[str, I64]:
    return {name: np.sort(_joined([first for first, _ in intervals[name]])) for name in COUNTED}


def _operation_starts(table: EventTable, calls: Calls) -> dict[str, I64]:
    """Starts of the operations of the rank's thread that compute, outside its collectives."""
    rows = work_rows(table, calls, on_device=False)
    rows = rows[table.category[rows] == Category.CPU_OP]
    codes, which = np.unique(table.name[rows], return_inverse=True)
    names = [table.names[code] for code in codes.tolist()]
    idle = np.array([NO_WORK.search(name) is not None for name in names], np.bool_)
    parts = np.array([COUNTED.index(part_of(name)) for name in names], np.int64)
    which = which.reshape(-1)
    keep = ~idle[which] if len(codes) else np.zeros(0, np.bool_)
    rows, part = rows[keep], parts[which[keep]] if len(codes) else np.zeros(0, np.int64)
    order = np.lexsort((-table.end_ns[rows], table.ts_ns[rows]))
    rows, part = rows[order], part[order]
    # Operations of one thread are nested: one holds another where the next to start does so before it ends.
    start, end = table.ts_ns[rows], table.end_ns[rows]
    holds = np.append(start[1:] < end[:-1], [False])[: len(rows)]
    rows, part = rows[~holds], part[~holds]
    outside = np.isin(rows, _apart(table, rows, calls))
    return {name: table.ts_ns[rows[outside & (part == index)]] for index, name in enumerate(COUNTED)}


def _partition(layers: _Layers, start: I64, end: I64) -> dict[str, I64]:
    """Nanoseconds of each part in each of the steps `[start, end)` of one rank."""
    parts = {name: np.zeros(len(start), np.int64) for name in PARTS}
    seen: list[tuple[I64, I64]] = []
    covered = np.zeros(len(start), np.int64)
    for name in _ON_DEVICE if layers.on_device else _ON_CPU:
        if not layers.intervals[name]:
            continue
        seen += layers.intervals[name]
        first, last = (np.concatenate([piece[side] for piece in seen]) for side in (0, 1))
        now = coverage(first, last).within(start, end)
        parts[name], covered = now - covered, now
    parts[IDLE] = (end - start) - covered
    return parts


def _started(starts: I64, start: I64, end: I64) -> I64:
    """How many of `starts` lie in each step."""
    return (np.searchsorted(starts, end) - np.searchsorted(starts, start)).astype(np.int64)


def _collectives(table: EventTable, calls: Calls) -> Iterator[tuple[str, I64, I64]]:
    begin = table.ts_ns[calls.row]
    finish, known = begin + calls.dur_ns, calls.wait_ns != MISSING
    arrival = begin + np.where(known, np.minimum(calls.wait_ns, calls.dur_ns), 0)
    fused = calls.fused != 0
    yield WAIT, begin[known], arrival[known]
    yield FUSED, arrival[fused], finish[fused]
    plain = known & ~fused
    yield TRANSFER, arrival[plain], finish[plain]
    unsplit = ~known & ~fused
    yield UNSPLIT, begin[unsplit], finish[unsplit]


def work_rows(table: EventTable, calls: Calls, *, on_device: bool) -> I64:
    """Everything else that runs on the rank's device, or (ranges too) on one CPU thread; by start.

    That thread is the one that issues the rank's collectives, and without any the one with most operations: operations of several
    threads overlap, and are no sequence.
    """
    if on_device:
        rows = table.rows(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
    else:
        rows = table.rows(Category.CPU_OP, Category.USER_ANNOTATION)
        busy = calls.row if len(calls) else table.rows(Category.CPU_OP)
        tracks, count = np.unique(table.track[busy], return_counts=True)
        if len(tracks):
            rows = rows[table.track[rows] == tracks[np.argmax(count)]]
    return rows[~np.isin(rows, calls.row)]


def _work(table: EventTable, calls: Calls, on_device: bool) -> Iterable[tuple[str, I64, I64]]:
    rows = work_rows(table, calls, on_device=on_device)
    codes, which = np.unique(table.name[rows], return_inverse=True)
    classes = [
        _class_of(table.names[code], annotation=not on_device and ranges.split(table.names[code]) is not None)
        for code in codes.tolist()
    ]
    if not on_device:
        operations = table.category[rows] == Category.CPU_OP
        own = np.array([name is not None and name != COMPUTE for name in classes], np.bool_)
        keep = operations | own[which] if len(codes) else operations
        rows, which = rows[keep], which[keep]
    for name in dict.fromkeys(name for name in classes if name is not None):
        chosen = rows[np.isin(which, [index for index, other in enumerate(classes) if other == name])]
        yield name, table.ts_ns[chosen], table.end_ns[chosen]


def _class_of(name: str, *, annotation: bool) -> str | None:
    """Part that a kernel, operation or range belongs to; None: a range that only encloses others."""
    if annotation:
        parts = ranges.split(name)
        return ARGMAX if parts is not None and parts[0] == ranges.ARGMAX else None
    return part_of(name)


def part_of(name: str) -> str:
    """Part that a kernel or operation belongs to by its name, one of `COUNTED`."""
    return next((part for part, pattern in CLASSES if pattern.search(name)), COMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """Kernels or operations of one trace, by start. All arrays have one entry each."""

    rank: int
    """-1: the trace does not say."""
    on_device: bool
    names: tuple[str, ...]
    name: I32
    """Code into `names`."""
    part: I8
    """Place in `COUNTED`."""
    start_ns: I64
    """On the clock of the calls."""
    end_ns: I64

    def __len__(self) -> int:
        return len(self.start_ns)


def find_work(traces: TraceSet, calls: Calls) -> tuple[Work, ...]:
    """The work of every trace of a set.

    Args:
        traces: The event tables.
        calls: The collectives found in them.
    """
    return tuple(_of(table, calls.take(calls.table == index)) for index, table in enumerate(traces.tables))


def _of(table: EventTable, calls: Calls) -> Work:
    on_device = runs_on_device(table, calls)
    rows = work_rows(table, calls, on_device=on_device)
    if not on_device:
        rows = rows[table.category[rows] == Category.CPU_OP]
        rows = _outermost(table, _apart(table, rows, calls))
    codes, which = np.unique(table.name[rows], return_inverse=True)
    parts = np.array([COUNTED.index(part_of(table.names[code])) for code in codes.tolist()], np.int8)
    base = table.meta.base_time_ns or 0
    return Work(
        rank=MISSING if table.meta.rank is None else table.meta.rank,
        on_device=on_device,
        names=table.names,
        name=table.name[rows],
        part=parts[which.reshape(-1)],
        start_ns=table.ts_ns[rows] + base,
        end_ns=table.end_ns[rows] + base,
    )


def _apart(table: EventTable, rows: I64, calls: Calls) -> I64:
    """The operations that neither lie in a collective of their thread nor hold one."""
    own = calls.row[np.isin(table.track[calls.row], table.track[rows])]
    first, last = union(table.ts_ns[own], table.end_ns[own])
    if not len(first):
        return rows
    start, end = table.ts_ns[rows], table.end_ns[rows]
    before = np.searchsorted(first, start, side="right")
    inside = (before > 0) & (start < last[np.maximum(before - 1, 0)])
    holds = np.searchsorted(first, end) > np.searchsorted(first, start)
    return rows[~inside & ~holds]


def _outermost(table: EventTable, rows: I64) -> I64:
    """Of operations on one thread, those that lie in no other."""
    if not len(rows):
        return rows
    order = rows[np.lexsort((-table.end_ns[rows], table.ts_ns[rows]))]
    reach = np.maximum.accumulate(table.end_ns[order])
    outer = np.concatenate([[True], table.ts_ns[order][1:] >= reach[:-1]])
    return np.asarray(order[outer])
