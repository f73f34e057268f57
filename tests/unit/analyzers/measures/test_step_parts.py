"""Every nanosecond of a step in exactly one part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.calls.attribution import analyze
from mtpprof.analyzers.measures.step_parts import (
    ARGMAX,
    COMPUTE,
    COPY,
    FUSED,
    IDLE,
    NORM,
    PARTS,
    TRANSFER,
    UNSPLIT,
    WAIT,
    Composition,
    compose,
)
from mtpprof.analyzers.traces.table import Category, TraceSet
from mtpprof.ranges import CollectiveRange, argmax_name, step_name
from tests.traces import needs_traces, trace_folder
from tests.unit.analyzers.tables import GEMM, NCCL_AR, Trace, one_run, record

LAMPORT = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
    "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 4, true, true>(int)"
)
RMSNORM = "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)"


def _all_reduce(sequence: int, fused: str = "") -> str:
    return CollectiveRange(
        kind="all_reduce",
        site="embed",
        phase="target",
        shape=(4, 8),
        dtype="bf16",
        payload_bytes=64,
        group="tp",
        group_size=2,
        implementation="shm_oneshot",
        sequence=sequence,
        fused=fused,
    ).name()


def _parts(composition: Composition, step: int = 0) -> dict[str, int]:
    return {name: int(values[step]) for name, values in composition.parts_ns.items() if values[step]}


def _of(traces: TraceSet) -> Composition:
    composition = compose(traces, analyze(traces))
    for index in range(len(composition)):
        assert sum(_parts(composition, index).values()) == composition.length_ns[index]
    return composition


def test_a_step_on_a_cpu() -> None:
    ranks = []
    for rank, late in ((0, 0), (1, 300)):
        trace = Trace()
        trace.note(step_name(0), 0, 10_000)
        trace.op("aten::mm", 100, 1000)
        trace.note(_all_reduce(0), 2000 + late, 1000 - late)
        trace.op("aten::add", 2500, 100)  # inside the collective
        trace.op("aten::cat", 4000, 500)
        trace.op("aten::copy_", 4100, 100)  # inside the other copy
        trace.note(argmax_name("lm_head", 4, 100), 5000, 700)
        trace.op("aten::argmax", 5100, 500)
        trace.note(_all_reduce(1, "residual_rmsnorm"), 7000 + late, 1000 - late)
        trace.op("mtpprof_shm::all_reduce_residual_rmsnorm", 7000 + late + 10, 900 - late)
        ranks.append(trace.table(rank))
    composition = _of(one_run(*ranks))
    first, second = (_parts(composition, index) for index in range(2))
    assert first == {
        TRANSFER: 700,
        WAIT: 600,
        FUSED: 700,
        COPY: 500,
        ARGMAX: 700,
        COMPUTE: 1000,
        IDLE: 5800,
    }
    assert second == {TRANSFER: 700, FUSED: 700, COPY: 500, ARGMAX: 700, COMPUTE: 1000, IDLE: 6400}


def test_operations_are_counted_that_compute_outside_collectives() -> None:
    trace = Trace()
    trace.note(step_name(0), 0, 10_000)
    trace.op("aten::linear", 100, 1000)
    trace.op("aten::t", 110, 50)
    trace.op("aten::mm", 200, 800)
    trace.op("aten::resolve_conj", 300, 10)
    trace.op("aten::to", 1200, 200)
    trace.op("aten::_to_copy", 1210, 180)
    trace.op("aten::empty_strided", 1220, 10)
    trace.op("aten::copy_", 1240, 100)
    trace.op("aten::to", 1500, 10)
    trace.note(_all_reduce(0), 2000, 1000)
    trace.op("aten::sum", 2500, 100)
    trace.op("aten::argmax", 5100, 500)
    composition = _of(one_run(trace.table(0)))
    assert composition.counted.tolist() == [True]
    assert {name: int(count[0]) for name, count in composition.kernels.items()} == {
        NORM: 0,
        COPY: 1,
        ARGMAX: 1,
        COMPUTE: 1,
    }


def test_without_operations_in_the_trace_none_are_counted_rather_than_zero() -> None:
    trace = Trace()
    trace.note(step_name(0), 0, 10_000)
    trace.note(_all_reduce(0), 2000, 1000)
    assert _of(one_run(trace.table(0))).counted.tolist() == [False]


def _gpu(late: int, rank: int) -> Trace:
    trace = Trace()
    for step in (0, 1):
        start = 100_000 * step
        trace.note(f"ProfilerStep#{step}", start, 100_000)
        trace.kernel(GEMM, start + 10_000, 20_000, launched=start + 100)
        # Half of the all-reduce hides behind the GEMM of another stream.
        seq = 2 * step
        trace.kernel(
            NCCL_AR, start + 40_000 + late, 10_000 - late, launched=start + 200, record=record(seq=seq)
        )
        trace.kernel(GEMM, start + 45_000, 10_000, launched=start + 300, stream=9)
        trace.kernel(RMSNORM, start + 60_000, 3000, launched=start + 400)
        trace.kernel(RMSNORM, start + 62_000, 3000, launched=start + 450)
        trace.kernel("Memcpy DtoD (Device -> Device)", start + 70_000, 1000, launched=start + 500)
        trace.kernel(LAMPORT, start + 80_000 + late, 5000 - late, launched=start + 600)
    return trace


def test_a_step_on_a_device_counts_overlap_once_and_charges_only_exposed_collectives() -> None:
    composition = _of(one_run(*(_gpu(late, rank).table(rank) for rank, late in ((0, 0), (1, 2000)))))
    assert len(composition) == 2
    assert composition.left_out == 2, "the last step of each rank has no end"
    assert _parts(composition) == {
        WAIT: 4000,  # 2 µs in each collective
        TRANSFER: 3000,
        FUSED: 3000,
        NORM: 5000,  # two kernels that overlap by 1 µs
        COPY: 1000,
        COMPUTE: 30_000,
        IDLE: 100_000 - 46_000,
    }
    assert {name: int(counts[0]) for name, counts in composition.kernels.items()} == {
        NORM: 2,
        COPY: 1,
        ARGMAX: 0,
        COMPUTE: 2,
    }


def test_where_waits_are_not_known_collectives_are_one_part() -> None:
    composition = _of(one_run(_gpu(0, 0).table(0, 2), world=2))
    parts = _parts(composition)
    assert WAIT not in parts
    assert TRANSFER not in parts
    assert parts[UNSPLIT] == 5000
    assert parts[FUSED] == 5000


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["aten::mm", "aten::cat", "aten::rms_norm", "aten::argmax", "AR"]),
            st.integers(0, 30_000),
            st.integers(0, 9000),
        ),
        max_size=12,
    )
)
def test_parts_add_up_whatever_overlaps(events: list[tuple[str, int, int]]) -> None:
    trace = Trace()
    for step in range(3):
        trace.note(step_name(step), 10_000 * step, 10_000)
    for sequence, (name, at, duration) in enumerate(events):
        if name == "AR":
            trace.note(_all_reduce(sequence), at, duration)
        else:
            trace.add(name, at, duration, Category.CPU_OP)
    composition = _of(one_run(trace.table(0, 1)))
    assert len(composition) == 3
    assert all((values >= 0).all() for values in composition.parts_ns.values())
    assert set(composition.parts_ns) == set(PARTS)


@needs_traces
def test_real_traces_add_up_on_devices_and_on_cpus() -> None:
    from mtpprof.analyzers.traces.discover import open_traces

    for name in ("sglang-tp4-gb300-nccl", "vllm-cpu-tp4-nemotron/latent-reduce-skipped"):
        for traces in open_traces([trace_folder(name)]):
            assert len(_of(traces)) > 0
