"""Bytes of calls that the trace does not tell, from NVTX: NCCL says the size of every message that it is given.

A kernel is launched by the NCCL call around its launch. Where several calls of one group are launched together, the launch
lies in none of them, or in more than one, and their bytes stay unknown.
"""

from __future__ import annotations

import numpy as np

from mtpprof.analyzers.calls import Provenance, Vocabulary
from mtpprof.analyzers.evidence import Columns
from mtpprof.analyzers.nvtxbeside import NvtxBeside
from mtpprof.analyzers.table import I64, MISSING

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
