"""What counts as a call, exactly once, and where its bytes come from."""

from __future__ import annotations

from collections import Counter

import pytest

from mtpprof.analyzers.calls.classify import Classifier
from mtpprof.analyzers.calls.find import Found, find_calls
from mtpprof.analyzers.calls.table import Calls, Provenance, Vocabulary, join
from mtpprof.analyzers.traces.table import Category, EventTable, ProcessGroup
from mtpprof.ranges import CollectiveRange
from tests.unit.analyzers.tables import GEMM, NCCL_AG, NCCL_AR, WORKER, Trace, record

MULTIMEM = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)"
TWOSHOT = (
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4, __nv_bfloat16>(int)"
)
TAIL = "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16, 8>(int)"
BF16 = "c10::BFloat16"


def found(table: EventTable) -> tuple[Calls, Found]:
    vocabulary = Vocabulary()
    result = find_calls(table, Classifier(), vocabulary)
    return join([result.columns], vocabulary), result


def own_range(
    kind: str = "all_reduce", *, seq: int = 0, fused: str = "", implementation: str = "nccl"
) -> str:
    return CollectiveRange(
        kind=kind,
        site="layers.0.mla.o_proj",
        phase="target",
        shape=(4, 256),
        dtype="bf16",
        payload_bytes=2048 if kind == "all_reduce" else 4096,
        group="tp",
        group_size=2,
        implementation=implementation,
        sequence=seq,
        fused=fused,
    ).name()


def test_a_kernel_is_a_call_and_its_operation_and_annotation_are_not() -> None:
    trace = Trace()
    trace.op("c10d::allreduce_", 0, 50, external_id=5)
    trace.op("record_param_comms", 5, 40, external_id=6, record=record(in_elems=512, out_elems=512))
    trace.note("nccl:all_reduce", 6, 30)
    trace.kernel(NCCL_AR, 100, 40, launched=10, external_id=6, record=record(in_elems=512, out_elems=512))
    trace.kernel(GEMM, 120, 60, launched=12)
    calls, _ = found(trace.table())
    assert len(calls) == 1
    assert calls.on_device.all()
    assert (calls.payload_bytes[0], calls.group_size[0], calls.text("group", 0)) == (1024, 2, "0,1")
    assert calls.provenance[0] == Provenance.MEASURED
    assert calls.text("how", 0) == "arguments of the kernel"
    assert (calls.dur_ns[0], calls.exposed_ns[0], calls.launch_ns[0]) == (40, 20, 10)


def test_wait_records_and_computation_count_for_nothing() -> None:
    trace = Trace()
    trace.op("record_param_comms", 5, 40, record=record("wait", 0, 0, "Byte", 1, "[]"))
    trace.kernel("void at::native::reduce_kernel<512, 1>(int)", 100, 40, launched=10)
    assert len(found(trace.table())[0]) == 0


def test_kernel_without_arguments_takes_the_record_of_its_operation() -> None:
    trace = Trace()
    trace.op("record_param_comms", 5, 40, external_id=6, record=record(in_elems=512, out_elems=512))
    trace.kernel(NCCL_AR, 100, 40, launched=10, external_id=6)
    calls, _ = found(trace.table())
    assert (calls.payload_bytes[0], calls.provenance[0]) == (1024, Provenance.MEASURED)
    assert calls.text("how", 0) == "communication record of the operation"


def test_kernel_takes_the_dimensions_of_the_operation_with_its_external_id() -> None:
    trace = Trace()
    trace.op("vllm::all_reduce", 0, 60, [[8, 256]], ["float"], external_id=4)
    trace.op("symm_mem::multimem_all_reduce_", 5, 40, [[1024], [], []], [BF16, "", ""], external_id=6)
    trace.kernel(MULTIMEM, 100, 40, launched=10, external_id=6)
    calls, _ = found(trace.table())
    assert (calls.payload_bytes[0], calls.provenance[0]) == (2048, Provenance.DERIVED)
    assert (calls.text("shape", 0), calls.text("dtype", 0)) == ("1024", "bf16")


def test_kernel_takes_the_dimensions_of_the_innermost_operation_around_its_launch() -> None:
    trace = Trace()
    trace.op("vllm::all_reduce", 0, 100, [[8, 256]], ["float"])
    trace.op("_C_custom_ar::all_reduce", 5, 40, [[], [8, 256], [8, 256], [], []], ["", BF16, BF16, "", ""])
    trace.op("_C_custom_ar::all_reduce", 50, 10, [[], [2, 256], [2, 256], [], []], ["", BF16, BF16, "", ""])
    trace.kernel("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(int)", 200, 40, launched=10)
    trace.kernel("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(int)", 300, 40, launched=80)
    calls, _ = found(trace.table())
    assert calls.payload_bytes.tolist() == [4096, 8192]
    assert [calls.text("dtype", index) for index in range(2)] == ["bf16", "fp32"]


def test_graph_kernels_take_nothing_from_what_surrounds_the_graphs_launch() -> None:
    trace = Trace()
    trace.op("vllm::all_reduce", 0, 100, [[8, 256]], [BF16])
    trace.note(own_range(), 0, 100)
    trace.graph_launch(10, 1000)
    for index in range(3):
        trace.kernel(NCCL_AR, 200 + 50 * index, 40, graph=1000)
    calls, _ = found(trace.table())
    assert calls.graph.tolist() == [1000] * 3
    assert calls.payload_bytes.tolist() == [-1] * 3
    assert calls.provenance.tolist() == [Provenance.UNKNOWN] * 3
    assert "graph" in calls.text("how", 0)


def test_kernels_that_share_a_correlation_without_a_launch_are_a_graph() -> None:
    trace = Trace()
    for index in range(2):
        trace.kernel(NCCL_AR, 200 + 50 * index, 40, graph=77)
    trace.kernel(NCCL_AR, 400, 40)
    calls, _ = found(trace.table())
    assert calls.graph.tolist() == [77, 77, -1]
    assert calls.launch_ns.tolist() == [-1] * 3


def test_two_kernel_fusion_is_one_call_with_both_times() -> None:
    trace = Trace()
    trace.kernel(TWOSHOT, 100, 40, launched=10)
    trace.kernel(TAIL, 135, 25, launched=12)  # starts early: programmatic dependent launch
    trace.kernel(GEMM, 170, 10, launched=14)
    calls, _ = found(trace.table())
    assert len(calls) == 1
    assert (calls.dur_ns[0], calls.exposed_ns[0]) == (60, 60)
    assert calls.text("fused", 0) == "residual_rmsnorm"


@pytest.mark.parametrize("between", ["another kernel", "another stream", "another head"])
def test_a_tail_elsewhere_is_not_a_fusion(between: str) -> None:
    trace = Trace()
    trace.kernel(NCCL_AR if between == "another head" else TWOSHOT, 100, 40, launched=10)
    if between == "another kernel":
        trace.kernel(GEMM, 141, 5, launched=11)
    trace.kernel(TAIL, 150, 25, launched=12, stream=9 if between == "another stream" else 7)
    calls, _ = found(trace.table())
    assert len(calls) == 1
    assert (calls.dur_ns[0], calls.text("fused", 0)) == (40, "")


def test_own_range_gives_its_kernel_site_phase_and_bytes_and_the_kernel_its_implementation() -> None:
    trace = Trace()
    trace.note(own_range(seq=3, fused="residual_rmsnorm"), 0, 100)
    trace.kernel(NCCL_AR, 200, 40, launched=10)
    calls, result = found(trace.table())
    assert len(calls) == 1
    texts = [
        calls.text(name, 0)
        for name in ("site", "phase", "shape", "dtype", "fused", "implementation", "algorithm")
    ]
    # What our range says of a fusion is what was asked for: the kernel that ran is NCCL's plain one.
    assert texts == ["layers.0.mla.o_proj", "target", "4x256", "bf16", "", "nccl/LL", "ring"]
    assert (calls.payload_bytes[0], calls.seq[0], calls.provenance[0]) == (2048, 3, Provenance.MEASURED)
    assert result.notes == ()


def test_several_kernels_launched_in_one_own_range_are_one_call() -> None:
    trace = Trace()
    trace.note(own_range(), 0, 100)
    trace.kernel(NCCL_AR, 200, 40, launched=10)
    trace.kernel(NCCL_AR, 240, 40, launched=20)
    trace.kernel(NCCL_AR, 300, 40, launched=150)
    calls, _ = found(trace.table())
    assert calls.dur_ns.tolist() == [80, 40]
    assert calls.exposed_ns.tolist() == [80, 40]


def test_own_range_without_a_kernel_is_named_and_not_counted() -> None:
    trace = Trace()
    trace.note(own_range(), 0, 100)
    trace.kernel(NCCL_AR, 300, 40, launched=150)
    calls, result = found(trace.table())
    assert len(calls) == 1
    assert calls.text("site", 0) == ""
    assert "1 of 1 mtpprof ranges" in result.notes[0]


def test_a_generic_kernel_is_what_its_record_or_operation_says() -> None:
    trace = Trace()
    trace.kernel(
        "ncclDevKernel_Generic_4(int)", 100, 40, launched=10, record=record("_allgather_base", 512, 1024)
    )
    trace.op("c10d::allreduce_", 200, 50, [[[16]]], ["TensorList"])
    trace.kernel("ncclDevKernel_Generic_4(int)", 300, 40, launched=210)
    trace.kernel("ncclDevKernel_Generic_4(int)", 400, 40, launched=280)
    trace.kernel("ncclDevKernel_SendRecv(int)", 500, 40, launched=290, record=record("all_to_all", 512, 512))
    calls, _ = found(trace.table())
    kinds = [calls.text("kind", index) for index in range(4)]
    assert kinds == ["all_gather", "all_reduce", "unknown", "all_to_all"]
    assert calls.payload_bytes.tolist() == [2048, -1, -1, 1024]


def test_exposure_is_counted_per_device() -> None:
    trace = Trace()
    trace.kernel(NCCL_AR, 100, 40, launched=10)
    trace.kernel(GEMM, 100, 40, launched=12, device=1)
    calls, _ = found(trace.table())
    assert calls.exposed_ns.tolist() == [40]


def test_a_record_without_sizes_leaves_the_bytes_unknown() -> None:
    trace = Trace()
    trace.kernel(NCCL_AR, 100, 40, launched=10, record=record("allreduce_coalesced", 0, 0))
    calls, _ = found(trace.table())
    assert (calls.payload_bytes[0], calls.provenance[0]) == (-1, Provenance.UNKNOWN)
    assert calls.text("how", 0) == "the record gives no size"


def test_group_size_is_not_guessed_where_the_world_has_smaller_groups() -> None:
    trace = Trace()
    trace.kernel(MULTIMEM, 100, 40, launched=10)
    whole = ProcessGroup(name="0", description="", size=8, ranks=())
    part = ProcessGroup(name="1", description="", size=4, ranks=())
    assert found(trace.table(world=8, groups=(whole,)))[0].group_size.tolist() == [8]
    assert found(trace.table(world=8, groups=(whole, part)))[0].group_size.tolist() == [-1]


def test_collectives_on_the_cpu_beside_kernels_are_named_and_not_counted() -> None:
    trace = Trace()
    trace.kernel(NCCL_AR, 100, 40, launched=10)
    trace.note("gloo:broadcast", 20, 30, track=WORKER)
    calls, result = found(trace.table())
    assert len(calls) == 1
    assert "1 collectives on the CPU" in result.notes[0]


def test_unknown_names_that_look_like_communication_are_listed() -> None:
    trace = Trace()
    for index in range(3):
        trace.kernel("my_fused_allreduce_gemm<float>", 100 + 50 * index, 40, launched=10)
    trace.kernel(GEMM, 500, 40, launched=10)
    _, result = found(trace.table())
    assert [(item.name, item.count, item.dur_ns) for item in result.suspects] == [
        ("my_fused_allreduce_gemm<float>", 3, 120)
    ]


def test_shared_memory_operations_are_calls_with_bytes_by_shape() -> None:
    trace = Trace()
    trace.op("_C::shm_allreduce", 0, 50, [[], [12, 256]], ["Scalar", BF16])
    trace.op("_C::shm_all_gather", 100, 50, [[], [4, 2], [8, 2]], ["Scalar", "float", "float"])
    trace.op("aten::gather", 200, 50, [[4, 2]], ["float"])
    calls, _ = found(trace.table(world=2))
    assert [calls.text("kind", index) for index in range(2)] == ["all_reduce", "all_gather"]
    assert [calls.text("shape", index) for index in range(2)] == ["12x256", "4x2"]
    assert calls.payload_bytes.tolist() == [6144, 64]
    assert calls.provenance.tolist() == [Provenance.DERIVED] * 2
    assert [calls.text("algorithm", index) for index in range(2)] == ["logical", "logical"]
    assert not calls.on_device.any()


def test_own_range_on_the_cpu_is_the_call_and_what_is_inside_is_not() -> None:
    trace = Trace()
    trace.note(own_range(seq=1, implementation="gloo"), 0, 100)
    trace.op("c10d::allreduce_", 10, 20, [[[4, 256]]], ["TensorList"])
    trace.note("gloo:all_reduce", 15, 60, track=WORKER, dims=[[4, 256]], types=["float"])
    trace.note(own_range("all_gather", seq=2, implementation="shm_oneshot"), 200, 70)
    calls, _ = found(trace.table())
    assert calls.dur_ns.tolist() == [100, 70]
    assert [calls.text("implementation", index) for index in range(2)] == ["gloo", "shm_oneshot"]
    assert calls.payload_bytes.tolist() == [2048, 4096]
    assert calls.seq.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("operation", "fused"),
    [
        ("mtpprof_shm::all_reduce_residual_rmsnorm", "residual_rmsnorm"),
        ("mtpprof_shm::all_reduce", ""),
        ("aten::sum", ""),
        (None, "unknown"),
    ],
)
@pytest.mark.parametrize("claimed", [True, False])
def test_a_fusion_on_the_cpu_is_what_the_operation_in_the_range_says(
    operation: str | None, fused: str, claimed: bool
) -> None:
    trace = Trace()
    trace.note(own_range(fused="residual_rmsnorm" if claimed else ""), 0, 100)
    if operation is not None:
        trace.op(operation, 10, 20, [[4, 256]], [BF16])
    calls, _ = found(trace.table())
    assert len(calls) == 1
    assert calls.text("fused", 0) == (fused if claimed or operation is not None else "")


def test_operations_outside_own_ranges_count_beside_them() -> None:
    trace = Trace()
    trace.note(own_range(implementation="shm"), 0, 100)
    trace.op("_C::shm_allreduce", 10, 20, [[], [4, 256]], ["Scalar", BF16])
    trace.op("_C::shm_allreduce", 200, 20, [[], [8, 256]], ["Scalar", BF16])
    calls, _ = found(trace.table())
    assert calls.payload_bytes.tolist() == [2048, 4096]


def test_of_an_operation_and_its_annotation_one_is_counted() -> None:
    trace = Trace()
    for index in range(3):
        trace.op("c10d::allreduce_", 100 * index, 10, [[[16]]], ["TensorList"])
        trace.note("gloo:all_reduce", 100 * index + 5, 60, track=WORKER, dims=[[16]], types=["float"])
    trace.op("c10d::barrier", 400, 10)
    calls, _ = found(trace.table())
    assert Counter(calls.text("kind", index) for index in range(len(calls))) == {
        "all_reduce": 3,
        "barrier": 1,
    }
    assert calls.dur_ns.tolist() == [60, 60, 60, 10]
    assert calls.payload_bytes.tolist() == [64, 64, 64, -1]


def test_where_annotations_are_missing_the_operations_count() -> None:
    trace = Trace()
    for index in range(3):
        trace.op("c10d::allreduce_", 100 * index, 10, [[[16]]], ["TensorList"])
    trace.note("gloo:all_reduce", 5, 60, track=WORKER, dims=[[16]], types=["float"])
    calls, _ = found(trace.table())
    assert calls.dur_ns.tolist() == [10, 10, 10]
    assert calls.text("how", 0) == "the dtype was not recorded"


def test_nested_operations_are_one_call_which_takes_the_inner_ones_size() -> None:
    trace = Trace()
    trace.op("_c10d_functional::all_reduce", 0, 100)
    trace.op("c10d::allreduce_", 10, 50, [[16]], ["float"])
    calls, _ = found(trace.table())
    assert calls.dur_ns.tolist() == [100]
    assert calls.payload_bytes.tolist() == [64]


def test_launches_of_a_device_without_kernels_are_named_and_not_counted() -> None:
    trace = Trace()
    trace.op("c10d::allreduce_", 0, 50, [[16]], ["float"])
    trace.note("nccl:all_reduce", 5, 30)
    calls, result = found(trace.table())
    assert len(calls) == 0
    assert "1 collectives were launched on a device" in result.notes[0]


def test_on_the_cpu_operations_of_other_threads_cover_a_call() -> None:
    trace = Trace()
    trace.op("_C::shm_allreduce", 0, 100, [[], [4, 4]], ["Scalar", BF16])
    trace.op("aten::mm", 20, 30, track=WORKER)
    trace.op("aten::mul", 30, 10, track=WORKER)
    trace.op("aten::empty", 40, 5)
    calls, _ = found(trace.table())
    assert calls.exposed_ns.tolist() == [70]


def test_no_events_no_calls() -> None:
    calls, result = found(Trace().table())
    assert len(calls) == 0
    assert result.suspects == ()


def test_sizes_beyond_reason_are_unknown() -> None:
    trace = Trace()
    trace.op("_C::shm_allreduce", 0, 50, [[], [1 << 40, 1 << 40]], ["Scalar", BF16])
    trace.op("_C::shm_allreduce", 100, 50, [[], [-4, 4]], ["Scalar", BF16])
    trace.op("_C::shm_allreduce", 200, 50, [[], ["x", 4]], ["Scalar", BF16])
    calls, _ = found(trace.table())
    assert calls.payload_bytes.tolist() == [-1, -1, -1]


def test_a_range_of_an_unknown_kind_or_damaged_is_no_call() -> None:
    trace = Trace()
    trace.note("mtpprof::teleport site=a phase=b shape=1 dtype=bf16 bytes=2 group=tp n=2 impl=x seq=0", 0, 10)
    trace.note("mtpprof::all_reduce site=a shape=oops", 20, 10)
    trace.note("mtpprof::step index=3", 40, 10)
    assert len(found(trace.table())[0]) == 0


def test_nvtx_ranges_count_as_own_ranges_too() -> None:
    trace = Trace()
    trace.add(own_range(), 0, 100, Category.NVTX)
    trace.kernel(NCCL_AG, 200, 40, launched=10)
    calls, _ = found(trace.table())
    assert calls.text("site", 0) == "layers.0.mla.o_proj"


def test_a_range_that_is_both_annotation_and_nvtx_counts_once() -> None:
    trace = Trace()
    trace.note(own_range(), 0, 100)
    trace.add(own_range(), 1, 98, Category.NVTX)
    assert len(found(trace.table())[0]) == 1
    trace.kernel(NCCL_AG, 200, 40, launched=10)
    calls, result = found(trace.table())
    assert len(calls) == 1
    assert result.notes == ()
