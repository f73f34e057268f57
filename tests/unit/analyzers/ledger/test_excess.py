"""One capture against its model's ledger: what it need not issue, and what it lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtpprof.analyzers.compare.side import read_traces
from mtpprof.analyzers.ledger.excess import LedgerCheck, check_ledger, check_workload, misfit, unproved
from mtpprof.analyzers.ledger.mismatches import shape_text
from mtpprof.analyzers.measures.batches import Batch, Form, Stratum, Sum
from mtpprof.errors import UsageError
from mtpprof.models.hf import resolve_model
from mtpprof.models.ledger import LedgerEntry, Workload
from mtpprof.models.optimizations.catalogue import expected_collectives
from mtpprof.models.presets import load_preset
from mtpprof.models.spec import ModelSpec, Scale
from tests.traces import needs_traces, trace_folder

TINY = Path(__file__).parents[3] / "data" / "configs" / "nemotron-h-tiny"
SUPER = load_preset("nemotron-3-super", Scale.FULL)
DEEPSEEK = load_preset("deepseek-v3.2", Scale.FULL)


def seen(entries: tuple[LedgerEntry, ...], rows: int, sequences: int, *, sites: bool = False) -> Stratum:
    sums: dict[Form, Sum] = {}
    for entry in entries:
        form = Form(
            entry.kind,
            entry.phase,
            entry.site if sites else "",
            shape_text(entry.shape),
            entry.dtype,
            "",
            "nccl",
        )
        known = sums.get(form, Sum(calls=0, payload_bytes=0, wire_bytes=0, time_ns=0))
        sums[form] = Sum(
            calls=known.calls + 2 * entry.count,
            payload_bytes=0,
            wire_bytes=0,
            time_ns=known.time_ns + 2 * 14_000 * entry.count,
        )
    return Stratum(
        batch=Batch("target", rows, sequences),
        steps=2,
        pairs=2,
        forms=sums,
        rows=frozenset({0, 1}),
        uneven=False,
    )


def check(spec: ModelSpec, workload: Workload, enabled: frozenset[str]) -> LedgerCheck:
    stratum = seen(expected_collectives(spec, workload, enabled), workload.target_rows, workload.concurrency)
    return check_ledger([stratum], spec, workload.tp, workload.draft_tokens)


def test_the_regression_of_nemotron_is_found_at_full_size() -> None:
    found = check(SUPER, Workload(concurrency=1, draft_tokens=0, tp=4), frozenset())
    (entry,) = found.excess
    assert entry.sentence == "40 redundant all-reduces of [1, 1024] bf16 per step, one per latent MoE layer"
    assert (entry.payload_bytes, entry.avoided_by, entry.time_ns) == (
        40 * 2048,
        "commutative-reduce",
        40 * 14_000,
    )
    assert found.enabled == {"target, 1 row of 1 sequence": []}


def test_with_the_optimization_on_the_ledger_is_met() -> None:
    found = check(SUPER, Workload(concurrency=64, draft_tokens=0, tp=4), frozenset({"commutative-reduce"}))
    assert found.excess == []
    assert list(found.enabled.values()) == [["commutative-reduce"]]


def test_gathered_logits_are_oversized_not_redundant() -> None:
    found = check(DEEPSEEK, Workload(concurrency=2, draft_tokens=5, tp=8), frozenset())
    (entry,) = found.excess
    assert (entry.what, entry.calls, entry.shape, entry.avoided_by) == (
        "oversized",
        5,
        [2, 16160],
        "local-argmax",
    )


def test_a_reduction_that_is_skipped_and_needed_is_missing() -> None:
    workload = Workload(concurrency=1, draft_tokens=0, tp=4)
    ledger = expected_collectives(SUPER, workload, frozenset({"commutative-reduce"}))
    found = check_workload(seen(ledger[1:], 1, 1), SUPER, workload)
    assert [(entry.what, entry.calls, entry.time_ns) for entry in found.excess] == [("missing", 1, None)]
    assert found.enabled == {}


def test_one_more_call_than_the_ledger_is_redundant_though_nothing_removes_it() -> None:
    workload = Workload(concurrency=1, draft_tokens=0, tp=4)
    ledger = expected_collectives(SUPER, workload, frozenset({"commutative-reduce"}))
    more = replace(ledger[0], shape=(1, 77))
    found = check_workload(seen((*ledger, more), 1, 1), SUPER, workload)
    assert [(entry.what, entry.shape, entry.avoided_by, entry.sites) for entry in found.excess] == [
        ("redundant", [1, 77], None, [])
    ]


def replaced_by(shape: tuple[int, ...], dtype: str = "bf16") -> list[tuple[str, float, list[int]]]:
    """What is said of a ledger whose first all-reduce, [1, 4096], has another size."""
    workload = Workload(concurrency=1, draft_tokens=0, tp=4)
    first, *rest = expected_collectives(SUPER, workload, frozenset({"commutative-reduce"}))
    ledger = (replace(first, shape=shape, dtype=dtype), *rest)
    found = check_workload(seen(ledger, 1, 1), SUPER, workload)
    return [(entry.what, entry.calls, entry.shape) for entry in found.excess]


def test_only_a_larger_message_is_oversized() -> None:
    assert replaced_by((1, 8192)) == [("oversized", 1, [1, 8192])]
    assert replaced_by((1, 4096), "fp32") == [("oversized", 1, [1, 4096])]
    assert replaced_by((1, 2048)) == [("redundant", 1, [1, 2048]), ("missing", 1, [1, 4096])]


def test_a_call_of_unknown_size_may_be_the_one_that_is_expected() -> None:
    assert replaced_by(()) == []
    assert replaced_by((1, 4096), "") == []
    assert replaced_by((1, 2048), "") == [("redundant", 1, [1, 2048]), ("missing", 1, [1, 4096])]


def test_a_batch_with_calls_of_unknown_size_was_not_checked() -> None:
    workload = Workload(concurrency=1, draft_tokens=0, tp=4)
    first, *rest = expected_collectives(SUPER, workload, frozenset({"commutative-reduce"}))
    found = check_workload(seen((replace(first, shape=()), *rest), 1, 1), SUPER, workload)
    assert found.enabled == {}
    assert found.skipped == [
        "target, 1 row of 1 sequence: the sizes of some of its collectives are not known."
    ]


def test_bytes_of_an_unknown_shape_are_unknown() -> None:
    workload = Workload(concurrency=1, draft_tokens=0, tp=4)
    ledger = expected_collectives(SUPER, workload, frozenset({"commutative-reduce"}))
    more = (*ledger, replace(ledger[0], shape=(), count=3))
    (entry,) = check_workload(seen(more, 1, 1), SUPER, workload).excess
    assert (entry.calls, entry.payload_bytes) == (3, None)
    assert entry.sentence == "3 redundant all-reduces of unknown size per step"


def test_several_sizes_are_matched_with_the_smaller_ones_that_lack() -> None:
    workload = Workload(concurrency=1, draft_tokens=0, tp=4)
    first, second, *rest = expected_collectives(SUPER, workload, frozenset({"commutative-reduce"}))
    ledger = (replace(first, shape=(1, 16384)), replace(second, shape=(1, 8192)), *rest)
    found = check_workload(seen(ledger, 1, 1), SUPER, workload)
    assert [(entry.what, entry.shape) for entry in found.excess] == [
        ("oversized", [1, 16384]),
        ("oversized", [1, 8192]),
    ]


def test_messages_tell_that_they_are_of_another_model() -> None:
    ledger = expected_collectives(SUPER, Workload(concurrency=8, draft_tokens=0, tp=4), frozenset())
    of_super = [seen(ledger, 8, 8)]
    assert misfit(of_super, SUPER) == ""
    assert unproved(of_super, SUPER) == ""
    assert misfit(of_super, DEEPSEEK) == ("messages are 4096 wide, the hidden width of deepseek-v3.2 is 7168")
    assert unproved(of_super, DEEPSEEK)
    wide = [seen((*ledger, replace(ledger[0], shape=(8, 131072))), 8, 8)]
    assert misfit(wide, SUPER) == "", "one call too large is a finding, not another model"
    assert unproved(wide, SUPER) == (
        "all-reduces are 131072 wide, and those of nemotron-3-super 1024 or 4096"
    ), "but no proof either"
    silent = [seen((replace(ledger[0], shape=()),), 8, 8)]
    assert misfit(silent, SUPER) == ""
    assert unproved(silent, SUPER) == "the widths of its all-reduces are not known"


def test_a_latent_width_that_is_another_models_hidden_one_does_not_fit() -> None:
    narrow = replace(SUPER, hidden_size=1024)
    ledger = expected_collectives(SUPER, Workload(concurrency=8, draft_tokens=0, tp=4), frozenset())
    assert misfit([seen(ledger, 8, 8)], narrow)
    assert unproved([seen(ledger, 8, 8)], narrow)


def test_prefill_computes_logits_of_last_rows_only() -> None:
    workload = Workload(concurrency=48, draft_tokens=0, tp=4)
    ledger = expected_collectives(SUPER, workload, frozenset({"commutative-reduce"}))
    prefill = tuple(
        replace(entry, shape=(3, entry.shape[1])) if entry.site == "lm_head" else entry for entry in ledger
    )
    assert check_ledger([seen(prefill, 48, 3)], SUPER, 4, 0).excess == []


def test_batches_that_cannot_be_checked_say_why() -> None:
    stratum = seen((), 4, 2)
    unknown = replace(stratum, batch=Batch("target", -1, -1))
    found = check_ledger([unknown, stratum], SUPER, 4, 0)
    assert found.excess == []
    assert "does not tell the rows" in found.skipped[0]
    assert "does not tell the sizes" in found.skipped[1]
    odd = seen(
        expected_collectives(DEEPSEEK, Workload(concurrency=2, draft_tokens=1, tp=8), frozenset()), 5, 2
    )
    assert "no step of 3 draft tokens" in check_ledger([odd], DEEPSEEK, 8, 3).skipped[0]


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="does not divide"):
        check_workload(seen((), 1, 1), SUPER, Workload(concurrency=1, draft_tokens=0, tp=3))


@needs_traces
@pytest.mark.parametrize(("arm", "redundant"), [("latent-reduce-on", 3), ("latent-reduce-skipped", 0)])
def test_a_real_capture_alone_shows_the_regression(arm: str, redundant: int) -> None:
    spec = resolve_model(str(TINY), scale=Scale.FULL)
    traces = read_traces([trace_folder("vllm-cpu-tp4-nemotron") / arm])
    found = check_ledger(traces.strata, spec, 4, 0)
    assert found.skipped == []
    assert len(found.enabled) == 4, "every batch of the capture equals a ledger, call for call"
    decode = [entry for entry in found.excess if entry.batch == "target, 8 rows of 8 sequences"]
    assert [entry.sentence for entry in decode] == (
        ["3 redundant all-reduces of [8, 128] bf16 per step, one per latent MoE layer"] if redundant else []
    )
    assert {entry.calls for entry in found.excess} == ({3} if redundant else set())
