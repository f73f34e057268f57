"""Where the shared-memory transport works and how much room it takes. Apart from `shm` so that checks need no torch."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

SHM_DIR = Path("/dev/shm")
FLAG_BYTES = 64  # one cache line a rank, so that waiting ranks do not share lines


def available() -> bool:
    """Whether this platform has POSIX shared memory files and total store order."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64") and SHM_DIR.is_dir()


def slot_bytes(capacity_bytes: int) -> int:
    """Room of one rank's slot for a tensor of `capacity_bytes`."""
    return -(-capacity_bytes // FLAG_BYTES) * FLAG_BYTES


def segment_bytes(ranks: int, capacity_bytes: int) -> int:
    """Size of the segment for `ranks` ranks whose largest tensor has `capacity_bytes`: flags, and two sets of slots."""
    return ranks * FLAG_BYTES + 2 * ranks * slot_bytes(capacity_bytes)
