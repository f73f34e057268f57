"""Attribution of the real traces against what an independent reading of their kernels found, and what is known of them."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtpprof.analyzers.calls.attribution import Attribution, analyze
from mtpprof.analyzers.calls.table import Calls, Provenance
from mtpprof.analyzers.calls.waits import WaitVerdict
from mtpprof.analyzers.measures import sums as grouping
from mtpprof.analyzers.measures.step_figures import per_step
from mtpprof.analyzers.traces.load import load_file
from mtpprof.analyzers.traces.table import EventTable, TraceSet
from tests.traces import FOLDER, golden, needs_traces

pytestmark = needs_traces

GOLDEN = golden()
MICROSECOND = 1_000
SGLANG_FUSED, SGLANG_NCCL = "sglang-tp4-gb300-fused", "sglang-tp4-gb300-nccl"


@functools.cache
def table(path: Path) -> EventTable:
    (found,) = load_file(path)
    return found


@functools.cache
def one_file(name: str) -> Attribution:
    found = table(FOLDER / name)
    return analyze(TraceSet(label=name, tables=(found,), world_size=found.meta.world_size))


@functools.cache
def folder(name: str) -> Attribution:
    tables = sorted(
        (table(path) for path in (FOLDER / name).iterdir() if path.is_file()),
        key=lambda found: found.meta.rank or 0,
    )
    return analyze(TraceSet(label=name, tables=tuple(tables), world_size=tables[0].meta.world_size))


def texts(calls: Calls, column: str) -> list[str]:
    return [calls.text(column, index) for index in range(len(calls))]


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_kernels_are_counted_and_measured_as_golden_says(name: str) -> None:
    expected: dict[str, Any] = GOLDEN[name]["collectives"]
    found = one_file(name)
    kernels = found.calls.take(found.calls.on_device)
    groups = {group.key["kind"]: group for group in grouping.group(kernels, found.steps, ("kind",))}
    assert set(groups) == set(expected)
    for kind, figures in expected.items():
        group = groups[kind]
        mine = kernels.take(kernels.has("kind", kind))
        measured = mine.take(mine.provenance == Provenance.MEASURED)
        assert group.calls == figures["calls"]
        assert group.fused_calls == figures["fused"]
        assert group.bytes_measured == figures["bytes_known"]
        assert int(measured.payload_bytes.sum()) == figures["payload_bytes"]
        assert abs(group.sum_ns - figures["sum_us"] * 1000) < MICROSECOND
        assert abs(group.busy_ns - figures["busy_us"] * 1000) < MICROSECOND
        assert abs(group.exposed_ns - figures["exposed_us"] * 1000) < MICROSECOND


def test_megatron_rank_1_waits_48_ms_for_rank_0() -> None:
    found = folder("megatron-tp2-v100")
    late = found.calls.take(found.calls.rank == 1)
    early = found.calls.take(found.calls.rank == 0)
    assert int(late.wait_ns.sum()) == pytest.approx(48.2e6, rel=0.01)
    assert int(early.wait_ns.sum()) < 10_000
    assert int(late.transfer_ns.sum()) < 500_000
    assert found.waits.verdict is WaitVerdict.SKEW
    assert found.stragglers[0].rank == 0
    assert found.stragglers[0].caused_ns == int(late.wait_ns.sum())
    assert found.clocks[0].residual_ns < 10_000


def test_nanogpt_pairs_the_right_calls_and_says_nothing_of_waits() -> None:
    found = folder("nanogpt-8xh100-ranks0-3")
    calls = found.calls
    (view,) = found.groups
    assert (view.size, view.ranks, view.missing) == (8, (0, 1, 2, 3), (4, 5, 6, 7))
    assert view.matched == 76
    for match in range(view.matched):
        mine = calls.take(calls.match == match)
        assert sorted(mine.rank.tolist()) == [0, 1, 2, 3]
        assert len(set(texts(mine, "kind"))) == 1
        assert len({size for size in mine.payload_bytes.tolist() if size >= 0}) <= 1
        assert int(np.ptp(mine.end_ns)) < 150_000  # one ring: ends differ by its last hops
    assert (calls.wait_ns == -1).all()
    assert found.waits.verdict is WaitVerdict.INCONCLUSIVE
    assert found.waits.share is None
    assert found.missing_ranks == (4, 5, 6, 7)
    assert any("ranks 4-7" in item.reason for item in found.withheld)


def test_vllm_b200_has_73_multimem_all_reduces_with_derived_bytes_and_no_wait() -> None:
    found = folder("vllm-tp8-b200-rank0")
    reduces = found.calls.take(found.calls.has("kind", "all_reduce"))
    assert len(reduces) == 73
    assert set(texts(reduces, "algorithm")) == {"nvls"}
    assert set(texts(reduces, "fused")) == {""}
    assert Counter(reduces.payload_bytes.tolist()) == {2 * 2557440: 37, 2 * 2727936: 36}
    assert (reduces.provenance == Provenance.DERIVED).all()
    assert (found.calls.wait_ns == -1).all()
    assert [item.reason for item in found.withheld] == ["one rank alone does not show waiting"]
    assert texts(found.calls, "phase") == ["prefill"] * 74


@pytest.mark.parametrize(("arm", "reduces"), [("latent-reduce-on", 170), ("latent-reduce-skipped", 119)])
def test_nemotron_arms_on_the_cpu(arm: str, reduces: int) -> None:
    found = folder(f"vllm-cpu-tp4-nemotron/{arm}")
    assert found.ranks == (0, 1, 2, 3)
    for rank in found.ranks:
        mine = found.calls.take(found.calls.rank == rank)
        assert Counter(texts(mine, "kind")) == {"all_reduce": reduces, "all_gather": 17}
        assert len(set(mine.step.tolist())) == 17
        assert Counter(mine.step.tolist()) == dict.fromkeys(range(17), reduces // 17 + 1)
        latent = [shape for shape in texts(mine, "shape") if shape.endswith("x128")]
        assert len(latent) == (51 if reduces == 170 else 0)
    assert (found.calls.payload_bytes > 0).all()
    assert (found.calls.match != -1).all()
    # the ends of shared-memory collectives on two cores for four ranks do not coincide: the split must not be trusted
    assert found.waits.verdict is WaitVerdict.INCONCLUSIVE


def test_nemotron_arms_carry_the_bytes_that_were_read_from_them() -> None:
    sums = []
    for arm in ("latent-reduce-on", "latent-reduce-skipped"):
        calls = folder(f"vllm-cpu-tp4-nemotron/{arm}").calls
        sums.append(int(calls.payload_bytes[calls.has("kind", "all_reduce") & (calls.rank == 0)].sum()))
    assert sums == [1_079_296, 888_832]


def test_mtp_collectives_are_split_into_target_and_draft_passes() -> None:
    found = folder("vllm-cpu-tp2-nemotron-mtp")
    for rank in found.ranks:
        mine = found.calls.take(found.calls.rank == rank)
        decode = mine.take(mine.step == 3)
        seen = Counter(
            zip(*(texts(decode, name) for name in ("phase", "kind", "shape", "dtype")), strict=True)
        )
        assert seen == {
            ("target", "all_reduce", "12x256", "bf16"): 5,
            ("target", "all_reduce", "12x128", "bf16"): 2,
            ("target", "all_gather", "12x16384", "bf16"): 1,
            ("draft[0]", "all_reduce", "12x256", "bf16"): 3,
            ("draft[0]", "all_reduce", "12x128", "bf16"): 1,
            ("draft[0]", "all_gather", "12x128", "bf16"): 1,
            ("draft[0]", "all_gather", "4x2", "fp32"): 1,
            ("draft[1]", "all_reduce", "4x256", "bf16"): 3,
            ("draft[1]", "all_reduce", "4x128", "bf16"): 1,
            ("draft[1]", "all_gather", "4x128", "bf16"): 1,
            ("draft[1]", "all_gather", "4x2", "fp32"): 1,
        }
        pairs = mine.take(mine.has("shape", "4x2"))
        assert set(pairs.payload_bytes.tolist()) == {64}  # 4 rows, 2 ranks, value and index in fp32
        assert "" not in texts(mine, "phase")


def test_sglang_decode_steps_have_95_fused_all_reduces_where_nccl_has_plain_ones() -> None:
    fused, plain = folder(SGLANG_FUSED), folder(SGLANG_NCCL)
    forms = {
        (item.form["kind"], item.form["fused"]): item.calls.median
        for item in per_step(fused.calls, fused.steps)
        if item.batch.phase == "target"
    }
    assert forms == {
        ("all_reduce", "residual_rmsnorm"): 95,
        ("all_reduce", ""): 2,
        ("all_gather", ""): 1,
    }
    assert {
        (item.calls.median, item.form["implementation"])
        for item in per_step(plain.calls, plain.steps)
        if item.batch.phase == "target" and item.form["kind"] == "all_reduce"
    } == {(97, "nccl/LL")}


def test_sglang_ranks_match_call_for_call_within_microseconds() -> None:
    for name, count in ((SGLANG_FUSED, 1176), (SGLANG_NCCL, 392)):
        (view,) = folder(name).groups
        assert (view.matched, view.waits_known) == (count, True)
        assert view.residual_ns < 2_000


def test_sglang_replayed_calls_get_their_bytes_from_their_position_in_the_eager_step() -> None:
    calls = folder(SGLANG_NCCL).calls
    assert (calls.payload_bytes > 0).all()
    derived = calls.take(calls.provenance == Provenance.DERIVED)
    assert set(derived.graph.tolist()) != {-1}
    reduces = derived.take(derived.has("kind", "all_reduce"))
    assert set(reduces.payload_bytes.tolist()) == {
        2048 * 2,
        2 * 2048 * 2,
    }  # hidden size 2048 in bf16, 1 and 2 rows
    gathers = derived.take(derived.has("kind", "all_gather"))
    assert set(gathers.payload_bytes.tolist()) == {151936 * 2, 2 * 151936 * 2}
    assert all("position in the step" in how for how in texts(derived, "how"))


def test_gloo_annotations_of_a_cpu_only_rank_are_its_collectives() -> None:
    calls = one_file("odd/cpu-only-rank34.pt.trace.json.gz").calls
    assert Counter(texts(calls, "kind")) == {"all_reduce": 10}
    assert Counter(calls.payload_bytes.tolist()) == {4 * 321271: 5, 4 * 2082411: 5}
    assert not calls.on_device.any()


def test_launches_without_kernels_are_named_and_not_counted() -> None:
    found = one_file("odd/no-distributed-info.json.gz")
    assert len(found.calls) == 0
    assert any("6 collectives were launched on a device" in note for note in found.notes)
