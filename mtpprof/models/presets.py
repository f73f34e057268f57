"""Model presets: one table of published dimensions, and how a model is scaled down. No torch here.

`PRESETS` holds every model at its full published size. `tiny` and `slice` are not tables of their own: both keep fewer layers of
the same mix, and `tiny` also replaces the widths by small ones that keep the structure (which blocks, latent or not, grouped or
not, replicated key/value heads or not). So a preset is one row, and a config.json scales by the same rule.

Every width that tensor parallelism divides is divisible by 8 in a tiny model, except the key/value heads of grouped-query
attention, which are fewer than 8 and replicated, as in the published models.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from mtpprof.errors import UsageError
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

_DEEPSEEK_V32 = ModelSpec(
    name="deepseek-v3.2",
    title="DeepSeek-V3.2",
    family="deepseek",
    source="deepseek-ai/DeepSeek-V3.2, config.json",
    scale=Scale.FULL,
    hidden_size=7168,
    vocab_size=129280,
    blocks="AD" * 3 + "AE" * 58,
    norm_eps=1e-6,
    mla=MlaSpec(
        heads=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        indexer=IndexerSpec(heads=64, head_dim=128, top_k=2048),
    ),
    moe=MoeSpec(
        experts=256,
        top_k=8,
        intermediate_size=2048,
        shared_intermediate_size=2048,
        activation=Activation.SILU_GATED,
        routed_scaling=2.5,
        expert_groups=8,
        top_k_groups=4,
    ),
    dense_intermediate_size=18432,
    mtp=MtpSpec(blocks="AE", gathered_eh_proj=False),
    quantization="fp8",
)

_GLM_52 = ModelSpec(
    name="glm-5.2",
    title="GLM-5.2",
    family="deepseek",
    source="zai-org/GLM-5.2, config.json; every layer keeps its own indexer here, where the published model shares one in four",
    scale=Scale.FULL,
    hidden_size=6144,
    vocab_size=154880,
    blocks="AD" * 3 + "AE" * 75,
    norm_eps=1e-5,
    mla=MlaSpec(
        heads=64,
        q_lora_rank=2048,
        kv_lora_rank=512,
        qk_nope_head_dim=192,
        qk_rope_head_dim=64,
        v_head_dim=256,
        indexer=IndexerSpec(heads=32, head_dim=128, top_k=2048),
    ),
    moe=MoeSpec(
        experts=256,
        top_k=8,
        intermediate_size=2048,
        shared_intermediate_size=2048,
        activation=Activation.SILU_GATED,
        routed_scaling=2.5,
    ),
    dense_intermediate_size=12288,
    mtp=MtpSpec(blocks="AE", gathered_eh_proj=False),
    rope_theta=8_000_000.0,
)

_NEMOTRON_NANO = ModelSpec(
    name="nemotron-3-nano",
    title="Nemotron-3 Nano 30B-A3B",
    family="nemotron-h",
    source="nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B, config.json",
    scale=Scale.FULL,
    hidden_size=2688,
    vocab_size=131072,
    blocks="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    norm_eps=1e-5,
    gqa=GqaSpec(heads=32, kv_heads=2, head_dim=128),
    mamba=MambaSpec(heads=64, head_dim=64, groups=8, state_size=128, conv_kernel=4),
    moe=MoeSpec(
        experts=128,
        top_k=6,
        intermediate_size=1856,
        shared_intermediate_size=3712,
        activation=Activation.RELU2,
        routed_scaling=2.5,
    ),
    dense_activation=Activation.RELU2,
)

_NEMOTRON_SUPER = ModelSpec(
    name="nemotron-3-super",
    title="Nemotron-3 Super 120B-A12B",
    family="nemotron-h",
    source="nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16, config.json",
    scale=Scale.FULL,
    hidden_size=4096,
    vocab_size=131072,
    blocks="MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    norm_eps=1e-5,
    gqa=GqaSpec(heads=32, kv_heads=2, head_dim=128),
    mamba=MambaSpec(heads=128, head_dim=64, groups=8, state_size=128, conv_kernel=4),
    moe=MoeSpec(
        experts=512,
        top_k=22,
        intermediate_size=2688,
        shared_intermediate_size=5376,
        activation=Activation.RELU2,
        routed_scaling=5.0,
        latent_size=1024,
    ),
    dense_activation=Activation.RELU2,
    mtp=MtpSpec(blocks="*E", gathered_eh_proj=True),
)

_NEMOTRON_ULTRA = ModelSpec(
    name="nemotron-3-ultra",
    title="Nemotron-3 Ultra 550B-A55B",
    family="nemotron-h",
    source="NVIDIA's training scripts for Nemotron-3 Ultra and converted checkpoints; its config.json was not seen",
    scale=Scale.FULL,
    hidden_size=8192,
    vocab_size=131072,
    blocks="MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    norm_eps=1e-5,
    gqa=GqaSpec(heads=64, kv_heads=2, head_dim=128),
    mamba=MambaSpec(heads=256, head_dim=64, groups=8, state_size=128, conv_kernel=4),
    moe=MoeSpec(
        experts=512,
        top_k=22,
        intermediate_size=5120,
        shared_intermediate_size=10240,
        activation=Activation.RELU2,
        routed_scaling=5.0,
        latent_size=2048,
    ),
    dense_activation=Activation.RELU2,
    mtp=MtpSpec(blocks="*E", gathered_eh_proj=True),
)

_KIMI_K2 = ModelSpec(
    name="kimi-k2",
    title="Kimi-K2",
    family="deepseek",
    source="moonshotai/Kimi-K2-Instruct, config.json; K2.5 and K2.6 have the same dimensions",
    scale=Scale.FULL,
    hidden_size=7168,
    vocab_size=163840,
    blocks="AD" + "AE" * 60,
    norm_eps=1e-6,
    mla=MlaSpec(
        heads=64,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    ),
    moe=MoeSpec(
        experts=384,
        top_k=8,
        intermediate_size=2048,
        shared_intermediate_size=2048,
        activation=Activation.SILU_GATED,
        routed_scaling=2.827,
    ),
    dense_intermediate_size=18432,
    quantization="fp8",
    rope_theta=50000.0,
)

_KIMI_K3 = ModelSpec(
    name="kimi-k3",
    title="Kimi-K3",
    family="kimi-k3",
    source="moonshotai/Kimi-K3, config.json; SiLU stands for its SiTU activation, and its attention residuals, attention output "
    "gates and vision tower are left out",
    scale=Scale.FULL,
    hidden_size=7168,
    vocab_size=163840,
    blocks="KD" + "KEKEAE" + "KEKEKEAE" * 22 + "AE",
    norm_eps=1e-5,
    mla=MlaSpec(
        heads=96,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    ),
    kda=KdaSpec(heads=96, head_dim=128, conv_kernel=4),
    moe=MoeSpec(
        experts=896,
        top_k=16,
        intermediate_size=3072,
        shared_intermediate_size=6144,
        activation=Activation.SILU_GATED,
        latent_size=3584,
        latent_norm=True,
    ),
    dense_intermediate_size=33792,
    quantization="mxfp4",
)

PRESETS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (_DEEPSEEK_V32, _GLM_52, _NEMOTRON_NANO, _NEMOTRON_SUPER, _NEMOTRON_ULTRA, _KIMI_K2, _KIMI_K3)
}
"""Every preset at full size, by name. A row here is all that a new one takes."""

_TINY_HIDDEN = 256
_TINY_HEADS = 8
_TINY_EXPERTS = 8
_TINY_TOP_K = 2
_TINY_GROUPS = 4
"""Two experts a group: the group score of DeepSeek's router is the sum of the two best."""
_REDUCED_LAYERS = {"deepseek": 4, "kimi-k3": 4, "nemotron-h": 7}
"""Published layers of a tiny model or a slice. A layer of Nemotron-H is one block."""


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
        layers = spec.layers if scale is Scale.FULL else min(spec.layers, _REDUCED_LAYERS[spec.family])
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
