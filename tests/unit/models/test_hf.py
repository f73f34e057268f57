from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpprof.errors import InputError, MtpprofError, UsageError
from mtpprof.models import config_json
from mtpprof.models.hf import READERS, from_config, resolve_model
from mtpprof.models.ledger import Workload, base_ledger
from mtpprof.models.optimizations.catalogue import CATALOGUE, expected_collectives
from mtpprof.models.presets import PRESETS
from mtpprof.models.spec import Activation, ModelSpec, MoeSpec, Scale
from mtpprof.models.traffic import Kind

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
Json = dict[str, Any]


def config_of(name: str) -> Json:
    loaded: Json = json.loads((CONFIGS / name / "config.json").read_text(encoding="utf-8"))
    return loaded


def write(folder: Path, config: object, name: str = "config.json") -> Path:
    file = folder / name
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def moe_of(spec: ModelSpec) -> MoeSpec:
    assert spec.moe is not None
    return spec.moe


def same_dimensions(spec: ModelSpec, preset: ModelSpec) -> bool:
    said = {"name": "", "title": "", "source": "", "quantization": None}
    return replace(spec, **said) == replace(preset, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("deepseek-v3.2", "fp8"),
        ("glm-5.2", None),
        ("nemotron-3-nano", "nvfp4"),
        ("nemotron-3-super", None),
        ("kimi-k2", "pack-quantized"),
        ("kimi-k3", "mxfp4-pack-quantized"),
    ],
)
def test_a_published_config_has_the_dimensions_of_its_preset(name: str, quantization: str | None) -> None:
    spec = from_config(CONFIGS / name)
    assert same_dimensions(spec, PRESETS[name])
    assert spec.name == spec.title == name
    assert spec.source.endswith("config.json")
    assert spec.quantization == quantization
    assert from_config(CONFIGS / name / "config.json") == spec


def test_a_small_deepseek_model_has_the_collectives_measured_with_it() -> None:
    spec = from_config(CONFIGS / "dsv3s")
    assert (spec.family, spec.blocks, spec.scale) == ("deepseek", "ADAE", Scale.FULL)
    assert spec.mla is not None
    assert spec.mla.indexer is None
    entries = base_ledger(spec, Workload(concurrency=4, draft_tokens=3, tp=2))
    shapes = [(entry.kind, entry.shape) for entry in entries]
    assert shapes.count((Kind.ALL_REDUCE, (16, 256))) == 8
    assert shapes.count((Kind.ALL_REDUCE, (4, 256))) == 6
    assert shapes.count((Kind.ALL_GATHER, (16, 20480))) == 1
    assert shapes.count((Kind.ALL_GATHER, (4, 20480))) == 3


def test_a_small_glm_4_5_has_grouped_query_attention_and_the_collectives_measured_with_it() -> None:
    spec = from_config(CONFIGS / "glm45")
    assert (spec.family, spec.blocks, spec.mla) == ("deepseek", "*D*E", None)
    assert spec.mtp is not None
    assert (spec.mtp.blocks, spec.mtp.gathered_eh_proj) == ("*E", False)
    assert spec.gqa is not None
    assert (spec.gqa.heads, spec.gqa.kv_heads, spec.gqa.head_dim, spec.gqa.rope) == (8, 4, 32, True)
    entries = base_ledger(spec, Workload(concurrency=4, draft_tokens=2, tp=2))
    seen = [(entry.phase, entry.kind, entry.shape) for entry in entries]
    assert seen.count(("target", Kind.ALL_REDUCE, (12, 256))) == 5
    assert seen.count(("target", Kind.ALL_GATHER, (12, 18944))) == 1
    for phase, rows in (("draft[0]", 12), ("draft[1]", 4)):
        assert seen.count((phase, Kind.ALL_REDUCE, (rows, 256))) == 3
        assert seen.count((phase, Kind.ALL_GATHER, (4, 18944))) == 1


def test_a_small_nemotron_has_the_collectives_measured_with_it() -> None:
    spec = from_config(CONFIGS / "nemo_mtp")
    assert (spec.family, spec.blocks) == ("nemotron-h", "ME*E")
    assert moe_of(spec).activation is Activation.RELU2
    assert moe_of(spec).shared_intermediate_size == 256
    load = Workload(concurrency=4, draft_tokens=2, tp=2)
    entries = expected_collectives(spec, load, frozenset({"local-argmax"}))
    target = [(entry.kind, entry.shape) for entry in entries if entry.phase == "target"]
    reduce, gather = Kind.ALL_REDUCE, Kind.ALL_GATHER
    latent_and_shared = [(reduce, (12, 128)), (reduce, (12, 256))]
    hidden = (reduce, (12, 256))
    assert target == [hidden, hidden, *latent_and_shared, hidden, *latent_and_shared, (gather, (12, 16384))]
    for phase, rows in (("draft[0]", 12), ("draft[1]", 4)):
        assert [(e.kind, e.shape, e.dtype) for e in entries if e.phase == phase] == [
            (reduce, (rows, 256), "bf16"),
            (gather, (rows, 128), "bf16"),
            (reduce, (rows, 256), "bf16"),
            (reduce, (rows, 128), "bf16"),
            (reduce, (rows, 256), "bf16"),
            (gather, (4, 2), "fp32"),
        ]


def test_dense_blocks_and_a_list_of_block_types(tmp_path: Path) -> None:
    config = config_of("nemo_mtp") | {
        "hybrid_override_pattern": "M-*E",
        "layers_block_type": ["mamba", "mlp", "attention", "moe"],
    }
    spec = from_config(write(tmp_path, config))
    assert spec.blocks == "MD*E"
    assert (spec.dense_intermediate_size, spec.dense_activation) == (512, Activation.RELU2)
    del config["hybrid_override_pattern"]
    assert from_config(write(tmp_path, config)).blocks == "MD*E"


def test_moe_layers_at_a_frequency(tmp_path: Path) -> None:
    config = config_of("dsv3s") | {"num_hidden_layers": 6, "first_k_dense_replace": 1, "moe_layer_freq": 2}
    assert from_config(write(tmp_path, config)).blocks == "ADADAEADAEAD"


def test_mlp_layers_listed_by_type(tmp_path: Path) -> None:
    config = config_of("dsv3s") | {"mlp_layer_types": ["sparse", "dense"]}
    del config["first_k_dense_replace"]
    assert from_config(write(tmp_path, config)).blocks == "AEAD"


def test_kimi_linear_has_neither_a_latent_width_nor_a_low_rank_query(tmp_path: Path) -> None:
    config = config_of("kimi-k3")["text_config"]
    del config["routed_expert_hidden_size"], config["latent_moe_use_norm"], config["quantization_config"]
    spec = from_config(write(tmp_path, config | {"q_lora_rank": None}))
    assert spec.mla is not None
    assert spec.mla.q_lora_rank == 0
    assert moe_of(spec).latent_size is None
    assert moe_of(spec).latent_norm is False


ALL_MOE = [
    f"layers.{index}" for index, block in enumerate(PRESETS["nemotron-3-super"].blocks) if block == "E"
]
FP8_LISTED = {
    "backbone.layers.3.mixer.fc2_latent_proj": {"quant_algo": "FP8"},
    "backbone.layers.0.mixer.in_proj": {},
}


@pytest.mark.parametrize(
    ("quantization", "whole", "layers"),
    [
        ({"quant_method": "fp8"}, "fp8", ()),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", ()),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*fc2_latent_proj*"]}, None, ()),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["*.mixer.fc2_latent_proj"]},
            None,
            (),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*fc1_latent_proj*", "lm_head"]},
            "fp8",
            (),
        ),
        ({"quant_method": "fp8", "modules_to_not_convert": ["fc2_latent_proj"]}, None, ()),
        ({"quant_method": "fp8", "modules_to_not_convert": ["mixer.fc2_latent_proj"]}, None, ()),
        ({"quant_method": "fp8", "ignored_layers": ["lm_head", "latent"]}, "fp8", ()),
        ({"quant_method": "compressed-tensors", "ignore": ["re:.*fc[12]_latent_proj.*"]}, None, ()),
        ({"quant_method": "compressed-tensors", "ignore": ["re:fc2_latent_proj"]}, "compressed-tensors", ()),
        (
            {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"]},
            "float-quantized",
            (),
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["re:.*experts.*"]}}},
            None,
            (),
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"]}}},
            "compressed-tensors",
            (),
        ),
        ({"quant_method": "fp8", "config_groups": {"g": {"weights": {}}}}, "fp8", ()),
        ({"quant_method": "mxfp4"}, None, ()),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": FP8_LISTED}, None, ("layers.3",)),
        (
            {"quant_algo": "FP8", "quantized_layers": ["mtp.layers.1.mixer.fc2_latent_proj"]},
            None,
            ("mtp.layers.1",),
        ),
        ({"quant_algo": "FP8", "ignore": ["backbone.layers.1*"]}, None, None),
        ({"quant_algo": None, "quant_method": None}, None, ()),
        ({}, None, ()),
    ],
    ids=json.dumps,
)
def test_quantization_is_asked_of_the_latent_projection_itself(
    quantization: Json, whole: str | None, layers: tuple[str, ...] | None, tmp_path: Path
) -> None:
    spec = from_config(write(tmp_path, config_of("nemotron-3-super") | {"quantization_config": quantization}))
    moe = moe_of(spec)
    if layers is None:
        layers = (*[path for path in ALL_MOE if not path.startswith("layers.1")], "mtp.layers.1")
    assert (moe.latent_quantization, moe.latent_quantized_layers) == (whole, layers)
    answer = CATALOGUE["commutative-reduce"].eligible(spec, Workload(concurrency=1, draft_tokens=1, tp=4))
    assert answer.ok == (whole is None)


def test_a_model_quantized_but_for_its_latent_projections_keeps_its_quantization(tmp_path: Path) -> None:
    config = config_of("nemotron-3-super") | {
        "quantization_config": {"quant_algo": "NVFP4", "ignore": ["*latent_proj"]}
    }
    spec = from_config(write(tmp_path, config))
    assert spec.quantization == "nvfp4"
    assert spec.latent_sum_commutes("layers.1")


def test_quantization_in_a_file_of_its_own(tmp_path: Path) -> None:
    config = config_of("nemotron-3-super")
    file = write(tmp_path, config)
    write(
        tmp_path,
        {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
        "hf_quant_config.json",
    )
    assert moe_of(from_config(file)).latent_quantization == "fp8"
    inside = write(tmp_path, config | {"quantization_config": {"quant_algo": "FP8", "ignore": ["*latent*"]}})
    assert moe_of(from_config(inside)).latent_quantization is None
    (tmp_path / "hf_quant_config.json").write_text("not asked")
    assert moe_of(from_config(inside)).latent_quantization is None
    write(tmp_path, {"quantization": {"quant_algo": None}}, "hf_quant_config.json")
    assert from_config(write(tmp_path, config)).quantization is None


def test_a_bias_of_the_experts_is_one_of_the_latent_projection(tmp_path: Path) -> None:
    assert moe_of(
        from_config(write(tmp_path, config_of("nemotron-3-super") | {"mlp_bias": True}))
    ).latent_bias
    assert not moe_of(
        from_config(write(tmp_path, config_of("nemotron-3-nano") | {"mlp_bias": True}))
    ).latent_bias


class _Missing:
    """Marks a key to be left out; its name is the same in every process, since tests are named by it."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("dsv3s", {"model_type": MISSING}, "model_type is missing or null"),
        ("dsv3s", {"model_type": "llama"}, "model_type 'llama' is not supported; supported are deepseek_v3"),
        ("dsv3s", {"model_type": ["deepseek_v3"]}, "model_type is not a text"),
        ("dsv3s", {"hidden_size": MISSING}, "hidden_size is missing or null"),
        ("dsv3s", {"hidden_size": None}, "hidden_size is missing or null"),
        ("dsv3s", {"hidden_size": "256"}, "hidden_size is not a whole number"),
        ("dsv3s", {"hidden_size": True}, "hidden_size is not a whole number"),
        ("dsv3s", {"hidden_size": 256.0}, "hidden_size is not a whole number"),
        ("dsv3s", {"hidden_size": 0}, "hidden_size is out of range"),
        ("dsv3s", {"num_hidden_layers": 10**9}, "num_hidden_layers is out of range"),
        ("dsv3s", {"first_k_dense_replace": 3}, "first_k_dense_replace is out of range (0 to 2)"),
        ("dsv3s", {"first_k_dense_replace": 2}, "num_hidden_layers (2) leaves no MoE layer"),
        ("dsv3s", {"first_k_dense_replace": MISSING}, "first_k_dense_replace is missing or null"),
        ("dsv3s", {"mlp_layer_types": ["dense"]}, "mlp_layer_types is not a list of 2 times dense or sparse"),
        (
            "dsv3s",
            {"mlp_layer_types": ["dense", "moe"]},
            "mlp_layer_types is not a list of 2 times dense or sparse",
        ),
        ("dsv3s", {"q_lora_rank": MISSING}, "q_lora_rank is missing or null"),
        ("dsv3s", {"kv_lora_rank": MISSING}, "kv_lora_rank is missing or null"),
        ("dsv3s", {"hidden_act": "gelu"}, "hidden_act is 'gelu', which is none of silu, situ, relu2"),
        ("dsv3s", {"num_experts_per_tok": 9}, "num_experts_per_tok is out of range (1 to 8)"),
        ("dsv3s", {"n_group": 3}, "n_group (3) does not divide the number of experts (8)"),
        ("dsv3s", {"topk_group": 2}, "topk_group is out of range (1 to 1)"),
        ("dsv3s", {"rms_norm_eps": MISSING}, "rms_norm_eps is missing or null"),
        ("dsv3s", {"rms_norm_eps": "tiny"}, "rms_norm_eps is not a finite number"),
        ("dsv3s", {"rope_theta": float("nan")}, "rope_theta is not a finite number"),
        ("dsv3s", {"rope_theta": float("inf")}, "rope_theta is not a finite number"),
        ("dsv3s", {"rope_theta": 10**400}, "rope_theta is not a finite number"),
        ("dsv3s", {"rope_theta": None, "rope_parameters": 1}, "rope_parameters is not an object"),
        ("dsv3s", {"index_topk": 8}, "index_n_heads is missing or null"),
        ("dsv3s", {"quantization_config": "fp8"}, "quantization_config is not an object"),
        (
            "dsv3s",
            {"quantization_config": {"quant_method": "fp8", "ignore": "x"}},
            "ignore is not a list of names",
        ),
        (
            "dsv3s",
            {"quantization_config": {"quant_method": "a", "config_groups": []}},
            "config_groups is not an object",
        ),
        (
            "dsv3s",
            {"quantization_config": {"quant_method": "a", "config_groups": {"g": 1}}},
            "config_groups.g is not an object",
        ),
        (
            "nemotron-3-super",
            {"quantization_config": {"quant_algo": "a", "ignore": ["re:["]}},
            "is not a regular expression",
        ),
        (
            "glm45",
            {"num_key_value_heads": 3},
            "num_key_value_heads (3) does not divide num_attention_heads (8)",
        ),
        (
            "glm45",
            {"head_dim": None, "hidden_size": 260},
            "head_dim is missing, and num_attention_heads does not divide",
        ),
        (
            "nemo_mtp",
            {"hybrid_override_pattern": MISSING, "layers_block_type": MISSING},
            "hybrid_override_pattern is missing",
        ),
        ("nemo_mtp", {"hybrid_override_pattern": "MEX"}, "hybrid_override_pattern is not a string over ME*-"),
        ("nemo_mtp", {"hybrid_override_pattern": ""}, "hybrid_override_pattern is not a string over ME*-"),
        ("nemo_mtp", {"hybrid_override_pattern": 4}, "hybrid_override_pattern is not a text"),
        (
            "nemo_mtp",
            {"hybrid_override_pattern": "MEME"},
            "hybrid_override_pattern disagrees with layers_block_type",
        ),
        ("nemo_mtp", {"layers_block_type": ["mamba", "rwkv"]}, "layers_block_type is not a list of mamba"),
        ("nemo_mtp", {"layers_block_type": "ME*E"}, "layers_block_type is not a list"),
        ("nemo_mtp", {"num_hidden_layers": 5}, "num_hidden_layers is 5, but the pattern has 4 blocks"),
        ("nemo_mtp", {"n_groups": 3}, "n_groups (3) does not divide mamba_num_heads (8)"),
        ("nemo_mtp", {"mlp_bias": "no"}, "mlp_bias is neither true nor false"),
        ("nemo_mtp", {"moe_latent_size": 0}, "moe_latent_size is out of range"),
        ("kimi-k3", {"text_config": []}, "text_config is not an object"),
        ("kimi-k3", {"text_config": {}}, "text_config.model_type is missing or null"),
    ],
    ids=str,
)
def test_a_key_that_is_missing_or_wrong_is_named(
    name: str, change: Json, message: str, tmp_path: Path
) -> None:
    config = {key: value for key, value in (config_of(name) | change).items() if value is not MISSING}
    file = write(tmp_path, config)
    with pytest.raises(InputError) as refusal:
        from_config(tmp_path)
    assert message in str(refusal.value)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nextn_predict_layers": 1}, "text_config.num_nextn_predict_layers asks for a draft module"),
        (
            {"linear_attn_config": None},
            "text_config.linear_attn_config.kda_layers and full_attn_layers name 0 layers of 93",
        ),
        (
            {"linear_attn_config": {"kda_layers": [1, 1]}},
            "kda_layers does not name layers from 1 to 93, each once",
        ),
        ({"linear_attn_config": {"kda_layers": [0]}}, "kda_layers does not name layers from 1 to 93"),
        ({"linear_attn_config": {"kda_layers": [[]]}}, "kda_layers does not name layers from 1 to 93"),
        (
            {"linear_attn_config": {"kda_layers": [1], "full_attn_layers": [1]}},
            "full_attn_layers does not name layers",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_inside_a_wrapper_is_named_with_its_place(
    change: Json, message: str, tmp_path: Path
) -> None:
    config = config_of("kimi-k3")
    write(tmp_path, config | {"text_config": config["text_config"] | change})
    with pytest.raises(InputError) as refusal:
        from_config(tmp_path)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\x80\x81\x82", "is not JSON"),
        (b"[1, 2]", "holds no JSON object"),
        (b"null", "holds no JSON object"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"model_type": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else "",
)
def test_a_file_that_is_no_config(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        from_config(file)
    assert message in str(refusal.value)
    assert str(file) in str(refusal.value)


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config.json: it cannot be read \(No such file or directory\)"):
        from_config(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="it is not a regular file"):
        from_config(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="there is no such file or folder"):
        resolve_model(str(tmp_path / "absent"))
    with pytest.raises(InputError, match=r"absent.json: there is no such file or folder"):
        resolve_model("absent.json")
    with pytest.raises(InputError, match="File name too long"):
        from_config("x" * 5000)


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_json, "MAX_CONFIG_BYTES", 10)
    with pytest.raises(InputError, match="is too large for a model config"):
        from_config(write(tmp_path, config_of("dsv3s")))


def test_a_model_is_a_preset_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model("glm-5.2").scale is Scale.TINY
    assert resolve_model("glm-5.2", preset_scale=Scale.SLICE).hidden_size == 6144
    assert resolve_model("glm-5.2", scale=Scale.FULL) == PRESETS["glm-5.2"]
    small = resolve_model(str(CONFIGS / "dsv3s"))
    assert (small.scale, small.layers, small.hidden_size) == (Scale.FULL, 2, 256)
    assert resolve_model(str(CONFIGS / "glm-5.2"), scale=Scale.TINY, layers=6, vocab=800).layers == 6
    with pytest.raises(UsageError, match=r"did you mean glm-5.2\? .* the path of a config.json"):
        resolve_model("glm-5.3")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "GLM-5.2").mkdir()
    write(tmp_path / "GLM-5.2", config_of("dsv3s"))
    assert resolve_model("GLM-5.2").hidden_size == 256
    assert resolve_model("DeepSeek-V3.2").name == "deepseek-v3.2"
    write(tmp_path, config_of("glm45"), "my-model.json")
    assert resolve_model("my-model.json").name == "my-model"


def test_a_config_is_named_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "models--nvidia--Some-Model" / "snapshots" / "0a1b2c"
    blobs = tmp_path / "models--nvidia--Some-Model" / "blobs"
    for folder in (cached, blobs):
        folder.mkdir(parents=True)
    (cached / "config.json").symlink_to(write(blobs, config_of("dsv3s"), "f00d"))
    assert from_config(cached).name == "Some-Model"
    write(blobs, config_of("dsv3s"))
    monkeypatch.chdir(blobs)
    assert from_config("config.json").name == from_config(".").name == "blobs"


def test_layer_exceptions_end_with_the_published_layers(tmp_path: Path) -> None:
    listed = {"quant_algo": "FP8", "quantized_layers": FP8_LISTED}
    file = write(tmp_path, config_of("nemotron-3-super") | {"quantization_config": listed})
    assert moe_of(resolve_model(str(file))).latent_quantized_layers == ("layers.3",)
    assert moe_of(resolve_model(str(file), scale=Scale.SLICE)).latent_quantized_layers == ()


def test_each_supported_type_is_tried_by_a_config() -> None:
    seen = set()
    for file in CONFIGS.glob("*/config.json"):
        config = config_of(file.parent.name)
        seen |= {config["model_type"], config.get("text_config", {}).get("model_type")}
    assert set(READERS) <= seen


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(sorted(path.name for path in CONFIGS.iterdir())), st.data())
def test_any_value_at_any_key_is_a_model_or_a_named_error(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    config = config_of(name)
    inner = config.get("text_config", config)
    for key in data.draw(st.lists(st.sampled_from(sorted(inner)), min_size=1, max_size=2)):
        inner[key] = data.draw(VALUES)
    file = write(tmp_path, config)
    try:
        spec = from_config(file)
    except InputError as error:
        assert str(file) in str(error)  # noqa: PT017 - both outcomes are right
        return
    try:
        base_ledger(spec, Workload(concurrency=1, draft_tokens=0, tp=2))
    except MtpprofError as error:
        assert spec.name in str(error)  # noqa: PT017
