"""Perfetto's own engine loads every export without an error, counts every event, and sums what `analyze` sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpprof.analyzers.calls.attribution import Attribution, Window, analyze
from mtpprof.analyzers.measures.sums import Group, group
from mtpprof.analyzers.perfetto.communication import COLLECTIVE
from mtpprof.analyzers.perfetto.compare import SAVED
from mtpprof.analyzers.perfetto.export import Export, Options
from mtpprof.analyzers.perfetto.files import format_of
from mtpprof.analyzers.perfetto.queries import QUERIES, sql
from mtpprof.analyzers.perfetto.timeline import Arm, place
from mtpprof.analyzers.traces.discover import open_traces
from tests.functional.perfetto_engine import load, needs_engine
from tests.traces import needs_traces, trace_folder
from tests.unit.analyzers.perfetto import runs

pytestmark = needs_engine

FOLDERS = (
    "megatron-tp2-v100",
    "nanogpt-8xh100-ranks0-3",
    "nsys",
    "odd",
    "sglang-tp4-gb300-fused",
    "sglang-tp4-gb300-nccl",
    "vllm-cpu-tp2-nemotron-mtp",
    "vllm-cpu-tp4-nemotron",
    "vllm-tp8-b200-rank0",
)
EVENTS = "select count(*) from slice where category not like 'mtpprof.%'"
TIMES = "select sum(dur) from slice where category not like 'mtpprof.%'"
SLICES, VALUES = "select count(*) from slice", "select count(*) from counter"


def arms_of(*paths: Path) -> list[Arm]:
    return [place(traces.label, traces, analyze(traces)) for traces in open_traces(paths)]


def sums(found: Group) -> tuple[object, ...]:
    return (
        found.calls,
        found.sum_ns,
        found.exposed_ns,
        found.payload_bytes,
        found.bytes_known,
        found.wire_bytes,
        found.wire_known,
        found.wait_ns,
        found.transfer_ns,
        found.wait_known,
    )


def by_kind(found: Attribution, arm: str) -> dict[tuple[object, ...], tuple[object, ...]]:
    return {(arm, item.key["kind"]): sums(item) for item in group(found.calls, found.steps, ("kind",))}


def check(path: Path, arms: list[Arm]) -> None:
    form = format_of(path)
    done = Export(arms).write(path, form)
    views = sql(form, path)
    events, times, slices, values, kinds = load(path, EVENTS, TIMES, SLICES, VALUES, views)
    tables = [table for arm in arms for table in arm.traces.tables]
    assert events.value == done.events == sum(len(table) for table in tables)
    assert times.value == sum(int(table.dur_ns.sum()) for table in tables)
    assert slices.value == done.slices
    assert values.value == done.counter_values
    expected = {key: value for arm in arms for key, value in by_kind(arm.found, arm.name).items()}
    assert {row[:2]: row[2:] for row in kinds.rows} == expected


@needs_traces
@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_protobuf_of_every_real_trace(tmp_path: Path, folder: str) -> None:
    check(tmp_path / "out.pftrace", arms_of(trace_folder(folder)))


@needs_traces
@pytest.mark.parametrize("folder", ["megatron-tp2-v100", "vllm-tp8-b200-rank0", "odd"])
def test_json_of_real_traces(tmp_path: Path, folder: str) -> None:
    check(tmp_path / "out.json.gz", arms_of(trace_folder(folder)))


def reference_arms() -> list[Arm]:
    """Two arms on two ranks: one collective less a step, one fused, half the message of a third."""
    arms = []
    for name, step_ns, calls in (
        ("baseline", 1000, ("latent", "shared", "final", "lm_head")),
        ("better", 700, ("latent", "final", "lm_head")),
    ):
        steps = [
            [
                (
                    runs.collective(
                        site,
                        kind="all_gather" if site == "lm_head" else "all_reduce",
                        rows=2 if site == "lm_head" and name == "better" else 4,
                        fused="residual_rmsnorm" if site == "final" and name == "better" else "",
                        seq=10 * step + place_in_step,
                    ),
                    50 + 150 * place_in_step,
                    100,
                )
                for place_in_step, site in enumerate(calls)
            ]
            for step in range(3)
        ]
        tables = [runs.reference_table(rank, steps, step_ns=step_ns, late_ns=30 * rank) for rank in range(2)]
        arms.append(runs.arm(name, *tables))
    return arms


@pytest.mark.parametrize("name", ["out.pftrace", "out.pftrace.gz", "out.json", "out.json.gz"])
def test_both_arms_and_what_was_saved(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    form = format_of(path)
    arms = reference_arms()
    done = Export(arms, compare=True).write(path, form)
    events, slices, flows, saved, views = load(
        path,
        EVENTS,
        SLICES,
        "select count(*) from flow f join slice o on o.id = f.slice_out join slice i on i.id = f.slice_in "
        f"where o.category = '{COLLECTIVE}' and i.category = '{COLLECTIVE}' and o.name = i.name and o.track_id != i.track_id",
        f"select name, count(*), sum(dur) from slice where category = '{SAVED}' group by name order by name",
        sql(form, path)
        + "SELECT change, sum(calls), sum(saved_payload_bytes) FROM mtpprof_saved GROUP BY change;",
    )
    assert events.value == done.events
    assert slices.value == done.slices
    assert flows.value == 3 * (4 + 3)
    assert saved.rows == (
        ("fused all_reduce + residual_rmsnorm", 6, 6 * 100 - 3 * 30),
        ("removed all_reduce", 6, 6 * 100 - 3 * 30),
        ("replaced all_gather", 6, 6 * 100 - 3 * 30),
    )
    assert views.rows == (("fused", 6, 0), ("removed", 6, 6 * 64), ("replaced", 6, 6 * 64))


def test_every_saved_query_runs(tmp_path: Path) -> None:
    path = tmp_path / "out.pftrace"
    Export(reference_arms(), compare=True).write(path, format_of(path))
    views = sql(format_of(path), path)
    answers = load(path, *(f"{views} SELECT * FROM {query.name};" for query in QUERIES))
    for query, answer in zip(QUERIES, answers, strict=True):
        assert answer.rows, query.name
        assert set(query.group.split(", ")) <= set(answer.columns)
    waits = answers[[query.name for query in QUERIES].index("mtpprof_waits_by_rank")]
    where = waits.columns.index("wait_ns")
    assert [row[where] for row in waits.rows] == [12 * 30, 0, 9 * 30, 0]


def test_tracks_of_a_rank_are_in_order(tmp_path: Path) -> None:
    path = tmp_path / "out.pftrace"
    Export(reference_arms(), compare=True).write(path, format_of(path))
    (tracks,) = load(
        path,
        """
        include perfetto module viz.summary.track_event;
        select p.name, g.name from _track_event_tracks_ordered_groups g join track p on p.id = g.parent_id
        order by p.name, g.order_id
        """,
    )
    first = [name for rank, name in tracks.rows if rank == "rank 0 B: better" and "lane" not in name]
    assert first[:5] == ["steps", "saved per step", "saved", "communication", "phases"]
    assert sorted({rank for rank, _ in tracks.rows}) == [
        f"rank {rank} {arm}" for rank in (0, 1) for arm in ("A: baseline", "B: better")
    ]


def test_a_part_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "out.pftrace"
    options = Options(ranks=frozenset({1}), window=Window(first_step=1, last_step=1), only_collectives=True)
    done = Export(reference_arms()[:1], options).write(path, format_of(path))
    (kinds,) = load(
        path,
        sql(format_of(path), path) + "SELECT rank, step, sum(calls) FROM mtpprof_per_step GROUP BY 1, 2;",
    )
    assert kinds.rows == ((1, 1, 4),)
    assert done.events == 0
