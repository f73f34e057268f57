"""What reading a trace costs, beside what it could cost at least and what other tools take: ratios within one run.

Every method runs in a process of its own, several times, in turns, so that the machine's drift hits all of them. What
counts is processor time (one core each, so that other work on the machine disturbs it least), and its median. The floor
inflates and decodes the same bytes into the same Structs in the same stretches and keeps nothing.

HTA is measured where it is installed for this interpreter, or for the one that `--hta-python` names.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TRACES = Path(os.environ.get("MTPPROF_TRACES") or Path(__file__).resolve().parents[2] / "shared" / "traces")
OPERATIONS = "CPU operations with dims"
STACKS = "GPU, with Python functions"
MADE_UP = "made up"
REAL_TRACES = {
    STACKS: "sglang-tp4-gb300-fused/bs16-TP-0.trace.json.gz",
    OPERATIONS: "vllm-cpu-tp4-nemotron/latent-reduce-on/dp0_pp0_tp0_dcp0_ep0_rank0.1795953987844821082.pt.trace.json.gz",
}  # fmt: skip
COMPARED_EVENTS = 200_000

MAX_FLOOR_RATIO = 2.0
MIN_HTA_SPEEDUP = {OPERATIONS: 12.0, STACKS: 6.0, MADE_UP: 12.0}
"""HTA spends most of its time on arguments, and Python functions carry none: there the floor itself is 14 times faster."""
MAX_HTA_MEMORY_SHARE = 0.2
MAX_EXTRA_MB_PER_MILLION = 200.0
MAX_GROWTH = 1.25
MAX_SECOND_LOOK_S = 0.15


def read_ours(path: Path) -> int:
    from mtpprof.analyzers.traces.formats import read_file

    return sum(table.meta.events_total for table in read_file(path))


def read_floor(path: Path) -> int:
    """Inflate and decode, stretch by stretch, without columns."""
    from mtpprof.analyzers.traces.readers.base import Limits
    from mtpprof.analyzers.traces.readers.bytestream import TextSource
    from mtpprof.analyzers.traces.readers.events import decode_events

    separator, buffer, count, started = b"},\n  {", b"", 0, False
    for block in TextSource(path, Limits()).blocks():
        buffer += block
        if not started:
            _, found, buffer = buffer.partition(b'"traceEvents": [')
            started = bool(found)
        cut = buffer.rfind(separator)
        if started and cut >= 0:
            count += len(decode_events(b"[" + buffer[: cut + 1] + b"]"))
            buffer = buffer[cut + len(separator) - 1 :]
    end = buffer.rindex(b"]")
    return count + len(decode_events(b"[" + buffer[:end] + b"]"))


def read_dicts(path: Path) -> int:
    """The whole file into dicts, as TraceLens does it: by orjson where it is installed."""
    with gzip.open(path) as file:
        text = file.read()
    if importlib.util.find_spec("orjson"):
        loads: Callable[[bytes], dict[str, list[object]]] = importlib.import_module("orjson").loads
    else:
        loads = json.loads
    return len(loads(text)["traceEvents"])


def read_hta(path: Path) -> int:
    parser = importlib.import_module("hta.common.trace_parser")
    _, frame, _ = parser.parse_trace_dataframe(str(path), parser.ParserConfig.get_default_cfg())
    return len(frame)


def read_cached(path: Path) -> int:
    from mtpprof.analyzers.traces.load import load_file

    return sum(table.meta.events_total for table in load_file(path))


METHODS: dict[str, Callable[[Path], int]] = {
    "floor": read_floor,
    "mtpprof": read_ours,
    "second look": read_cached,
    "dicts": read_dicts,
    "hta": read_hta,
}
IMPORTS = {
    "floor": ["mtpprof.analyzers.traces.formats"],
    "mtpprof": ["mtpprof.analyzers.traces.formats"],
    "second look": ["mtpprof.analyzers.traces.load"],
    "dicts": [],
    "hta": ["hta.common.trace_parser"],
}


def peak_mb() -> float:
    """Largest resident size of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # ru_maxrss would count the parent's size before exec.
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(method: str, path: Path) -> None:
    """In the child: one reading, its time and the memory that it added to the imports."""
    for module in IMPORTS[method]:
        importlib.import_module(module)
    before_mb, start_s = peak_mb(), time.process_time()
    events = METHODS[method](path)
    seconds = time.process_time() - start_s
    print(json.dumps({"s": seconds, "mb": peak_mb() - before_mb, "events": events}))


class Bench:
    """Runs methods in turns and keeps the medians."""

    def __init__(self, hta_python: str, cache_home: Path) -> None:
        self.hta_python = hta_python
        self.environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(cache_home),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        self.failures: list[str] = []

    def run(self, method: str, path: Path) -> dict[str, float] | None:
        """One reading in a process of its own; None: it failed there."""
        python = self.hta_python if method == "hta" else sys.executable
        command = [python, __file__, "--measure", method, str(path)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(
                f"  {method}: failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else '?'}"
            )
            return None
        found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    def medians(self, methods: list[str], path: Path, rounds: int) -> dict[str, dict[str, float]]:
        """Median of every figure by method."""
        runs: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
        for _ in range(rounds):
            for method in methods:
                result = self.run(method, path)
                if result is not None:
                    runs[method].append(result)
        return {
            method: {key: statistics.median(run[key] for run in found) for key in found[0]}
            for method, found in runs.items()
            if found
        }

    def expect(self, what: str, value: float, limit: float, *, at_least: bool = False) -> None:
        """Print a figure against its target, and keep it where it misses."""
        good = value >= limit if at_least else value <= limit
        sign = "≥" if at_least else "≤"
        print(f"  {'ok  ' if good else 'MISS'} {what}: {value:.2f} (target {sign} {limit:g})")
        if not good:
            self.failures.append(what)


def synthesise(source: Path, target: Path, events: int) -> Path:
    """A trace of about `events` events: a real one over and over, later each time."""
    text = gzip.decompress(source.read_bytes()).decode() if source.suffix == ".gz" else source.read_text()
    start = text.index("{", text.index('"traceEvents": [') + 16)
    separator = "},\n  {"
    end = text.rindex(separator)
    body = text[start : end + 1]
    times = [float(time_) for time_ in re.findall(r'"ts": ([0-9.]+)', body)]
    shift_us = max(times) - min(times) + 1000
    pieces = re.split(r'("ts": )([0-9.]+)', body)
    count = body.count('"ph": ')
    with gzip.open(target, "wt", compresslevel=1) as file:
        file.write(text[:start])
        for turn in range(max(1, round(events / count))):
            if turn:
                file.write(",\n  ")
            for index in range(2, len(pieces), 3):
                pieces[index] = f"{times[index // 3] + turn * shift_us:.3f}"
            file.write("".join(pieces))
        file.write("\n  ]}\n")
    return target


def made_up(target: Path, events: int) -> Path:
    """A trace without a real one to start from: operations and kernels with the usual arguments."""
    with gzip.open(target, "wt", compresslevel=1) as file:
        file.write(
            '{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1759300074000000000,\n  "traceEvents": [\n  '
        )
        for index in range(events):
            of_kernel = {
                "External id": index // 2, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": index // 2,
                "registers per thread": 32, "shared memory": 0, "blocks per SM": 0.0125, "warps per SM": 0.05,
                "grid": [index % 100, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 0,
            }  # fmt: skip
            of_op = {
                "External id": index // 2, "Record function id": 0, "Concrete Inputs": ["", ""], "Input type": ["float", ""],
                "Input Strides": [[256, 1], []], "Input Dims": [[index % 100, 256], []], "Ev Idx": index,
            }  # fmt: skip
            args = json.dumps(of_kernel if index % 2 else of_op)
            cat, name = (
                ("kernel", "void at::native::elementwise_kernel") if index % 2 else ("cpu_op", "aten::op")
            )
            file.write(",\n  " if index else "")
            file.write(
                f'{{\n    "ph": "X", "cat": "{cat}", "name": "{name}_{index % 100}", "pid": 7, "tid": 7,\n    '
            )
            file.write(f'"ts": {1000.5 + 4 * index:.3f}, "dur": 3.125,\n    "args": {args}\n  }}')
        file.write("\n  ]}\n")
    return target


def compare(bench: Bench, what: str, path: Path, rounds: int) -> None:
    methods = ["floor", "mtpprof", "second look", "dicts"]
    hta = subprocess.run(
        [bench.hta_python, "-c", "import hta.common.trace_parser"], capture_output=True, check=False
    )
    if hta.returncode:
        print("\nHolisticTraceAnalysis: not installed (see --hta-python)")
    else:
        methods.append("hta")
    bench.run("second look", path)  # the first look, which fills the cache
    found = bench.medians(methods, path, rounds)
    print(f"\n{what}: {found['mtpprof']['events']:,.0f} events")
    for method, result in found.items():
        print(
            f"  {method:12} {result['s']:7.3f} s  {result['s'] / found['mtpprof']['s']:6.2f} ×  {result['mb']:8.1f} MB more"
        )
    ours = found["mtpprof"]
    bench.expect(
        "time, as a multiple of the streamed typed parse", ours["s"] / found["floor"]["s"], MAX_FLOOR_RATIO
    )
    bench.expect("second look, s", found["second look"]["s"], MAX_SECOND_LOOK_S)
    if "hta" in found:
        bench.expect(
            "times faster than HTA", found["hta"]["s"] / ours["s"], MIN_HTA_SPEEDUP[what], at_least=True
        )
        bench.expect("memory, as a share of HTA's", ours["mb"] / found["hta"]["mb"], MAX_HTA_MEMORY_SHARE)


def growth(bench: Bench, paths: list[Path]) -> None:
    print("\ngrowth")
    costs = []
    for path in paths:
        found = bench.medians(["floor", "mtpprof"], path, 1)
        ours, million = found["mtpprof"], found["mtpprof"]["events"] / 1e6
        costs.append(ours["s"] / million)
        print(
            f"  {million:5.2f} M events: {ours['s']:7.2f} s, {ours['s'] / million:5.2f} s/M, "
            f"{ours['s'] / found['floor']['s']:.2f} × floor, {ours['mb']:7.1f} MB more, {ours['mb'] / million:6.1f} MB/M"
        )
        if million >= 0.9:
            bench.expect("memory, MB per million events", ours["mb"] / million, MAX_EXTRA_MB_PER_MILLION)
    bench.expect("cost per event, largest against smallest file", costs[-1] / costs[0], MAX_GROWTH)


def over_ranks(path: Path, counts: list[int], folder: Path) -> None:
    from mtpprof.analyzers.traces.load import LoadOptions, load_files

    cores = len(os.sched_getaffinity(0))
    print(f"\nranks over {cores} cores")
    for count in counts:
        copies = []
        for rank in range(count):
            copy = folder / f"rank{rank}.json.gz"
            copy.write_bytes(path.read_bytes())
            copies.append(copy)
        start = time.perf_counter()
        load_files(copies, LoadOptions(use_cache=False))
        seconds = time.perf_counter() - start
        print(f"  {count:2d} ranks: {seconds:6.2f} s, {seconds / count:.2f} s per rank")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs=2, metavar=("METHOD", "PATH"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--hta-python", default=sys.executable, help="interpreter that has HolisticTraceAnalysis"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=float, nargs="*", default=[0.2, 1.0, 5.0], help="millions of events")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure[0], Path(arguments.measure[1]))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        real = {what: TRACES / name for what, name in REAL_TRACES.items() if (TRACES / name).is_file()}
        paths = {
            what: synthesise(path, folder / f"{index}.json.gz", COMPARED_EVENTS)
            for index, (what, path) in enumerate(real.items())
        } or {MADE_UP: made_up(folder / "made-up.json.gz", COMPARED_EVENTS)}
        bench = Bench(arguments.hta_python, folder / "cache")
        for what, path in paths.items():
            compare(bench, what, path, arguments.rounds)
        path = next(iter(paths.values()))
        if arguments.sizes:
            growth(
                bench,
                [
                    synthesise(path, folder / f"{size}M.json.gz", round(size * 1e6))
                    for size in arguments.sizes
                ],
            )
        if arguments.ranks:
            over_ranks(path, arguments.ranks, folder)
    print("\nmissed: " + "; ".join(bench.failures) if bench.failures else "\nall targets met")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
