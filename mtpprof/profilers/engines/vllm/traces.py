"""Waiting for the trace files of all ranks, checking that each is whole, and moving them into the run directory.

vLLM answers before the last rank has written, and a rank that was killed leaves a file cut off; a trace counts only when its gzip
stream ends properly and its JSON is closed.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from mtpprof.errors import RunError
from mtpprof.files import trace_is_whole

POLL_S = 0.2
_RANK = re.compile(r"_rank(\d+)\.")


def collect(
    source: Path,
    prefix: str,
    folder: Path,
    ranks: int,
    timeout_s: float,
    alive: Callable[[str | None], None] = lambda _: None,
) -> list[Path]:
    """Move the traces of one window to `folder/rank<r>.pt.trace.json.gz`.

    Args:
        source: where vLLM writes.
        prefix: of the files' names.
        folder: of the arm.
        ranks: number of ranks that must have written one.
        timeout_s: how long to wait for the last.
        alive: called while waiting.

    Raises:
        RunError: a rank wrote none in time, or one that is cut off; names the ranks.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = find(source, prefix)
        state = {rank: trace_is_whole(path) for rank, path in found.items()}
        waiting = [rank for rank in range(ranks) if not state.get(rank)]
        if not waiting:
            break
        if time.monotonic() > deadline_s:
            raise RunError(_sentence(source, found, waiting, timeout_s))
        alive(None)
        time.sleep(POLL_S)
    folder.mkdir(parents=True, exist_ok=True)
    moved = []
    for rank in range(ranks):
        target = folder / f"rank{rank}.pt.trace.json.gz"
        shutil.move(found[rank], target)
        moved.append(target)
    return moved


def _sentence(source: Path, found: dict[int, Path], waiting: list[int], timeout_s: float) -> str:
    none = [rank for rank in waiting if rank not in found]
    cut = [rank for rank in waiting if rank in found]
    parts = []
    if none:
        parts.append(f"no trace of rank {', '.join(map(str, none))} appeared in {source}")
    if cut:
        parts.append(f"the trace of rank {', '.join(map(str, cut))} in {source} is cut off")
    return (
        f"{' and '.join(parts)} within {timeout_s:g} s; if ranks are on other hosts, the run directory must be on storage "
        f"that all of them share."
    )


def find(source: Path, prefix: str) -> dict[int, Path]:
    """Newest trace of each rank among the files that start with `prefix`."""
    found: dict[int, Path] = {}
    for path in sorted(source.glob(f"{prefix}_*.pt.trace.json*"), key=lambda path: path.stat().st_mtime_ns):
        match = _RANK.search(path.name)
        if match:
            found[int(match[1])] = path
    return found
