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
from pathlib import Path

_PR_SET_PDEATHSIG = 1
SHM_DIR = Path("/dev/shm")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_group(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End a process and all of its group: SIGTERM, and SIGKILL to whatever is left after `grace_s`."""
    group = process.pid
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while time.monotonic() < deadline_s and group_alive(group):
        process.poll()
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    process.wait()


def group_alive(group: int) -> bool:
    """Whether any process of a process group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_segments(prefix: str) -> list[Path]:
    """Remove shared-memory segments whose name starts with `prefix`; returns what there was."""
    if not prefix or not SHM_DIR.is_dir():
        return []
    left = [path for path in SHM_DIR.iterdir() if path.name.startswith(prefix)]
    for path in left:
        path.unlink(missing_ok=True)
    return left
