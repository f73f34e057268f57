"""What a model is, as far as communication and the reference implementation need to know it. No torch here.

A model is a string of *blocks*. Each block is one residual branch whose output is summed over the tensor-parallel ranks,
so the number of all-reduces of a forward pass can be read off the string:

====  ======================================================================
`A`   multi-head latent attention (MLA), optionally with a sparse top-k indexer
`*`   grouped-query attention (GQA)
`K`   Kimi delta attention (KDA), linear attention
`M`   Mamba-2
`D`   dense MLP
`E`   mixture of experts (MoE), optionally in a latent width
====  ======================================================================

DeepSeek-V3.2 is `AD` × 3 + `AE` × 58; Nemotron-3 is a string over `M`, `E` and `*` as published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from mtpprof.errors import UsageError
from mtpprof.models.families import FAMILIES, Family

BLOCK_KINDS = "A*KMDE"


class Scale(StrEnum):
    """How much of a model is built."""

    TINY = "tiny"
    """Same structure and collective pattern, small widths, few layers, same vocabulary: two CPU cores."""
    SLICE = "slice"
    """Full widths and message sizes, few layers: the default on GPUs."""
    FULL = "full"


class Activation(StrEnum):
    """Activation of an MLP or expert."""

    SILU_GATED = "silu-gated"
    RELU2 = "relu2"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """Sparse attention's top-k indexer (DeepSeek Sparse Attention); issues no tensor-parallel collective."""

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Multi-head latent attention."""

    heads: int
    q_lora_rank: int
    """0: queries come straight from the hidden state."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: IndexerSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GqaSpec:
    """Grouped-query attention. KV heads are replicated where there are fewer of them than ranks."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KdaSpec:
    """Kimi delta attention: gated delta rule with a decay per channel and a short convolution."""

    heads: int
    head_dim: int
    conv_kernel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """Mamba-2 mixer."""

    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_kernel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Mixture of experts with an optional shared expert, optionally computed in a latent width."""

    experts: int
    top_k: int
    intermediate_size: int
    """Width of one routed expert."""
    shared_intermediate_size: int
    """Total width of the shared expert(s); 0: none."""
    activation: Activation
    routed_scaling: float = 1.0
    expert_groups: int = 1
    top_k_groups: int = 1
    latent_size: int | None = None
    """Width in which the routed experts work; None: the hidden size, no projections around them."""
    latent_norm: bool = False
    """An RMSNorm inside the latent output transform (Kimi-K3): the transform then does not commute with the sum."""
    latent_bias: bool = False
    latent_quantization: str | None = None
    """Quantization of the latent output projection itself, e.g. `fp8`; None: unquantized, whatever the model's is."""
    latent_quantized_layers: tuple[str, ...] = ()
    """Where only some layers' output projections are quantized: their paths, e.g. `layers.3` or `mtp.layers.1`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpSpec:
    """The multi-token-prediction module: one draft layer, run once per draft token."""

    blocks: str
    gathered_eh_proj: bool
    """`eh_proj` is column-parallel with a gather of its output (Nemotron-3); False: replicated (DeepSeek)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Dimensions of a model at some scale."""

    name: str
    """Preset id, e.g. `deepseek-v3.2`; for a config.json the name of its folder."""
    title: str
    family: str
    """Of `mtpprof.models.families.FAMILIES`."""
    source: str
    """Where the dimensions come from."""
    scale: Scale
    hidden_size: int
    vocab_size: int
    blocks: str
    norm_eps: float
    mla: MlaSpec | None = None
    gqa: GqaSpec | None = None
    kda: KdaSpec | None = None
    mamba: MambaSpec | None = None
    moe: MoeSpec | None = None
    dense_intermediate_size: int = 0
    dense_activation: Activation = Activation.SILU_GATED
    mtp: MtpSpec | None = None
    quantization: str | None = None
    """The model-wide quantization of the published checkpoint, for information; the reference engine does not quantize."""
    sequence_parallel: bool = False
    rope_theta: float = 10000.0
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"the family {self.family!r} is none of {', '.join(FAMILIES)}")

    @property
    def traits(self) -> Family:
        """What the models of its family have in common."""
        return FAMILIES[self.family]

    @property
    def default_draft_tokens(self) -> int:
        """Draft tokens per step where nothing is asked for."""
        return self.traits.draft_tokens if self.mtp else 0

    def all_blocks(self) -> str:
        """Blocks of the target model and of the draft module."""
        return self.blocks + (self.mtp.blocks if self.mtp else "")

    @property
    def blocks_per_layer(self) -> int:
        """See `Family`."""
        return self.traits.blocks_per_layer

    @property
    def layers(self) -> int:
        """Number of layers as published."""
        return len(self.blocks) // self.blocks_per_layer

    def block_path(self, index: int, prefix: str = "") -> str:
        """Where block `index` of a block string sits, e.g. `layers.3`; `prefix` is `mtp.` for the draft module."""
        return f"{prefix}layers.{index // self.blocks_per_layer}"

    def latent_sum_commutes(self, path: str) -> bool:
        """Whether the latent MoE layer at `path` may project partial sums: its transform is linear and exact on them.

        Asked of the layer, since a quantized model can leave this one projection unquantized, and the reverse.
        """
        moe = self.moe
        return (
            moe is not None
            and moe.latent_size is not None
            and not moe.latent_norm
            and not moe.latent_bias
            and moe.latent_quantization is None
            and path not in moe.latent_quantized_layers
        )

    def sharded_dimensions(self, tp: int) -> Iterator[tuple[str, int]]:
        """Every dimension that tensor parallelism divides, with the name a user knows it by."""
        used = set(self.all_blocks())
        yield "vocabulary", self.vocab_size
        if self.mla and "A" in used:
            yield "attention heads", self.mla.heads
        if self.gqa and "*" in used:
            yield "attention heads", self.gqa.heads
            if self.gqa.kv_heads >= tp:
                yield "key/value heads", self.gqa.kv_heads
        if self.kda and "K" in used:
            yield "linear-attention heads", self.kda.heads
        if self.mamba and "M" in used:
            yield "Mamba heads", self.mamba.heads
            yield "Mamba groups", self.mamba.groups
        if self.moe and "E" in used:
            yield "expert intermediate size", self.moe.intermediate_size
            if self.moe.shared_intermediate_size:
                yield "shared-expert intermediate size", self.moe.shared_intermediate_size
        if "D" in used:
            yield "dense intermediate size", self.dense_intermediate_size
        if self.mtp and self.mtp.gathered_eh_proj:
            yield "hidden size", self.hidden_size

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor-parallel size that does not divide a dimension it shards.

        Raises:
            UsageError: names the first such dimension.
        """
        if tp < 1:
            raise UsageError(f"--tp {tp}: the tensor-parallel size must be 1 or more.")
        for name, size in self.sharded_dimensions(tp):
            if size % tp:
                raise UsageError(
                    f"{self.name} ({self.scale}): --tp {tp} does not divide its {name} ({size}); "
                    f"choose a size that does."
                )
        if self.gqa and "*" in self.all_blocks() and self.gqa.kv_heads < tp and tp % self.gqa.kv_heads:
            raise UsageError(
                f"{self.name} ({self.scale}): --tp {tp} is not a multiple of its key/value heads ({self.gqa.kv_heads}); "
                f"choose a size that is."
            )
