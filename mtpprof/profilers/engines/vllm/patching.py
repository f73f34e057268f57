"""What the plugin changes in a process of vLLM that mtpprof started. Every change is made once, however often vLLM asks.

Classes get what they lack before a model is built; collectives are wrapped; and every worker is set up as soon as its model is loaded:
before memory is profiled, before anything is compiled or captured.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
from collections.abc import Callable
from typing import Any

from mtpprof.profilers.engines.vllm import graphs, seam
from mtpprof.profilers.engines.vllm.handshake import Handshake
from mtpprof.profilers.engines.vllm.switches import FUSED
from mtpprof.profilers.engines.vllm.worker import TRACKER, set_up
from mtpprof.profilers.lifetime import die_with_parent

DONE = "_mtpprof"


def apply_patches(handshake: Handshake) -> None:
    """Everything that must be in place before vLLM builds a model; and a worker that does not outlive the driver."""
    if multiprocessing.parent_process() is not None:
        die_with_parent()
    if handshake.device == "cpu":
        # Replaces parts of torch that the generic worker takes at its import; vLLM imports it first, and so must we.
        importlib.import_module("vllm.v1.worker.cpu_worker")
    state = importlib.import_module("vllm.distributed.parallel_state")
    seam.install(state.GroupCoordinator, TRACKER)
    if handshake.device == "cuda":
        _listen_on_cuda(handshake)
    worker_class = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
    worker_class.load_model = _once(worker_class.load_model, _set_up_after)
    if handshake.family in FAMILY_PATCHES:
        FAMILY_PATCHES[handshake.family](handshake)


def _listen_on_cuda(handshake: Handshake) -> None:
    """What bypasses the coordinator there: replayed graphs, and FlashInfer's fused all-reduce where it is installed."""
    graphs.install(importlib.import_module("torch").cuda.CUDAGraph, TRACKER)
    try:
        flashinfer: Any = importlib.import_module("flashinfer.comm")
        flashinfer.allreduce_fusion = seam.wrap_fused(flashinfer.allreduce_fusion, TRACKER, handshake.tp)
    except (ImportError, AttributeError):
        return


def _once(original: Callable[..., Any], wrap: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """`wrap(original)`, or `original` where it is wrapped already."""
    if hasattr(original, DONE):
        return original
    wrapped = functools.wraps(original)(wrap(original))
    setattr(wrapped, DONE, original)
    return wrapped


def _set_up_after(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        set_up(self)
        return result

    return load_model


def _add_top_tokens(module: str, name: str, method: Callable[..., Any]) -> None:
    """Give a draft model the method that vLLM's local argmax calls, unless it has one."""
    try:
        model = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return
    if not hasattr(model, "get_top_tokens"):
        model.get_top_tokens = method


def _deepseek_top_tokens(self: Any, hidden_states: Any, spec_step_idx: int = 0) -> Any:
    model = self.model
    layer = model.layers[str(model.mtp_start_layer_idx + spec_step_idx % model.num_mtp_layers)]
    return model.logits_processor.get_top_tokens(layer.shared_head.head, layer.shared_head(hidden_states))


def _nemotron_top_tokens(self: Any, hidden_states: Any, spec_step_idx: int = 0) -> Any:
    return self.logits_processor.get_top_tokens(self.lm_head, hidden_states)


def _patch_deepseek(handshake: Handshake) -> None:
    models = "vllm.model_executor.models"
    _add_top_tokens(f"{models}.deepseek_mtp", "DeepSeekMTP", _deepseek_top_tokens)
    _add_top_tokens(f"{models}.glm4_moe_mtp", "Glm4MoeMTP", _deepseek_top_tokens)
    if handshake.device == "cuda":
        _replace_fused_helper("vllm.models.deepseek_v32.nvidia.mtp", lambda: FUSED.draft)
        _replace_fused_helper("vllm.models.deepseek_v32.nvidia.model", lambda: FUSED.target)


def _replace_fused_helper(name: str, is_on: Callable[[], bool]) -> None:
    """Have a model's fused all-reduce + norm ask its switch, and do what vLLM did before it had the fusion where it is off."""
    try:
        module: Any = importlib.import_module(name)
    except ImportError:
        return

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def fused_allreduce_rms_norm(hidden_states: Any, residual: Any, norm: Any) -> Any:
            if is_on():
                return original(hidden_states, residual, norm)
            from vllm.distributed import tensor_model_parallel_all_reduce

            return norm(tensor_model_parallel_all_reduce(hidden_states), residual)

        return fused_allreduce_rms_norm

    module.fused_allreduce_rms_norm = _once(module.fused_allreduce_rms_norm, wrap)


def _patch_nemotron(handshake: Handshake) -> None:
    models = "vllm.model_executor.models"
    _add_top_tokens(f"{models}.nemotron_h_mtp", "NemotronHMTP", _nemotron_top_tokens)
    if handshake.device != "cpu":
        return
    target: Any = importlib.import_module(f"{models}.nemotron_h")
    target.activation_without_mul = _once(target.activation_without_mul, lambda original: lambda name: "silu")
    target.FusedMoEFactory = _once(target.FusedMoEFactory, _with_gated_names)
    draft: Any = importlib.import_module(f"{models}.nemotron_h_mtp")
    draft.fused_moe_make_expert_params_mapping = _once(
        draft.fused_moe_make_expert_params_mapping, _with_gated_mapping
    )


def _with_gated_names(original: Callable[..., Any]) -> Callable[..., Any]:
    def factory(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs | {"ckpt_names": ("gate_proj", "down_proj", "up_proj")})

    return factory


def _with_gated_mapping(original: Callable[..., Any]) -> Callable[..., Any]:
    def mapping(*args: Any, **kwargs: Any) -> Any:
        names = {"ckpt_gate_proj_name": "gate_proj", "ckpt_up_proj_name": "up_proj"}
        return original(*args, **kwargs | names)

    return mapping


FAMILY_PATCHES: dict[str, Callable[[Handshake], None]] = {
    "deepseek": _patch_deepseek,
    "nemotron-h": _patch_nemotron,
}
"""What vLLM's classes lack for a family of models, by `ModelSpec.family`."""
