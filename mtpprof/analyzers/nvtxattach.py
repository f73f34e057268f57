"""Finds the NVTX capture of a trace's process and puts beside the trace what only NVTX knows.

A process writes one NVTX file for its whole life, since a communicator's size is told once, when it is made; of it, the
part within the trace's window is taken. Ranges that mtpprof emitted to both are in the trace already and are only counted.
All others become rows of the table, on the tracks of the same threads: attribution and exports then see them as they
see any other range. Times are not shifted, see `nvtxjoin`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mtpprof.analyzers.nvtxbeside import NvtxBeside, NvtxCalls
from mtpprof.analyzers.nvtxjoin import NvtxJoin, join
from mtpprof.analyzers.nvtxnccl import nccl_calls
from mtpprof.analyzers.readers.nvtx import NvtxCapture, load_capture
from mtpprof.analyzers.readers.nvtxtable import NvtxReader, event_table
from mtpprof.analyzers.table import EVENT_COLUMNS, I64, MISSING, EventTable, Track
from mtpprof.analyzers.verdicts import Verdict
from mtpprof.errors import InputError
from mtpprof.nvtxformat import FILE_SUFFIX
from mtpprof.rundir import NVTX_FOLDER, RUN_FILE

_KEPT_CAPTURES = 64
"""A run's arms share the captures of its processes."""
_RANKED = re.compile(r"rank(\d+)\.")
_USUAL = frozenset({Verdict.NOT_CLOSED, Verdict.OPEN_RANGES})
"""Nothing wrong here: workers leave without exit handlers, and what was open then lies outside every window."""


def attach(table: EventTable) -> EventTable:
    """The table with the NVTX of its process: ranges as rows, and `EventTable.nvtx`.

    The same table where nothing was captured, or the trace does not tell its base of time.
    """
    base = table.meta.base_time_ns
    if base is None or not len(table) or table.meta.reader == NvtxReader.name:
        return table
    folders = [folder for folder in _folders(Path(table.meta.path)) if folder.is_dir()]
    files = [path for folder in folders for path in sorted(folder.glob(f"*{FILE_SUFFIX}"))]
    captures, refused = [], []
    for path in files:
        if table.meta.rank is not None and _rank_by_name(path) not in (None, table.meta.rank):
            continue
        try:
            captures.append(_load(path, path.stat().st_mtime_ns))
        except (InputError, OSError) as error:
            refused.append(str(error))
    window = int(table.ts_ns[0]) + base, int(table.end_ns.max()) + base
    found = _of_process(captures, table, window)
    if found is not None:
        return beside(table, found)
    if not files and len(folders) < 2:
        return table
    reason = " ".join(refused) or (
        f"{folders[-1]}: none of {len(files)} NVTX captures is of its process and its time; "
        f"the capture library was not loaded there, or no range was emitted."
    )
    return replace(table, nvtx=NvtxBeside.absent(str(folders[-1]), reason))


def _folders(trace: Path) -> list[Path]:
    """Where the NVTX of a trace may lie: beside it, and in the folder of the run that it is an arm of."""
    run = trace.absolute().parent.parent.parent
    return [trace.parent, *([run / NVTX_FOLDER] if (run / RUN_FILE).is_file() else [])]


def beside(table: EventTable, capture: NvtxCapture) -> EventTable:
    """`table` with a capture of its process, whatever process it says."""
    base = table.meta.base_time_ns or 0
    nvtx = event_table(capture)
    starts = nvtx.absolute_ns()
    if starts is None:
        starts = np.empty(0, np.int64)
    joined = join(nvtx, table)
    first, last = int(table.ts_ns[0]) + base, int(table.end_ns.max()) + base
    inside = (starts >= first) & (starts + nvtx.dur_ns <= last)
    merged = _with_rows(table, nvtx, _only_in_nvtx(inside, joined), starts - base)
    return replace(
        merged,
        nvtx=NvtxBeside(
            path=capture.path,
            ranges=int(np.count_nonzero(inside)),
            joined=len(joined),
            only_nvtx=joined.only_nvtx,
            only_trace=joined.only_trace,
            shift_ns=joined.shift_ns,
            calls=_calls(capture, first, last, base),
            remarks=tuple(item.sentence for item in capture.problems if item.verdict not in _USUAL),
        ),
    )


def _rank_by_name(path: Path) -> int | None:
    """What the capture library put into the name; saves reading the files of the other ranks."""
    found = _RANKED.match(path.name)
    return int(found[1]) if found else None


@lru_cache(maxsize=_KEPT_CAPTURES)
def _load(path: Path, changed_ns: int) -> NvtxCapture:
    """`changed_ns`: when the file was changed last; a file that still grows is read again."""
    return load_capture(path)


def _of_process(
    captures: list[NvtxCapture], table: EventTable, window_ns: tuple[int, int]
) -> NvtxCapture | None:
    """The capture of the table's process: by its id, else by its rank; of several the one with most in the window."""
    rank = table.meta.rank
    pids = {track.pid for track in table.tracks}
    fitting = [item for item in captures if item.pid in pids and item.rank in (None, rank)]
    fitting = fitting or [item for item in captures if rank is not None and item.rank == rank]
    counts = [
        int(np.count_nonzero((item.ts_ns >= window_ns[0]) & (item.ts_ns <= window_ns[1]))) for item in fitting
    ]
    most = max(counts, default=0)
    return fitting[counts.index(most)] if most else None


def _only_in_nvtx(inside: np.ndarray[Any, np.dtype[np.bool_]], joined: NvtxJoin) -> I64:
    """Rows of the NVTX table to be added."""
    keep = inside.copy()
    keep[joined.nvtx_row] = False
    return np.flatnonzero(keep)


def _with_rows(table: EventTable, nvtx: EventTable, rows: I64, ts_ns: I64) -> EventTable:
    """The table with rows of another, at `ts_ns` (of all its rows) on the table's clock."""
    if not len(rows):
        return table
    tracks, track_of = _tracks(table, nvtx)
    codes = {name: code for code, name in enumerate(table.names)}
    name_of = np.array([codes.setdefault(name, len(codes)) for name in nvtx.names], np.int32)
    added: dict[str, Any] = {
        "ts_ns": ts_ns[rows],
        "name": name_of[nvtx.name[rows]],
        "track": track_of[nvtx.track[rows]],
    }
    columns = {
        name: np.concatenate([getattr(table, name), added.get(name, getattr(nvtx, name)[rows])])
        for name in EVENT_COLUMNS
    }
    order = np.argsort(columns["ts_ns"], kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    arrays: dict[str, Any] = {
        name: column[order].astype(EVENT_COLUMNS[name]) for name, column in columns.items()
    }
    records = table.collectives
    return replace(
        table,
        **arrays,
        names=tuple(codes),
        tracks=tracks,
        collectives=records.take(np.arange(len(records)), place[records.row]),
    )


def _tracks(table: EventTable, nvtx: EventTable) -> tuple[tuple[Track, ...], I64]:
    """Tracks of both, those of one thread once, and the code of each of NVTX's."""
    thread_of = {(track.pid, track.tid): code for code, track in reversed([*enumerate(table.tracks)])}
    tracks, codes = list(table.tracks), []
    for track in nvtx.tracks:
        code = thread_of.get((track.pid, track.tid), MISSING)
        if code == MISSING:
            code = len(tracks)
            tracks.append(track)
            thread_of[track.pid, track.tid] = code
        codes.append(code)
    return tuple(tracks), np.array(codes, np.int64)


def _calls(capture: NvtxCapture, first_ns: int, last_ns: int, base_ns: int) -> NvtxCalls:
    """NCCL's calls within a window."""
    found = nccl_calls(capture)
    start, dur = capture.ts_ns[found.row], capture.dur_ns[found.row]
    kept = np.flatnonzero((start >= first_ns) & (start + dur <= last_ns) & (dur >= 0))
    return NvtxCalls(
        start_ns=start[kept] - base_ns,
        end_ns=(start + dur)[kept] - base_ns,
        kind=found.function[kept],
        kinds=found.kinds,
        payload_bytes=found.payload_bytes[kept],
        group_size=found.ranks[kept],
    )
