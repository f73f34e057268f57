"""Bytes of calls that the trace does not tell, from NVTX: NCCL says the size of every message that it is given.

A kernel is launched by the NCCL call around its launch. Where several calls of one group are launched together, the launch
lies in none of them, or in more than one, and their bytes stay unknown.
"""

from __future__ import annotations

import numpy as np

from mtpprof.analyzers.calls import Provenance, Vocabulary
from mtpprof.analyzers.evidence import Columns
from mtpprof.analyzers.nvtxbeside import NvtxBeside
from mtpprof.analyzers.table import MISSING

MEASURED_BY_NVTX = "measured (nvtx): NCCL's message size"


def tell_bytes(columns: Columns, nvtx: NvtxBeside, vocabulary: Vocabulary) -> None:
    """Fill in payload and group size of calls whose payload is unknown and whose launch lies in one NCCL call of their kind.

    Args:
        columns: Of the calls of one trace, times on the clock of its file.
        nvtx: The capture beside the trace.
        vocabulary: Of the columns.
    """
    calls = nvtx.calls
    if not len(calls):
        return
    low, high = sorted(nvtx.shift_ns or (0, 0))
    kinds = vocabulary.codes(calls.kinds)[calls.kind]
    asked = (columns["payload_bytes"] == MISSING) & (columns["launch_ns"] != MISSING)
    asked &= columns["graph"] == MISSING
    for index in np.flatnonzero(asked).tolist():
        launch = int(columns["launch_ns"][index])
        around = (calls.start_ns + low <= launch) & (launch <= calls.end_ns + high)
        around &= (kinds == columns["kind"][index]) & (calls.payload_bytes != MISSING)
        fitting = np.flatnonzero(around)
        if len(fitting) != 1:
            continue
        call = int(fitting[0])
        columns["payload_bytes"][index] = calls.payload_bytes[call]
        columns["provenance"][index] = Provenance.MEASURED
        columns["how"][index] = vocabulary.code(MEASURED_BY_NVTX)
        if calls.group_size[call] != MISSING:
            columns["group_size"][index] = calls.group_size[call]
