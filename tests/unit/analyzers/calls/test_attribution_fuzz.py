"""Whatever the events, attribution gives an answer whose figures agree with each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.calls.attribution import Attribution, analyze
from mtpprof.analyzers.calls.table import Provenance
from mtpprof.analyzers.measures.step_figures import per_step, step_times
from mtpprof.analyzers.measures.sums import BY, group
from mtpprof.analyzers.traces.table import Category, EventTable
from mtpprof.ranges import CollectiveRange, phase_name, step_name
from tests.unit.analyzers.tables import GEMM, NCCL_AG, NCCL_AR, Trace, one_run, record

OWN = CollectiveRange(
    kind="all_gather",
    site="lm_head",
    phase="target",
    shape=(4, 8),
    dtype="bf16",
    payload_bytes=128,
    group="tp",
    group_size=2,
    implementation="shm",
    sequence=-1,
).name()
KERNELS = [
    NCCL_AR,
    NCCL_AG,
    GEMM,
    "ncclDevKernel_Generic_4(int)",
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4, __nv_bfloat16>(int)",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16, 8>(int)",
    "ncclDevKernel_Broadcast_RING_LL(int)",
    "",
]
RANGES = [
    OWN,
    step_name(3),
    phase_name("draft[0]"),
    "execute_context_0(0)_generation_4(12)",
    "execute_context_0(0)_generation_0(0)",
    "step[DECODE bs=4]",
    "step[EXTEND bs=2 toks=64]",
    "ProfilerStep#4",
    "gloo:all_reduce",
    "nccl:all_reduce",
    "ncclAllReduce",
    "mtpprof::all_reduce site=",
]
OPS = ["_C::shm_allreduce", "c10d::allreduce_", "record_param_comms", "vllm::all_reduce", "aten::mm"]

times = st.integers(0, 400)
lengths = st.integers(0, 120)
kernels = st.tuples(
    st.just("kernel"),
    st.sampled_from(KERNELS),
    times,
    lengths,
    st.integers(-1, 4),
    st.sampled_from([-1, 7, 9]),
)
others = st.tuples(
    st.sampled_from(["op", "note", "nvtx", "launch", "graph"]),
    st.sampled_from(OPS + RANGES),
    times,
    lengths,
    st.integers(-1, 4),
    st.integers(0, 1),
)
records = st.one_of(
    st.none(),
    st.builds(
        record,
        st.sampled_from(["allreduce", "_allgather_base", "wait", ""]),
        st.integers(-1, 1 << 62),
        st.integers(-1, 64),
        st.sampled_from(["BFloat16", "Float", "Nonsense"]),
        st.integers(-1, 4),
        st.sampled_from(["[0, 1]", "[0]", "[0, 1, ... 7]", ""]),
        st.integers(-1, 5),
    ),
)
dims = st.sampled_from(
    [None, [], [[4, 8]], [[], [4, 8]], [[4, 8], [8, 8]], [[[4]]], ["x", None], [[-1, 1 << 70]]]
)


@st.composite
def rank_tables(draw: st.DrawFn, rank: int | None) -> EventTable:
    trace = Trace()
    for what, name, at, length, link, lane in draw(st.lists(st.one_of(kernels, others), max_size=25)):
        fields: dict[str, object] = {"correlation": link, "external_id": link}
        if (given_record := draw(records)) is not None:
            fields["record"] = given_record
        match what:
            case "kernel":
                trace.add(name, at, length, Category.KERNEL, 2, device=0, stream=lane, **fields)
            case "op":
                trace.op(name, at, length, draw(dims), ["float", "c10::BFloat16"], track=lane, **fields)
            case "launch":
                trace.add("cudaLaunchKernel", at, 2, Category.RUNTIME, lane, **fields)
            case "graph":
                trace.add("cudaGraphLaunch", at, 2, Category.RUNTIME, lane, **fields)
            case _:
                category = Category.NVTX if what == "nvtx" else Category.USER_ANNOTATION
                trace.add(name, at, length, category, lane, dims=draw(dims), **fields)
    return trace.table(
        rank, draw(st.sampled_from([None, 1, 2, 4])), base=draw(st.sampled_from([None, 0, 10**18]))
    )


def check(found: Attribution) -> None:
    calls = found.calls
    assert (calls.dur_ns >= 0).all()
    assert ((calls.exposed_ns >= 0) & (calls.exposed_ns <= calls.dur_ns)).all()
    assert ((calls.payload_bytes == -1) == (calls.provenance == Provenance.UNKNOWN)).all()
    waits = calls.wait_ns >= 0
    assert (waits == (calls.transfer_ns >= 0)).all()
    assert (calls.wait_ns[waits] + calls.transfer_ns[waits] == calls.dur_ns[waits]).all()
    assert (calls.match[waits] >= 0).all()
    for match in np.unique(calls.match[calls.match >= 0]):
        mine = calls.match == match
        assert len(np.unique(calls.kind[mine])) == 1
        assert len(np.unique(calls.rank[mine])) == mine.sum()
    for item in group(calls, found.steps, ("kind", "phase", "rank")):
        assert item.busy_ns <= item.sum_ns
        assert item.bytes_known + sum(reason.calls for reason in item.bytes_unknown) == item.calls
        assert (item.payload_bytes is None) == (item.bytes_known == 0)
    for name in BY:
        assert sum(item.calls for item in group(calls, found.steps, (name,))) == len(calls)


@settings(deadline=None, max_examples=150)
@given(rank_tables(0), st.one_of(rank_tables(1), rank_tables(0), rank_tables(None)))
def test_no_events_are_too_strange(first: EventTable, second: EventTable) -> None:
    found = analyze(one_run(first, second))
    check(found)
    times = step_times(found.calls, found.steps)
    assert all(item.steps > 0 for item in times)
    per_step(found.calls, found.steps)
