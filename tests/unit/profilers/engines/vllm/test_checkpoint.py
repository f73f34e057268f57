"""The folders written for vLLM: read back by our own reader of published configs, and complete in names and shapes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from mtpprof.errors import UsageError
from mtpprof.models.hf import from_config
from mtpprof.models.presets import PRESETS, load_preset
from mtpprof.models.spec import GqaSpec, ModelSpec, Scale
from mtpprof.profilers.engines.vllm import checkpoint
from mtpprof.profilers.engines.vllm.checkpoint import (
    CPU_MLA,
    checkpoint_of,
    draw,
    given_model,
    write_checkpoint,
)
from mtpprof.profilers.engines.vllm.layouts import TensorSpec, noise_of

from .records import make_run

RUNNABLE = [name for name in PRESETS if name != "kimi-k3"]


def tiny(name: str) -> ModelSpec:
    return load_preset(name, Scale.TINY, vocab=512)


def comparable(spec: ModelSpec) -> ModelSpec:
    """What a config can say of a model: not its name, nor how it was scaled."""
    return replace(spec, name="", title="", source="", scale=Scale.FULL, quantization=None)


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("scale", [Scale.TINY, Scale.FULL])
def test_a_written_config_reads_back_as_the_model_it_was_written_from(
    name: str, scale: Scale, tmp_path: Path
) -> None:
    spec = load_preset(name, scale)
    config = checkpoint_of(spec, device="cuda").config
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert comparable(from_config(path)) == comparable(spec)


def test_grouped_query_attention_is_written_as_glm_4_5(tmp_path: Path) -> None:
    spec = replace(
        tiny("glm-5.2"), mla=None, gqa=GqaSpec(heads=8, kv_heads=2, head_dim=32, rope=True), blocks="*D*E"
    )
    assert spec.mtp is not None
    spec = replace(spec, mtp=replace(spec.mtp, blocks="*E"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(checkpoint_of(spec, device="cpu").config))
    assert comparable(from_config(path)) == comparable(spec)


def test_on_the_cpu_only_what_no_collective_carries_is_replaced() -> None:
    spec = tiny("deepseek-v3.2")
    written = checkpoint_of(spec, device="cpu")
    assert written.config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert {key: written.config[key] for key in CPU_MLA} == CPU_MLA
    for key in (
        "hidden_size",
        "vocab_size",
        "num_hidden_layers",
        "n_routed_experts",
        "moe_intermediate_size",
    ):
        assert written.config[key] == checkpoint_of(spec, device="cuda").config[key]
    assert any("sparse attention" in text for text in written.deviations)
    assert not checkpoint_of(spec, device="cuda").deviations


def test_experts_of_nemotron_are_gated_on_the_cpu_only() -> None:
    spec = tiny("nemotron-3-super")
    gates = "backbone.layers.1.mixer.experts.0.gate_proj.weight"
    assert gates in {tensor.name for tensor in checkpoint_of(spec, device="cpu").tensors}
    assert gates not in {tensor.name for tensor in checkpoint_of(spec, device="cuda").tensors}


def test_a_model_that_vllm_cannot_run_from_written_weights_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"kimi-k3.*--engine reference"):
        checkpoint_of(tiny("kimi-k3"), device="cpu")


def test_names_are_unique_and_the_size_is_that_of_all_tensors() -> None:
    for name in RUNNABLE:
        written = checkpoint_of(tiny(name), device="cpu")
        names = [tensor.name for tensor in written.tensors]
        assert len(names) == len(set(names))
        assert written.size_bytes == 2 * sum(math.prod(tensor.shape) for tensor in written.tensors)


def test_a_tensor_depends_on_seed_and_name_only() -> None:
    tensor = TensorSpec(name="a.weight", shape=(32, 16), std=0.5)
    assert torch.equal(draw(tensor, 1), draw(replace(tensor), 1))
    assert not torch.equal(draw(tensor, 1), draw(tensor, 2))
    assert not torch.equal(draw(tensor, 1), draw(replace(tensor, name="b.weight"), 1))
    assert draw(tensor, 1).dtype == torch.bfloat16


def test_the_head_holds_the_embeddings_rows_in_another_order() -> None:
    written = checkpoint_of(tiny("deepseek-v3.2"), device="cpu")
    by_name = {tensor.name: tensor for tensor in written.tensors}
    embedding = draw(by_name["model.embed_tokens.weight"], 0).float()
    head = draw(by_name["lm_head.weight"], 0).float()
    likeness = torch.nn.functional.normalize(head) @ torch.nn.functional.normalize(embedding).T
    following = likeness.argmax(0)
    assert torch.equal(following.sort().values, torch.arange(512))
    assert (following == torch.arange(512)).sum() < 10
    assert likeness.max(0).values.min() > 0.99


def test_noise_is_what_leaves_the_signal_the_logit_asked_for() -> None:
    noise = noise_of(256, 8.0)
    assert 16 / math.sqrt(1 + noise**2) == pytest.approx(8.0)
    assert noise_of(64, 9.0) == 0.0


def test_a_folder_holds_every_tensor_once_in_shards_with_their_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 300_000)
    written = checkpoint_of(tiny("nemotron-3-super"), device="cpu")
    write_checkpoint(written, tmp_path, seed=3)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 1
    loaded = {name: tensor for file in files for name, tensor in load_file(tmp_path / file).items()}
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == {
        tensor.name: tensor.shape for tensor in written.tensors
    }
    assert set(index["weight_map"]) == set(loaded)
    first = written.tensors[0]
    assert torch.equal(loaded[first.name], draw(first, 3))
    assert json.loads((tmp_path / "config.json").read_text()) == written.config


def test_a_directory_with_weights_is_loaded_as_it_is(tmp_path: Path) -> None:
    written = checkpoint_of(tiny("deepseek-v3.2"), device="cuda")
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(written.config))
    run = make_run(str(folder))
    (case,) = run.cases
    whole = msgspec.structs.replace(case, model=msgspec.to_builtins(from_config(folder)))
    assert given_model(run, whole) is None
    (folder / "model.safetensors").write_bytes(b"")
    assert given_model(run, whole) == str(folder)
    for change in ({"vocab_size": 1024}, {"blocks": "ADAE"}, {"scale": "tiny"}):
        assert given_model(run, msgspec.structs.replace(whole, model=whole.model | change)) is None


def test_a_model_passed_through_goes_first() -> None:
    run = make_run(engine_arguments=("seed=1", "model=deepseek-ai/DeepSeek-V3.2"))
    assert given_model(run, run.cases[0]) == "deepseek-ai/DeepSeek-V3.2"
