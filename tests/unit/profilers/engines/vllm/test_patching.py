"""What the plugin changes in vLLM's modules, on modules of the same shape."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest

from mtpprof.profilers.engines.vllm import patching
from mtpprof.profilers.engines.vllm.handshake import Handshake
from mtpprof.profilers.engines.vllm.patching import DONE, apply_patches
from mtpprof.profilers.engines.vllm.seam import WRAPPED
from mtpprof.profilers.engines.vllm.switches import FUSED

MODELS = "vllm.model_executor.models"


def class_of(*names: str) -> dict[str, Any]:
    return {name: type(name, (), {"load_model": lambda self: "loaded"}) for name in names}


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules by name, in place of vLLM's."""

    class GroupCoordinator:
        def _all_reduce_out_place(self, tensor: Any) -> Any:
            return tensor

    contents: dict[str, dict[str, Any]] = {
        "vllm.v1.worker.cpu_worker": {},
        "vllm.v1.worker.gpu_worker": class_of("Worker"),
        "vllm.distributed.parallel_state": {"GroupCoordinator": GroupCoordinator},
        "vllm.distributed": {"tensor_model_parallel_all_reduce": lambda hidden: f"reduced {hidden}"},
        f"{MODELS}.deepseek_mtp": class_of("DeepSeekMTP"),
        f"{MODELS}.glm4_moe_mtp": class_of("Glm4MoeMTP"),
        f"{MODELS}.nemotron_h": {
            "activation_without_mul": lambda name: f"{name}_no_mul",
            "FusedMoEFactory": lambda **kwargs: kwargs,
        },
        f"{MODELS}.nemotron_h_mtp": class_of("NemotronHMTP")
        | {"fused_moe_make_expert_params_mapping": lambda model, **kwargs: kwargs},
        "vllm.models.deepseek_v32.nvidia.mtp": {"fused_allreduce_rms_norm": lambda h, r, norm: f"fused {h}"},
        "flashinfer.comm": {"allreduce_fusion": lambda **kwargs: "done"},
    }
    made: dict[str, Any] = {}
    for name, members in contents.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            full = ".".join(parts[:end])
            if full not in made:
                made[full] = types.ModuleType(full)
                made[full].__path__ = []
                monkeypatch.setitem(sys.modules, full, made[full])
        vars(made[name]).update(members)
    monkeypatch.setattr(patching, "set_up", lambda worker: worker.log.append("set up"))
    return made


def handshake(family: str, device: str = "cpu") -> Handshake:
    return Handshake(family=family, blocks="AD", draft_blocks="AE", device=device, tp=2)


def test_workers_are_set_up_once_their_model_is_loaded(vllm: dict[str, Any]) -> None:
    for _ in range(2):
        apply_patches(handshake("deepseek"))
    worker = vllm["vllm.v1.worker.gpu_worker"].Worker()
    worker.log = []
    assert worker.load_model() == "loaded"
    assert worker.log == ["set up"]
    assert hasattr(vllm["vllm.distributed.parallel_state"].GroupCoordinator._all_reduce_out_place, WRAPPED)


def test_draft_models_get_the_method_that_they_lack(vllm: dict[str, Any]) -> None:
    own = vllm[f"{MODELS}.glm4_moe_mtp"].Glm4MoeMTP
    own.get_top_tokens = lambda self: "its own"
    apply_patches(handshake("deepseek"))
    assert own().get_top_tokens() == "its own"
    head = SimpleNamespace(head="head")
    shared = SimpleNamespace(
        mtp_start_layer_idx=4,
        num_mtp_layers=1,
        layers={
            "4": SimpleNamespace(
                shared_head=type("H", (), {"head": head, "__call__": lambda self, h: f"normed {h}"})()
            )
        },
        logits_processor=SimpleNamespace(get_top_tokens=lambda head, hidden: (head.head, hidden)),
    )
    draft = vllm[f"{MODELS}.deepseek_mtp"].DeepSeekMTP()
    draft.model = shared
    assert draft.get_top_tokens("hidden") == ("head", "normed hidden")


def test_nemotrons_experts_are_gated_on_the_cpu_only(vllm: dict[str, Any]) -> None:
    target, draft = vllm[f"{MODELS}.nemotron_h"], vllm[f"{MODELS}.nemotron_h_mtp"]
    apply_patches(handshake("nemotron-h", device="cuda"))
    assert target.activation_without_mul("relu2") == "relu2_no_mul"
    assert hasattr(draft.NemotronHMTP, "get_top_tokens")
    for _ in range(2):
        apply_patches(handshake("nemotron-h"))
    assert target.activation_without_mul("relu2") == "silu"
    assert target.FusedMoEFactory(ckpt_names=("up_proj", "down_proj", None), top_k=2) == {
        "ckpt_names": ("gate_proj", "down_proj", "up_proj"),
        "top_k": 2,
    }
    names = draft.fused_moe_make_expert_params_mapping(
        None, ckpt_gate_proj_name="up_proj", ckpt_down_proj_name="down_proj", ckpt_up_proj_name=None
    )
    assert names == {
        "ckpt_gate_proj_name": "gate_proj",
        "ckpt_down_proj_name": "down_proj",
        "ckpt_up_proj_name": "up_proj",
    }
    assert not hasattr(getattr(target.activation_without_mul, DONE), DONE)


def test_on_cuda_the_draft_modules_fusion_asks_its_switch(
    vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_patches(handshake("deepseek", device="cuda"))
    module = vllm["vllm.models.deepseek_v32.nvidia.mtp"]

    def norm(hidden: str, residual: str) -> str:
        return f"norm({hidden}, {residual})"

    assert module.fused_allreduce_rms_norm("h", "r", norm) == "fused h"
    monkeypatch.setattr(FUSED, "draft", False)
    assert module.fused_allreduce_rms_norm("h", "r", norm) == "norm(reduced h, r)"
    assert hasattr(vllm["flashinfer.comm"].allreduce_fusion, WRAPPED)


def test_without_flashinfer_nothing_of_it_is_wrapped(
    vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "flashinfer.comm")
    monkeypatch.delitem(sys.modules, "flashinfer")
    apply_patches(handshake("deepseek", device="cuda"))
