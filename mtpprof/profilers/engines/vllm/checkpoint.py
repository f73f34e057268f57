"""Model folders that vLLM loads: a config.json and seeded safetensors of a model's dimensions, under which tokens vary.

vLLM's own dummy weights are nearly constant: every model then gives the same few tokens, and arms that agree prove nothing. Here
the head's rows are the embedding's rows in another order, so that the residual stream of a token speaks for one next token, and
every block adds noise of a size at which that token still wins clearly. The draft module sees the same embedding, so a part of its
drafts is accepted. Rounding does not change tokens, a wrong sum over ranks does.

The folder holds what vLLM reads, in the published names; what a platform cannot run is replaced by what has the same collectives,
and each replacement is told (`Checkpoint.deviations`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtpprof.errors import UsageError
from mtpprof.models.hf import from_config
from mtpprof.models.spec import Activation, ModelSpec
from mtpprof.profilers.engines.vllm.layouts import LAYOUTS, TensorSpec
from mtpprof.profilers.sizes import spec_of
from mtpprof.rundir.records import CaseRecord, RunRecord

if TYPE_CHECKING:
    import torch

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SHARD_BYTES = 2 * 1024**3
CPU_MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
"""The only latent attention for which vLLM has a CPU kernel: DeepSeek-V3's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is written for a model on a device."""

    config: dict[str, Any]
    tensors: tuple[TensorSpec, ...]
    deviations: tuple[str, ...]
    """In what the folder differs from the model asked for, one sentence each."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)


def checkpoint_of(spec: ModelSpec, *, device: str) -> Checkpoint:
    """The checkpoint of a model for vLLM on `device` (`cpu` or `cuda`).

    Raises:
        UsageError: vLLM cannot run this model there, or mtpprof cannot write it.
    """
    if spec.family not in LAYOUTS:
        raise UsageError(
            f"{spec.name}: the vLLM engine cannot run {spec.title} from generated weights; use --engine reference, or a "
            f"published checkpoint with --vllm-arg model=PATH on CUDA."
        )
    deviations: list[str] = []
    if device == "cpu":
        spec = _for_cpu(spec, deviations)
    layout = LAYOUTS[spec.family](spec, device)
    return Checkpoint(config=layout.config(), tensors=tuple(layout.tensors()), deviations=tuple(deviations))


def given_model(run: RunRecord, case: CaseRecord) -> str | None:
    """The checkpoint to load, where the user gives one: `--vllm-arg model=…`, or a folder with weights as the model.

    None: there is none; `write_checkpoint` makes one of the model's dimensions.
    """
    for text in run.engine_arguments:
        key, _, value = text.partition("=")
        if key == "model":
            return value
    source = Path(str(case.model["source"]))
    if source.name != CONFIG_NAME or not any(source.parent.glob("*.safetensors")):
        return None
    # Scaled down, or with another vocabulary or fewer layers, it is no longer the model of those weights.
    return str(source.parent) if from_config(source) == spec_of(case) else None


def _for_cpu(spec: ModelSpec, deviations: list[str]) -> ModelSpec:
    if spec.mla is not None:
        if spec.mla.indexer is not None:
            deviations.append(
                f"{spec.title} runs as a DeepSeek-V3-type model of its dimensions: vLLM has no sparse attention on the "
                f"CPU, and its indexer issues no collective"
            )
        wide = replace(spec.mla, indexer=None, **CPU_MLA)
        if wide != replace(spec.mla, indexer=None):
            deviations.append(
                "latent attention has DeepSeek-V3's inner widths (512 + 64): vLLM's CPU kernel has no others, and no "
                "collective carries them"
            )
        spec = replace(spec, mla=wide)
    if spec.moe is not None and spec.moe.activation is Activation.RELU2:
        deviations.append(
            "routed experts are SiLU-gated in place of squared ReLU: vLLM has no ungated experts on the CPU, and the "
            "collectives are the same"
        )
    return spec


def write_checkpoint(checkpoint: Checkpoint, folder: Path, *, seed: int) -> None:
    """Write `config.json`, the weights in shards and their index.

    Raises:
        OSError: the folder cannot be written.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(json.dumps(checkpoint.config, indent=1))
    shards = _shards(checkpoint.tensors)
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({tensor.name: draw(tensor, seed) for tensor in shard}, folder / name, {"format": "pt"})
        index.update(dict.fromkeys((tensor.name for tensor in shard), name))
    metadata = {"metadata": {"total_size": checkpoint.size_bytes}, "weight_map": index}
    (folder / INDEX_NAME).write_text(json.dumps(metadata))


def _shards(tensors: tuple[TensorSpec, ...]) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.size_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size_bytes
    return shards


def draw(tensor: TensorSpec, seed: int) -> torch.Tensor:
    """Values of a tensor, in bf16: they depend on the seed, its name and its shape only."""
    import torch

    if tensor.permuted:
        rows = _normal(tensor.permuted, tensor.shape, seed)
        order = torch.randperm(
            tensor.shape[0], generator=torch.Generator().manual_seed(_seed(seed, tensor.name))
        )
        return rows[order].mul_(tensor.std / tensor.shape[1] ** 0.5).to(torch.bfloat16)
    values = _normal(tensor.name, tensor.shape, seed).mul_(tensor.std).add_(tensor.mean)
    if tensor.identity:
        rank = min(tensor.shape)
        values[:rank, :rank] += tensor.identity * torch.eye(rank)
    return values.to(torch.bfloat16)


def _normal(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(_seed(seed, name)))


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little") >> 1
