"""Calls and bytes per step without a trace: what the ledger expects, and what the seam itself said in a profiled window.

The decision: the NVTX capture of one rank holds our ranges alone where only we annotate, a few megabytes for a whole run, and can be read
while the run goes on. So an arm's calls and bytes are known as soon as its profiled window has ended, for a hundredth of what reading its
traces costs the cores that are being measured. A capture that is large, or that lost events, gives no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mtpprof import ranges
from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture, load_capture
from mtpprof.errors import InputError
from mtpprof.models.ledger import Workload
from mtpprof.models.optimizations.catalogue import expected_collectives
from mtpprof.models.spec import ModelSpec
from mtpprof.nvtxformat import FILE_SUFFIX
from mtpprof.rundir.directory import RunDirectory

MAX_BYTES = 64 << 20
"""Captures above this are not cheap to read."""
FIRST_RANK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PerStep:
    """Collectives of one step on one rank."""

    calls: float
    payload_bytes: float


def expected_per_step(spec: ModelSpec, workload: Workload, enabled: frozenset[str]) -> PerStep:
    """What the ledger of an arm says."""
    entries = expected_collectives(spec, workload, enabled)
    return PerStep(
        calls=sum(entry.count for entry in entries),
        payload_bytes=sum(entry.total_payload_bytes for entry in entries),
    )


def cheap_captures(directory: RunDirectory) -> list[NvtxCapture]:
    """The captures of the first rank, as far as they have got; those that are large or cannot be read are left out.

    Of processes that were not told their rank (vLLM's) all are taken: whichever has a window speaks for it, since ranks issue the same.
    """
    try:
        paths = sorted(directory.nvtx.glob(f"*{FILE_SUFFIX}"))
    except OSError:
        return []
    first = [path for path in paths if path.name.startswith(f"rank{FIRST_RANK}.")]
    paths = first or [path for path in paths if path.name.startswith("pid")]
    return [capture for path in paths if (capture := _read(path)) is not None]


def _read(path: Path) -> NvtxCapture | None:
    try:
        return load_capture(path) if path.stat().st_size <= MAX_BYTES else None
    except (InputError, OSError):
        return None


def seen_per_step(captures: Iterable[NvtxCapture], start_ns: int, end_ns: int) -> PerStep | None:
    """What was seen in a window.

    Args:
        captures: Of one rank, of one or more sessions.
        start_ns: When the window began, since the epoch.
        end_ns: When it ended.

    Returns:
        None: no step of it was recorded, or events were lost.
    """
    found = [_seen(capture, start_ns, end_ns) for capture in captures if not capture.dropped_events]
    return next((item for item in found if item is not None), None)


def _seen(capture: NvtxCapture, start_ns: int, end_ns: int) -> PerStep | None:
    if not len(capture):
        return None
    heads = [ranges.split(name) for name in capture.names]
    is_step = np.array([head is not None and head[0] == ranges.STEP for head in heads], np.bool_)
    payloads = np.array([_payload(name) for name in capture.names], np.int64)
    inside = (capture.ts_ns >= start_ns) & (capture.ts_ns <= end_ns) & (capture.dur_ns >= 0)
    steps = np.flatnonzero(inside & is_step[capture.name])
    if not len(steps):
        return None
    first, last = capture.ts_ns[steps], capture.ts_ns[steps] + capture.dur_ns[steps]
    calls = np.flatnonzero(inside & (payloads[capture.name] >= 0))
    place = np.searchsorted(first, capture.ts_ns[calls], side="right") - 1
    calls = calls[(place >= 0) & (capture.ts_ns[calls] < last[np.maximum(place, 0)])]
    return PerStep(
        calls=len(calls) / len(steps), payload_bytes=int(payloads[capture.name[calls]].sum()) / len(steps)
    )


def _payload(name: str) -> int:
    call = ranges.parse_collective(name)
    return -1 if call is None else call.payload_bytes


def windows_seen(
    directory: RunDirectory, windows: Sequence[tuple[str, str, int, int]]
) -> dict[tuple[str, str], PerStep]:
    """What was seen in the profiled windows of a run.

    Args:
        directory: The run.
        windows: Case, arm, start and end of each.

    Returns:
        By case and arm; windows of which nothing is known are left out.
    """
    captures = cheap_captures(directory) if windows else []
    found = {(case, arm): seen_per_step(captures, start, end) for case, arm, start, end in windows}
    return {key: item for key, item in found.items() if item is not None}
