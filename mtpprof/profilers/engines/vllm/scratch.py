"""What a vLLM run needs for its time only: written weights and traces on their way; and what vLLM leaves behind in shared memory."""

from __future__ import annotations

from pathlib import Path

from mtpprof.rundir.directory import RunDirectory

SCRATCH = "scratch"
SEGMENT_PATTERNS = ("*-cpushm*", "psm_*")
"""Segments that vLLM (its CPU communicator, its message queues) does not remove even at a clean end."""


def scratch_folder(directory: RunDirectory) -> Path:
    """Folder in the run directory that is gone when the run has ended."""
    return directory.root / SCRATCH
