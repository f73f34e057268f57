from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from mtpprof.errors import UsageError
from mtpprof.models.ledger import LedgerEntry, Workload, base_ledger, prefill_ledger
from mtpprof.models.optimizations.catalogue import expected_collectives, expected_prefill_collectives
from mtpprof.models.presets import PRESETS, load_preset
from mtpprof.models.spec import ModelSpec, Scale
from mtpprof.models.traffic import Algorithm, Kind, wire_bytes
from tests.unit.models.tables import matches, read_table, sizes

NAMES = {
    "DeepSeek-V3.2": "deepseek-v3.2",
    "GLM-5/5.1/5.2": "glm-5.2",
    "Nano 30B-A3B": "nemotron-3-nano",
    "Super 120B-A12B": "nemotron-3-super",
    "Ultra 550B-A55B": "nemotron-3-ultra",
}
ARGMAX = frozenset({"local-argmax"})
COMMUTE = frozenset({"commutative-reduce"})
OFF: frozenset[str] = frozenset()
Row = dict[str, str]


def spec_of(row: Row) -> ModelSpec:
    return PRESETS[NAMES[row["model"]]]


def workload(row: Row, tp: int, draft_tokens: int | None = None) -> Workload:
    k = int(row["k"]) if draft_tokens is None else draft_tokens
    return Workload(concurrency=int(row["c"]), draft_tokens=k, tp=tp)


def of_kind(entries: tuple[LedgerEntry, ...], kind: Kind) -> list[LedgerEntry]:
    return [entry for entry in entries if entry.kind == kind]


def calls(entries: tuple[LedgerEntry, ...], kind: Kind) -> int:
    return sum(entry.count for entry in of_kind(entries, kind))


def payload(entries: list[LedgerEntry]) -> int:
    return sum(entry.total_payload_bytes for entry in entries)


def wire(entries: list[LedgerEntry]) -> int:
    sent = [
        wire_bytes(entry.kind, Algorithm.RING, entry.payload_bytes, entry.group_size) for entry in entries
    ]
    return sum(value * entry.count for value, entry in zip(sent, entries, strict=True) if value is not None)


def at(entries: tuple[LedgerEntry, ...], site: str, phase: str) -> LedgerEntry:
    found = [entry for entry in entries if entry.site == site and entry.phase == phase]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("row", read_table("deepseek_decode"), ids=str)
def test_deepseek_decode_row(row: Row) -> None:
    spec, k = spec_of(row), int(row["k"])
    entries = base_ledger(spec, workload(row, 8))
    assert workload(row, 8).target_rows == int(row["T"])
    assert calls(entries, Kind.ALL_REDUCE) == int(row["AR calls"])
    assert calls(entries, Kind.ALL_GATHER) == 1 + k
    target, later = sizes(row["AR payload target / draft≥1"])
    reduces = of_kind(entries, Kind.ALL_REDUCE)
    assert all(matches(target, e.payload_bytes) for e in reduces if e.phase in ("target", "draft[0]"))
    assert all(matches(later, e.payload_bytes) for e in reduces if e.phase not in ("target", "draft[0]"))
    assert matches(row["sum AR"], payload(reduces))
    assert matches(row["target AG"], at(entries, "lm_head", "target").payload_bytes)
    size, times = row["draft AG each ×k"].split(" ×")
    drafts = [entry for entry in entries if entry.site == "mtp.lm_head"]
    assert len(drafts) == int(times) == k
    assert all(matches(size, entry.payload_bytes) for entry in drafts)


@pytest.mark.parametrize("row", read_table("deepseek_decode"), ids=str)
def test_deepseek_decode_row_pair_gathers(row: Row) -> None:
    for tp, total in zip((2, 4, 8), sizes(row["opt(2) on: pair AG each, total TP2/4/8"]), strict=True):
        entries = expected_collectives(spec_of(row), workload(row, tp), ARGMAX)
        pairs = [entry for entry in entries if entry.site == "mtp.lm_head"]
        assert len(pairs) == int(row["k"])
        for entry in pairs:
            assert entry.dtype == "fp32"
            assert entry.shape == (int(row["c"]), 2)
            assert matches(total, entry.payload_bytes)


@pytest.mark.parametrize("row", read_table("deepseek_wire"), ids=str)
def test_deepseek_wire_row(row: Row) -> None:
    spec, load = spec_of(row), workload(row, int(row["TP"]))
    off, on = expected_collectives(spec, load, OFF), expected_collectives(spec, load, ARGMAX)
    assert matches(row["wire/rank opt2 off"], wire(list(off)))
    assert matches(row["opt2 on"], wire(list(on)))
    assert f"{100 * (wire(list(on)) / wire(list(off)) - 1):.1f}%" == row["Δ all"]
    before, after = sizes(row["logits-AG wire off → on"])
    assert matches(before, wire(of_kind(off, Kind.ALL_GATHER)))
    assert matches(after, wire(of_kind(on, Kind.ALL_GATHER)))


@pytest.mark.parametrize("row", read_table("nemotron_decode"), ids=str)
def test_nemotron_decode_row(row: Row) -> None:
    spec = spec_of(row)
    latent = spec.moe is not None and spec.moe.latent_size is not None
    for tp in (2, 4, 8):
        load = workload(row, tp, draft_tokens=0)
        off = expected_collectives(spec, load, OFF)
        on = expected_collectives(spec, load, COMMUTE if latent else OFF)
        arms = [of_kind(arm, Kind.ALL_REDUCE) for arm in (on, off)]
        assert [len(arm) for arm in arms] == [int(count) for count in row["AR calls on→off"].split("→")]
        totals = zip(sizes(row["sum payload on → off"]), arms, strict=True)
        assert all(matches(printed, payload(arm)) for printed, arm in totals)
        title = "wire/rank on→off TP2" if tp == 2 else f"TP{tp}"
        assert all(matches(printed, wire(arm)) for printed, arm in zip(sizes(row[title]), arms, strict=True))
        hidden, *narrow = sizes(row["hidden / latent call"])
        assert matches(hidden, at(off, "embed", "target").payload_bytes)
        latents = [entry for entry in off if entry.site.endswith(".moe.latent")]
        assert bool(narrow) == bool(latents) == latent
        assert all(matches(narrow[0], entry.payload_bytes) for entry in latents)
        assert calls(off, Kind.ALL_GATHER) == calls(on, Kind.ALL_GATHER) == 1
        assert at(on, "lm_head", "target").payload_bytes == int(row["c"]) * 131072 * 2


@pytest.mark.parametrize("row", read_table("nemotron_draft"), ids=str)
def test_nemotron_draft_row(row: Row) -> None:
    spec, load, k = spec_of(row), workload(row, 8), int(row["k"])
    off, on = expected_collectives(spec, load, OFF), expected_collectives(spec, load, COMMUTE)
    counts = [calls(arm, Kind.ALL_REDUCE) for arm in (on, off)]
    assert counts == [int(count) for count in row["AR calls (3) on→off"].split("→")]
    for printed, arm in zip(sizes(row["AR payload on→off"]), (on, off), strict=True):
        assert matches(printed, payload(of_kind(arm, Kind.ALL_REDUCE)))
    target, first, later, logits, pair = sizes(row["AGs"])
    numbers = re.fullmatch(r"(\d+) calls: .* \+ (\d+)×.* logits (\d+)×.*", row["AGs"])
    assert numbers is not None
    assert numbers.groups() == (str(calls(on, Kind.ALL_GATHER)), str(k - 1), str(k))
    assert matches(target, at(on, "lm_head", "target").payload_bytes)
    assert matches(first, at(on, "mtp.eh_proj", "draft[0]").payload_bytes)
    for index in range(1, k):
        assert matches(later, at(on, "mtp.eh_proj", f"draft[{index}]").payload_bytes)
    paired = expected_collectives(spec, load, COMMUTE | ARGMAX)
    for index in range(k):
        assert matches(logits, at(on, "mtp.lm_head", f"draft[{index}]").payload_bytes)
        assert matches(pair, at(paired, "mtp.lm_head", f"draft[{index}]").payload_bytes)


@pytest.mark.parametrize("concurrency", [1, 64])
def test_kimi_k2_has_123_all_reduces_and_one_gather(concurrency: int) -> None:
    entries = base_ledger(PRESETS["kimi-k2"], Workload(concurrency=concurrency, draft_tokens=0, tp=8))
    assert calls(entries, Kind.ALL_REDUCE) == 123
    assert {entry.payload_bytes for entry in of_kind(entries, Kind.ALL_REDUCE)} == {concurrency * 7168 * 2}
    assert payload(of_kind(entries, Kind.ALL_GATHER)) == concurrency * 163840 * 2


def test_kimi_k3_keeps_both_all_reduces_of_its_latent_layers() -> None:
    entries = base_ledger(PRESETS["kimi-k3"], Workload(concurrency=1, draft_tokens=0, tp=8))
    assert calls(entries, Kind.ALL_REDUCE) == 1 + 93 + 1 + 2 * 92
    assert at(entries, "layers.1.moe.latent", "target").shape == (1, 3584)
    assert at(entries, "layers.1.moe.shared", "target").shape == (1, 7168)


def test_a_decode_step_is_written_in_the_order_in_which_it_runs() -> None:
    spec = load_preset("deepseek-v3.2", Scale.TINY, layers=2)
    entries = base_ledger(spec, Workload(concurrency=4, draft_tokens=2, tp=4))
    assert [(entry.phase, entry.site, entry.shape) for entry in entries] == [
        ("target", "embed", (12, 256)),
        ("target", "layers.0.mla.o_proj", (12, 256)),
        ("target", "layers.0.mlp.down_proj", (12, 256)),
        ("target", "layers.1.mla.o_proj", (12, 256)),
        ("target", "layers.1.moe.final", (12, 256)),
        ("target", "lm_head", (12, 129280 // 4)),
        ("draft[0]", "mtp.embed", (12, 256)),
        ("draft[0]", "mtp.layers.0.mla.o_proj", (12, 256)),
        ("draft[0]", "mtp.layers.0.moe.final", (12, 256)),
        ("draft[0]", "mtp.lm_head", (4, 129280 // 4)),
        ("draft[1]", "mtp.embed", (4, 256)),
        ("draft[1]", "mtp.layers.0.mla.o_proj", (4, 256)),
        ("draft[1]", "mtp.layers.0.moe.final", (4, 256)),
        ("draft[1]", "mtp.lm_head", (4, 129280 // 4)),
    ]
    assert {entry.group_size for entry in entries} == {4}
    assert {entry.dtype for entry in entries} == {"bf16"}
    assert {entry.fused for entry in entries} == {""}


def test_nemotrons_blocks_and_gathered_eh_proj() -> None:
    spec = load_preset("nemotron-3-super", Scale.TINY)
    entries = base_ledger(spec, Workload(concurrency=3, draft_tokens=1, tp=2, dtype="fp32"))
    assert [(entry.phase, entry.site, entry.shape) for entry in entries if "layers.0" in entry.site] == [
        ("target", "layers.0.mamba.out_proj", (6, 256)),
        ("draft[0]", "mtp.layers.0.attn.o_proj", (6, 256)),
    ]
    assert at(entries, "mtp.eh_proj", "draft[0]").shape == (6, 128)
    assert at(entries, "mtp.eh_proj", "draft[0]").payload_bytes == 6 * 256 * 4
    assert at(entries, "mtp.layers.1.moe.latent", "draft[0]").shape == (6, 64)
    assert at(entries, "layers.3.attn.o_proj", "target").shape == (6, 256)


def test_kimi_k3_names_linear_attention() -> None:
    spec = load_preset("kimi-k3", Scale.TINY)
    sites = {entry.site for entry in base_ledger(spec, Workload(concurrency=1, draft_tokens=0, tp=2))}
    assert {"layers.0.kda.o_proj", "layers.0.mlp.down_proj", "layers.3.mla.o_proj"} <= sites


def test_without_a_shared_expert_a_latent_layer_reduces_once() -> None:
    spec = load_preset("nemotron-3-super", Scale.TINY)
    assert spec.moe is not None
    spec = replace(spec, moe=replace(spec.moe, shared_intermediate_size=0))
    sites = [entry.site for entry in base_ledger(spec, Workload(concurrency=1, draft_tokens=0, tp=2))]
    assert "layers.1.moe.latent" in sites
    assert not [site for site in sites if site.endswith(("moe.shared", "moe.final"))]


def test_prefill_runs_the_target_and_once_the_draft_module_without_its_logits() -> None:
    spec = load_preset("deepseek-v3.2", Scale.TINY, layers=2)
    entries = prefill_ledger(spec, Workload(concurrency=4, draft_tokens=3, tp=2), prompt_len=10)
    assert {entry.phase for entry in entries} == {"prefill"}
    assert [(entry.site, entry.shape) for entry in entries if not entry.site.startswith("layers.")] == [
        ("embed", (40, 256)),
        ("lm_head", (4, 129280 // 2)),
        ("mtp.embed", (40, 256)),
        ("mtp.layers.0.mla.o_proj", (40, 256)),
        ("mtp.layers.0.moe.final", (40, 256)),
    ]
    alone = prefill_ledger(spec, Workload(concurrency=4, draft_tokens=0, tp=2), prompt_len=10)
    assert alone == entries[: len(alone)]
    assert not [entry for entry in alone if entry.site.startswith("mtp.")]


def test_optimizations_rewrite_a_prefill_too() -> None:
    spec = load_preset("nemotron-3-super", Scale.TINY)
    load = Workload(concurrency=2, draft_tokens=1, tp=2)
    off = expected_prefill_collectives(spec, load, OFF, prompt_len=3)
    on = expected_prefill_collectives(spec, load, COMMUTE, prompt_len=3)
    assert off == prefill_ledger(spec, load, 3)
    assert Counter(entry.site for entry in off) - Counter(entry.site for entry in on) == Counter(
        f"{path}.moe.{part}"
        for path in ("layers.1", "layers.4", "layers.6", "mtp.layers.1")
        for part in ("latent", "shared")
    )


def test_one_rank_issues_no_collective() -> None:
    spec = load_preset("deepseek-v3.2", Scale.TINY)
    load = Workload(concurrency=1, draft_tokens=2, tp=1)
    assert base_ledger(spec, load) == ()
    assert prefill_ledger(spec, load, prompt_len=5) == ()


def test_what_has_no_ledger_is_refused() -> None:
    tiny = load_preset("deepseek-v3.2", Scale.TINY)
    load = Workload(concurrency=1, draft_tokens=1, tp=2)
    with pytest.raises(UsageError, match="Kimi-K2 has no multi-token-prediction module"):
        base_ledger(PRESETS["kimi-k2"], load)
    with pytest.raises(UsageError, match="--tp 3 does not divide its vocabulary"):
        base_ledger(tiny, replace(load, tp=3))
    with pytest.raises(UsageError, match="sequence-parallel"):
        base_ledger(replace(tiny, sequence_parallel=True), load)
    with pytest.raises(UsageError, match="prompt length 0"):
        prefill_ledger(tiny, load, prompt_len=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"concurrency": 0}, "concurrency 0"),
        ({"draft_tokens": -1}, "-1 draft tokens"),
        ({"tp": 0}, "TP 0"),
        ({"dtype": "bfloat16"}, "'bfloat16' is not known"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Workload(**{"concurrency": 1, "draft_tokens": 0, "tp": 1, **fields})  # type: ignore[arg-type]
