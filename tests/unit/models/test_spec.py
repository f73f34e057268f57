from __future__ import annotations

from dataclasses import replace

import pytest

from mtpprof.errors import UsageError
from mtpprof.models.presets import PRESETS, load_preset
from mtpprof.models.spec import GqaSpec, MlaSpec, ModelSpec, MoeSpec, Scale

DEEPSEEK = load_preset("deepseek-v3.2", Scale.TINY)
SUPER = load_preset("nemotron-3-super", Scale.TINY)
KIMI_K3 = load_preset("kimi-k3", Scale.TINY)


def moe_of(spec: ModelSpec) -> MoeSpec:
    assert spec.moe is not None
    return spec.moe


def mla_of(spec: ModelSpec) -> MlaSpec:
    assert spec.mla is not None
    return spec.mla


def gqa_of(spec: ModelSpec) -> GqaSpec:
    assert spec.gqa is not None
    return spec.gqa


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_preset_at_every_scale_runs_on_up_to_eight_ranks(name: str, scale: Scale, tp: int) -> None:
    load_preset(name, scale).check_tp(tp)


@pytest.mark.parametrize(
    ("spec", "tp", "dimension"),
    [
        (DEEPSEEK, 3, "vocabulary (129280)"),
        (replace(DEEPSEEK, vocab_size=129282), 3, "attention heads (8)"),
        (replace(DEEPSEEK, mla=replace(mla_of(DEEPSEEK), heads=12)), 8, "attention heads (12)"),
        (
            replace(DEEPSEEK, moe=replace(moe_of(DEEPSEEK), intermediate_size=100)),
            8,
            "expert intermediate size (100)",
        ),
        (
            replace(DEEPSEEK, moe=replace(moe_of(DEEPSEEK), shared_intermediate_size=100)),
            8,
            "shared-expert intermediate size (100)",
        ),
        (replace(DEEPSEEK, dense_intermediate_size=500), 8, "dense intermediate size (500)"),
        (SUPER, 16, "attention heads (8)"),
        (replace(SUPER, gqa=replace(gqa_of(SUPER), heads=12, kv_heads=6)), 4, "key/value heads (6)"),
        (PRESETS["nemotron-3-ultra"], 16, "Mamba groups (8)"),
        (replace(SUPER, hidden_size=260), 8, "hidden size (260)"),
        (KIMI_K3, 16, "attention heads (8)"),
        (replace(KIMI_K3, mla=replace(mla_of(KIMI_K3), heads=16)), 16, "linear-attention heads (8)"),
    ],
    ids=lambda value: value.name if isinstance(value, ModelSpec) else str(value),
)
def test_a_size_that_does_not_divide_names_the_dimension(spec: ModelSpec, tp: int, dimension: str) -> None:
    with pytest.raises(UsageError) as refusal:
        spec.check_tp(tp)
    assert f"--tp {tp} does not divide its {dimension}" in str(refusal.value)
    assert spec.name in str(refusal.value)


def test_fewer_key_value_heads_than_ranks_are_replicated_where_that_comes_out_even() -> None:
    assert gqa_of(SUPER).kv_heads == 2
    SUPER.check_tp(8)
    three = replace(SUPER, gqa=replace(gqa_of(SUPER), kv_heads=3))
    with pytest.raises(UsageError, match=r"--tp 4 is not a multiple of its key/value heads \(3\)"):
        three.check_tp(4)


def test_fewer_ranks_than_one_are_refused() -> None:
    with pytest.raises(UsageError, match="--tp 0: the tensor-parallel size must be 1 or more"):
        DEEPSEEK.check_tp(0)


def test_layers_and_paths_follow_the_published_numbering() -> None:
    deepseek, nano = PRESETS["deepseek-v3.2"], PRESETS["nemotron-3-nano"]
    assert deepseek.layers == 61
    assert [deepseek.block_path(index) for index in (0, 1, 2, 121)] == [
        "layers.0",
        "layers.0",
        "layers.1",
        "layers.60",
    ]
    assert deepseek.block_path(1, "mtp.") == "mtp.layers.0"
    assert nano.layers == 52
    assert nano.block_path(51) == "layers.51"


def test_a_latent_sum_commutes_where_the_layers_own_projection_lets_it() -> None:
    moe = moe_of(SUPER)
    assert SUPER.latent_sum_commutes("layers.1")
    assert not PRESETS["nemotron-3-nano"].latent_sum_commutes("layers.1")
    assert not KIMI_K3.latent_sum_commutes("layers.1")
    assert not replace(SUPER, moe=None).latent_sum_commutes("layers.1")
    assert not replace(SUPER, moe=replace(moe, latent_bias=True)).latent_sum_commutes("layers.1")
    assert not replace(SUPER, moe=replace(moe, latent_quantization="fp8")).latent_sum_commutes("layers.1")
    one = replace(SUPER, moe=replace(moe, latent_quantized_layers=("layers.1",)))
    assert not one.latent_sum_commutes("layers.1")
    assert one.latent_sum_commutes("layers.4")
