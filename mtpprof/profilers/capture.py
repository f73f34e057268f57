"""The profiler window of one rank: bounded steps, shapes on, stacks off, one trace file."""

from __future__ import annotations

import gzip
import importlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from mtpprof import ranges
from mtpprof.profilers.annotate import annotate

gzip_module: Any
try:
    gzip_module = importlib.import_module("isal.igzip")
except ImportError:  # not every platform has it
    gzip_module = gzip

FAST = 1
CHUNK_BYTES = 1 << 20


def capture_window(path: Path, step: Callable[[], object], steps: int, *, cuda: bool) -> list[int]:
    """Run `1 + steps` steps under torch's profiler and write its trace to `path` (gzip), under a temporary name first.

    Returns:
        Duration of each of the `steps` steps, ns.

    Raises:
        OSError: the trace cannot be written.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, record_shapes=True, with_stack=False) as profiler:
        durations_ns = annotated_steps(step, steps, cuda=cuda)
    path.parent.mkdir(parents=True, exist_ok=True)
    plain, packed = path.with_name(f".{path.name}.tmp.json"), path.with_name(f".{path.name}.tmp")
    try:
        profiler.export_chrome_trace(str(plain))
        _compress(plain, packed)
        packed.replace(path)
    finally:
        plain.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
    return durations_ns


def annotated_steps(step: Callable[[], object], steps: int, *, cuda: bool) -> list[int]:
    """Run `1 + steps` steps, with a range around each but the first.

    The first step carries a profiler's own start-up (buffers, first launches) and is left without a range, so that no analysis counts it.

    Returns:
        Duration of each of the `steps` steps, ns.
    """
    durations_ns = []
    step()
    for index in range(steps):
        start_ns = time.perf_counter_ns()
        with annotate(ranges.step_name(index)):
            step()
            if cuda:
                torch.cuda.synchronize()
        durations_ns.append(time.perf_counter_ns() - start_ns)
    return durations_ns


def _compress(source: Path, target: Path) -> None:
    """Gzip a file: torch's own way (gzip at level 9) takes longer than the steps that it compresses (0.5 s against 0.02 s for 17 MB)."""
    with source.open("rb") as reader, gzip_module.open(target, "wb", compresslevel=FAST) as writer:
        shutil.copyfileobj(reader, writer, CHUNK_BYTES)
