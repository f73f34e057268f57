"""Kernels of replayed graphs take what the emitter told around the replay: in order, all or none."""

from __future__ import annotations

from mtpprof.analyzers.calls.classify import Classifier
from mtpprof.analyzers.calls.find import Found, find_calls
from mtpprof.analyzers.calls.table import Calls, Provenance, Vocabulary, join
from mtpprof.ranges import CollectiveRange, graph_name
from tests.unit.analyzers.tables import GEMM, NCCL_AG, NCCL_AR, WORKER, Trace

SITES = ("embed", "layers.0.mla.o_proj", "lm_head")


def found(trace: Trace) -> tuple[Calls, Found]:
    vocabulary = Vocabulary()
    result = find_calls(trace.table(), Classifier(), vocabulary)
    return join([result.columns], vocabulary), result


def told(site: str, sequence: int, phase: str = "target") -> str:
    gathers = site.endswith("lm_head")
    return CollectiveRange(
        kind="all_gather" if gathers else "all_reduce",
        site=site,
        phase=phase,
        shape=(4, 256),
        dtype="bf16",
        payload_bytes=4096 if gathers else 2048,
        group="tp",
        group_size=2,
        implementation="pynccl",
        sequence=sequence,
    ).name()


def replay(
    trace: Trace, at: int, correlation: int, *, kernels: tuple[str, ...], phase: str = "target"
) -> None:
    """A graph of three collectives, told around its launch, and its kernels on the device."""
    trace.note(graph_name(len(SITES)), at, 100)
    for index, site in enumerate(SITES):
        trace.note(told(site, index, phase), at + 10 * index + 5, 2)
    trace.graph_launch(at + 60, correlation)
    for index, name in enumerate(kernels):
        trace.kernel(name, at + 200 + 50 * index, 40, graph=correlation)


def test_kernels_of_a_replay_are_told_in_order() -> None:
    trace = Trace()
    for number, phase in enumerate(("target", "draft[0]")):
        replay(trace, 1000 * number, 1000 + number, kernels=(NCCL_AR, GEMM, NCCL_AR, NCCL_AG), phase=phase)
    calls, result = found(trace)
    assert [calls.text("site", index) for index in range(6)] == list(SITES) * 2
    assert [calls.text("phase", index) for index in range(6)] == ["target"] * 3 + ["draft[0]"] * 3
    assert calls.payload_bytes.tolist() == [2048, 2048, 4096] * 2
    assert set(calls.provenance.tolist()) == {Provenance.MEASURED}
    assert calls.graph.tolist() == [1000] * 3 + [1001] * 3
    assert calls.dur_ns.tolist() == [40] * 6
    assert not [note for note in result.notes if "ranges launched no" in note]


def test_a_replay_with_another_number_of_kernels_is_not_guessed_at() -> None:
    trace = Trace()
    replay(trace, 0, 1000, kernels=(NCCL_AR, NCCL_AR, NCCL_AG))
    replay(trace, 1000, 1001, kernels=(NCCL_AR, NCCL_AG))
    calls, result = found(trace)
    assert [bool(calls.text("site", index)) for index in range(5)] == [True] * 3 + [False] * 2
    assert any("1 of 2 replayed graphs have other numbers" in note for note in result.notes)


def test_a_replay_that_nobody_told_of_stays_unknown() -> None:
    trace = Trace()
    trace.note(graph_name(1), 0, 50)
    trace.note(told("embed", 0), 5, 2)
    trace.graph_launch(100, 1000)
    trace.kernel(NCCL_AR, 200, 40, graph=1000)
    trace.kernel(NCCL_AR, 250, 40, graph=1000)
    calls, _ = found(trace)
    assert calls.text("site", 0) == ""


def test_ranges_of_another_thread_are_not_the_replays() -> None:
    trace = Trace()
    trace.note(graph_name(1), 0, 100, track=WORKER)
    trace.note(told("embed", 0), 5, 2, track=WORKER)
    trace.graph_launch(50, 1000)
    for start in (200, 300):
        trace.kernel(NCCL_AR, start, 40, graph=1000)
    calls, _ = found(trace)
    assert calls.text("site", 0) == ""
