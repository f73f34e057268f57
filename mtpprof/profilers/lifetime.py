"""Nothing outlives its run: tying child processes to their parent, and cleaning up after them.

Linux ties a child to the thread that started it (`PR_SET_PDEATHSIG`), which covers a parent killed with SIGKILL. Elsewhere the process
group that `supervise` kills is the only net.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from mtpprof.models.reference.collectives.shm_limits import SHM_DIR

_PR_SET_PDEATHSIG = 1
PROC = Path("/proc")
KILL_PATIENCE_S = 5.0
"""How long the kernel may take to end a killed process; only one in uninterruptible sleep takes longer."""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_group(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End a process and all of its group: SIGTERM, and SIGKILL to whatever is left after `grace_s`."""
    group = process.pid
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_PATIENCE_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        deadline_s = time.monotonic() + patience_s
        process.poll()  # reap it, so that it does not count
        while group_alive(group) and time.monotonic() < deadline_s:
            time.sleep(0.05)
            process.poll()


def group_alive(group: int) -> bool:
    """Whether any process of a process group is left; one that ended and was not yet reaped by its parent does not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not PROC.is_dir():
        return True
    return any(member == group and state != "Z" for member, state in _groups_and_states())


def _groups_and_states() -> Iterator[tuple[int, str]]:
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue  # it ended while we looked
        state, _parent, group = stat.rpartition(")")[2].split()[:3]  # the name before ')' may hold anything
        yield int(group), state


def segments(patterns: Iterable[str]) -> frozenset[Path]:
    """Shared-memory segments whose names match."""
    return (
        frozenset(path for pattern in patterns for path in SHM_DIR.glob(pattern)) if patterns else frozenset()
    )


def remove_leftovers(
    patterns: Iterable[str], before: frozenset[Path], *, ending: Iterable[int] = ()
) -> list[Path]:
    """Remove this user's segments that match, were not there `before`, and that no process has mapped or open any more.

    Processes that are `ending` do not count.

    For programs whose segments have random names: what belongs to another process, even of the same program, is left alone.
    """
    new = [
        path for path in segments(patterns) - before if path.exists() and path.stat().st_uid == os.getuid()
    ]
    used = _in_use({str(path) for path in new}, frozenset(ending)) if new else set()
    left = [path for path in new if str(path) not in used]
    for path in left:
        path.unlink(missing_ok=True)
    return left


def _in_use(paths: set[str], ending: frozenset[int]) -> set[str]:
    """Those of `paths` that a process has mapped or open, as far as this user may look."""
    used = set()
    for process in PROC.glob("[0-9]*"):
        if int(process.name) in ending:
            continue
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text(errors="replace")
            used |= {path for path in paths if path in maps}
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):  # one that was closed meanwhile hides no other
                    used |= paths & {str(link.readlink())}
    return used


def remove_segments(prefix: str) -> list[Path]:
    """Remove shared-memory segments whose name starts with `prefix`; returns what there was."""
    if not prefix or not SHM_DIR.is_dir():
        return []
    left = [path for path in SHM_DIR.iterdir() if path.name.startswith(prefix)]
    for path in left:
        path.unlink(missing_ok=True)
    return left
