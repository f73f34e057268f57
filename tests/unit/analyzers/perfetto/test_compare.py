"""What an arm saved: every change once, with its bytes and its time, and their sum."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.perfetto.compare import SAVED, SAVED_PER_STEP, changes
from mtpprof.analyzers.perfetto.events import STRETCHED
from mtpprof.analyzers.perfetto.export import Export
from mtpprof.analyzers.perfetto.files import format_of
from tests.unit.analyzers.perfetto.runs import Call, arm, collective, reference_table
from tests.unit.analyzers.perfetto.written import Content, Slice, read_protobuf
from tests.unit.analyzers.tables import NCCL_AR, Trace, record

CUSTOM_AR = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)"


def step(*names: str, length: int = 100) -> list[Call]:
    return [(name, 10 + 120 * index, length) for index, name in enumerate(names)]


def calls_of(names: list[str]) -> Calls:
    return arm("x", reference_table(0, [step(*names)], step_ns=120 * len(names) + 100)).found.calls


def named(sites: list[str], **fields: str) -> list[str]:
    return [collective(site, seq=index, **fields) for index, site in enumerate(sites)]  # type: ignore[arg-type]


def compared(tmp_path: Path, before: list[list[Call]], after: list[list[Call]], **lengths: int) -> Content:
    arms = [
        arm("base", reference_table(0, before, step_ns=lengths.get("before_ns", 1000))),
        arm("better", reference_table(0, after, step_ns=lengths.get("after_ns", 1000))),
    ]
    path = tmp_path / "out.pftrace"
    Export(arms, compare=True).write(path, format_of(path))
    return read_protobuf(path.read_bytes())


def saved(content: Content, category: str = SAVED) -> list[Slice]:
    return [item for item in content.slices if item.category == category]


def test_removed_and_added_stand_where_they_were(tmp_path: Path) -> None:
    before = [step(*named(["a", "b", "c"]))]
    after = [step(collective("a", seq=0), collective("c", seq=1), collective("d", kind="broadcast", seq=2))]
    content = compared(tmp_path, before, after)
    gone, new = sorted(saved(content), key=lambda item: item.name, reverse=True)
    assert (gone.name, gone.process, gone.ts_ns) == ("removed all_reduce", "rank 0 B: better", 130)
    assert gone.arguments["site"] == "b"
    assert gone.arguments["arm"] == "base"
    assert (gone.arguments["saved_ns"], gone.arguments["saved_payload_bytes"]) == (100, 64)
    assert gone.arguments["before_ns"] == 100
    assert "after_ns" not in gone.arguments
    assert (new.name, new.ts_ns) == ("added broadcast", 250)
    assert (new.arguments["saved_ns"], new.arguments["saved_payload_bytes"]) == (-100, -64)


def test_a_fused_call_and_what_it_saves(tmp_path: Path) -> None:
    before = [step(collective("a"), length=100)]
    after = [step(collective("a", fused="residual_rmsnorm"), length=70)]
    (found,) = saved(compared(tmp_path, before, after))
    assert found.name == "fused all_reduce + residual_rmsnorm"
    assert found.arguments["saved_ns"] == 30
    assert found.arguments["saved_payload_bytes"] == 0
    (back,) = saved(compared(tmp_path, after, before))
    assert back.name == "unfused all_reduce"
    assert back.arguments["saved_ns"] == -30


def test_a_smaller_message_at_the_same_place_replaces(tmp_path: Path) -> None:
    before = [step(collective("lm_head", kind="all_gather", rows=64))]
    after = [step(collective("lm_head", kind="all_gather", rows=1))]
    (found,) = saved(compared(tmp_path, before, after))
    assert found.name == "replaced all_gather"
    assert found.arguments["saved_payload_bytes"] == 63 * 32


def test_the_same_calls_save_nothing(tmp_path: Path) -> None:
    content = compared(tmp_path, [step(*named(["a", "b"]))], [step(*named(["a", "b"]))])
    assert saved(content) == []
    (whole,) = saved(content, SAVED_PER_STEP)
    assert whole.name == "+0 calls, +0 B, +0 ns in collectives, +0 ns step"


def test_each_step_is_summed_up(tmp_path: Path) -> None:
    before = [step(*named(["a", "b"])) for _ in range(3)]
    after = [step(collective("a")) for _ in range(3)]
    found = saved(compared(tmp_path, before, after, before_ns=1000, after_ns=600), SAVED_PER_STEP)
    assert [item.name for item in found] == ["-1 calls, -64 B, -100 ns in collectives, -400 ns step"] * 3
    assert [item.ts_ns for item in found] == [0, 1000, 2000]
    assert found[0].arguments == {
        "saved_calls": 1.0,
        "saved_payload_bytes": 64.0,
        "saved_collective_ns": 100.0,
        "saved_step_ns": 400.0,
    }


def test_a_range_over_several_steps_is_stretched_and_says_so(tmp_path: Path) -> None:
    arms = []
    for length in (1000, 600):
        trace = Trace()
        trace.note("outer", 0, 2 * length)
        for index in range(2):
            trace.note(f"mtpprof::step index={index}", index * length, length)
            trace.op("aten::mm", index * length + 10, 20)
        arms.append(arm(f"{length}", trace.table(0)))
    path = tmp_path / "out.pftrace"
    Export(arms, compare=True).write(path, format_of(path))
    content = read_protobuf(path.read_bytes())
    outer = {
        item.process[-4:]: (item.dur_ns, item.arguments) for item in content.slices if item.name == "outer"
    }
    assert outer == {"1000": (2000, {}), " 600": (1600, {STRETCHED: 1200})}
    inner = [item for item in content.slices if item.name == "aten::mm"]
    assert {item.dur_ns for item in inner} == {20}
    assert {item.depth for item in inner} == {2}
    assert [item.ts_ns for item in inner if item.process.endswith("600")] == [10, 1010]


def test_arms_without_steps_are_compared_as_a_whole(tmp_path: Path) -> None:
    arms = []
    for count in (3, 2):
        trace = Trace()
        for index, name in enumerate(named(["a"] * count)):
            trace.note(name, 100 * index, 50)
        arms.append(arm(f"{count}", trace.table(0)))
    path = tmp_path / "out.pftrace"
    Export(arms, compare=True).write(path, format_of(path))
    assert [item.name for item in saved(read_protobuf(path.read_bytes()))] == ["removed all_reduce"]


def test_calls_without_sizes_are_matched_by_their_number() -> None:
    sides = []
    sized: dict[str, Any] = {"record": record(in_elems=64, out_elems=64)}
    for name, count, fields in ((NCCL_AR, 3, sized), (CUSTOM_AR, 2, {})):
        trace = Trace()
        for index in range(count):
            trace.kernel(name, 100 * index, 50, **fields)
        sides.append(arm("x", trace.table(0)).found.calls)
    kinds = Counter(change.what for change in changes(*sides))
    assert kinds == {"reimplemented": 2, "removed": 1}


def test_steps_of_different_batches_save_calls_and_nothing_else(tmp_path: Path) -> None:
    arms = []
    for batch, count in ((1, 3), (16, 2)):
        trace = Trace()
        trace.note(f"step[DECODE bs={batch}]", 0, 900)
        for index in range(count):
            elems = 64 * batch
            trace.kernel(
                NCCL_AR,
                1000 + 100 * index,
                50,
                launched=10 * index,
                record=record(in_elems=elems, out_elems=elems),
            )
        arms.append(arm(f"{batch}", trace.table(0)))
    path = tmp_path / "out.pftrace"
    Export(arms, compare=True).write(path, format_of(path))
    content = read_protobuf(path.read_bytes())
    (gone,) = saved(content)
    assert gone.name == "removed all_reduce"
    assert not any(key.startswith("saved_") for key in gone.arguments)
    (whole,) = saved(content, SAVED_PER_STEP)
    assert (
        whole.name
        == "-1 calls, batches differ: target, 1 row of 1 sequence against target, 16 rows of 16 sequences"
    )
    assert whole.arguments == {"saved_calls": 1.0}


SITES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8)
FORMS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["all_reduce", "all_gather"]),
        st.sampled_from(["", "norm"]),
    ),
    min_size=1,
    max_size=8,
)


def with_forms(forms: list[tuple[str, str, str]]) -> Calls:
    return calls_of([collective(site, kind=kind, fused=fused) for site, kind, fused in forms])


@settings(deadline=None)
@given(FORMS, FORMS)
def test_changes_add_up_to_the_difference(
    before: list[tuple[str, str, str]], after: list[tuple[str, str, str]]
) -> None:
    first, second = with_forms(before), with_forms(after)
    found = list(changes(first, second))
    counts = Counter(change.what for change in found)
    assert len(second) - len(first) == counts["added"] - counts["removed"]
    for side in ("first", "second"):
        used = [index for change in found if (index := getattr(change, side)) is not None]
        assert len(used) == len(set(used))
    unchanged = Counter(before) & Counter(after)
    assert len(found) <= len(before) + len(after) - 2 * unchanged.total()


@settings(deadline=None)
@given(SITES)
def test_nothing_changes_against_itself(sites: list[str]) -> None:
    calls = calls_of(named(sites))
    assert list(changes(calls, calls)) == []
    reversed_calls = calls.take(np.arange(len(calls))[::-1])
    assert list(changes(calls, reversed_calls)) == []


def test_compare_needs_two_arms() -> None:
    with pytest.raises(ValueError, match="unpack"):
        Export([arm("x", reference_table(0, [step(collective("a"))]))], compare=True)
