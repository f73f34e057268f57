"""Finds the NVTX capture of a trace's process and puts beside the trace what only NVTX knows.

A process writes one NVTX file for its whole life, since a communicator's size is told once, when it is made; of it, the
part within the trace's window is taken. Ranges that mtpprof emitted to both are in the trace already and are only counted.
All others become rows of the table, on the tracks of the same threads: attribution and exports then see them as they
see any other range. Times are not shifted, see `nvtxjoin`.

NVTX capture and torch trace of one rank on one clock.

mtpprof emits every range of its own to both, NVTX's around torch's. Both are on the real-time clock, so no shift is estimated
to make them fit; how far the clocks can be apart is measured instead. Since the NVTX range encloses the other, no start of the
trace can precede NVTX's and no end can follow it: the earliest start and the latest end of all pairs bracket the shift of the
clocks, and a process that lost its core in between does not widen the bracket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture, load_capture
from mtpprof.analyzers.traces.nvtx.nccl import nccl_calls
from mtpprof.analyzers.traces.nvtx.table import NvtxReader, event_table
from mtpprof.analyzers.traces.nvtx_beside import NvtxBeside, NvtxCalls
from mtpprof.analyzers.traces.table import EVENT_COLUMNS, MISSING, Category, EventTable, Track
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.errors import InputError
from mtpprof.nvtxformat import FILE_SUFFIX
from mtpprof.ranges import PREFIX
from mtpprof.rundir.directory import NVTX_FOLDER, RUN_FILE

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


SLACK_NS = 50_000_000
"""Ranges of one name that lie further apart are not the same."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvtxJoin:
    """Which rows are the same range."""

    nvtx_row: I64
    """Rows of the NVTX table, in order of time."""
    trace_row: I64
    """Row of the trace of each."""
    only_nvtx: int
    """Ranges within the trace's window that the trace lacks."""
    only_trace: int
    shift_ns: tuple[int, int] | None
    """The trace's clock less NVTX's lies between these (the first above the second: they moved meanwhile); None: no pair."""

    @property
    def residual_ns(self) -> int | None:
        """By how much the clocks may disagree at most; None: nothing is in both."""
        return None if self.shift_ns is None else max(abs(bound) for bound in self.shift_ns)

    def __len__(self) -> int:
        return len(self.nvtx_row)


def join(nvtx: EventTable, trace: EventTable) -> NvtxJoin:
    """Pair mtpprof's own ranges of two tables of one rank.

    Args:
        nvtx: From an NVTX capture, which may hold more than the trace's window.
        trace: From the torch profiler.
    """
    codes: dict[str, int] = {}
    a_row, a_code, a_ts = _own_ranges(nvtx, codes)
    b_row, b_code, b_ts = _own_ranges(trace, codes)
    if len(b_ts):
        inside = (a_ts >= b_ts.min() - SLACK_NS) & (a_ts <= b_ts.max() + SLACK_NS)
        a_row, a_code, a_ts = a_row[inside], a_code[inside], a_ts[inside]
    else:
        a_row, a_code, a_ts = a_row[:0], a_code[:0], a_ts[:0]
    a_at, b_at = _pairs(a_code, a_ts, b_code, b_ts)
    order = np.argsort(a_ts[a_at], kind="stable")
    a_at, b_at = a_at[order], b_at[order]
    nvtx_row, trace_row = a_row[a_at], b_row[b_at]
    start_distance = b_ts[b_at] - a_ts[a_at]
    end_distance = start_distance + trace.dur_ns[trace_row] - nvtx.dur_ns[nvtx_row]
    return NvtxJoin(
        nvtx_row=nvtx_row,
        trace_row=trace_row,
        only_nvtx=_unpaired_inside(a_ts, a_at, b_ts),
        only_trace=len(b_ts) - len(b_at),
        shift_ns=(int(end_distance.max()), int(start_distance.min())) if len(nvtx_row) else None,
    )


def _own_ranges(table: EventTable, codes: dict[str, int]) -> tuple[I64, I64, I64]:
    """Rows, name codes and absolute starts of mtpprof's own ranges; none where the file does not tell its base."""
    starts = table.absolute_ns()
    if starts is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    own = np.array(
        [codes.setdefault(name, len(codes)) if name.startswith(PREFIX) else -1 for name in table.names],
        np.int64,
    )
    rows = table.rows(Category.NVTX, Category.USER_ANNOTATION)
    rows = rows[own[table.name[rows]] >= 0] if len(rows) else rows
    return rows, own[table.name[rows]] if len(rows) else np.empty(0, np.int64), starts[rows]


def _pairs(a_code: I64, a_ts: I64, b_code: I64, b_ts: I64) -> tuple[I64, I64]:
    """Positions that belong together: each range of the trace with the nearest of its name that no earlier one has taken."""
    a_order, b_order = np.lexsort((a_ts, a_code)), np.lexsort((b_ts, b_code))
    found_a: list[int] = []
    found_b: list[int] = []
    codes = np.intersect1d(a_code, b_code)
    a_edges = np.searchsorted(a_code[a_order], [codes, codes + 1])
    b_edges = np.searchsorted(b_code[b_order], [codes, codes + 1])
    for a_first, a_end, b_first, b_end in zip(*a_edges.tolist(), *b_edges.tolist(), strict=True):
        a, b = a_order[a_first:a_end], b_order[b_first:b_end]
        free = 0
        for position, start in zip(b.tolist(), b_ts[b].tolist(), strict=True):
            at = free + int(np.searchsorted(a_ts[a[free:]], start, side="right"))
            near = min(
                (k for k in (at - 1, at) if free <= k < len(a)),
                key=lambda k: abs(int(a_ts[a[k]]) - start),
                default=-1,
            )
            if near >= 0 and abs(int(a_ts[a[near]]) - start) <= SLACK_NS:
                found_a.append(int(a[near]))
                found_b.append(position)
                free = near + 1
    return np.array(found_a, np.int64), np.array(found_b, np.int64)


def _unpaired_inside(a_ts: I64, a_at: I64, b_ts: I64) -> int:
    """NVTX ranges between the first and the last of the trace that have no partner there."""
    if not len(b_ts):
        return 0
    inside = (a_ts >= b_ts.min()) & (a_ts <= b_ts.max())
    inside[a_at] = False
    return int(np.count_nonzero(inside))
