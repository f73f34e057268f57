"""What a rank computed beside its collectives."""

from __future__ import annotations

from mtpprof.analyzers.calls.attribution import analyze
from mtpprof.analyzers.measures.step_parts import ARGMAX, COMPUTE, COPY, COUNTED, NORM, Work, find_work
from mtpprof.ranges import CollectiveRange, step_name
from tests.unit.analyzers.tables import GEMM, NCCL_AR, WORKER, Trace, one_run, record

RMSNORM = "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)"
ALL_REDUCE = CollectiveRange(
    kind="all_reduce",
    site="embed",
    phase="target",
    shape=(4, 8),
    dtype="bf16",
    payload_bytes=64,
    group="tp",
    group_size=2,
    implementation="shm_oneshot",
    sequence=0,
    fused="",
).name()


def _work(trace: Trace, base: int = 0) -> Work:
    traces = one_run(trace.table(base=base))
    (work,) = find_work(traces, analyze(traces).calls)
    return work


def _entries(work: Work) -> list[tuple[str, str, int, int]]:
    return [
        (work.names[code], COUNTED[part], start, end)
        for code, part, start, end in zip(
            work.name.tolist(), work.part.tolist(), work.start_ns.tolist(), work.end_ns.tolist(), strict=True
        )
    ]


def test_kernels_that_are_no_collectives_on_the_clock_of_the_calls() -> None:
    trace = Trace()
    trace.kernel(GEMM, 100, 50, launched=10)
    trace.kernel(NCCL_AR, 150, 40, launched=20, record=record())
    trace.kernel(RMSNORM, 190, 5, launched=30)
    work = _work(trace, base=1000)
    assert work.on_device
    assert work.rank == 0
    assert _entries(work) == [(GEMM, COMPUTE, 1100, 1150), (RMSNORM, NORM, 1190, 1195)]


def test_outermost_operations_of_the_thread_that_issues_the_collectives() -> None:
    trace = Trace()
    trace.note(step_name(0), 0, 1000)
    trace.op("aten::linear", 10, 100)
    trace.op("aten::addmm", 20, 80)
    trace.note(ALL_REDUCE, 200, 100)
    trace.op("aten::copy_", 210, 20)
    trace.op("aten::argmax", 400, 30)
    trace.op("aten::cat", 400, 10)
    trace.op("aten::mul", 20, 900, track=WORKER)
    assert _entries(_work(trace)) == [("aten::linear", COMPUTE, 10, 110), ("aten::argmax", ARGMAX, 400, 430)]


def test_an_operation_around_a_collective_counts_by_what_else_is_in_it() -> None:
    trace = Trace()
    trace.op("vllm::row_parallel", 10, 400)
    trace.op("aten::mm", 20, 50)
    trace.note(ALL_REDUCE, 100, 100)
    trace.op("aten::clone", 210, 30)
    assert _entries(_work(trace)) == [("aten::mm", COMPUTE, 20, 70), ("aten::clone", COPY, 210, 240)]


def test_a_trace_without_collectives_has_work_all_the_same() -> None:
    trace = Trace()
    trace.op("aten::mm", 20, 50)
    assert _entries(_work(trace)) == [("aten::mm", COMPUTE, 20, 70)]


def test_without_collectives_it_is_the_work_of_the_busiest_thread() -> None:
    trace = Trace()
    trace.op("aten::empty", 0, 1000, track=WORKER)
    trace.op("aten::mm", 20, 50)
    trace.op("aten::copy_", 80, 10)
    assert _entries(_work(trace)) == [("aten::mm", COMPUTE, 20, 70), ("aten::copy_", COPY, 80, 90)]
