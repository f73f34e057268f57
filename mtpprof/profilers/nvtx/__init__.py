"""Recording of NVTX without Nsight: a small C library that NVTX itself loads into every process."""

from __future__ import annotations

from mtpprof.profilers.nvtx.build import injection_library
from mtpprof.profilers.nvtx.env import capture_environment, loaded_files, ranks_not_loaded

__all__ = ["capture_environment", "injection_library", "loaded_files", "ranks_not_loaded"]
