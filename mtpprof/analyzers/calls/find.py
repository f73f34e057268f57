"""Finds the collective calls of one trace, each counted once, with their bytes where the trace tells them.

The decision what a call *is*: in a trace with kernels, a kernel (or a kernel and its tail, or all collective kernels
launched within one of our own ranges); operations and annotations on the CPU then only say what the kernel was about.
In a trace without kernels, the outermost of the ranges and operations that name the collective on their thread
(`cpucalls`). Never both, so nothing counts twice.

Which of our ranges tells of which kernel of a replayed graph.

Around every replay the emitter tells the graph's collectives once more, in the order of their capture, as ranges within one
`mtpprof::graph` range. The kernels of a replay start in that order too. Where the numbers differ (kernels dropped at the edge of a
window, a collective that no rule knows), nothing is matched: a shift by one would make every figure wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mtpprof import ranges
from mtpprof.analyzers.calls.classify import Classifier
from mtpprof.analyzers.calls.find_on_cpu import calls_on_cpu, operations
from mtpprof.analyzers.calls.known import (
    BY_OPERATION_RECORD,
    BY_RECORD,
    IN_GRAPH,
    RANGES,
    Columns,
    Evidence,
    OwnRanges,
)
from mtpprof.analyzers.calls.links import GRAPH_LAUNCHES, Launches, Named, Nest, named
from mtpprof.analyzers.calls.rules import Role, Scope
from mtpprof.analyzers.calls.table import Vocabulary
from mtpprof.analyzers.calls.unknown_names import Suspect
from mtpprof.analyzers.numeric import intervals
from mtpprof.analyzers.numeric.arrays import I64, Bools
from mtpprof.analyzers.traces.table import MISSING, Category, EventTable
from mtpprof.models.traffic import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The calls of one trace."""

    columns: Columns
    """Of `calls.COLUMNS`, in order of start; times on the clock of the file."""
    suspects: tuple[Suspect, ...]
    notes: tuple[str, ...]
    """What a reader of the figures has to know, one sentence each."""


def find_calls(table: EventTable, classifier: Classifier, vocabulary: Vocabulary) -> Found:
    """The collective calls of `table`."""
    evidence = Evidence(table=table, vocabulary=vocabulary, own=OwnRanges.of(table))
    kernels = table.rows(Category.KERNEL)
    if len(kernels):
        columns, notes = _calls_on_device(evidence, kernels, classifier)
        suspects = _suspects(table, kernels, Scope.KERNEL, classifier)
    else:
        columns, notes = calls_on_cpu(evidence, classifier)
        suspects = _suspects(table, table.rows(Category.CPU_OP), Scope.CPU_OP, classifier)
    order = np.argsort(columns["ts_ns"], kind="stable")
    return Found(
        columns={name: column[order] for name, column in columns.items()},
        suspects=suspects,
        notes=tuple(notes),
    )


def _calls_on_device(evidence: Evidence, kernels: I64, classifier: Classifier) -> tuple[Columns, list[str]]:
    table = evidence.table
    known = named(table, kernels, Scope.KERNEL, classifier)
    heads = known.only([item.role is Role.COLLECTIVE for item in known.classifications])
    launch, graph = _launches(table, heads.rows, kernels)
    around = _own_range(evidence, launch, graph)
    replayed, told, differing = ranges_of_replays(table, evidence.own, heads.rows, launch, graph)
    around = np.where(replayed != MISSING, replayed, around)
    columns = evidence.from_names(heads)
    columns["on_device"][:] = True
    columns["graph"] = graph
    columns["launch_ns"] = np.where(launch != MISSING, table.ts_ns[launch], MISSING)
    columns["how"][graph != MISSING] = evidence.vocabulary.code(IN_GRAPH)
    end, merged = _join_tails(evidence, columns, kernels, heads, known)
    _join_ranges(end, merged, heads.rows, around)
    _tell(evidence, columns, launch, around, classifier)
    columns["dur_ns"] = end[heads.rows] - table.ts_ns[heads.rows]
    columns["exposed_ns"] = _exposed(table, heads.rows, kernels[~merged[kernels]], end)
    kept = ~merged[heads.rows]
    notes = list(_notes(evidence, around, classifier))
    if differing:
        notes.append(
            f"{differing} of {told} replayed graphs have other numbers of collective kernels than were captured; "
            f"their calls have neither site nor size."
        )
    return {name: column[kept] for name, column in columns.items()}, notes


def _launches(table: EventTable, rows: I64, kernels: I64) -> tuple[I64, I64]:
    """Row of each kernel's launch, and correlation of the graph launch that replayed it; -1: none."""
    correlation = table.correlation[rows]
    launch = Launches.of(table).row_of(correlation)
    graph_names = np.array([name in GRAPH_LAUNCHES for name in table.names], np.bool_)
    is_graph = (launch != MISSING) & graph_names[table.name[launch]]
    shared, count = np.unique(table.correlation[kernels], return_counts=True)
    together = count[np.searchsorted(shared, correlation)] > 1
    is_graph |= (launch == MISSING) & (correlation != MISSING) & together
    return launch, np.where(is_graph, correlation, MISSING)


def _own_range(evidence: Evidence, launch: I64, graph: I64) -> I64:
    """Position of our own collective range around each launch; the launch of a graph says nothing of its calls."""
    asked = (launch != MISSING) & (graph == MISSING)
    found = np.full(len(launch), MISSING, np.int64)
    table = evidence.table
    found[asked] = evidence.own.nest.innermost(table.track[launch[asked]], table.ts_ns[launch[asked]])
    return found


def _join_tails(
    evidence: Evidence, columns: Columns, kernels: I64, heads: Named, known: Named
) -> tuple[I64, Bools]:
    """Adds the second kernel of two-kernel collectives to the first, where it follows at once on the stream.

    Returns:
        End of every row of the table, moved for heads with a tail; whether a row is part of another one's call.
    """
    table = evidence.table
    end, merged = table.end_ns.copy(), np.zeros(len(table), np.bool_)
    call_of = {row: index for index, row in enumerate(heads.rows.tolist())}
    lane = np.stack([table.device, table.stream])
    order = kernels[np.lexsort((table.ts_ns[kernels], table.stream[kernels], table.device[kernels]))]
    before = dict(zip(order[1:].tolist(), order[:-1].tolist(), strict=True))
    tails = known.only([item.role is Role.TAIL for item in known.classifications])
    for row, kind in zip(tails.rows.tolist(), tails.kind.tolist(), strict=True):
        head, tail = before.get(row, MISSING), known.classifications[kind]
        call = call_of.get(head)
        if call is None or heads.classifications[int(heads.kind[call])].rule != tail.completes:
            continue
        if (lane[:, head] == lane[:, row]).all():
            end[head], merged[row] = max(end[head], end[row]), True
            columns["fused"][call] = evidence.vocabulary.code(tail.fused)
    return end, merged


def _join_ranges(end: I64, merged: Bools, rows: I64, around: I64) -> None:
    """Makes one call of all collective kernels launched within one of our ranges: what we annotated was one collective."""
    inside = np.flatnonzero(around != MISSING)
    _, first, which = np.unique(around[inside], return_index=True, return_inverse=True)
    mine, head = rows[inside], rows[inside][first][which]
    np.maximum.at(end, head, end[mine])
    merged[mine[mine != head]] = True


def _tell(evidence: Evidence, columns: Columns, launch: I64, around: I64, classifier: Classifier) -> None:
    """Fills in what operations, records and ranges say of kernels, the surest source last."""
    table, rows, replayed = evidence.table, columns["row"], columns["graph"] != MISSING
    ops = operations(table, classifier)
    op = _by_external_id(table, ops.rows, rows)
    beside = np.flatnonzero((op == MISSING) & (launch != MISSING))
    nest = Nest.of(table, ops.rows)
    op[beside] = nest.row_of(nest.innermost(table.track[launch[beside]], table.ts_ns[launch[beside]]))
    op[replayed] = MISSING
    kind_of_row = dict(zip(ops.rows.tolist(), ops.kind.tolist(), strict=True))
    unknown = evidence.vocabulary.code(Kind.UNKNOWN)
    for index in np.flatnonzero((columns["kind"] == unknown) & (op != MISSING)).tolist():
        kind = ops.classifications[kind_of_row[int(op[index])]].kind
        columns["kind"][index] = evidence.vocabulary.code(kind)
    evidence.from_dims(columns, op)
    evidence.from_records(columns, op, BY_OPERATION_RECORD)
    evidence.from_records(columns, rows, BY_RECORD)
    evidence.from_ranges(columns, around)


def _by_external_id(table: EventTable, ops: I64, kernels: I64) -> I64:
    """Row of the operation with a kernel's external id; of several, the last started, which is the innermost; -1: none."""
    ops = ops[table.external_id[ops] > 0]
    if not len(ops):
        return np.full(len(kernels), MISSING, np.int64)
    order = np.argsort(table.external_id[ops], kind="stable")
    ids = table.external_id[ops][order]
    place = np.maximum(np.searchsorted(ids, table.external_id[kernels], side="right") - 1, 0)
    return np.where(ids[place] == table.external_id[kernels], ops[order][place], MISSING)


def _exposed(table: EventTable, rows: I64, kernels: I64, end: I64) -> I64:
    """Time of the kernels `rows` at which no other of `kernels` ran, device by device."""
    found = np.zeros(len(rows), np.int64)
    for device in np.unique(table.device[kernels]):
        others = kernels[table.device[kernels] == device]
        twice = intervals.coverage(table.ts_ns[others], end[others], depth=2)
        mine = table.device[rows] == device
        start, stop = table.ts_ns[rows[mine]], end[rows[mine]]
        found[mine] = (stop - start) - twice.within(start, stop)
    return found


def _notes(evidence: Evidence, around: I64, classifier: Classifier) -> Iterator[str]:
    total = len(evidence.own.nest.rows)
    bare = total - len(np.unique(around[around != MISSING]))
    if bare:
        yield (
            f"{bare} of {total} mtpprof ranges launched no collective kernel that the trace shows "
            f"(graph capture, or kernels dropped at the edge of the window); they are not counted."
        )
    table = evidence.table
    annotations = named(table, table.rows(*RANGES), Scope.ANNOTATION, classifier)
    control = annotations.only([item.role is Role.COLLECTIVE for item in annotations.classifications])
    if len(control.rows):
        yield f"{len(control.rows)} collectives on the CPU beside the kernels (gloo) are not counted."


def _suspects(table: EventTable, rows: I64, scope: Scope, classifier: Classifier) -> tuple[Suspect, ...]:
    codes, which, count = np.unique(table.name[rows], return_inverse=True, return_counts=True)
    total = np.zeros(len(codes), np.int64)
    np.add.at(total, which, table.dur_ns[rows])
    return tuple(
        Suspect(name=table.names[code], count=int(count[index]), dur_ns=int(total[index]))
        for index, code in enumerate(codes.tolist())
        if classifier.looks_like_communication(table.names[code], scope)
    )


def ranges_of_replays(
    table: EventTable, own: OwnRanges, rows: I64, launch: I64, graph: I64
) -> tuple[I64, int, int]:
    """Our range that tells of each kernel, for those that a graph replayed.

    Args:
        table: The trace.
        own: Its collective ranges of ours.
        rows: Rows of the collective kernels, in order of start.
        launch: Row of each one's launch; -1: not in the file.
        graph: What tells replays apart, for each kernel; -1: not replayed.

    Returns:
        Position in `own.nest` for each kernel, or -1; replays that were told of; those of them whose numbers differ.
    """
    around = np.full(len(rows), MISSING, np.int64)
    replays = _graph_ranges(table)
    told = differing = 0
    for replay in np.unique(graph[(graph != MISSING) & (launch != MISSING)]).tolist():
        kernels = np.flatnonzero(graph == replay)
        start = launch[kernels[:1]]
        position = replays.innermost(table.track[start], table.ts_ns[start])
        if position[0] == MISSING:
            continue
        told += 1
        children = _within(own.nest, replays, int(position[0]))
        if len(children) == len(kernels):
            around[kernels] = children
        else:
            differing += 1
    return around, told, differing


def _graph_ranges(table: EventTable) -> Nest:
    rows = table.rows(*RANGES)
    codes = [
        code
        for code in np.unique(table.name[rows]).tolist()
        if (parts := ranges.split(table.names[code])) is not None and parts[0] == ranges.GRAPH
    ]
    return Nest.of(table, rows[np.isin(table.name[rows], codes)])


def _within(nest: Nest, replays: Nest, position: int) -> I64:
    """Positions of the ranges of `nest` inside one replay, in order."""
    track, start, end = replays.track[position], replays.start[position], replays.end[position]
    low, high = np.searchsorted(nest.track, [track, track + 1])
    first = low + np.searchsorted(nest.start[low:high], start, side="left")
    last = low + np.searchsorted(nest.start[low:high], end, side="right")
    return np.arange(first, last, dtype=np.int64)
