"""Where the collection of real traces is. Tests that need it skip, saying so, where it is absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("MTPPROF_TRACES") or Path(__file__).resolve().parents[2] / "shared" / "traces")
PRESENT = (FOLDER / "golden.json").is_file()

needs_traces = pytest.mark.skipif(not PRESENT, reason=f"no real traces in {FOLDER}; set MTPPROF_TRACES")


def golden() -> dict[str, Any]:
    """What an independent reading found, by path relative to the folder; empty where the folder is absent."""
    if not PRESENT:
        return {}
    found: dict[str, Any] = json.loads((FOLDER / "golden.json").read_text())
    return found


def json_traces() -> list[Path]:
    """All JSON traces of the collection."""
    return [path for path in sorted(FOLDER.rglob("*.json*")) if path.name != "golden.json"] if PRESENT else []


def trace_folder(name: str) -> Path:
    """A folder of the collection; skips the test that asks for it where the collection is absent."""
    if not PRESENT:
        pytest.skip(f"no real traces in {FOLDER}; set MTPPROF_TRACES")
    return FOLDER / name
