"""Running `mtpprof` in a process of its own, as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Answer = subprocess.CompletedProcess[str]


@pytest.fixture
def mtpprof(tmp_path: Path) -> Callable[..., Answer]:
    """`mtpprof(*words)`: exit code, stdout and stderr, without a terminal."""

    def call(*words: str, **environment: str) -> Answer:
        return subprocess.run(
            [sys.executable, "-m", "mtpprof", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )

    return call
