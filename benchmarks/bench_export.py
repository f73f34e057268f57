"""Export of a large trace: time, memory and size, against Perfetto's own builder and against Chrome JSON in the same run.

    python benchmarks/bench_export.py [events]

The trace is a real one (from the traces folder: MTPPROF_TRACES, or ../shared/traces) repeated end to end until it has as many events as
asked for (default 1,800,000); without the folder, a made-up one of the same shape. Every measurement has a process of its own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

DEFAULT_EVENTS = 1_800_000
BUILDER_EVENTS = 100_000
"""Perfetto's builder is measured on fewer events, and its time scaled."""
MAX_CPU_S, MAX_PEAK_MB = 6.0, 600.0
"""Of either format, for the default number of events."""
TRACE = "vllm-cpu-tp4-nemotron/latent-reduce-on"
CASES = ("nothing", "pftrace", "pftrace.gz", "json", "json.gz", "builder")


def traces_folder() -> Path:
    default = Path(__file__).resolve().parents[2] / "shared" / "traces"
    return Path(os.environ.get("MTPPROF_TRACES", default))


def large_table(events: int) -> Any:
    """A real table repeated."""
    from mtpprof.analyzers.traces.discover import open_traces
    from mtpprof.analyzers.traces.table import COLLECTIVE_COLUMNS, EVENT_COLUMNS, Collectives

    folder = traces_folder() / TRACE
    if not folder.is_dir():
        return made_up_table(events)
    (traces,) = open_traces([folder])
    table = traces.tables[0]
    copies = -(-events // len(table))
    span = int(table.end_ns.max() - table.ts_ns[0]) + 1000
    columns: dict[str, Any] = {name: np.tile(getattr(table, name), copies) for name in EVENT_COLUMNS}
    columns["ts_ns"] += np.repeat(np.arange(copies) * span, len(table))
    sparse = {name: np.tile(getattr(table.collectives, name), copies) for name in COLLECTIVE_COLUMNS}
    sparse["row"] += np.repeat(np.arange(copies) * len(table), len(table.collectives)).astype(np.int32)
    repeated = replace(table, **columns, collectives=Collectives(**sparse))
    return repeated.select(np.arange(events))


def made_up_table(events: int) -> Any:
    """Kernels of two streams, every tenth overlapping the next."""
    from mtpprof.analyzers.traces.table import Category, Collectives, EventTable, TraceMeta, Track

    index = np.arange(events)
    none = np.full(events, -1)
    return EventTable(
        ts_ns=index * 1000,
        dur_ns=np.where(index % 10 == 0, 2500, 900),
        name=(index % 300).astype(np.int32),
        category=np.full(events, Category.KERNEL, np.int8),
        track=(index % 2).astype(np.int32),
        device=np.zeros(events, np.int16),
        stream=(index % 2).astype(np.int32),
        correlation=index,
        external_id=index,
        dims=none.astype(np.int32),
        types=none.astype(np.int32),
        names=tuple(f"kernel_{number}" for number in range(300)),
        tracks=(Track(pid=0, tid=0), Track(pid=0, tid=1)),
        shapes=(),
        strings=(),
        collectives=Collectives.empty(),
        meta=TraceMeta(path="made up", reader="kineto", rank=0, world_size=1, base_time_ns=0),
    )


def measure(case: str, events: int, folder: Path) -> None:
    """One case in this process: seconds, peak memory beyond the interpreter's, bytes, slices."""
    from mtpprof.analyzers.calls.attribution import analyze
    from mtpprof.analyzers.perfetto.export import Export
    from mtpprof.analyzers.perfetto.files import format_of
    from mtpprof.analyzers.perfetto.timeline import place
    from mtpprof.analyzers.traces.table import TraceSet

    table = large_table(BUILDER_EVENTS if case == "builder" else events)
    traces = TraceSet(label="benchmark", tables=(table,), world_size=1)
    if case == "nothing":
        report(case, 0.0, 0, len(table))
        return
    if case == "builder":
        path = folder / "builder.pftrace"
        started = time.process_time()
        with_builder(table, path)
        report(case, time.process_time() - started, path.stat().st_size, len(table))
        return
    path = folder / f"out.{case}"
    arm = place("benchmark", traces, analyze(traces))
    started = time.process_time()
    done = Export([arm]).write(path, format_of(path))
    report(case, time.process_time() - started, done.size_bytes, done.slices)


def with_builder(table: Any, path: Path) -> None:
    """The same slices, a packet object each, as Perfetto's documentation shows it; overlaps are left to chance."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    with path.open("wb") as file:
        builder = StreamingTraceProtoBuilder(file)
        for number in range(len(table.tracks)):
            packet = builder.create_packet()
            packet.track_descriptor.uuid = number + 1
            packet.track_descriptor.name = f"track {number}"
            builder.write_packet(packet)
        columns = [column.tolist() for column in (table.ts_ns, table.end_ns, table.name, table.track)]
        for start, end, name, track in zip(*columns, strict=True):
            for kind, ts in ((TrackEvent.TYPE_SLICE_BEGIN, start), (TrackEvent.TYPE_SLICE_END, end)):
                packet = builder.create_packet()
                packet.timestamp = max(ts, 0)
                packet.trusted_packet_sequence_id = 1
                packet.track_event.type = kind
                packet.track_event.track_uuid = track + 1
                if kind == TrackEvent.TYPE_SLICE_BEGIN:
                    packet.track_event.name = table.names[name]
                builder.write_packet(packet)


def report(case: str, seconds: float, size: int, slices: int) -> None:
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{case} {seconds:.3f} {peak_mb:.0f} {size} {slices}")


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_EVENTS
    found: dict[str, tuple[float, float, int, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            done = subprocess.run(
                [sys.executable, __file__, str(events), case, folder],
                capture_output=True,
                text=True,
                check=True,
            )
            _, *figures = done.stdout.split()
            found[case] = float(figures[0]), float(figures[1]), int(figures[2]), int(figures[3])
    missed: list[str] = []
    builder = found["builder"][0] * events / BUILDER_EVENTS
    held_mb, json_bytes = found["nothing"][1], found["json"][2]
    print(
        f"{events:,} events of {TRACE if (traces_folder() / TRACE).is_dir() else 'a made-up trace'}, one core"
    )
    print(f"{'format':12}{'cpu s':>8}{'peak MB':>9}{'MB':>8}{'of JSON':>9}{'slices':>12}{'x builder':>11}")
    for case in ("pftrace", "pftrace.gz", "json", "json.gz"):
        seconds, peak_mb, size, slices = found[case]
        print(
            f"{case:12}{seconds:8.2f}{peak_mb:9.0f}{size / 1e6:8.1f}{size / json_bytes:9.2f}{slices:12,}{builder / seconds:11.1f}"
        )
        if events <= DEFAULT_EVENTS and (seconds > MAX_CPU_S or peak_mb > MAX_PEAK_MB):
            missed.append(case)
    print(
        f"The table and the interpreter alone: {held_mb:.0f} MB. Perfetto's builder: {builder:.1f} s, names only."
    )
    if missed:
        sys.exit(f"{', '.join(missed)}: more than {MAX_CPU_S} s or {MAX_PEAK_MB} MB")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        measure(sys.argv[2], int(sys.argv[1]), Path(sys.argv[3]))
    else:
        main()
