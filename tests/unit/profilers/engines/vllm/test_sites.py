"""Places in vLLM, as its modules are named there, become the sites of the ledger: all of a model's, and only those."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mtpprof.models.ledger import Workload, base_ledger, is_draft_phase
from mtpprof.models.optimizations.catalogue import expected_collectives
from mtpprof.models.presets import load_preset
from mtpprof.models.spec import ModelSpec, Scale
from mtpprof.models.traffic import Kind
from mtpprof.profilers.engines.vllm.handshake import Handshake
from mtpprof.profilers.engines.vllm.sites import FUSED_HELPER, Place, SiteMap

EMBEDDING = Place(owner="VocabParallelEmbedding", prefix="model.embed_tokens")
LOGITS = Place(owner="LogitsProcessor", function="_gather_logits")


def site_map(spec: ModelSpec) -> SiteMap:
    drafts = spec.mtp.blocks if spec.mtp else ""
    return SiteMap(Handshake(family=spec.family, blocks=spec.blocks, draft_blocks=drafts))


def block_places(spec: ModelSpec, block: str, prefix: str, *, late: bool) -> Iterator[Place]:
    """Where vLLM reduces the output of one block."""
    mixer = "mixer" if spec.family == "nemotron-h" else "mlp"
    if block == "E":
        runner = f"{prefix}.{mixer}.experts"
        names = ["_maybe_reduce_final_output"]
        if spec.moe is not None and spec.moe.latent_size and not late:
            names = ["_maybe_reduce_routed_output_before_transform", "_maybe_reduce_shared_expert_output"]
        for name in names:
            yield Place(owner="MoERunner", prefix=runner, function=name)
        return
    attention = "mixer" if spec.family == "nemotron-h" else "self_attn"
    module = {
        "A": f"{attention}.o_proj",
        "*": f"{attention}.o_proj",
        "M": "mixer.out_proj",
        "D": f"{mixer}.down_proj",
    }
    yield Place(owner="RowParallelLinear", prefix=f"{prefix}.{module[block]}")


def vllm_step(spec: ModelSpec, drafts: int, *, late: bool = False) -> list[str]:
    """Sites of one step, in order, from vLLM's names."""
    sites = site_map(spec)
    found = []

    def add(place: Place, drafting: bool) -> None:
        found.append(sites.site(place, Kind.ALL_REDUCE, drafting=drafting, block=0, order=0))

    add(EMBEDDING, False)
    for index, block in enumerate(spec.blocks):
        for place in block_places(spec, block, f"model.layers.{index // spec.blocks_per_layer}", late=late):
            add(place, False)
    add(LOGITS, False)
    for _ in range(drafts):
        assert spec.mtp is not None
        add(EMBEDDING, True)
        if spec.mtp.gathered_eh_proj:
            add(Place(owner="ColumnParallelLinear", prefix="mtp.layers.0.eh_proj"), True)
        for index, block in enumerate(spec.mtp.blocks):
            layer = index if spec.family == "nemotron-h" else spec.layers
            prefix = f"mtp.layers.{layer}" if spec.family == "nemotron-h" else f"model.layers.{layer}"
            for place in block_places(spec, block, prefix, late=late):
                add(place, True)
        add(LOGITS, True)
    return found


@pytest.mark.parametrize(
    ("name", "drafts"),
    [("deepseek-v3.2", 3), ("glm-5.2", 1), ("kimi-k2", 0), ("nemotron-3-nano", 0), ("nemotron-3-super", 2)],
)
def test_every_site_of_a_step_is_the_ledgers(name: str, drafts: int) -> None:
    spec = load_preset(name, Scale.TINY)
    ledger = base_ledger(spec, Workload(concurrency=2, draft_tokens=drafts, tp=2))
    assert vllm_step(spec, drafts) == [entry.site for entry in ledger]


def test_the_commuted_sum_is_the_ledgers() -> None:
    spec = load_preset("nemotron-3-super", Scale.TINY)
    workload = Workload(concurrency=2, draft_tokens=2, tp=2)
    ledger = expected_collectives(spec, workload, frozenset({"commutative-reduce"}))
    assert vllm_step(spec, 2, late=True) == [entry.site for entry in ledger]


def test_the_fused_helper_belongs_to_the_block_whose_sum_it_takes() -> None:
    spec = load_preset("deepseek-v3.2", Scale.TINY)
    sites = site_map(spec)
    helper = Place(function=FUSED_HELPER)

    def of(block: int, drafting: bool = False) -> str:
        return sites.site(helper, Kind.ALL_REDUCE, drafting=drafting, block=block, order=0)

    assert of(1, drafting=True) == "mtp.layers.0.moe.final"
    assert [of(block) for block in (0, 3, 99)] == ["layers.0.mla.o_proj", "layers.1.moe.final", FUSED_HELPER]


def test_compiled_code_is_placed_by_the_order_of_its_calls() -> None:
    spec = load_preset("nemotron-3-super", Scale.TINY)
    ledger = base_ledger(spec, Workload(concurrency=2, draft_tokens=0, tp=2))
    order = [(str(entry.kind), entry.site) for entry in ledger]
    sites = SiteMap(Handshake(family=spec.family, blocks=spec.blocks, target_order=order))
    compiled, fused = Place(function="all_reduce"), Place(function=FUSED_HELPER)
    for place in (compiled, fused):
        for index, entry in enumerate(ledger):
            if place is compiled or entry.site.startswith("layers."):
                assert sites.site(place, entry.kind, drafting=False, block=0, order=index) == entry.site
    assert sites.site(compiled, Kind.BROADCAST, drafting=False, block=0, order=0) == "all_reduce"
    assert sites.site(compiled, Kind.ALL_REDUCE, drafting=False, block=0, order=len(ledger)) == "all_reduce"
    assert sites.site(compiled, Kind.ALL_REDUCE, drafting=True, block=0, order=0) == "all_reduce"


@pytest.mark.parametrize(
    "place",
    [
        Place(owner="RowParallelLinear", prefix="model.layers.0.other"),
        Place(owner="MoERunner", prefix="model.layers.1.mlp.experts", function="_some_new_reduce"),
        Place(owner='Odd "name" with spaces'),
        Place(),
    ],
)
def test_an_unknown_place_keeps_a_name_that_a_range_can_hold(place: Place) -> None:
    sites = site_map(load_preset("deepseek-v3.2", Scale.TINY))
    site = sites.site(place, Kind.ALL_REDUCE, drafting=False, block=0, order=0)
    assert site
    assert not set(site) & set(' "=')
    ledger = base_ledger(
        load_preset("deepseek-v3.2", Scale.TINY), Workload(concurrency=1, draft_tokens=1, tp=2)
    )
    assert site not in {entry.site for entry in ledger if not is_draft_phase(entry.phase)}
