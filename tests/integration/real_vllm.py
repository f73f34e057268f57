"""Where real vLLM is: in an environment of its own, which `make install-vllm` makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("MTPPROF_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))

needs_vllm = pytest.mark.skipif(not PYTHON.is_file(), reason=f"no vLLM at {PYTHON}: make install-vllm")
