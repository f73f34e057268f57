"""Tensors and configuration of the model families, in the names under which they are published and vLLM loads them.

A layout is a plain transcription of one family: every tensor with its shape and with the spread from which it is drawn. The spreads are
chosen so that blocks add noise of a known size to the residual stream (`noise_of`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mtpprof.models.spec import ModelSpec, MoeSpec

BYTES_PER_VALUE = 2
"""bf16: what the published models are stored in; vLLM casts on loading."""
MAX_POSITIONS = 8192
TARGET_WINS_BY = 9.0
"""Logit of the right token in units of the others' spread. The largest of 130,000 others lies at 4.4."""
DRAFT_WINS_BY = 5.0
NORM_SPREAD = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0
    identity: float = 0.0
    """Multiple of the identity matrix added to the first square part of it."""
    permuted: str = ""
    """Take the rows of the tensor of this name, in another order, `std` as their length."""

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * BYTES_PER_VALUE


class Layout(ABC):
    """What the families share: matrices of a gain, norms, and how much noise a block may add."""

    embedding = ""

    def __init__(self, spec: ModelSpec, device: str) -> None:
        self.spec = spec
        self.device = device
        self.hidden = spec.hidden_size
        self._noise = noise_per_block(self.hidden, len(spec.blocks), TARGET_WINS_BY)

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The config.json."""

    @abstractmethod
    def tensors(self) -> Iterator[TensorSpec]:
        """Every tensor of the checkpoint."""

    def linear(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> TensorSpec:
        """A projection that multiplies the size of its input by about `gain`."""
        return TensorSpec(name=f"{name}.weight", shape=(outputs, inputs), std=gain / inputs**0.5)

    def output(self, name: str, inputs: int, size: float) -> TensorSpec:
        """A block's last projection; `size` is the usual size of what goes into it."""
        return self.linear(name, self.hidden, inputs, self._noise / size)

    def norm(self, name: str, size: int) -> TensorSpec:
        """Weight of a norm, spread around one."""
        return TensorSpec(name=f"{name}.weight", shape=(size,), std=NORM_SPREAD, mean=1.0)

    def table(self, name: str) -> TensorSpec:
        """The embedding."""
        return TensorSpec(name=f"{name}.weight", shape=(self.spec.vocab_size, self.hidden), std=1.0)

    def head(self, name: str) -> TensorSpec:
        """The head: the embedding's rows in another order, of length 1."""
        shape = (self.spec.vocab_size, self.hidden)
        return TensorSpec(name=f"{name}.weight", shape=shape, std=1.0, permuted=f"{self.embedding}.weight")

    def joined(self, name: str) -> TensorSpec:
        """The draft module's projection of (embedding, hidden state): mostly the embedding, whose next token is right."""
        block_noise = self._noise * (len(self.spec.mtp.blocks) if self.spec.mtp else 0) ** 0.5
        noise = max(0.0, noise_of(self.hidden, DRAFT_WINS_BY) ** 2 - block_noise**2) ** 0.5
        return TensorSpec(
            name=f"{name}.weight",
            shape=(self.hidden, 2 * self.hidden),
            std=noise / (2 * self.hidden) ** 0.5,
            identity=1.0,
        )

    def router(self, name: str, moe: MoeSpec) -> Iterator[TensorSpec]:
        """Scores of the experts, and the bias that corrects their choice."""
        yield self.linear(f"{name}.gate", moe.experts, self.hidden)
        yield TensorSpec(name=f"{name}.gate.e_score_correction_bias", shape=(moe.experts,), std=0.02)

    def common_config(self) -> dict[str, Any]:
        """Keys of config.json that the families share."""
        spec = self.spec
        config: dict[str, Any] = {
            "hidden_size": spec.hidden_size,
            "vocab_size": spec.vocab_size,
            "num_hidden_layers": spec.layers,
            "num_nextn_predict_layers": 1 if spec.mtp else 0,
            "max_position_embeddings": MAX_POSITIONS,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
        }
        if spec.moe is not None:
            config |= {
                "n_routed_experts": spec.moe.experts,
                "num_experts_per_tok": spec.moe.top_k,
                "moe_intermediate_size": spec.moe.intermediate_size,
                "routed_scaling_factor": spec.moe.routed_scaling,
                "n_group": spec.moe.expert_groups,
                "topk_group": spec.moe.top_k_groups,
                "norm_topk_prob": True,
            }
        return config


def noise_of(hidden: int, wins_by: float) -> float:
    """Size of the noise beside a signal of size 1 at which the signal's logit is `wins_by` spreads of the others'.

    A normalized hidden vector at angle cos to a row of the head has the logit cos·√H, others have spread 1; with noise of size s,
    cos = 1 / √(1 + s²).
    """
    return math.sqrt(max(0.0, hidden / wins_by**2 - 1))


def noise_per_block(hidden: int, blocks: int, wins_by: float) -> float:
    """Size of one block's output, where `blocks` independent ones add up to the noise allowed."""
    return noise_of(hidden, wins_by) / math.sqrt(max(1, blocks))


class DeepseekLayout(Layout):
    """DeepSeek-V3, V3.2, GLM-5, Kimi-K2 (latent attention) and GLM-4.5 (grouped-query attention)."""

    embedding = "model.embed_tokens"

    def config(self) -> dict[str, Any]:
        """The config.json."""
        spec = self.spec
        config = self.common_config() | {
            "hidden_act": "silu",
            "rms_norm_eps": spec.norm_eps,
            "rope_theta": spec.rope_theta,
            "attention_bias": False,
            "intermediate_size": spec.dense_intermediate_size or spec.hidden_size,
            "first_k_dense_replace": spec.blocks.count("D"),
            "scoring_func": "sigmoid",
        }
        if spec.moe is not None:
            config["n_shared_experts"] = spec.moe.shared_intermediate_size // spec.moe.intermediate_size
        if spec.gqa is not None:
            return config | {
                "architectures": ["Glm4MoeForCausalLM"],
                "model_type": "glm4_moe",
                "num_attention_heads": spec.gqa.heads,
                "num_key_value_heads": spec.gqa.kv_heads,
                "head_dim": spec.gqa.head_dim,
                "partial_rotary_factor": 0.5,
                "use_qk_norm": False,
            }
        mla = spec.mla
        assert mla is not None
        config |= {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "topk_method": "noaux_tc",
            "moe_layer_freq": 1,
            "num_attention_heads": mla.heads,
            "num_key_value_heads": mla.heads,
            "q_lora_rank": mla.q_lora_rank,
            "kv_lora_rank": mla.kv_lora_rank,
            "qk_nope_head_dim": mla.qk_nope_head_dim,
            "qk_rope_head_dim": mla.qk_rope_head_dim,
            "v_head_dim": mla.v_head_dim,
        }
        if mla.indexer is not None:
            config |= {
                "architectures": ["DeepseekV32ForCausalLM"],
                "model_type": "deepseek_v32",
                "index_n_heads": mla.indexer.heads,
                "index_head_dim": mla.indexer.head_dim,
                "index_topk": mla.indexer.top_k,
            }
        return config

    def tensors(self) -> Iterator[TensorSpec]:
        """Every tensor of the checkpoint."""
        yield self.table(self.embedding)
        for layer in range(self.spec.layers):
            yield from self._layer(f"model.layers.{layer}", self.spec.blocks[2 * layer + 1])
        yield self.norm("model.norm", self.hidden)
        yield self.head("lm_head")
        if self.spec.mtp is not None:
            path = f"model.layers.{self.spec.layers}"
            yield self.norm(f"{path}.enorm", self.hidden)
            yield self.norm(f"{path}.hnorm", self.hidden)
            yield self.joined(f"{path}.eh_proj")
            yield from self._layer(path, self.spec.mtp.blocks[1])
            yield self.norm(f"{path}.shared_head.norm", self.hidden)

    def _layer(self, path: str, mlp: str) -> Iterator[TensorSpec]:
        yield self.norm(f"{path}.input_layernorm", self.hidden)
        yield from self._mla(f"{path}.self_attn") if self.spec.mla else self._gqa(f"{path}.self_attn")
        yield self.norm(f"{path}.post_attention_layernorm", self.hidden)
        if mlp == "D":
            yield from self._mlp(f"{path}.mlp", self.spec.dense_intermediate_size)
        else:
            yield from self._moe(f"{path}.mlp")

    def _mla(self, path: str) -> Iterator[TensorSpec]:
        mla = self.spec.mla
        assert mla is not None
        query = mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        yield self.linear(f"{path}.q_a_proj", mla.q_lora_rank, self.hidden)
        yield self.norm(f"{path}.q_a_layernorm", mla.q_lora_rank)
        yield self.linear(f"{path}.q_b_proj", query, mla.q_lora_rank)
        yield self.linear(f"{path}.kv_a_proj_with_mqa", mla.kv_lora_rank + mla.qk_rope_head_dim, self.hidden)
        yield self.norm(f"{path}.kv_a_layernorm", mla.kv_lora_rank)
        keys_values = mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        yield self.linear(f"{path}.kv_b_proj", keys_values, mla.kv_lora_rank)
        yield self.output(f"{path}.o_proj", mla.heads * mla.v_head_dim, size=0.5)
        if mla.indexer is not None:
            indexer = mla.indexer
            yield self.linear(f"{path}.indexer.wq_b", indexer.heads * indexer.head_dim, mla.q_lora_rank)
            yield self.linear(f"{path}.indexer.wk", indexer.head_dim, self.hidden)
            yield self.norm(f"{path}.indexer.k_norm", indexer.head_dim)
            yield TensorSpec(name=f"{path}.indexer.k_norm.bias", shape=(indexer.head_dim,), std=NORM_SPREAD)
            yield self.linear(f"{path}.indexer.weights_proj", indexer.heads, self.hidden)

    def _gqa(self, path: str) -> Iterator[TensorSpec]:
        yield from _attention(self, path)

    def _mlp(self, path: str, width: int, size: float = 0.6) -> Iterator[TensorSpec]:
        yield self.linear(f"{path}.gate_proj", width, self.hidden)
        yield self.linear(f"{path}.up_proj", width, self.hidden)
        yield self.output(f"{path}.down_proj", width, size)

    def _moe(self, path: str) -> Iterator[TensorSpec]:
        moe = self.spec.moe
        assert moe is not None
        yield from self.router(path, moe)
        for expert in range(moe.experts):
            # Weights of the chosen experts sum to routed_scaling.
            size = 0.6 * moe.routed_scaling / moe.top_k**0.5
            yield from self._mlp(f"{path}.experts.{expert}", moe.intermediate_size, size)
        if moe.shared_intermediate_size:
            yield from self._mlp(f"{path}.shared_experts", moe.shared_intermediate_size)


class NemotronLayout(Layout):
    """Nemotron-H and Nemotron-3."""

    embedding = "backbone.embeddings"

    def config(self) -> dict[str, Any]:
        """The config.json."""
        spec = self.spec
        kinds = {"M": "linear_attention", "E": "moe", "*": "full_attention", "D": "mlp"}
        config = self.common_config() | {
            "architectures": ["NemotronHForCausalLM"],
            "model_type": "nemotron_h",
            "hybrid_override_pattern": spec.blocks.replace("D", "-"),
            "layers_block_type": [kinds[block] for block in spec.blocks],
            "intermediate_size": spec.dense_intermediate_size or spec.hidden_size,
            "mlp_hidden_act": "relu2",
            "mlp_bias": False,
            "layer_norm_epsilon": spec.norm_eps,
        }
        if spec.gqa is not None:
            config |= {
                "num_attention_heads": spec.gqa.heads,
                "num_key_value_heads": spec.gqa.kv_heads,
                "head_dim": spec.gqa.head_dim,
            }
        if spec.mamba is not None:
            config |= {
                "ssm_state_size": spec.mamba.state_size,
                "mamba_num_heads": spec.mamba.heads,
                "mamba_head_dim": spec.mamba.head_dim,
                "n_groups": spec.mamba.groups,
                "conv_kernel": spec.mamba.conv_kernel,
                "expand": max(1, spec.mamba.heads * spec.mamba.head_dim // spec.hidden_size),
                "chunk_size": 64,
            }
        if spec.moe is not None:
            config |= {
                "n_shared_experts": 1 if spec.moe.shared_intermediate_size else 0,
                "moe_shared_expert_intermediate_size": spec.moe.shared_intermediate_size,
                "moe_latent_size": spec.moe.latent_size,
            }
        if spec.mtp is not None:
            config["mtp_hybrid_override_pattern"] = spec.mtp.blocks
        return config

    def tensors(self) -> Iterator[TensorSpec]:
        """Every tensor of the checkpoint."""
        yield self.table(self.embedding)
        for index, block in enumerate(self.spec.blocks):
            yield from self._block(f"backbone.layers.{index}", block)
        yield self.norm("backbone.norm_f", self.hidden)
        yield self.head("lm_head")
        if self.spec.mtp is None:
            return
        for index, block in enumerate(self.spec.mtp.blocks):
            path = f"mtp.layers.{index}"
            if index == 0:
                yield self.norm(f"{path}.enorm", self.hidden)
                yield self.norm(f"{path}.hnorm", self.hidden)
                yield self.joined(f"{path}.eh_proj")
            yield from self._block(path, block)
            if index == len(self.spec.mtp.blocks) - 1:
                yield self.norm(f"{path}.final_layernorm", self.hidden)

    def _block(self, path: str, block: str) -> Iterator[TensorSpec]:
        yield self.norm(f"{path}.norm", self.hidden)
        mixer = f"{path}.mixer"
        if block == "M":
            yield from self._mamba(mixer)
        elif block == "*":
            yield from _attention(self, mixer)
        elif block == "E":
            yield from self._moe(mixer)
        else:
            yield from self._relu2(mixer, self.spec.dense_intermediate_size)

    def _mamba(self, path: str) -> Iterator[TensorSpec]:
        mamba = self.spec.mamba
        assert mamba is not None
        inner = mamba.heads * mamba.head_dim
        mixed = inner + 2 * mamba.groups * mamba.state_size
        yield self.linear(f"{path}.in_proj", inner + mixed + mamba.heads, self.hidden)
        yield TensorSpec(
            name=f"{path}.conv1d.weight",
            shape=(mixed, 1, mamba.conv_kernel),
            std=mamba.conv_kernel**-0.5,
        )
        yield TensorSpec(name=f"{path}.conv1d.bias", shape=(mixed,), std=0.02)
        yield TensorSpec(name=f"{path}.A_log", shape=(mamba.heads,), std=0.5, mean=0.5)
        yield TensorSpec(name=f"{path}.D", shape=(mamba.heads,), std=NORM_SPREAD, mean=1.0)
        yield TensorSpec(name=f"{path}.dt_bias", shape=(mamba.heads,), std=0.5, mean=-2.0)
        yield self.norm(f"{path}.norm", inner)
        yield self.output(f"{path}.out_proj", inner, size=1.0)

    def _relu2(self, path: str, width: int, size: float = 1.2) -> Iterator[TensorSpec]:
        yield self.linear(f"{path}.up_proj", width, self.hidden)
        yield self.output(f"{path}.down_proj", width, size)

    def _moe(self, path: str) -> Iterator[TensorSpec]:
        moe = self.spec.moe
        assert moe is not None
        yield from self.router(path, moe)
        width = moe.latent_size or self.hidden
        size = (0.6 if (self.device == "cpu") else 1.2) * moe.routed_scaling / moe.top_k**0.5
        gain = 1.0 if moe.latent_size else self._noise
        for expert in range(moe.experts):
            name = f"{path}.experts.{expert}"
            if self.device == "cpu":
                yield self.linear(f"{name}.gate_proj", moe.intermediate_size, width)
            yield self.linear(f"{name}.up_proj", moe.intermediate_size, width)
            yield self.linear(f"{name}.down_proj", width, moe.intermediate_size, gain / size)
        if moe.latent_size:
            yield self.linear(f"{path}.fc1_latent_proj", moe.latent_size, self.hidden)
            yield self.output(f"{path}.fc2_latent_proj", moe.latent_size, size=1.0)
        if moe.shared_intermediate_size:
            yield from self._relu2(f"{path}.shared_experts", moe.shared_intermediate_size)


def _attention(build: Layout, path: str) -> Iterator[TensorSpec]:
    gqa = build.spec.gqa
    assert gqa is not None
    yield build.linear(f"{path}.q_proj", gqa.heads * gqa.head_dim, build.hidden)
    yield build.linear(f"{path}.k_proj", gqa.kv_heads * gqa.head_dim, build.hidden)
    yield build.linear(f"{path}.v_proj", gqa.kv_heads * gqa.head_dim, build.hidden)
    yield build.output(f"{path}.o_proj", gqa.heads * gqa.head_dim, size=0.5)


LAYOUTS: dict[str, type[Layout]] = {"deepseek": DeepseekLayout, "nemotron-h": NemotronLayout}
"""Layouts by `ModelSpec.family`; of a family without one, vLLM cannot run generated weights."""
