"""How each optimization is switched in vLLM: one row an optimization.

A switch acts on a loaded model, in its worker: right after loading, so that compilation and graph capture see it, and again whenever an
arm changes in eager mode. Where vLLM has a switch of its own, that is what the row sets. What can only be chosen before an engine
starts (arguments, environment) is a row without `live`, and every setting of it is an engine of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mtpprof.errors import RunError

COMMUTES = "_mtpprof_commutes"

LOCAL_ARGMAX = "local-argmax"
COMMUTATIVE_REDUCE = "commutative-reduce"
FUSION = "allreduce-norm-fusion"
MAIN_FUSION = "allreduce-norm-fusion-main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """How one optimization is turned on and off."""

    live: Callable[[Any, bool], None] | None = None
    """Sets it in a worker whose model is loaded; None: only before the engine starts."""
    arguments: Callable[[bool], Mapping[str, Any]] = lambda on: {}
    """Engine arguments of a setting; dictionaries are merged."""
    environment: Callable[[bool], Mapping[str, str]] = lambda on: {}
    platforms: tuple[str, ...] = ("cpu", "cuda")


@dataclass(slots=True)
class FusionState:
    """Whether vLLM's fused all-reduce + norm is used on CUDA, asked at every call by what replaces the helper there."""

    draft: bool = True
    target: bool = True


FUSED = FusionState()


def runner_of(worker: Any) -> Any:
    """The worker's model runner."""
    return worker.model_runner


def drafter_of(worker: Any) -> Any | None:
    """What proposes drafts: the V1 runner's drafter or the V2 runner's speculator; None: no speculation."""
    runner = runner_of(worker)
    return getattr(runner, "drafter", None) or getattr(runner, "speculator", None)


def models_of(worker: Any) -> list[Any]:
    """Target and draft model, without the wrappers of graph capture."""
    drafter = drafter_of(worker)
    models = [runner_of(worker).get_model()]
    if drafter is not None and getattr(drafter, "model", None) is not None:
        models.append(unwrapped(drafter.model))
    return models


def unwrapped(model: Any) -> Any:
    """A model without vLLM's graph-capturing wrapper."""
    return model.unwrap() if hasattr(model, "unwrap") else model


def set_local_argmax(worker: Any, on: bool) -> None:
    """Set vLLM's own flag where the drafter reads it on every pass.

    Raises:
        RunError: on, without a draft model that can.
    """
    drafter = drafter_of(worker)
    if drafter is None:
        return
    if on and not hasattr(unwrapped(drafter.model), "get_top_tokens"):
        raise RunError(
            f"local-argmax: vLLM's draft model {type(drafter.model).__name__} has no get_top_tokens; leave it out with "
            f"--opt local-argmax=off."
        )
    drafter.use_local_argmax_reduction = on


def set_commutative_reduce(worker: Any, on: bool) -> None:
    """Set `reduce_commutative` of every output transform that vLLM itself found to commute, and of no other."""
    for model in models_of(worker):
        for module in model.modules():
            if not hasattr(module, "reduce_commutative"):
                continue
            if not hasattr(module, COMMUTES):
                setattr(module, COMMUTES, bool(module.reduce_commutative))
            module.reduce_commutative = on and getattr(module, COMMUTES)


def set_fusion(worker: Any, on: bool) -> None:
    """Draft module: on CUDA the flag that the replaced helper asks; a draft module that lacks the fusion gets it."""
    FUSED.draft = on
    drafter = drafter_of(worker)
    if drafter is None:
        return
    predictor: Any = getattr(unwrapped(drafter.model), "model", None)
    if type(predictor).__name__ != "DeepSeekMultiTokenPredictor":
        return
    for layer in predictor.layers.values():
        _fuse_last_sum(layer, on)


def set_main_fusion(worker: Any, on: bool) -> None:
    """Target model: the flag that the replaced helper asks."""
    FUSED.target = on


def _fuse_last_sum(layer: Any, on: bool) -> None:
    """Have a generic DeepSeek draft layer end as vLLM's CUDA one does: the last sum handed to the fused helper.

    The helper falls back to a plain all-reduce and norm where its kernel does not apply, as everywhere on the CPU: that the switch
    was asked for and had no effect is then what the trace shows.
    """
    layer.mtp_block.mlp.experts.moe_config.skip_final_all_reduce = on
    if not on:
        for module in (layer, layer.shared_head):
            module.__dict__.pop("forward", None)
        return
    from vllm.models.common.ops.fused_allreduce_rms_norm import fused_allreduce_rms_norm

    def forward(
        input_ids: Any,
        positions: Any,
        previous_hidden_states: Any,
        inputs_embeds: Any = None,
        spec_step_index: int = 0,
    ) -> tuple[Any, Any]:
        import torch

        embeds = layer.enorm(torch.where(positions.unsqueeze(-1) == 0, 0, inputs_embeds))
        joined = layer.eh_proj(torch.cat([embeds, layer.hnorm(previous_hidden_states)], dim=-1))
        hidden, residual = layer.mtp_block(positions=positions, hidden_states=joined, residual=None)
        hidden, _ = fused_allreduce_rms_norm(hidden, residual, layer.shared_head.norm)
        return hidden, hidden

    layer.forward = forward
    # The hidden states are normalized already; the head must not do it again.
    layer.shared_head.forward = lambda hidden_states: hidden_states


def local_argmax_argument(on: bool) -> Mapping[str, Any]:
    """The flag that vLLM has itself; where an engine starts with it on, vLLM checks the draft model."""
    return {"speculative_config": {"use_local_argmax_reduction": on}}


def _variable(name: str) -> Callable[[bool], Mapping[str, str]]:
    return lambda on: {name: "1" if on else "0"}


SWITCHES: dict[str, Switch] = {
    FUSION: Switch(live=set_fusion),
    LOCAL_ARGMAX: Switch(live=set_local_argmax, arguments=local_argmax_argument),
    COMMUTATIVE_REDUCE: Switch(live=set_commutative_reduce),
    MAIN_FUSION: Switch(live=set_main_fusion, platforms=("cuda",)),
    "compiled-norm-fusion": Switch(
        arguments=lambda on: {"compilation_config": {"pass_config": {"fuse_allreduce_rms": on}}},
        platforms=("cuda",),
    ),
    "replicated-embedding": Switch(environment=_variable("VLLM_REPLICATE_EMBED"), platforms=("cuda",)),
    "custom-allreduce": Switch(
        arguments=lambda on: {"disable_custom_all_reduce": not on}, platforms=("cuda",)
    ),
    "flashinfer-allreduce": Switch(
        environment=_variable("VLLM_ALLREDUCE_USE_FLASHINFER"), platforms=("cuda",)
    ),
    "symmetric-memory-allreduce": Switch(
        environment=_variable("VLLM_ALLREDUCE_USE_SYMM_MEM"), platforms=("cuda",)
    ),
}
"""Switches by optimization id."""


@dataclass(slots=True)
class Applied:
    """Setting of the live switches in a worker."""

    switched: frozenset[str] = field(default_factory=frozenset)
    """Optimizations that are set at all; vLLM's own default holds for the others."""
    enabled: frozenset[str] = field(default_factory=frozenset)

    def set(self, worker: Any, enabled: frozenset[str]) -> None:
        """Turn every live switch that is set at all on or off."""
        for name, switch in SWITCHES.items():
            if switch.live is not None and name in self.switched:
                switch.live(worker, name in enabled)
        self.enabled = enabled
