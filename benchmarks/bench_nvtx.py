"""What NVTX capture costs: ns per range with the library and without, and the reading of what it wrote.

Usage: python benchmarks/bench_nvtx.py [--run]     (--run also compares the steps of a reference run, about a minute)

Costs are processor time, the best of several interleaved repeats: other work on the machine changes them little.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mtpprof.analyzers.traces.nvtx.capture import load_capture
from mtpprof.profilers.nvtx import capture_environment, injection_library, loaded_files
from mtpprof.profilers.nvtx.build import find_compiler, include_directory

PROGRAM = Path(__file__).parents[1] / "tests" / "integration" / "nvtx_program.c"
PAIRS = 1_000_000
REPEATS = 5
RUNS = 3
"""Of each capture, in turns."""

PYTHON = """
import nvtx, sys, time
count = 50_000
domain = nvtx.get_domain("mtpprof")
ready = domain.get_event_attributes(message="ready")

def prepared():
    domain.push_range(ready)
    domain.pop_range()

def annotated():
    with nvtx.annotate("annotated", domain="mtpprof"):
        pass

for one in (prepared, annotated):
    one()
    began = time.thread_time_ns()
    for _ in range(count):
        one()
    print((time.thread_time_ns() - began) / count)
"""

TORCH = """
import time
from torch.profiler import ProfilerActivity, profile
from mtpprof.profilers.annotate import annotate
count = 5_000
with profile(activities=[ProfilerActivity.CPU]):
    for _ in range(count):
        with annotate("mtpprof::phase name=warm"):
            pass
    began = time.thread_time_ns()
    for _ in range(count):
        with annotate("mtpprof::phase name=target"):
            pass
    print((time.thread_time_ns() - began) / count)
"""

CASES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "python": (
        [sys.executable, "-c", PYTHON],
        ("Python nvtx, prepared attributes", "Python nvtx.annotate"),
    ),
    "torch": ([sys.executable, "-c", TORCH], ("mtpprof's annotate under torch's profiler",)),
}


def figures(command: list[str], directory: Path | None) -> list[float]:
    added = {} if directory is None else capture_environment(directory, inherited={})
    done = subprocess.run(
        command,
        env={**os.environ, **added},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=300,
    )
    return [float(word) for word in done.stdout.split()]


def compare(title: str, command: list[str], labels: tuple[str, ...]) -> None:
    without: list[list[float]] = []
    within: list[list[float]] = []
    for _ in range(REPEATS):
        without.append(figures(command, None))
        with tempfile.TemporaryDirectory() as folder:
            within.append(figures(command, Path(folder)))
    for index, label in enumerate(labels):
        off, on = (min(row[index] for row in rows) for rows in (without, within))
        print(f"{label:45} {off:10.0f} {on:10.0f} {on - off:10.0f}")


def native(folder: Path) -> list[str]:
    built = folder / "program"
    subprocess.run(
        [
            *find_compiler(),
            "-std=c11",
            "-O2",
            "-pthread",
            "-isystem",
            include_directory(),
            "-o",
            built,
            PROGRAM,
            "-ldl",
        ],
        check=True,
    )
    return [str(built), "many", str(PAIRS)]


def reading(command: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures(command, Path(folder))
        (path,) = loaded_files(Path(folder))
        times = []
        for _ in range(3):
            began = time.process_time()
            rows = len(load_capture(path))
            times.append(time.process_time() - began)
        size = path.stat().st_size
    print(
        f"\nfile: {size / rows:.0f} bytes a range; reading: {min(times) / rows * 1e9:.0f} ns a range ({rows} ranges)"
    )


def threads(program: str) -> None:
    """Cost a range with one thread and with many: there is no lock between them."""
    print()
    for count in (1, 32):
        pairs = 640_000 // count
        compare(
            f"C, {count} threads",
            [program, "many-threads", str(count), str(pairs)],
            (f"C, {count} threads at once",),
        )


def slow_down(program: str) -> None:
    """Processor time of a program whose ranges last 20 µs, with the library and without, in turns."""
    command = [program, "working-ranges", "20000", "20"]
    ratios = []
    for _ in range(REPEATS):
        (without,) = figures(command, None)
        with tempfile.TemporaryDirectory() as folder:
            (within,) = figures(command, Path(folder))
        ratios.append(within / without)
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(
        f"\nranges of 20 µs: slow-down {middle:.3f} (of {REPEATS} pairs {low:.3f} to {high:.3f}; goal 1.02)"
    )


def step_times(folder: Path, capture: str) -> list[int]:
    """Profiled steps, ns, the slowest rank of each: ranges are emitted in profiled windows only."""
    out = folder / "run"
    words = [
        "run",
        "--capture",
        capture,
        "--tp",
        "2",
        "--model",
        "deepseek-v3.2",
        "--concurrency",
        "1",
        "--rounds",
        "1",
        "--profile-steps",
        "20",
        "--vocab",
        "1024",
    ]
    subprocess.run(
        [sys.executable, "-m", "mtpprof", *words, "--out", out],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    timings = [json.loads(path.read_text()) for path in out.rglob("timing.json")]
    return [max(ranks) for timing in timings for ranks in zip(*timing["profiled_step_ns"], strict=True)]


def main() -> None:
    injection_library()
    print(f"{'ns per range (push + pop)':45} {'without':>10} {'with':>10} {'cost':>10}")
    with tempfile.TemporaryDirectory() as folder:
        command = native(Path(folder))
        compare("C", command, ("C, registered name", "C, name of 40 characters"))
        for title, (words, labels) in CASES.items():
            compare(title, words, labels)
        threads(command[0])
        slow_down(command[0])
        reading(command)
    if "--run" in sys.argv[1:]:
        steps: dict[str, list[int]] = {"torch": [], "torch,nvtx": []}
        for _ in range(RUNS):
            for capture, seen in steps.items():
                with tempfile.TemporaryDirectory() as folder:
                    seen.extend(step_times(Path(folder), capture))
        print(f"\nprofiled step of a reference run at TP 2, ms ({len(steps['torch'])} steps each)")
        for capture, seen in steps.items():
            low, middle, high = (ns / 1e6 for ns in statistics.quantiles(seen, n=4))
            print(f"--capture {capture:12} quartiles {low:7.2f} {middle:7.2f} {high:7.2f}")


if __name__ == "__main__":
    main()
