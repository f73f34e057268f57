"""Small runs for export tests: traces written down event by event, analyzed and placed on a time."""

from __future__ import annotations

from collections.abc import Sequence

from mtpprof import ranges
from mtpprof.analyzers.calls.attribution import analyze
from mtpprof.analyzers.perfetto.timeline import Arm, place
from mtpprof.analyzers.traces.table import EventTable, TraceSet
from tests.unit.analyzers.tables import Trace

STEP_NS = 1000
FUSED_OPERATION = "mtpprof_shm::all_reduce_residual_rmsnorm"


def collective(site: str, *, kind: str = "all_reduce", rows: int = 4, fused: str = "", seq: int = 0) -> str:
    """Name of a range of ours around one collective of `[rows, 8]` bf16 on two ranks."""
    return ranges.CollectiveRange(
        kind=kind,
        site=site,
        phase="target",
        shape=(rows, 8),
        dtype="bf16",
        payload_bytes=rows * 16 * (2 if kind == "all_gather" else 1),
        group="tp",
        group_size=2,
        implementation="shm_oneshot",
        sequence=seq,
        fused=fused,
    ).name()


Call = tuple[str, int, int]
"""Name of the range, start after the start of the step, length."""


def reference_table(
    rank: int,
    steps: Sequence[Sequence[Call]],
    *,
    step_ns: int = STEP_NS,
    start_ns: int = 100,
    late_ns: int = 0,
    base: int | None = 10**18,
) -> EventTable:
    """A rank of the reference engine on the CPU: steps with a phase and collectives in it, nothing else.

    Args:
        rank: Its number.
        steps: Calls of each step; `seq` of their names is to be unique.
        step_ns: Length of a step.
        start_ns: Start of the first step.
        late_ns: How much later than in `steps` this rank arrives at each call (it still ends with the others).
        base: Base time of the file.
    """
    trace = Trace()
    for index, calls in enumerate(steps):
        at = start_ns + index * step_ns
        trace.note(ranges.step_name(index), at, step_ns)
        trace.note(ranges.phase_name("target"), at + 1, step_ns - 2)
        for name, start, length in calls:
            trace.note(name, at + start + late_ns, length - late_ns)
            range_ = ranges.parse_collective(name)
            if range_ is not None and range_.fused:
                trace.op(FUSED_OPERATION, at + start + late_ns + 1, length - late_ns - 2)
    return trace.table(rank, base=base)


def arm(name: str, *tables: EventTable) -> Arm:
    """Tables of one run, analyzed and placed."""
    traces = TraceSet(label=name, tables=tables, world_size=len(tables))
    return place(name, traces, analyze(traces))
