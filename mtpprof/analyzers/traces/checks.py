"""Verdicts on what a table holds: whether the answers computed from it can be trusted.

Readers find what is wrong with a file's text, discovery what is wrong with a set of files; the doctor looks at the events.
Each check is a row of `CHECKS`: a function from a table to the sentence of its verdict, or None. Thresholds stand beside
the check with the reason for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.traces.table import MISSING, Category, EventTable, TraceSet
from mtpprof.analyzers.traces.verdicts import Problem, Verdict

_ON_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
_WORK = (*_ON_DEVICE, Category.CPU_OP, Category.RUNTIME)

_LAUNCH = re.compile(r"^(?:cuda|cu|hip)\w*Launch\w*Kernel")
_GRAPH_LAUNCH = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")
_CAPTURE_RANGE = re.compile(r"^capture_\d+_")

_MIN_LOST = 10
_MIN_LOST_SHARE = 0.02
"""Healthy traces lose none; a few at the edges of a window change no answer."""
_IDLE_SHARE = 0.01
_IDLE_WINDOW_NS = 50_000_000
_LONGEST_NS = 3600 * 10**9
_ROUND_LIMIT = 1_000_000
"""Some producers stop silently at this many events."""
_UNEVEN_CLOCKS_NS = 10 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found."""

    sentence: str
    count: int | None = None


Check = Callable[[EventTable], Finding | None]


def diagnose(table: EventTable) -> list[Problem]:
    """Verdicts on the events of one table, beside those it already carries; empty: nothing further."""
    path = table.meta.path
    found = [
        Problem(
            verdict=verdict,
            sentence=f"{path}: {finding.sentence}.",
            path=path,
            rank=table.meta.rank,
            count=finding.count,
        )
        for verdict, check in CHECKS
        if (finding := check(table)) is not None
    ]
    return found


def diagnose_set(traces: TraceSet) -> list[Problem]:
    """Verdicts on a set of tables as a whole: which ranks are there, and whether their clocks compare."""
    checks = (_missing_ranks, _unknown_world, _unaligned_clocks)
    return [problem for check in checks if (problem := check(traces)) is not None]


def _no_events(table: EventTable) -> Finding | None:
    if table.meta.events_total:
        return None
    return Finding(sentence="it holds no event")


def _metadata_only(table: EventTable) -> Finding | None:
    """No event with a start and a length: what the others are is said, not why there are no more."""
    if len(table) or not table.meta.events_total:
        return None
    total, phases = table.meta.events_total, table.meta.phases
    if set(phases) == {"M"}:
        return Finding(sentence=f"its {total:,} events are all metadata")
    kinds = ", ".join(f"{count:,} {phase or 'without a phase'}" for phase, count in sorted(phases.items()))
    return Finding(sentence=f"none of its {total:,} events has a start and a length (by phase: {kinds})")


def _no_kernels(table: EventTable) -> Finding | None:
    if not len(table) or table.count(Category.KERNEL):
        return None
    if len(_launches(table, _LAUNCH)):
        return None
    return Finding(sentence="it holds no GPU kernel: what it shows is the CPU's side")


def _out_of_range(table: EventTable) -> Finding | None:
    work = table.rows(*_WORK)
    if table.meta.window_ns is None or not len(work):
        return None
    start_ns, end_ns = table.meta.window_ns
    outside = (table.end_ns[work] < start_ns) | (table.ts_ns[work] > end_ns)
    if not outside.all():
        return None
    return Finding(
        sentence=f"all of its {len(work):,} events lie outside the profiler's window", count=len(work)
    )


def _idle_window(table: EventTable) -> Finding | None:
    """Less than 1 % busy over 50 ms or more: the window was open while nothing was served."""
    kernels = table.rows(*_ON_DEVICE)
    work = kernels if len(kernels) else table.rows(Category.CPU_OP, Category.USER_ANNOTATION)
    if not len(work):
        return None
    starts, ends = table.ts_ns[work], table.end_ns[work]
    window = table.meta.window_ns or (int(starts.min()), int(ends.max()))
    length_ns = window[1] - window[0]
    busy_ns = _covered_ns(starts, ends)
    if length_ns < _IDLE_WINDOW_NS or busy_ns >= _IDLE_SHARE * length_ns:
        return None
    return Finding(
        sentence=f"of its window of {length_ns / 1e6:,.0f} ms only {busy_ns / 1e6:,.1f} ms hold any work that it shows"
    )


def _dropped_events(table: EventTable) -> Finding | None:
    """Launches on the CPU against the work on the device that they led to; the profiler's own count is always 0."""
    if table.meta.events_total == _ROUND_LIMIT:
        return Finding(
            sentence=f"it holds exactly {_ROUND_LIMIT:,} events, at which some profilers stop silently"
        )
    on_device = np.unique(table.correlation[table.rows(*_ON_DEVICE)])
    launches, graphs = _launches(table, _LAUNCH), _launches(table, _GRAPH_LAUNCH)
    lost = int(np.count_nonzero(~np.isin(table.correlation[launches], on_device)))
    lost_graphs = int(np.count_nonzero(~np.isin(table.correlation[graphs], on_device)))
    reasons = []
    if lost >= _MIN_LOST and lost >= _MIN_LOST_SHARE * len(launches):
        reasons.append(f"{lost:,} of {len(launches):,} kernel launches have no kernel")
    if lost_graphs:
        reasons.append(f"{lost_graphs:,} of {len(graphs):,} graph launches have no kernel")
    if not reasons:
        return None
    return Finding(sentence=f"{' and '.join(reasons)}: the profiler dropped events", count=lost + lost_graphs)


def _overlapping_lanes(table: EventTable) -> Finding | None:
    """Kernels of one stream that start before the one before them has ended, as programmatic launches do."""
    kernels = table.rows(Category.KERNEL)
    if not len(kernels):
        return None
    lane = table.device[kernels].astype(np.int64) << 32 | table.stream[kernels].astype(np.int64) & 0xFFFFFFFF
    order = np.argsort(lane, kind="stable")
    starts, ends, lane = table.ts_ns[kernels][order], table.end_ns[kernels][order], lane[order]
    count = int(np.count_nonzero((lane[1:] == lane[:-1]) & (starts[1:] < ends[:-1])))
    if not count:
        return None
    return Finding(
        sentence=f"{count:,} kernels start before the kernel before them on the same stream has ended; "
        f"such time is counted once",
        count=count,
    )


def _corrupt_durations(table: EventTable) -> Finding | None:
    """A single event longer than an hour, in a window that is not: units were mixed up, or an end was never written."""
    long = table.dur_ns > _LONGEST_NS
    count = int(np.count_nonzero(long))
    if not count:
        return None
    return Finding(sentence=f"{count:,} events claim to last longer than an hour", count=count)


def _unnamed_events(table: EventTable) -> Finding | None:
    """Events without a name may be collectives: kernels, or where there is none operations and ranges."""
    kernels = table.rows(Category.KERNEL)
    rows = kernels if len(kernels) else table.rows(Category.CPU_OP, Category.USER_ANNOTATION, Category.NVTX)
    empty = np.array([not name.strip() for name in table.names], np.bool_)
    count = int(np.count_nonzero(empty[table.name[rows]])) if len(rows) else 0
    if not count:
        return None
    what = "kernels" if len(kernels) else "operations and ranges"
    return Finding(
        sentence=f"{count:,} of its {len(rows):,} {what} have no name, and may be collectives", count=count
    )


def _capture_trace(table: EventTable) -> Finding | None:
    ranges = table.name[table.rows(Category.USER_ANNOTATION)]
    if not len(ranges):
        return None
    captures = np.array([bool(_CAPTURE_RANGE.match(name)) for name in table.names])
    if 2 * np.count_nonzero(captures[ranges]) <= len(ranges):
        return None
    return Finding(
        sentence="its ranges are those of CUDA graph capture, which runs each kernel without serving anything"
    )


CHECKS: tuple[tuple[Verdict, Check], ...] = (
    (Verdict.NO_EVENTS, _no_events),
    (Verdict.METADATA_ONLY, _metadata_only),
    (Verdict.NO_KERNELS, _no_kernels),
    (Verdict.OUT_OF_RANGE, _out_of_range),
    (Verdict.IDLE_WINDOW, _idle_window),
    (Verdict.DROPPED_EVENTS, _dropped_events),
    (Verdict.OVERLAPPING_LANES, _overlapping_lanes),
    (Verdict.UNNAMED_EVENTS, _unnamed_events),
    (Verdict.CORRUPT_DURATIONS, _corrupt_durations),
    (Verdict.CAPTURE_TRACE, _capture_trace),
)
"""Registry of checks on one table."""


def _missing_ranks(traces: TraceSet) -> Problem | None:
    missing = traces.missing_ranks
    if not missing or not traces.ranks:
        return None
    return Problem(
        verdict=Verdict.MISSING_RANKS,
        sentence=f"{traces.label}: the run has {traces.world_size} ranks; there is no trace of {_listed(missing)}.",
        count=len(missing),
    )


def _unknown_world(traces: TraceSet) -> Problem | None:
    if traces.world_size is not None or not traces.tables:
        return None
    sizes = sorted({table.meta.world_size for table in traces.tables if table.meta.world_size is not None})
    why = f"its files disagree ({', '.join(map(str, sizes))})" if sizes else "no file says it"
    return Problem(
        verdict=Verdict.UNKNOWN_WORLD,
        sentence=f"{traces.label}: how many ranks the run had is unknown, {why}; ranks may be missing.",
    )


def _unaligned_clocks(traces: TraceSet) -> Problem | None:
    """Starts on one clock are at most seconds apart; no base, or starts far apart, mean that the clocks differ."""
    tables = [table for table in traces.tables if len(table)]
    if len(tables) < 2:
        return None
    starts = [
        table.meta.base_time_ns + int(table.ts_ns[0])
        for table in tables
        if table.meta.base_time_ns is not None
    ]
    if len(starts) < len(tables):
        reason = f"{len(tables) - len(starts)} of its {len(tables)} files do not say the base of their times"
    elif max(starts) - min(starts) > _UNEVEN_CLOCKS_NS:
        reason = f"its ranks begin {(max(starts) - min(starts)) / 1e9:,.1f} s apart by their own clocks"
    else:
        return None
    return Problem(verdict=Verdict.UNALIGNED_CLOCKS, sentence=f"{traces.label}: {reason}.")


def _launches(table: EventTable, names: re.Pattern[str]) -> NDArray[Any]:
    """Rows of runtime calls of these names that say what they launched."""
    rows = table.rows(Category.RUNTIME)
    matching = np.array([bool(names.match(name)) for name in table.names], np.bool_)
    return rows[matching[table.name[rows]] & (table.correlation[rows] != MISSING)] if len(rows) else rows


def _covered_ns(starts: NDArray[Any], ends: NDArray[Any]) -> int:
    """Length of the union of intervals that are sorted by start."""
    reached = np.maximum.accumulate(ends)
    gaps = np.maximum(starts[1:] - reached[:-1], 0)
    return int(reached[-1] - starts[0] - gaps.sum())


def _listed(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown
