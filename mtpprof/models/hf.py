"""Reading of a Hugging Face `config.json` into a `ModelSpec`. No torch here.

One reader per `model_type`, in the table `READERS`; each is a plain transcription of the keys of its family. What a config does
not say and mtpprof cannot know is an error that names the key, not a default: a wrong dimension would make a wrong ledger.

A config is always read at full size; scaling is a step of its own (`mtpprof.models.presets.rescale`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mtpprof.errors import InputError
from mtpprof.models.config_json import ConfigReader, load_json_object
from mtpprof.models.presets import PRESETS, load_preset, rescale
from mtpprof.models.quantization import apply_quantization
from mtpprof.models.spec import (
    Activation,
    GqaSpec,
    IndexerSpec,
    KdaSpec,
    MambaSpec,
    MlaSpec,
    ModelSpec,
    MoeSpec,
    MtpSpec,
    Scale,
)

CONFIG_NAME = "config.json"
HF_QUANT_NAME = "hf_quant_config.json"
_MAX_LAYERS = 10_000

_ACTIVATIONS = {
    "silu": Activation.SILU_GATED,
    "situ": Activation.SILU_GATED,
    "relu2": Activation.RELU2,
}
"""By `hidden_act`. Kimi-K3's SiTU is stood in for by SiLU: same widths, same collectives."""
_BLOCK_TYPES = {
    "mamba": "M",
    "linear_attention": "M",
    "moe": "E",
    "attention": "*",
    "full_attention": "*",
    "mlp": "D",
}
_MLP_TYPES = {"dense": "D", "sparse": "E"}
_PATTERN_BLOCKS = {"M": "M", "E": "E", "*": "*", "-": "D"}


def resolve_model(
    text: str,
    *,
    scale: Scale | None = None,
    layers: int | None = None,
    vocab: int | None = None,
    preset_scale: Scale = Scale.TINY,
) -> ModelSpec:
    """The model a user means: a preset by its name, or a `config.json` or its folder by its path.

    Args:
        text: What the user wrote.
        scale: How much of it; None: `preset_scale` for a preset, everything for a config.
        layers: Number of layers, in place of the scale's own.
        vocab: Vocabulary size, in place of the published one.
        preset_scale: Scale of a preset where none is asked for.

    Raises:
        UsageError: neither a preset nor a path, or sizes that the model cannot have.
        InputError: the config cannot be used.
    """
    if text in PRESETS:
        return load_preset(text, scale or preset_scale, layers=layers, vocab=vocab)
    path = Path(text)
    if os.path.exists(path):  # noqa: PTH110 - the method raises for a name that is too long or a closed folder
        return rescale(from_config(path), scale or Scale.FULL, layers=layers, vocab=vocab)
    if path.suffix == ".json" or len(path.parts) > 1:
        raise InputError(
            f"{path}: there is no such file or folder; give a preset's name, a config.json or its folder."
        )
    return load_preset(text, scale or preset_scale, layers=layers, vocab=vocab)


def from_config(path: Path | str) -> ModelSpec:
    """Read a `config.json`, or the one in a folder, at full size.

    Raises:
        InputError: no such file, not JSON, too large, an unsupported architecture, or a key that is missing or wrong.
    """
    file = Path(path)
    if os.path.isdir(file):  # noqa: PTH112 - as in resolve_model
        file /= CONFIG_NAME
    outer = config = load_json_object(file)
    model_type = config.text("model_type")
    if model_type not in READERS and "text_config" in config.values:
        config = config.section("text_config")
        model_type = config.text("model_type")
    if model_type not in READERS:
        raise InputError(
            f"{file}: model_type {model_type!r} is not supported; supported are {', '.join(READERS)} (or choose a preset)."
        )
    name = _name(file)
    spec = replace(READERS[model_type](config), name=name, title=name, source=str(file))
    return _with_quantization(spec, outer, config)


def _name(file: Path) -> str:
    """A config's folder, which says which model it is; in the Hub's cache the one of the repository above it."""
    if file.name != CONFIG_NAME:
        return file.stem
    folder = file.parent.resolve()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name


def _with_quantization(spec: ModelSpec, outer: ConfigReader, inner: ConfigReader) -> ModelSpec:
    """The spec with what the config, or the file that older exporters put beside it, says of quantization."""
    sections = [config.section("quantization_config") for config in (inner, outer)]
    beside = outer.path.with_name(HF_QUANT_NAME)
    if not any(section.values for section in sections) and beside.is_file():
        sections.append(load_json_object(beside).section("quantization"))
    section = next((section for section in sections if section.values), None)
    if section is None:
        return spec
    try:
        return apply_quantization(spec, section.values)
    except ValueError as error:
        raise InputError(
            f"{section.path}: its quantization cannot be read ({error}); correct the file or choose a preset."
        ) from None


def _spec(config: ConfigReader, **fields: Any) -> ModelSpec:
    """A spec with the keys that all families share."""
    theta = config.find(("rope_theta",))[1]
    return ModelSpec(
        name="",
        title="",
        source="",
        scale=Scale.FULL,
        hidden_size=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size", minimum=2),
        norm_eps=config.number("rms_norm_eps", "layer_norm_epsilon", "norm_eps"),
        rope_theta=(config if theta is not None else config.section("rope_parameters")).number(
            "rope_theta", default=10000.0
        ),
        logit_scale=config.number("logit_scale", default=1.0),
        **fields,
    )


def _read_deepseek(config: ConfigReader) -> ModelSpec:
    """DeepSeek-V3 and V3.2, GLM-5, Kimi-K2."""
    return _read_decoder(config, "A", mla=_mla(config))


def _read_glm4(config: ConfigReader) -> ModelSpec:
    """GLM-4.5: DeepSeek's MoE and draft module with grouped-query attention."""
    return _read_decoder(config, "*", gqa=_gqa(config, rope=True))


def _read_decoder(
    config: ConfigReader, attention: str, *, mla: MlaSpec | None = None, gqa: GqaSpec | None = None
) -> ModelSpec:
    """Attention and MLP in turn, the first layers dense, then MoE."""
    mlp = _mlp_blocks(config)
    intermediate = config.integer("moe_intermediate_size")
    return _spec(
        config,
        family="deepseek",
        blocks="".join(attention + block for block in mlp),
        mla=mla,
        gqa=gqa,
        moe=_moe(
            config,
            intermediate=intermediate,
            shared=config.integer("n_shared_experts", default=0, minimum=0) * intermediate,
            activation=_activation(config, "hidden_act"),
        ),
        dense_intermediate_size=config.integer("intermediate_size") if "D" in mlp else 0,
        mtp=MtpSpec(blocks=f"{attention}E", gathered_eh_proj=False) if _draft_layers(config) else None,
    )


def _activation(config: ConfigReader, key: str) -> Activation:
    text = config.text(key)
    if text not in _ACTIVATIONS:
        raise config.fail(key, f"is {text!r}, which is none of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[text]


def _mlp_blocks(config: ConfigReader) -> str:
    """`D` or `E` for each layer, by the rule of DeepSeek's models or by the list that newer configs have."""
    layers = config.integer("num_hidden_layers", maximum=_MAX_LAYERS)
    listed = config.items("mlp_layer_types")
    if listed is not None:
        if len(listed) != layers or not all(isinstance(name, str) and name in _MLP_TYPES for name in listed):
            raise config.fail("mlp_layer_types", f"is not a list of {layers} times {' or '.join(_MLP_TYPES)}")
        blocks = "".join(_MLP_TYPES[name] for name in listed)
    else:
        dense = config.integer("first_k_dense_replace", minimum=0, maximum=layers)
        frequency = config.integer("moe_layer_freq", default=1)
        blocks = "".join("E" if index >= dense and index % frequency == 0 else "D" for index in range(layers))
    if "E" not in blocks:
        raise config.fail("num_hidden_layers", f"({layers}) leaves no MoE layer, all being dense")
    return blocks


def _draft_layers(config: ConfigReader) -> int:
    return config.integer("num_nextn_predict_layers", default=0, minimum=0, maximum=_MAX_LAYERS)


def _mla(config: ConfigReader) -> MlaSpec:
    indexer = None
    if config.find(("index_topk",))[1] is not None:
        indexer = IndexerSpec(
            heads=config.integer("index_n_heads"),
            head_dim=config.integer("index_head_dim"),
            top_k=config.integer("index_topk"),
        )
    return MlaSpec(
        heads=config.integer("num_attention_heads"),
        q_lora_rank=0 if config.is_null("q_lora_rank") else config.integer("q_lora_rank"),
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_nope_head_dim=config.integer("qk_nope_head_dim"),
        qk_rope_head_dim=config.integer("qk_rope_head_dim"),
        v_head_dim=config.integer("v_head_dim"),
        indexer=indexer,
    )


def _gqa(config: ConfigReader, *, rope: bool) -> GqaSpec:
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.fail(
            "num_key_value_heads", f"({kv_heads}) does not divide num_attention_heads ({heads})"
        )
    if config.find(("head_dim", "attention_head_dim"))[1] is None and config.integer("hidden_size") % heads:
        raise config.fail("head_dim", "is missing, and num_attention_heads does not divide hidden_size")
    head_dim = config.integer(
        "head_dim", "attention_head_dim", default=config.integer("hidden_size") // heads
    )
    return GqaSpec(heads=heads, kv_heads=kv_heads, head_dim=head_dim, rope=rope)


def _moe(
    config: ConfigReader, *, intermediate: int, shared: int, activation: Activation, **latent: Any
) -> MoeSpec:
    experts = config.integer("n_routed_experts", "num_experts")
    groups = config.integer("n_group", "num_expert_group", default=1)
    if experts % groups:
        raise config.fail("n_group", f"({groups}) does not divide the number of experts ({experts})")
    return MoeSpec(
        experts=experts,
        top_k=config.integer("num_experts_per_tok", "num_experts_per_token", maximum=experts),
        intermediate_size=intermediate,
        shared_intermediate_size=shared,
        activation=activation,
        routed_scaling=config.number("routed_scaling_factor", default=1.0),
        expert_groups=groups,
        top_k_groups=config.integer("topk_group", default=1, maximum=groups),
        **latent,
    )


def _read_nemotron_h(config: ConfigReader) -> ModelSpec:
    """Nemotron-H and Nemotron-3: a string of single blocks."""
    blocks = _pattern(config, "hybrid_override_pattern", "layers_block_type")
    if blocks is None:
        raise config.fail("hybrid_override_pattern", "is missing")
    layers = config.integer("num_hidden_layers", default=len(blocks), maximum=_MAX_LAYERS)
    if layers != len(blocks):
        raise config.fail("num_hidden_layers", f"is {layers}, but the pattern has {len(blocks)} blocks")
    mtp = None
    if _draft_layers(config):
        draft = _pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or "*E"
        mtp = MtpSpec(blocks=draft, gathered_eh_proj=True)
    used = set(blocks + (mtp.blocks if mtp else ""))
    return _spec(
        config,
        family="nemotron-h",
        blocks=blocks,
        gqa=_gqa(config, rope=False) if "*" in used else None,
        mamba=_mamba(config) if "M" in used else None,
        moe=_nemotron_moe(config) if "E" in used else None,
        dense_intermediate_size=config.integer("intermediate_size") if "D" in used else 0,
        dense_activation=_activation(config, "mlp_hidden_act"),
        mtp=mtp,
    )


def _pattern(config: ConfigReader, text_key: str, list_key: str) -> str | None:
    """Blocks by the pattern string or by the list of block types; None where neither is there."""
    found: list[str] = []
    if config.find((text_key,))[1] is not None:
        text = config.text(text_key)
        unknown = sorted(set(text) - set(_PATTERN_BLOCKS))
        if unknown or not 0 < len(text) <= _MAX_LAYERS:
            raise config.fail(
                text_key, f"is not a string over {''.join(_PATTERN_BLOCKS)} (1 to {_MAX_LAYERS} of them)"
            )
        found.append("".join(_PATTERN_BLOCKS[sign] for sign in text))
    names = config.items(list_key)
    if names:
        if not all(isinstance(name, str) and name in _BLOCK_TYPES for name in names):
            raise config.fail(list_key, f"is not a list of {', '.join(_BLOCK_TYPES)}")
        found.append("".join(_BLOCK_TYPES[name] for name in names))
    if len(set(found)) > 1:
        raise config.fail(text_key, f"disagrees with {list_key}")
    return found[0] if found else None


def _mamba(config: ConfigReader) -> MambaSpec:
    heads = config.integer("mamba_num_heads")
    groups = config.integer("n_groups", "mamba_n_groups")
    if heads % groups:
        raise config.fail("n_groups", f"({groups}) does not divide mamba_num_heads ({heads})")
    return MambaSpec(
        heads=heads,
        head_dim=config.integer("mamba_head_dim"),
        groups=groups,
        state_size=config.integer("ssm_state_size", "mamba_state_dim"),
        conv_kernel=config.integer("conv_kernel", "mamba_d_conv"),
    )


def _nemotron_moe(config: ConfigReader) -> MoeSpec:
    latent = None
    if config.find(("moe_latent_size",))[1] is not None:
        latent = config.integer("moe_latent_size")
    shared = config.integer("n_shared_experts", default=0, minimum=0)
    return _moe(
        config,
        intermediate=config.integer("moe_intermediate_size"),
        shared=config.integer("moe_shared_expert_intermediate_size") if shared else 0,
        activation=_activation(config, "mlp_hidden_act"),
        latent_size=latent,
        latent_bias=latent is not None and config.flag("mlp_bias"),
    )


def _read_kimi_linear(config: ConfigReader) -> ModelSpec:
    """Kimi-K3 and Kimi-Linear: KDA and MLA attention, MoE in a latent width in K3."""
    if _draft_layers(config):
        raise config.fail(
            "num_nextn_predict_layers", "asks for a draft module, of which no published model tells the form"
        )
    mlp = _mlp_blocks(config)
    linear = config.section("linear_attn_config")
    latent = None
    if config.find(("routed_expert_hidden_size",))[1] is not None:
        latent = config.integer("routed_expert_hidden_size")
    return _spec(
        config,
        family="kimi-k3",
        blocks="".join(a + m for a, m in zip(_kimi_attention(linear, len(mlp)), mlp, strict=True)),
        mla=_mla(config),
        kda=KdaSpec(
            heads=linear.integer("num_heads"),
            head_dim=linear.integer("head_dim"),
            conv_kernel=linear.integer("short_conv_kernel_size"),
        ),
        moe=_moe(
            config,
            intermediate=config.integer("moe_intermediate_size"),
            shared=config.integer("num_shared_experts", default=0, minimum=0)
            * config.integer("moe_intermediate_size"),
            activation=_activation(config, "hidden_act"),
            latent_size=latent,
            latent_norm=latent is not None and config.flag("latent_moe_use_norm"),
        ),
        dense_intermediate_size=config.integer("intermediate_size") if "D" in mlp else 0,
    )


def _kimi_attention(linear: ConfigReader, layers: int) -> str:
    """`K` or `A` for each layer; the config counts layers from 1."""
    kinds: dict[Any, str] = {}
    for key, kind in (("kda_layers", "K"), ("full_attn_layers", "A")):
        for layer in linear.items(key) or []:
            if (
                isinstance(layer, bool)
                or not isinstance(layer, int)
                or layer in kinds
                or not 1 <= layer <= layers
            ):
                raise linear.fail(key, f"does not name layers from 1 to {layers}, each once")
            kinds[layer] = kind
    if len(kinds) != layers:
        raise linear.fail("kda_layers", f"and full_attn_layers name {len(kinds)} layers of {layers}")
    return "".join(kinds[layer] for layer in range(1, layers + 1))


READERS: dict[str, Callable[[ConfigReader], ModelSpec]] = {
    "deepseek_v3": _read_deepseek,
    "deepseek_v32": _read_deepseek,
    "glm_moe_dsa": _read_deepseek,
    "glm4_moe": _read_glm4,
    "kimi_k2": _read_deepseek,
    "nemotron_h": _read_nemotron_h,
    "kimi_linear": _read_kimi_linear,
}
"""Readers by `model_type`. A multimodal wrapper (Kimi-K2.5, Kimi-K3) is read through its `text_config`."""
