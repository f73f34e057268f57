"""The profiler window of one rank: bounded steps, shapes on, stacks off, one trace file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from mtpprof import ranges
from mtpprof.profilers.annotate import annotate


def capture_window(path: Path, step: Callable[[], object], steps: int, *, cuda: bool) -> list[int]:
    """Run `1 + steps` steps under torch's profiler and write its trace to `path` (gzip), under a temporary name first.

    The first step carries the profiler's own start-up (buffers, first launches) and is left without a step range, so that no analysis
    counts it.

    Returns:
        Duration of each of the `steps` steps, ns.

    Raises:
        OSError: the trace cannot be written.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    durations_ns = []
    with profile(activities=activities, record_shapes=True, with_stack=False) as profiler:
        step()
        for index in range(steps):
            start_ns = time.perf_counter_ns()
            with annotate(ranges.step_name(index)):
                step()
                if cuda:
                    torch.cuda.synchronize()
            durations_ns.append(time.perf_counter_ns() - start_ns)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp.json.gz")
    try:
        profiler.export_chrome_trace(str(temporary))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return durations_ns
