"""Model presets: published dimensions, one TOML file of this folder each with its source, and how a model is scaled down. No torch here.

`PRESETS` holds every model at its full published size; to add one is to add a file. `tiny` and `slice` are not tables of their own:
both keep fewer layers of the same mix, and `tiny` also replaces the widths by small ones that keep the structure (which blocks, latent
or not, grouped or not, replicated key/value heads or not). A config.json scales by the same rule.

Every width that tensor parallelism divides is divisible by 8 in a tiny model, except the key/value heads of grouped-query
attention, which are fewer than 8 and replicated, as in the published models.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from difflib import get_close_matches
from importlib import resources
from typing import Any

import msgspec

from mtpprof.errors import InputError, UsageError
from mtpprof.models.spec import IndexerSpec, MlaSpec, ModelSpec, Scale


def preset_of(content: dict[str, Any], name: str) -> ModelSpec:
    """A preset out of a parsed TOML file: the fields of a `ModelSpec`, `blocks` as a list of strings and of [string, repeats].

    Raises:
        InputError: of another shape; names the place.
    """
    try:
        parts = msgspec.convert(content.get("blocks"), list[str | tuple[str, int]])
        blocks = "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts)
        return msgspec.convert({**content, "name": name, "scale": "full", "blocks": blocks}, ModelSpec)
    except msgspec.ValidationError as error:
        raise InputError(f"preset {name}: {error}; correct the file.") from error


def _read_presets() -> dict[str, ModelSpec]:
    entries = sorted(resources.files(__name__).iterdir(), key=lambda entry: entry.name)
    return {
        name: preset_of(tomllib.loads(entry.read_text(encoding="utf-8")), name)
        for entry in entries
        if (name := entry.name.removesuffix(".toml")) != entry.name
    }


PRESETS: dict[str, ModelSpec] = _read_presets()
"""Every preset at full size, by name, which is its file's."""

_TINY_HIDDEN = 256
_TINY_HEADS = 8
_TINY_EXPERTS = 8
_TINY_TOP_K = 2
_TINY_GROUPS = 4
"""Two experts a group: the group score of DeepSeek's router is the sum of the two best."""


def load_preset(name: str, scale: Scale, *, layers: int | None = None, vocab: int | None = None) -> ModelSpec:
    """A preset at a scale.

    Args:
        name: Id of a preset.
        scale: How much of it.
        layers: Number of layers, in place of the scale's own.
        vocab: Vocabulary size, in place of the published one.

    Raises:
        UsageError: unknown name, or sizes that the model cannot have.
    """
    return rescale(find_preset(name), scale, layers=layers, vocab=vocab)


def find_preset(name: str) -> ModelSpec:
    """The preset of this name, in any case of letters, at full size.

    Raises:
        UsageError: there is none; the sentence lists the known ones.
    """
    if name.lower() in PRESETS:
        return PRESETS[name.lower()]
    close = get_close_matches(name.lower(), PRESETS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UsageError(
        f"model {name!r} is not known; {hint}Known: {', '.join(PRESETS)}, and the path of a config.json or its folder."
    )


def rescale(
    spec: ModelSpec, scale: Scale, *, layers: int | None = None, vocab: int | None = None
) -> ModelSpec:
    """A full-size model at a scale; see `load_preset` for the arguments.

    Fewer layers keep the mix. DeepSeek-like: the dense layers come first, in proportion and at least one, and the attention kinds
    repeat as they do from the first layer on. Nemotron-H: attention in proportion and at least one, spread evenly, each after a
    Mamba-2 block; Mamba-2 and MoE alternate. The draft module stays as it is.

    Raises:
        UsageError: more layers than the model has, too few to hold one of each kind, or a vocabulary of less than two tokens.
    """
    if vocab is not None and vocab < 2:
        raise UsageError(f"{spec.name}: a vocabulary of {vocab} leaves nothing to predict; give 2 or more.")
    if layers is None:
        layers = spec.layers if scale is Scale.FULL else min(spec.layers, spec.traits.reduced_layers)
    if layers != spec.layers:
        spec = replace(_without_layer_exceptions(spec), blocks=_fewer_blocks(spec, layers))
    if scale is Scale.TINY:
        spec = _narrow(spec)
    return replace(spec, scale=scale, vocab_size=vocab or spec.vocab_size)


def _without_layer_exceptions(spec: ModelSpec) -> ModelSpec:
    """Exceptions name layers by number; with other layers they mean nothing."""
    return replace(spec, moe=replace(spec.moe, latent_quantized_layers=())) if spec.moe else spec


def _fewer_blocks(spec: ModelSpec, layers: int) -> str:
    if not 1 <= layers <= spec.layers:
        raise UsageError(
            f"{spec.name}: {layers} layers asked for, but it has {spec.layers}; choose from 1 to that."
        )
    shorten = _fewer_hybrid_blocks if spec.blocks_per_layer == 1 else _fewer_decoder_layers
    blocks = shorten(spec.blocks, layers)
    missing = set(spec.blocks) - set(blocks)
    if missing:
        raise UsageError(
            f"{spec.name}: {layers} layers cannot hold one of each of its kinds of block "
            f"({', '.join(sorted(set(spec.blocks)))}); choose more."
        )
    return blocks


def _fewer_decoder_layers(blocks: str, layers: int) -> str:
    attention, mlp = blocks[::2][:layers], blocks[1::2]
    dense = mlp.count("D")
    if 0 < dense < len(mlp):
        dense = max(1, round(dense * layers / len(mlp)))
        mlp = "D" * dense + "E" * (layers - dense)
    return "".join(a + m for a, m in zip(attention, mlp, strict=False))


def _fewer_hybrid_blocks(blocks: str, layers: int) -> str:
    attention = max(1, round(blocks.count("*") * layers / len(blocks))) if "*" in blocks else 0
    rest = (blocks.replace("*", "") * 2)[: layers - attention]
    mixers = [index for index, block in enumerate(rest) if block == "M"] or list(range(len(rest)))
    after = [mixers[(2 * k + 1) * len(mixers) // (2 * attention)] for k in range(attention) if mixers]
    return "".join(block + "*" * after.count(index) for index, block in enumerate(rest))


def _narrow(spec: ModelSpec) -> ModelSpec:
    moe = spec.moe
    if moe is not None:
        grouped = moe.expert_groups > 1
        moe = replace(
            moe,
            experts=_TINY_EXPERTS,
            top_k=_TINY_TOP_K,
            intermediate_size=128,
            shared_intermediate_size=128 if moe.shared_intermediate_size else 0,
            expert_groups=_TINY_GROUPS if grouped else 1,
            top_k_groups=_TINY_GROUPS // 2 if grouped else 1,
            latent_size=max(16, _TINY_HIDDEN * moe.latent_size // spec.hidden_size)
            if moe.latent_size
            else None,
        )
    return replace(
        spec,
        hidden_size=_TINY_HIDDEN,
        mla=_narrow_mla(spec.mla) if spec.mla else None,
        gqa=replace(spec.gqa, heads=_TINY_HEADS, kv_heads=2, head_dim=32) if spec.gqa else None,
        kda=replace(spec.kda, heads=_TINY_HEADS, head_dim=32) if spec.kda else None,
        mamba=replace(spec.mamba, heads=_TINY_HEADS, head_dim=32, groups=_TINY_HEADS, state_size=16)
        if spec.mamba
        else None,
        moe=moe,
        dense_intermediate_size=512 if spec.dense_intermediate_size else 0,
    )


def _narrow_mla(mla: MlaSpec) -> MlaSpec:
    return MlaSpec(
        heads=_TINY_HEADS,
        q_lora_rank=64,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        # Fewer keys than a short prompt has, so that the selection does select.
        indexer=IndexerSpec(heads=4, head_dim=32, top_k=8) if mla.indexer else None,
    )
