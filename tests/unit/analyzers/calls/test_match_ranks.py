"""Matching over ranks, clocks, wait and transfer: what is told, and what is withheld and why."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from mtpprof.analyzers.calls.attribution import Attribution, analyze
from mtpprof.analyzers.calls.waits import WaitVerdict
from mtpprof.analyzers.traces.table import EventTable
from mtpprof.analyzers.traces.verdicts import Problem, Verdict
from tests.unit.analyzers.tables import NCCL_AR, Trace, one_run, record

BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TRANSFER_NS = 20_000
Arrivals = list[list[int]]
"""Of each rank, when it arrives at each collective."""


def rank_table(
    arrivals: Arrivals,
    rank: int,
    *,
    world: int,
    clock_ns: int = 0,
    base: int | None = 0,
    host: str | None = None,
    name: str = NCCL_AR,
    group: str = "",
) -> EventTable:
    """A rank's kernels: each lasts from its arrival until 20 µs after the last rank's."""
    trace = Trace()
    members = [int(part) for part in group.strip("[]").split(",")] if group else list(range(len(arrivals)))
    for index, at in enumerate(arrivals[rank]):
        end = max(arrivals[member][index] for member in members) + TRANSFER_NS
        fields: dict[str, Any] = {}
        if group:
            fields["record"] = record(in_elems=64, out_elems=64, group_size=len(members), ranks=group)
        trace.kernel(name, at + clock_ns, end - at, launched=at + clock_ns - 10_000, **fields)
    return trace.table(rank, world, base=base, host=host)


def run(arrivals: Arrivals, world: int | None = None, clocks: dict[int, int] | None = None) -> Attribution:
    size = world or len(arrivals)
    tables = [
        rank_table(arrivals, rank, world=size, clock_ns=(clocks or {}).get(rank, 0))
        for rank in range(len(arrivals))
    ]
    return analyze(one_run(*tables, world=size))


def steady(count: int, late: dict[int, int], ranks: int = 2) -> Arrivals:
    """Collectives at uneven distances; `late` says by how much a rank comes later than the others."""
    random = np.random.default_rng(7)
    at = (1_000_000 + np.cumsum(random.integers(100_000, 300_000, count))).tolist()
    return [[time + late.get(rank, 0) for time in at] for rank in range(ranks)]


def waits_of(found: Attribution, rank: int) -> list[int]:
    mine = found.calls.take(found.calls.rank == rank)
    assert (mine.wait_ns + mine.transfer_ns == mine.dur_ns).all()
    return [int(wait) for wait in mine.wait_ns]


def test_wait_lasts_to_the_last_arrival_and_transfer_from_there() -> None:
    found = run(steady(10, {1: 50_000}, ranks=3))
    assert waits_of(found, 0) == waits_of(found, 2) == [50_000] * 10
    assert waits_of(found, 1) == [0] * 10
    assert found.calls.transfer_ns.tolist() == [TRANSFER_NS] * 30
    assert found.stragglers[0].rank == 1
    assert (found.stragglers[0].last, found.stragglers[0].caused_ns) == (10, 2 * 10 * 50_000)


def test_equal_arrivals_are_all_transfer() -> None:
    found = run(steady(10, {}))
    assert found.waits.verdict is WaitVerdict.TRANSFER
    assert found.waits.share == 0


def test_a_late_rank_makes_it_skew() -> None:
    assert run(steady(10, {1: 200_000})).waits.verdict is WaitVerdict.SKEW


def test_half_waiting_is_mixed() -> None:
    assert run(steady(10, {1: 40_000})).waits.verdict is WaitVerdict.MIXED


def test_clocks_that_differ_are_aligned_on_the_ends() -> None:
    found = run(steady(10, {1: 50_000}), clocks={1: 11_560_000_000})
    assert waits_of(found, 0) == [50_000] * 10
    (clock,) = found.clocks
    assert (clock.offset_ns, clock.residual_ns, clock.method) == (
        11_560_000_000,
        0,
        "ends of the collectives",
    )


def test_drifting_clocks_leave_a_residual_that_is_published_and_makes_it_inconclusive() -> None:
    arrivals = steady(40, {1: 30_000})
    tables = [rank_table(arrivals, 0, world=2), rank_table(arrivals, 1, world=2)]
    drift = np.linspace(-40_000, 40_000, len(tables[1])).astype(np.int64)
    moved = dataclasses.replace(tables[1], ts_ns=tables[1].ts_ns + drift)
    found = analyze(one_run(tables[0], moved))
    assert found.clocks[0].residual_ns > 30_000
    assert found.waits.verdict is WaitVerdict.INCONCLUSIVE
    assert "ends agree" in found.waits.reason or "cannot be trusted" in found.waits.reason


def test_files_without_a_time_base_are_aligned_on_the_ends() -> None:
    arrivals = steady(12, {1: 50_000})
    tables = [rank_table(arrivals, rank, world=2, clock_ns=rank * 5_000_000, base=None) for rank in range(2)]
    found = analyze(one_run(*tables))
    assert waits_of(found, 0) == [50_000] * 12


def test_a_missing_rank_withholds_waits_and_keeps_the_skew_of_the_others() -> None:
    found = run(steady(10, {1: 50_000}), world=4)
    assert (found.calls.wait_ns == -1).all()
    assert (found.calls.match >= 0).all()
    (view,) = found.groups
    assert (view.missing, view.waits_known, view.skew_ns) == ((2, 3), False, 10 * 50_000)
    assert found.waits.verdict is WaitVerdict.INCONCLUSIVE
    assert "2-3" in found.waits.reason
    assert found.stragglers == ()


def test_a_complete_group_has_its_waits_although_the_world_has_not() -> None:
    arrivals = steady(10, {1: 50_000, 3: 70_000}, ranks=4)
    tables = [rank_table(arrivals, rank, world=4, group="[0, 1]") for rank in (0, 1)]
    tables.append(rank_table(arrivals, 3, world=4, group="[2, 3]"))
    found = analyze(one_run(*tables, world=4))
    assert waits_of(found, 0) == [50_000] * 10
    assert (found.calls.wait_ns[found.calls.rank == 3] == -1).all()
    assert (found.calls.match[found.calls.rank == 3] == -1).all()


def test_groups_are_matched_apart() -> None:
    arrivals = steady(10, {1: 50_000, 3: 70_000}, ranks=4)
    tables = [
        rank_table(arrivals, rank, world=4, group="[0, 1]" if rank < 2 else "[2, 3]") for rank in range(4)
    ]
    found = analyze(one_run(*tables))
    assert waits_of(found, 0) == [50_000] * 10
    assert waits_of(found, 2) == [70_000] * 10
    assert [view.group for view in found.groups] == ["0,1", "2,3"]


def test_one_rank_alone_says_nothing_of_waiting() -> None:
    found = run(steady(5, {}, ranks=1), world=2)
    assert (found.calls.match == -1).all()
    assert found.waits.reason == "one rank alone does not show waiting"


def test_kinds_in_which_ranks_need_not_meet_have_no_wait() -> None:
    arrivals = steady(5, {1: 50_000})
    found = analyze(one_run(*(rank_table(arrivals, rank, world=2, name=BROADCAST) for rank in range(2))))
    assert (found.calls.match >= 0).all()
    assert (found.calls.wait_ns == -1).all()
    assert "need not arrive together" in found.waits.reason


def test_calls_that_do_not_line_up_are_left_unmatched_with_the_reason() -> None:
    arrivals = steady(5, {})
    tables = [
        rank_table(arrivals, 0, world=2),
        rank_table(arrivals, 1, world=2, name=BROADCAST),
    ]
    found = analyze(one_run(*tables))
    assert (found.calls.match == -1).all()
    assert any("do not line up" in item.reason for item in found.withheld)


def test_ends_before_the_last_arrival_make_the_clocks_incredible() -> None:
    """Ranks that end one after the other, far apart, cannot have met: a wrong clock or a wrong pair."""
    first, second = Trace(), Trace()
    for index in range(8):
        first.kernel(NCCL_AR, 1_000_000 * index + 100 * index * index, 20_000, launched=1_000_000 * index)
        second.kernel(NCCL_AR, 1_000_000 * index + 100 * index * index, 20_000, launched=1_000_000 * index)
    late = second.table(1, 2, host="a")
    late = dataclasses.replace(late, ts_ns=late.ts_ns + np.where(np.arange(len(late)) % 4 < 2, 30_000, 0))
    found = analyze(one_run(first.table(0, 2, host="a"), late))
    assert found.waits.verdict is WaitVerdict.INCONCLUSIVE


@pytest.mark.parametrize("verdict", [Verdict.TRUNCATED, Verdict.DUPLICATE_RANK, Verdict.DROPPED_EVENTS])
def test_a_verdict_that_forbids_cross_rank_answers_withholds_them(verdict: Verdict) -> None:
    arrivals = steady(10, {1: 50_000})
    tables = [rank_table(arrivals, rank, world=2) for rank in range(2)]
    damaged = tables[1].with_problems(Problem(verdict=verdict, sentence="rank1.json: something is wrong."))
    found = analyze(one_run(tables[0], damaged))
    assert (found.calls.wait_ns == -1).all()
    assert "something is wrong" in found.waits.reason
    assert any("something is wrong" in item.reason for item in found.withheld)


def test_two_traces_of_one_rank_are_not_matched() -> None:
    arrivals = steady(5, {})
    found = analyze(one_run(rank_table(arrivals, 0, world=2), rank_table(arrivals, 0, world=2), world=2))
    assert (found.calls.match == -1).all()
    assert "claim one rank" in found.waits.reason


def test_the_start_of_profiling_is_named_and_left_out_of_waits() -> None:
    arrivals = steady(10, {})
    arrivals[1][0] += 17_000_000_000 // 1000
    arrivals[1][1:] = [time + 17_000_000 for time in arrivals[1][1:]]
    arrivals[0][1:] = [time + 17_000_000 for time in arrivals[0][1:]]
    found = run(arrivals)
    assert found.calls.transient.sum() == 2
    assert "rank 0" in found.transients[0]
    assert "17.0 ms" in found.transients[0]
    assert found.waits.wait_ns == 0
    assert found.waits.calls == 18
    assert int(found.calls.wait_ns.max()) == 17_000_000  # the columns keep it


def test_a_long_first_call_that_is_usual_is_no_transient() -> None:
    assert run(steady(10, {1: 2_000_000})).transients == ()
