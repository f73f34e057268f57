"""Views of calls: sums, unknowns, busy time, bandwidth, sizes; per step with spread; two runs held against each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.calls.attribution import Attribution, analyze
from mtpprof.analyzers.calls.table import wire_bytes_of
from mtpprof.analyzers.measures.step_figures import per_step, step_times
from mtpprof.analyzers.measures.sums import BY, Group, group, size_class
from mtpprof.analyzers.numeric import intervals
from tests.unit.analyzers.tables import GEMM, NCCL_AG, NCCL_AR, Trace, one_run, record

MULTIMEM = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)"
FUSED = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
    "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 2, false, false>(int)"
)


def some_calls() -> Attribution:
    tables = []
    for rank in range(2):
        trace = Trace()
        late = 1_000 * rank
        trace.kernel(
            NCCL_AR, 10_000 + late, 5_000 - late, launched=100, record=record(in_elems=512, out_elems=512)
        )
        trace.kernel(
            NCCL_AR, 20_000 + late, 6_000 - late, launched=200, record=record(in_elems=1024, out_elems=1024)
        )
        trace.kernel(NCCL_AG, 30_000, 4_000, launched=300, record=record("_allgather_base", 256, 512))
        trace.kernel(MULTIMEM, 40_000, 2_000, launched=400, stream=9)
        trace.kernel(MULTIMEM, 41_000, 2_000, launched=500, stream=11)
        trace.kernel(GEMM, 41_500, 500, launched=600)
        tables.append(trace.table(rank))
    return analyze(one_run(*tables))


def by(found: Attribution, *names: str) -> dict[tuple[object, ...], Group]:
    return {tuple(item.key.values()): item for item in group(found.calls, found.steps, names)}


def test_sums_by_kind() -> None:
    groups = by(some_calls(), "kind")
    reduces = groups["all_reduce",]
    assert (reduces.calls, reduces.ranks, reduces.fused_calls) == (8, 2, 0)
    assert (reduces.payload_bytes, reduces.bytes_known, reduces.bytes_measured) == (2 * (1024 + 2048), 4, 4)
    assert [(item.reason, item.calls) for item in reduces.bytes_unknown] == [
        ("neither the call nor an operation around it tells its size", 4)
    ]
    assert (reduces.wire_bytes, reduces.wire_known) == (
        2 * (1024 + 2048),
        4,
    )  # a ring of 2 sends the payload once
    assert reduces.sum_ns == 2 * (5_000 + 6_000 + 4_000) - 2_000
    assert reduces.busy_ns == 2 * (5_000 + 6_000 + 3_000) - 2_000
    assert reduces.exposed_ns == 2 * (5_000 + 6_000 + 2_000) - 2_000
    assert (reduces.min_ns, reduces.max_ns) == (2_000, 6_000)
    assert groups["all_gather",].payload_bytes == 2 * 1024


def test_wait_and_transfer_are_summed_over_the_calls_that_know_them() -> None:
    reduces = by(some_calls(), "kind", "implementation")["all_reduce", "nccl/LL"]
    assert (reduces.wait_ns, reduces.transfer_ns, reduces.wait_known) == (2_000, 18_000, 4)


def test_bus_bandwidth_is_that_of_nccl_tests_over_the_transfer() -> None:
    gathers = by(some_calls(), "kind")["all_gather",]
    assert gathers.busbw_basis == "transfer"
    assert gathers.busbw_gb_per_s == pytest.approx(1024 * 0.5 / 4_000)
    reduces = by(some_calls(), "implementation")["nccl/LL",]
    assert reduces.busbw_gb_per_s == pytest.approx((2 * 3072 + 2 * 1024 * 0.5) / (18_000 + 8_000))


def test_bandwidth_without_waits_is_over_the_duration_and_says_so() -> None:
    trace = Trace()
    trace.kernel(NCCL_AR, 10_000, 5_000, launched=100, record=record(in_elems=512, out_elems=512))
    found = analyze(one_run(trace.table(0), world=2))
    (only,) = group(found.calls, found.steps, ("kind",))
    assert only.busbw_basis == "duration"
    assert only.busbw_gb_per_s == pytest.approx(1024 / 5_000)
    assert only.wait_ns is None


def test_unknown_bytes_give_none_and_never_zero() -> None:
    only = by(some_calls(), "implementation")["torch_symm_mem",]
    assert (only.payload_bytes, only.wire_bytes, only.bytes_known, only.busbw_gb_per_s) == (
        None,
        None,
        0,
        None,
    )
    assert only.busbw_basis == ""


def test_no_time_no_bandwidth() -> None:
    trace = Trace()
    trace.kernel(NCCL_AR, 10_000, 0, launched=100, record=record(in_elems=512, out_elems=512))
    found = analyze(one_run(trace.table(0), world=2))
    (only,) = group(found.calls, found.steps, ("kind",))
    assert only.busbw_gb_per_s is None


@pytest.mark.parametrize("name", BY)
def test_every_column_groups_and_loses_no_call(name: str) -> None:
    found = some_calls()
    groups = group(found.calls, found.steps, (name,))
    assert sum(item.calls for item in groups) == len(found.calls)
    assert sum(item.sum_ns for item in groups) == int(found.calls.dur_ns.sum())


def test_ranks_and_sizes_come_in_order_and_the_rest_longest_first() -> None:
    found = some_calls()
    assert [item.key["rank"] for item in group(found.calls, found.steps, ("rank",))] == [0, 1]
    assert [item.key["size"] for item in group(found.calls, found.steps, ("size",))] == [None, 1024, 2048]
    times = [item.sum_ns for item in group(found.calls, found.steps, ("implementation",))]
    assert times == sorted(times, reverse=True)


def test_an_unknown_column_is_refused() -> None:
    found = some_calls()
    with pytest.raises(ValueError, match="cannot be grouped by 'colour'"):
        group(found.calls, found.steps, ("colour",))


def test_no_calls_no_groups() -> None:
    found = analyze(one_run(Trace().table(0), world=1))
    assert group(found.calls, found.steps, ("kind",)) == ()
    assert len(wire_bytes_of(found.calls)) == 0
    assert step_times(found.calls, found.steps) == ()


@given(st.integers(1, 1 << 60))
def test_size_class_is_the_next_power_of_two(size: int) -> None:
    (found,) = size_class(np.array([size])).tolist()
    assert found >= size > found // 2
    assert found & (found - 1) == 0


def test_size_class_keeps_unknown_and_nothing() -> None:
    assert size_class(np.array([-1, 0, 1, 2, 3])).tolist() == [-1, 0, 1, 2, 4]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=20),
)
def test_busy_of_a_group_is_the_union_of_its_calls_on_each_rank(items: list[tuple[int, int, int]]) -> None:
    tables = []
    for rank in range(2):
        trace = Trace()
        for index, (which, start, length) in enumerate(items):
            if index % 2 == rank:
                trace.kernel(NCCL_AR if which % 2 else NCCL_AG, 1000 + start, length, launched=start)
        tables.append(trace.table(rank))
    found = analyze(one_run(*tables))
    for item in group(found.calls, found.steps, ("kind",)):
        mine = found.calls.take(found.calls.has("kind", str(item.key["kind"])))
        expected = sum(
            intervals.busy(mine.ts_ns[mine.rank == rank], mine.end_ns[mine.rank == rank]) for rank in (0, 1)
        )
        assert item.busy_ns == expected


def decode(kernels: list[str], batch: int, steps: int = 3, dur: int = 10_000) -> Attribution:
    trace = Trace()
    for index in range(steps):
        at = 1_000_000 * index
        trace.note(f"step[DECODE bs={batch}]", at, 900_000)
        for place, name in enumerate(kernels):
            trace.kernel(name, at + 100_000 + 50_000 * place, dur + 1_000 * index, launched=at + 100 + place)
    return analyze(one_run(trace.table(0, 1), world=1))


def test_figures_per_step_have_their_spread() -> None:
    found = decode([NCCL_AR, NCCL_AR, NCCL_AG], 4)
    figures = {item.form["kind"]: item for item in per_step(found.calls, found.steps)}
    reduces = figures["all_reduce"]
    assert (reduces.steps, reduces.calls.median) == (3, 2)
    assert (reduces.sum_ns.low, reduces.sum_ns.median, reduces.sum_ns.high) == (21_000, 22_000, 23_000)
    assert (reduces.batch.phase, reduces.batch.rows, reduces.batch.sequences) == ("target", 4, 4)
    assert (reduces.payload_bytes, reduces.transfer_ns) == (None, None)
    (times,) = step_times(found.calls, found.steps)
    assert (times.steps, times.calls.median, times.collective_ns.median) == (3, 3, 33_000)
    assert times.dur_ns is not None
    assert times.dur_ns.median == 1_000_000


def test_a_form_that_some_steps_lack_counts_as_none_there() -> None:
    trace = Trace()
    for index in range(4):
        trace.note("step[DECODE bs=4]", 1_000_000 * index, 900_000)
        if index == 0:
            trace.kernel(NCCL_AR, 100_000, 10_000, launched=100)
    found = analyze(one_run(trace.table(0, 1), world=1))
    (figure,) = per_step(found.calls, found.steps)
    assert (figure.steps, figure.calls.median, figure.sum_ns.median) == (4, 0, 0)
