"""mtpprof's own JSON exports read back: one file with the ranks of one run, each a process of it.

The decision: an export says in its metadata (`mtpprof`) which rank each of its processes is, so it comes back as the
tables that it was made of. An export of several runs or arms does not: their times were laid side by side, which is a
picture and no measurement any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mtpprof.analyzers.traces.readers import metadata
from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.table import EventTable
from mtpprof.analyzers.traces.verdicts import Verdict

KEY = "mtpprof"
"""Of the metadata: `{"arms": [names], "processes": [metadata of the rank with pid 1, of the one with pid 2, …]}`."""


def is_merged(values: Mapping[str, Any]) -> bool:
    """Whether a file with this metadata is an export of several ranks or arms."""
    return len(_list(values, "processes")) > 1


def split(path: Path, table: EventTable, values: Mapping[str, Any]) -> tuple[EventTable, ...]:
    """The tables of the ranks of an export.

    Raises:
        TraceFormatError: it is one of several arms.
    """
    if len(_list(values, "arms")) != 1:
        reason = "is an export of several runs laid side by side, not the traces that it was made of"
        raise TraceFormatError(str(path), reason, verdict=Verdict.NOT_A_TRACE)
    pids = np.array([track.pid if isinstance(track.pid, int) else 0 for track in table.tracks], np.int64)
    of_row = pids[table.track] if len(table) else np.empty(0, np.int64)
    tables = []
    for number, process in enumerate(_list(values, "processes"), start=1):
        told = metadata.trace_meta(path, table.meta.reader, process if isinstance(process, dict) else {})
        meta = replace(
            table.meta,
            rank=told.rank,
            world_size=told.world_size,
            host=told.host,
            backend=told.backend,
            process_groups=told.process_groups,
            devices=told.devices,
        )
        tables.append(replace(table.select(of_row == number), meta=meta))
    return tuple(tables)


def _list(values: Mapping[str, Any], key: str) -> list[Any]:
    own = values.get(KEY)
    found = own.get(key) if isinstance(own, dict) else None
    return found if isinstance(found, list) else []
