"""What a path is where a file is expected: for whoever opens what a user named.

The decision: devices, pipes and sockets are refused before they are opened. `/dev/zero` never ends, and a pipe without a writer is
waited for forever.
"""

from __future__ import annotations

import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISFIFO, "a pipe, which cannot be read twice"),
    (stat.S_ISSOCK, "a socket"),
)


def no_regular_file(path: Path) -> str:
    """What `path` is in place of a regular file; empty: it is one, a directory or nothing, which the system itself refuses to open."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return next((kind for test, kind in _KINDS if test(mode)), "something else")
