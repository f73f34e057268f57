"""Single calls that stand out, described: the longest, and those that waited longest for the last rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mtpprof.analyzers.calls.steps import Steps
from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.calls.waits import longest, most_waited
from mtpprof.analyzers.traces.table import MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class Notable:
    """One call."""

    rank: int | None
    kind: str
    implementation: str
    phase: str
    site: str
    shape: str
    step: int | None
    start_ns: int
    """From the first call of the analysis."""
    dur_ns: int
    wait_ns: int | None
    payload_bytes: int | None
    transient: bool


def slowest(calls: Calls, steps: Steps, count: int = 10) -> tuple[Notable, ...]:
    """The longest calls, transients of the profiler's start included and marked."""
    return _described(calls, steps, longest(calls, count))


def most_skewed(calls: Calls, steps: Steps, count: int = 10) -> tuple[Notable, ...]:
    """The calls that waited longest for the last rank; only those whose wait is known."""
    return _described(calls, steps, most_waited(calls, count))


def _described(
    calls: Calls, steps: Steps, rows: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[Notable, ...]:
    origin = int(calls.ts_ns.min()) if len(calls) else 0
    step_row = steps.rows_of(calls.table, calls.step)
    return tuple(
        Notable(
            rank=_known(calls.rank[row]),
            kind=calls.text("kind", row),
            implementation=calls.text("implementation", row),
            phase=calls.text("phase", row),
            site=calls.text("site", row),
            shape=calls.text("shape", row),
            step=None if step_row[row] == MISSING else int(steps.number[step_row[row]]),
            start_ns=int(calls.ts_ns[row]) - origin,
            dur_ns=int(calls.dur_ns[row]),
            wait_ns=_known(calls.wait_ns[row]),
            payload_bytes=_known(calls.payload_bytes[row]),
            transient=bool(calls.transient[row]),
        )
        for row in rows.tolist()
    )


def _known(value: int | np.integer[Any]) -> int | None:
    return None if value == MISSING else int(value)
