"""The collective calls of a trace without kernels: ranges, operations and annotations on the CPU, each collective once.

A collective shows up to three times: as our own range, as the operation within it, and as the backend's annotation on
another thread. The outermost on its thread is the call; of an operation and its annotation one is kept.
"""

from __future__ import annotations

import numpy as np

from mtpprof.analyzers.calls.classify import Classifier
from mtpprof.analyzers.calls.known import BY_OPERATION_RECORD, RANGES, Columns, Evidence
from mtpprof.analyzers.calls.links import Named, Nest, named
from mtpprof.analyzers.calls.rules import Role, Scope
from mtpprof.analyzers.numeric import intervals
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.traces.table import MISSING, Category, EventTable
from mtpprof.models.traffic import Kind

ASYNCHRONOUS = "c10d"
"""Operations that may return before the collective has ended; the annotation of their backend spans it."""


def operations(table: EventTable, classifier: Classifier) -> Named:
    """Operations on the CPU that name a collective, whether they are it or launch it."""
    ops = named(table, table.rows(Category.CPU_OP), Scope.CPU_OP, classifier)
    return ops.only([item.role is not Role.NONE for item in ops.classifications])


def calls_on_cpu(evidence: Evidence, classifier: Classifier) -> tuple[Columns, list[str]]:
    """The calls, and notes on what is not counted."""
    table, own = evidence.table, evidence.own
    annotations = named(table, table.rows(*RANGES), Scope.ANNOTATION, classifier)
    launches = annotations.only([item.role is Role.LAUNCH for item in annotations.classifications])
    spans = annotations.only([item.role is Role.COLLECTIVE for item in annotations.classifications])
    ops = operations(table, classifier)
    ops = ops.only([item.role is Role.COLLECTIVE for item in ops.classifications])
    if len(launches.rows):
        ops = ops.only([item.implementation != ASYNCHRONOUS for item in ops.classifications])
    nest = Nest.of(table, np.concatenate([own.nest.rows, ops.rows, spans.rows]))
    outermost = nest.rows[nest.outermost]
    mine = own.nest.rows[np.isin(own.nest.rows, outermost)]
    ops, spans = _one_of_each_pair(evidence, _within(ops, outermost), _within(spans, outermost), mine)
    parts = [evidence.blank(mine), evidence.from_names(ops), evidence.from_names(spans)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    _tell(evidence, columns, nest)
    _tell_fused(evidence, columns, mine, operations(table, classifier))
    columns["exposed_ns"] = _exposed(table, columns["row"])
    if not len(launches.rows):
        return columns, []
    return columns, [
        f"{len(launches.rows)} collectives were launched on a device, but the trace has no kernels: they are not counted, "
        f"since only the kernels tell when they ran."
    ]


def _within(calls: Named, rows: I64) -> Named:
    kept = np.isin(calls.rows, rows)
    return Named(rows=calls.rows[kept], kind=calls.kind[kept], classifications=calls.classifications)


def _one_of_each_pair(evidence: Evidence, ops: Named, spans: Named, own: I64) -> tuple[Named, Named]:
    """Of a c10d operation and its backend's annotation on another thread, keeps one.

    The annotation spans the call and knows the dtype, so it is kept where there is one for each operation; where the numbers
    differ the operation is kept, and where our own ranges name the kind the annotations are theirs.
    """
    ranged = {Kind(evidence.own.parsed[int(code)].kind) for code in evidence.table.name[own]}
    keep_op, keep_span = [True] * len(ops.classifications), []
    for index, item in enumerate(spans.classifications):
        twins = [
            twin
            for twin, op in enumerate(ops.classifications)
            if op.implementation == ASYNCHRONOUS and op.kind is item.kind
        ]
        operations = int(np.isin(ops.kind, twins).sum())
        keep_span.append(item.kind not in ranged and operations in (0, int(np.sum(spans.kind == index))))
        for twin in twins:
            keep_op[twin] = not keep_span[-1]
    return ops.only(keep_op), spans.only(keep_span)


def _tell(evidence: Evidence, columns: Columns, nest: Nest) -> None:
    """Fills in what the calls say of themselves, and for those that say nothing what the first operation within them says."""
    table, rows = evidence.table, columns["row"]
    place = np.full(len(table), MISSING, np.int64)
    place[evidence.own.nest.rows] = np.arange(len(evidence.own.nest.rows))
    not_ours = np.where(place[rows] == MISSING, rows, MISSING)
    evidence.from_dims(columns, not_ours)
    evidence.from_records(columns, not_ours, BY_OPERATION_RECORD)
    evidence.from_ranges(columns, place[rows])
    silent = columns["payload_bytes"] == MISSING
    first_child = np.full(len(table), MISSING, np.int64)
    inner = np.flatnonzero(nest.parent != MISSING)[::-1]
    first_child[nest.rows[nest.parent[inner]]] = nest.rows[inner]
    evidence.from_dims(columns, np.where(silent, first_child[rows], MISSING))


def _tell_fused(evidence: Evidence, columns: Columns, mine: I64, ops: Named) -> None:
    """Marks our own ranges in which an operation ran that does more than the collective, as its name says."""
    fused = ops.only([bool(item.fused) for item in ops.classifications])
    around = evidence.own.nest.row_of(
        evidence.own.nest.innermost(evidence.table.track[fused.rows], evidence.table.ts_ns[fused.rows])
    )
    call_of = {row: index for index, row in enumerate(columns["row"].tolist())}
    own = set(mine.tolist())
    for row, kind in zip(around.tolist(), fused.kind.tolist(), strict=True):
        if row in own:
            columns["fused"][call_of[row]] = evidence.vocabulary.code(fused.classifications[kind].fused)


def _exposed(table: EventTable, rows: I64) -> I64:
    """Time of the calls at which no operation of another thread of the rank ran."""
    found = table.dur_ns[rows].copy()
    ops = table.rows(Category.CPU_OP)
    for track in np.unique(table.track[rows]):
        mine = table.track[rows] == track
        others = ops[table.track[ops] != track]
        cover = intervals.coverage(table.ts_ns[others], table.end_ns[others])
        found[mine] -= cover.within(table.ts_ns[rows[mine]], table.end_ns[rows[mine]])
    return found
