from __future__ import annotations

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.errors import InputError, UsageError
from mtpprof.models import presets
from mtpprof.models.ledger import Workload, base_ledger
from mtpprof.models.presets import PRESETS, find_preset, load_preset, preset_of
from mtpprof.models.spec import ModelSpec, Scale

# name: hidden, vocabulary, layers, MoE layers, experts, top-k, expert width, shared width, latent width, draft blocks
PUBLISHED = {
    "deepseek-v3.2": (7168, 129280, 61, 58, 256, 8, 2048, 2048, None, "AE"),
    "glm-5.2": (6144, 154880, 78, 75, 256, 8, 2048, 2048, None, "AE"),
    "nemotron-3-nano": (2688, 131072, 52, 23, 128, 6, 1856, 3712, None, None),
    "nemotron-3-super": (4096, 131072, 88, 40, 512, 22, 2688, 5376, 1024, "*E"),
    "nemotron-3-ultra": (8192, 131072, 108, 48, 512, 22, 5120, 10240, 2048, "*E"),
    "kimi-k2": (7168, 163840, 61, 60, 384, 8, 2048, 2048, None, None),
    "kimi-k3": (7168, 163840, 93, 92, 896, 16, 3072, 2 * 3072, 3584, None),
}
BLOCKS = {
    "deepseek-v3.2": {"A": 61, "D": 3, "E": 58},
    "glm-5.2": {"A": 78, "D": 3, "E": 75},
    "nemotron-3-nano": {"M": 23, "E": 23, "*": 6},
    "nemotron-3-super": {"M": 40, "E": 40, "*": 8},
    "nemotron-3-ultra": {"M": 48, "E": 48, "*": 12},
    "kimi-k2": {"A": 61, "D": 1, "E": 60},
    "kimi-k3": {"K": 69, "A": 24, "D": 1, "E": 92},
}
FEWEST_LAYERS = {"deepseek": 2, "kimi-k3": 4, "nemotron-h": 3}
NAMES = st.sampled_from(sorted(PRESETS))


def figures(spec: ModelSpec) -> tuple[object, ...]:
    assert spec.moe is not None
    return (
        spec.hidden_size,
        spec.vocab_size,
        spec.layers,
        spec.blocks.count("E"),
        spec.moe.experts,
        spec.moe.top_k,
        spec.moe.intermediate_size,
        spec.moe.shared_intermediate_size,
        spec.moe.latent_size,
        spec.mtp.blocks if spec.mtp else None,
    )


def structure(spec: ModelSpec) -> tuple[object, ...]:
    """What scaling down must not change."""
    moe, mla, mtp = spec.moe, spec.mla, spec.mtp
    assert moe is not None
    return (
        spec.family,
        set(spec.blocks),
        mtp,
        mla is not None and mla.indexer is not None,
        moe.latent_size is not None,
        moe.latent_norm,
        moe.activation,
        moe.expert_groups > 1,
        moe.shared_intermediate_size > 0,
        spec.gqa is not None and spec.gqa.kv_heads < spec.gqa.heads,
        [field is None for field in (spec.mla, spec.gqa, spec.kda, spec.mamba)],
    )


def test_the_published_dimensions() -> None:
    assert {name: figures(spec) for name, spec in PRESETS.items()} == PUBLISHED
    assert {
        name: {block: spec.blocks.count(block) for block in set(spec.blocks)}
        for name, spec in PRESETS.items()
    } == BLOCKS


@pytest.mark.parametrize("name", PRESETS)
def test_a_row_is_named_and_says_where_it_comes_from(name: str) -> None:
    spec = PRESETS[name]
    assert spec.name == name
    assert spec.title
    assert spec.source
    assert spec.scale is Scale.FULL
    assert (spec.mtp is not None and spec.mtp.gathered_eh_proj) == (
        spec.mtp is not None and spec.family == "nemotron-h"
    )


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("scale", [Scale.TINY, Scale.SLICE])
def test_scaled_down_models_keep_the_structure_and_the_vocabulary(name: str, scale: Scale) -> None:
    full, small = PRESETS[name], load_preset(name, scale)
    assert structure(small) == structure(full)
    assert small.vocab_size == full.vocab_size
    assert small.scale is scale
    assert small.layers == (7 if full.family == "nemotron-h" else 4)


@pytest.mark.parametrize("name", PRESETS)
def test_a_slice_has_the_messages_of_the_whole(name: str) -> None:
    full, cut = PRESETS[name], load_preset(name, Scale.SLICE)
    load = Workload(concurrency=2, draft_tokens=2 if full.mtp else 0, tp=8)
    kinds = [
        {(entry.kind, entry.phase, entry.shape, entry.dtype) for entry in base_ledger(spec, load)}
        for spec in (full, cut)
    ]
    assert kinds[0] == kinds[1]


def test_tiny_blocks() -> None:
    blocks = {name: load_preset(name, Scale.TINY).blocks for name in PRESETS}
    assert blocks == {
        "deepseek-v3.2": "ADAEAEAE",
        "glm-5.2": "ADAEAEAE",
        "nemotron-3-nano": "MEM*EME",
        "nemotron-3-super": "MEM*EME",
        "nemotron-3-ultra": "MEM*EME",
        "kimi-k2": "ADAEAEAE",
        "kimi-k3": "KDKEKEAE",
    }


def test_tiny_widths() -> None:
    latents = {name: (spec := load_preset(name, Scale.TINY)).moe and spec.moe.latent_size for name in PRESETS}
    assert latents["nemotron-3-super"] == latents["nemotron-3-ultra"] == 64
    assert latents["kimi-k3"] == 128
    deepseek = load_preset("deepseek-v3.2", Scale.TINY)
    assert deepseek.hidden_size == 256
    assert deepseek.moe is not None
    assert (deepseek.moe.experts, deepseek.moe.expert_groups, deepseek.moe.top_k_groups) == (8, 4, 2)


@given(NAMES, st.sampled_from(Scale), st.data())
def test_any_number_of_layers_keeps_the_mix(name: str, scale: Scale, data: st.DataObject) -> None:
    full = PRESETS[name]
    layers = data.draw(st.integers(FEWEST_LAYERS[full.family], full.layers))
    spec = load_preset(name, scale, layers=layers)
    assert spec.layers == layers
    assert set(spec.blocks) == set(full.blocks)
    assert structure(spec) == structure(full)
    assert abs(spec.blocks.count("*") * full.layers - full.blocks.count("*") * layers) <= full.layers
    if full.family == "nemotron-h":
        assert "**" not in spec.blocks
        assert set(spec.blocks.replace("*", "").split("ME")) <= {"", "M"}
    else:
        assert "ED" not in spec.blocks[1::2]


@given(NAMES)
def test_all_layers_are_the_published_ones(name: str) -> None:
    assert load_preset(name, Scale.FULL, layers=PRESETS[name].layers) == PRESETS[name]
    assert load_preset(name, Scale.FULL) == PRESETS[name]


@pytest.mark.parametrize("layers", [0, -1, 62])
def test_layers_that_the_model_does_not_have_are_refused(layers: int) -> None:
    with pytest.raises(UsageError, match=f"deepseek-v3.2: {layers} layers asked for, but it has 61"):
        load_preset("deepseek-v3.2", Scale.TINY, layers=layers)


@pytest.mark.parametrize("name", PRESETS)
def test_too_few_layers_for_the_mix_are_refused(name: str) -> None:
    layers = FEWEST_LAYERS[PRESETS[name].family] - 1
    with pytest.raises(
        UsageError, match=f"{name}: {layers} layers cannot hold one of each of its kinds of block"
    ):
        load_preset(name, Scale.TINY, layers=layers)


def test_a_vocabulary_of_ones_own() -> None:
    assert load_preset("glm-5.2", Scale.TINY, vocab=4096).vocab_size == 4096
    with pytest.raises(UsageError, match="a vocabulary of 1"):
        load_preset("glm-5.2", Scale.TINY, vocab=1)


def test_an_unknown_name_lists_the_known_ones_and_the_closest() -> None:
    with pytest.raises(UsageError) as refusal:
        find_preset("deepseek-v3")
    assert "did you mean deepseek-v3.2?" in str(refusal.value)
    assert all(name in str(refusal.value) for name in PRESETS)
    with pytest.raises(UsageError, match="model 'llama' is not known; Known"):
        find_preset("llama")
    assert find_preset("GLM-5.2").name == "glm-5.2"


PRESET_FILES = [entry for entry in resources.files(presets).iterdir() if entry.name.endswith(".toml")]


@pytest.mark.parametrize("file", PRESET_FILES, ids=lambda file: file.name)
def test_every_key_of_a_preset_file_is_one_of_a_spec(file: Traversable) -> None:
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    known = msgspec.to_builtins(PRESETS[file.name.removesuffix(".toml")])
    for key, value in content.items():
        assert key in known
        assert not isinstance(value, dict) or set(value) <= set(known[key])
    assert content["source"]


def test_a_preset_file_of_another_shape_names_the_place() -> None:
    content: dict[str, Any] = {"title": "x", "family": "deepseek", "source": "x", "blocks": ["AD", ["AE", 2]]}
    sizes = {"hidden_size": 64, "vocab_size": 64, "norm_eps": 1e-6}
    assert preset_of(content | sizes, "x").blocks == "ADAEAE"
    for change, place in (
        ({"hidden_size": "wide"}, r"preset x: .*hidden_size"),
        ({"blocks": "AD"}, r"preset x: Expected `array`"),
        ({"family": "llama"}, r"the family 'llama' is none of deepseek, "),
    ):
        with pytest.raises(InputError, match=place):
            preset_of(content | sizes | change, "x")
