"""When a count of zero is an answer and when it is none."""

from __future__ import annotations

import pytest

from mtpprof.analyzers.answers.analysis import analysis_of
from mtpprof.analyzers.calls.attribution import ReadOptions, Window, analyze
from mtpprof.analyzers.calls.waits import WaitVerdict
from mtpprof.analyzers.compare.side import traces_of
from mtpprof.analyzers.measures.sums import BY
from mtpprof.analyzers.perfetto.timeline import place
from mtpprof.analyzers.traces.table import TraceSet
from mtpprof.analyzers.traces.verdicts import Problem, Verdict
from mtpprof.cli.render.analysis import VIEWS, summary
from tests.unit.analyzers.tables import GEMM, NCCL_AR, Trace, one_run

MS = 1_000_000


def steps(count: int = 3, collective: str = NCCL_AR) -> Trace:
    """Steps of 1 ms with one collective each, numbered from 4."""
    trace = Trace()
    for index in range(count):
        start = index * MS
        trace.note(f"mtpprof::step index={index + 4}", start, MS - 10)
        trace.kernel(collective, start + 100_000, 20_000, launched=start + 50_000)
    return trace


def problem(verdict: Verdict) -> Problem:
    return Problem(verdict=verdict, sentence=f"rank0.json: it is {verdict}.")


def test_no_collective_in_a_whole_trace_is_an_answer() -> None:
    found = analyze(one_run(steps(collective=GEMM).table(0, 1), world=1))
    assert (len(found.calls), found.no_answer, found.counts_are_exact) == (0, "", True)


def test_a_run_without_a_table_has_no_answer_and_a_reason_in_every_view() -> None:
    traces = TraceSet(label="x", tables=(), world_size=None)
    found = traces_of(traces).found
    assert found.no_answer == "x: no trace could be read."
    answer = analysis_of(found, BY)
    assert answer.collective_calls is None
    assert [
        view(answer).rows for name, view in VIEWS.items() if name != "summary" and view(answer).rows
    ] == []
    assert "no trace could be read" in str(summary(answer).rows)
    assert place("x", traces, found).shift_ns == ()


@pytest.mark.parametrize("verdict", [Verdict.TRUNCATED, Verdict.DAMAGED_EVENTS, Verdict.DROPPED_EVENTS])
def test_no_collective_in_a_trace_that_may_have_lost_some_is_none(verdict: Verdict) -> None:
    table = steps(collective=GEMM).table(0, 1).with_problems(problem(verdict))
    found = analyze(one_run(table, world=1))
    assert found.no_answer == problem(verdict).sentence
    assert [item.reason for item in found.withheld if item.answer == "counts"] == [found.no_answer]


def test_what_was_found_in_a_cut_trace_is_a_lower_bound() -> None:
    found = analyze(one_run(steps().table(0, 1).with_problems(problem(Verdict.TRUNCATED)), world=1))
    assert (len(found.calls), found.no_answer, found.counts_are_exact) == (3, "", False)


def test_files_that_are_all_in_error_give_no_answer() -> None:
    sound, broken = steps().table(0, 2), steps().table(1, 2).with_problems(problem(Verdict.OUT_OF_RANGE))
    assert analyze(one_run(broken)).no_answer == problem(Verdict.OUT_OF_RANGE).sentence
    assert analyze(one_run(sound, broken)).no_answer == ""


def test_collectives_launched_without_any_kernel_are_no_zero() -> None:
    trace = Trace()
    trace.note("nccl:all_reduce", 1_000, 500)
    found = analyze(one_run(trace.table(0, 1), world=1))
    assert len(found.calls) == 0
    assert "1 collectives were launched on a device" in found.no_answer


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (Window(start_ns=10 * MS), "last from 0 to 3.0"),
        (Window(end_ns=0), "last from 0 to 3.0"),
        (Window(first_step=50, last_step=60), "hold steps 4 to 6"),
        (Window(last_step=3), "hold steps 4 to 6"),
        (Window(start_ns=0, end_ns=MS), ""),
        (Window(first_step=6), ""),
    ],
)
def test_a_window_beside_the_traces_names_what_there_is(window: Window, said: str) -> None:
    found = analyze(one_run(steps().table(0, 1), world=1), ReadOptions(window=window))
    assert said in found.no_answer
    assert bool(found.no_answer) is bool(said)
    assert bool(len(found.calls)) is not bool(said)
    assert [item.reason for item in found.withheld if item.answer == "counts"] == (
        [found.no_answer] if said else []
    )


def test_steps_of_traces_without_steps() -> None:
    trace = Trace()
    trace.kernel(NCCL_AR, 1_000, 500)
    found = analyze(one_run(trace.table(0, 1), world=1), ReadOptions(window=Window(first_step=0)))
    assert "nothing in the traces tells their steps" in found.no_answer


def test_no_rank_is_named_last_where_waiting_is_inconclusive() -> None:
    first, second = Trace(), Trace()
    for index in range(8):
        at = 1_000_000 * index + 100_000 * index * index
        first.kernel(NCCL_AR, at, 20_000, launched=at)
        # Every second end disagrees by more than the wait: the clocks are not good enough to say who came last.
        late = 12_000 if index % 4 < 2 else 0
        second.kernel(NCCL_AR, at + late, 20_000, launched=at)
    found = analyze(one_run(first.table(0, 2, host="a"), second.table(1, 2, host="a")))
    assert found.waits.verdict is WaitVerdict.INCONCLUSIVE
    assert found.waits.calls
    assert found.stragglers == ()
    assert "which rank is last" in [item.answer for item in found.withheld]
