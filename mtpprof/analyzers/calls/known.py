"""What a trace says of its calls: communication records, input dimensions, and our own ranges, written into the call columns.

The decision: sources are applied from the least to the surest, each overwriting what it knows better and nothing
else; whatever stays unknown keeps the reason why. Records and dimensions are looked at once per distinct combination,
not per call.

Whether something is fused into a call is never taken from our ranges, which say what was asked for: kernels and operations prove it.

Bytes of calls that the trace does not tell, from NVTX: NCCL says the size of every message that it is given.

A kernel is launched by the NCCL call around its launch. Where several calls of one group are launched together, the launch
lies in none of them, or in more than one, and their bytes stay unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof import ranges
from mtpprof.analyzers.calls.classify import kind_of_word
from mtpprof.analyzers.calls.links import Named, Nest
from mtpprof.analyzers.calls.payloads import Payload, from_dims, from_record
from mtpprof.analyzers.calls.table import Provenance, Vocabulary, new_columns
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.numeric.distinct import distinct_rows
from mtpprof.analyzers.traces.nvtx_beside import NvtxBeside
from mtpprof.analyzers.traces.table import MISSING, Category, EventTable, TraceMeta
from mtpprof.models.traffic import Algorithm, Kind

Columns = dict[str, NDArray[Any]]

RANGES = (Category.USER_ANNOTATION, Category.NVTX)
"""Categories in which our own ranges and those of engines appear on the CPU."""
BY_RECORD = "arguments of the kernel"
BY_OPERATION_RECORD = "communication record of the operation"
BY_RANGE = "mtpprof range"
BY_NVTX_RANGE = "measured (nvtx): mtpprof range"
BY_DIMS = "input dimensions of the operation"
NO_SOURCE = "neither the call nor an operation around it tells its size"
UNPROVED = "unknown"
"""What else ran in the kernel of a call whose range says that something did, in a trace without the kernels and operations to show it."""
IN_GRAPH = "replayed by a graph, whose calls carry no sizes"

_KINDS = frozenset(map(str, Kind))


def usual_group_size(meta: TraceMeta) -> int | None:
    """Size that a group has where a call does not say: the world's, unless the file lists groups between it and 1."""
    between = {group.size for group in meta.process_groups} - {1, meta.world_size}
    return None if between else meta.world_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnRanges:
    """mtpprof's own collective ranges in a table."""

    nest: Nest
    parsed: dict[int, ranges.CollectiveRange]
    """By code of the name."""

    @staticmethod
    def of(table: EventTable) -> OwnRanges:
        """All ranges of the table that read as collectives.

        One call of ours makes a torch range and an NVTX range; where a table has both, the torch ranges are taken.
        """
        for category in RANGES:
            rows = table.rows(category)
            parsed: dict[int, ranges.CollectiveRange] = {}
            for code in np.unique(table.name[rows]).tolist():
                item = ranges.parse_collective(table.names[code])
                if item is not None and item.kind in _KINDS:
                    parsed[code] = item
            if parsed:
                mine = rows[np.isin(table.name[rows], np.fromiter(parsed, np.int64))]
                return OwnRanges(nest=Nest.of(table, mine), parsed=parsed)
        return OwnRanges(nest=Nest.of(table, np.empty(0, np.int64)), parsed={})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """Writes into the columns of calls of one table."""

    table: EventTable
    vocabulary: Vocabulary
    own: OwnRanges

    @property
    def shows_work(self) -> bool:
        """Whether the trace has what would show which kernels ran: a fusion is then what they say, not what our ranges say."""
        return self.table.count(Category.KERNEL) > 0 or self.table.count(Category.CPU_OP) > 0

    def blank(self, rows: I64) -> Columns:
        """Columns of calls of which only the rows are known."""
        columns = new_columns(len(rows))
        columns["row"], columns["ts_ns"], columns["dur_ns"] = (
            rows,
            self.table.ts_ns[rows],
            self.table.dur_ns[rows],
        )
        columns["rank"][:] = MISSING if self.table.meta.rank is None else self.table.meta.rank
        columns["group_size"][:] = usual_group_size(self.table.meta) or MISSING
        columns["kind"][:] = self.vocabulary.code(Kind.UNKNOWN)
        columns["how"][:] = self.vocabulary.code(NO_SOURCE)
        return columns

    def from_names(self, calls: Named) -> Columns:
        """Columns of calls with what their names say."""
        columns = self.blank(calls.rows)
        for name in ("kind", "implementation", "algorithm", "fused"):
            codes = self.vocabulary.codes(getattr(item, name) for item in calls.classifications)
            columns[name] = codes[calls.kind] if len(codes) else np.zeros(0, np.int32)
        return columns

    def from_dims(self, columns: Columns, source: I64) -> None:
        """Payloads from the input dimensions of the rows `source`; -1: none."""
        at = np.flatnonzero(source != MISSING)
        if not len(at):
            return
        table, rows = self.table, source[at]
        distinct = distinct_rows(
            columns["kind"][at], table.dims[rows], table.types[rows], columns["group_size"][at]
        )
        payloads = [
            from_dims(
                Kind(self.vocabulary.texts[kind]),
                table.input_dims(dims),
                table.input_types(types),
                size if size != MISSING else None,
            )
            for kind, dims, types, size in distinct.rows.tolist()
        ]
        self._fill(columns, at, payloads, distinct.which, Provenance.DERIVED, BY_DIMS)

    def from_records(self, columns: Columns, source: I64, how: str) -> None:
        """Payloads, groups and sequence numbers from the communication records of the rows `source`; -1: none."""
        given = np.flatnonzero(source != MISSING)
        entry = self.table.collective_entries(source[given])
        at, entry = given[entry != MISSING], entry[entry != MISSING]
        if not len(at):
            return
        records, text = self.table.collectives, self.table.text
        names = ("name", "in_elems", "out_elems", "dtype", "group_size", "group", "group_ranks")
        distinct = distinct_rows(columns["kind"][at], *(getattr(records, name)[entry] for name in names))
        which = distinct.which
        payloads, kinds, groups = [], [], []
        for code, name, in_elems, out_elems, dtype, size, group, group_ranks in distinct.rows.tolist():
            kind = _refined(Kind(self.vocabulary.texts[code]), text(name))
            payloads.append(
                from_record(kind, in_elems, out_elems, text(dtype) or "", size if size > 0 else None)
            )
            kinds.append(self.vocabulary.code(kind))
            groups.append(self.vocabulary.code(_group(text(group), text(group_ranks))))
        columns["kind"][at] = np.array(kinds, np.int32)[which]
        columns["group"][at] = np.array(groups, np.int32)[which]
        columns["seq"][at] = records.seq[entry]
        self._fill(columns, at, payloads, which, Provenance.MEASURED, how)

    def from_ranges(self, columns: Columns, position: I64) -> None:
        """What our own ranges at `position` of their nest say of the calls within them; -1: none."""
        code = self.vocabulary.code
        for index in np.flatnonzero(position != MISSING).tolist():
            row = self.own.nest.rows[position[index]]
            item = self.own.parsed[int(self.table.name[row])]
            in_nvtx = self.table.category[row] == Category.NVTX
            known = {
                "kind": code(Kind(item.kind)),
                "site": code(item.site),
                "phase": code("" if item.phase == "none" else item.phase),
                "shape": code("x".join(map(str, item.shape))),
                "dtype": code(item.dtype),
                "group_size": item.group_size,
                "payload_bytes": item.payload_bytes,
                "provenance": Provenance.MEASURED,
                "how": code(BY_NVTX_RANGE if in_nvtx else BY_RANGE),
                "seq": item.sequence,
            }
            for name, value in known.items():
                columns[name][index] = value
            if not columns["implementation"][index]:
                columns["implementation"][index] = code(item.implementation)
                columns["algorithm"][index] = code(Algorithm.LOGICAL)
            columns["group"][index] = columns["group"][index] or code(item.group)
            if item.fused and not self.shows_work and not columns["fused"][index]:
                columns["fused"][index] = code(UNPROVED)

    def _fill(
        self, columns: Columns, at: I64, payloads: list[Payload], which: I64, provenance: Provenance, how: str
    ) -> None:
        for index, payload in enumerate(payloads):
            mine = at[which == index]
            if payload.shape is not None:
                columns["shape"][mine] = self.vocabulary.code("x".join(map(str, payload.shape)))
            if payload.dtype:
                columns["dtype"][mine] = self.vocabulary.code(payload.dtype)
            if payload.group_size is not None:
                columns["group_size"][mine] = payload.group_size
            if payload.payload_bytes is not None:
                columns["payload_bytes"][mine] = payload.payload_bytes
                columns["provenance"][mine] = provenance
                columns["how"][mine] = self.vocabulary.code(how)
            else:
                still = mine[columns["payload_bytes"][mine] == MISSING]
                columns["how"][still] = self.vocabulary.code(payload.why_not)


def _refined(kind: Kind, name: str | None) -> Kind:
    """Kind of a kernel whose name does not tell it, by the record: RCCL has one kernel, NCCL runs all-to-alls as send/recv."""
    told = kind_of_word(name or "")
    return told if kind in (Kind.UNKNOWN, Kind.SEND_RECV) and told is not Kind.UNKNOWN else kind


def _group(name: str | None, group_ranks: str | None) -> str:
    """Ranks of a group as `0,1,2,3`, or its name where the producer shortened or left out the list."""
    text = (group_ranks or "").strip("[]() ").replace(" ", "")
    if text and all(part.isdecimal() for part in text.split(",")):
        return text
    return name or ""


MEASURED_BY_NVTX = "measured (nvtx): NCCL's message size"


def tell_bytes(columns: Columns, nvtx: NvtxBeside, vocabulary: Vocabulary) -> None:
    """Fill in payload and group size of calls whose payload is unknown and whose launch lies in one NCCL call of their kind.

    Args:
        columns: Of the calls of one trace, times on the clock of its file.
        nvtx: The capture beside the trace.
        vocabulary: Of the columns.
    """
    calls = nvtx.calls
    asked = (columns["payload_bytes"] == MISSING) & (columns["launch_ns"] != MISSING)
    asked &= columns["graph"] == MISSING
    kind_of = vocabulary.codes(calls.kinds)
    for kind in np.unique(columns["kind"][asked]).tolist():
        mine = np.flatnonzero(kind_of[calls.kind] == kind)
        waiting = np.flatnonzero(asked & (columns["kind"] == kind))
        low, high = sorted(nvtx.shift_ns or (0, 0))
        around = only_around(
            calls.start_ns[mine] + low, calls.end_ns[mine] + high, columns["launch_ns"][waiting]
        )
        waiting, call = waiting[around != MISSING], mine[around[around != MISSING]]
        known = calls.payload_bytes[call] != MISSING
        waiting, call = waiting[known], call[known]
        columns["payload_bytes"][waiting] = calls.payload_bytes[call]
        columns["provenance"][waiting] = Provenance.MEASURED
        columns["how"][waiting] = vocabulary.code(MEASURED_BY_NVTX)
        size = calls.group_size[call]
        columns["group_size"][waiting] = np.where(size != MISSING, size, columns["group_size"][waiting])


def only_around(start: I64, end: I64, time: I64) -> I64:
    """For each time, which interval is the only one around it (both ends belong to it); -1: none is, or more than one.

    The intervals that began by then less those that had ended are those around it; where that is one, the difference of the
    sums of their numbers is its number.
    """
    by_start, by_end = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
    begun = np.searchsorted(start[by_start], time, side="right")
    ended = np.searchsorted(end[by_end], time, side="left")
    number = np.append(0, np.cumsum(by_start))[begun] - np.append(0, np.cumsum(by_end))[ended]
    return np.where(begun - ended == 1, number, MISSING)
