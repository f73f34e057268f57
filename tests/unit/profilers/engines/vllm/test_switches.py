"""Switches on models of the same shape as vLLM's."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mtpprof.errors import RunError
from mtpprof.models.optimizations.catalogue import all_optimizations
from mtpprof.profilers.engines.vllm.switches import (
    COMMUTATIVE_REDUCE,
    FUSED,
    FUSION,
    LOCAL_ARGMAX,
    SWITCHES,
    Applied,
    set_commutative_reduce,
    set_fusion,
    set_local_argmax,
)


class Projection(nn.Module):
    def __init__(self, commutes: bool) -> None:
        super().__init__()
        self.reduce_commutative = commutes


class Norm(nn.Module):
    """RMSNorm without a weight, with vLLM's two forms."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        total = x if residual is None else x + residual
        normed = total / (total.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        return normed if residual is None else (normed, total)


class Block(nn.Module):
    """A decoder layer whose MoE output is a partial sum where the final all-reduce is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = SimpleNamespace(
            experts=SimpleNamespace(moe_config=SimpleNamespace(skip_final_all_reduce=False))
        )

    def forward(self, positions: Tensor, hidden_states: Tensor, residual: None) -> tuple[Tensor, Tensor]:
        output = hidden_states * 3
        if self.mlp.experts.moe_config.skip_final_all_reduce:
            output = output / 2
        return output, hidden_states


class SharedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()

    def forward(self, hidden_states: Tensor) -> Tensor:
        result: Tensor = self.norm(hidden_states)
        return result


class Layer(nn.Module):
    """vLLM's DeepSeekMultiTokenPredictorLayer in small."""

    def __init__(self) -> None:
        super().__init__()
        self.enorm, self.hnorm = Norm(), Norm()
        self.eh_proj = nn.Linear(8, 4, bias=False)
        self.mtp_block = Block()
        self.shared_head = SharedHead()

    def forward(
        self, input_ids: None, positions: Tensor, previous: Tensor, embeds: Tensor, spec_step_index: int = 0
    ) -> tuple[Tensor, Tensor]:
        embeds = torch.where(positions.unsqueeze(-1) == 0, 0, embeds)
        joined = self.eh_proj(torch.cat([self.enorm(embeds), self.hnorm(previous)], -1))
        hidden, residual = self.mtp_block(positions=positions, hidden_states=joined, residual=None)
        hidden = residual + hidden
        return hidden, self.shared_head(hidden)

    def logits_input(self, hidden: Tensor) -> Tensor:
        """What vLLM's compute_logits gives to the head."""
        result: Tensor = self.shared_head(hidden)
        return result


class DeepSeekMultiTokenPredictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"4": Layer()})


class DraftModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = DeepSeekMultiTokenPredictor()

    def get_top_tokens(self) -> None: ...


def worker(target: nn.Module | None = None, draft: nn.Module | None = None) -> Any:
    drafter = None if draft is None else SimpleNamespace(model=draft, use_local_argmax_reduction=False)
    runner = SimpleNamespace(drafter=drafter, get_model=lambda: target or nn.Module())
    return SimpleNamespace(model_runner=runner)


def test_local_argmax_is_vllms_own_flag() -> None:
    mine = worker(draft=DraftModel())
    set_local_argmax(mine, True)
    assert mine.model_runner.drafter.use_local_argmax_reduction is True
    set_local_argmax(mine, False)
    assert mine.model_runner.drafter.use_local_argmax_reduction is False


def test_local_argmax_without_a_method_for_it_is_an_error_only_when_on() -> None:
    mine = worker(draft=nn.Linear(1, 1))
    set_local_argmax(mine, False)
    with pytest.raises(RunError, match=r"Linear has no get_top_tokens; .*--opt local-argmax=off"):
        set_local_argmax(mine, True)


def test_a_model_without_drafts_has_nothing_to_switch_there() -> None:
    set_local_argmax(worker(), True)
    set_fusion(worker(), False)


def test_only_what_vllm_found_to_commute_is_ever_commuted() -> None:
    target, draft = nn.Sequential(Projection(True), Projection(False)), nn.Sequential(Projection(True))
    mine = worker(target, draft)
    for on in (False, True, False, True):
        set_commutative_reduce(mine, on)
        assert [module.reduce_commutative for module in (*target, *draft)] == [on, False, on]


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """vLLM's fused helper, as on one of two ranks with equal partial sums; counts its calls."""
    calls: list[int] = []

    def fused_allreduce_rms_norm(hidden: Tensor, residual: Tensor, norm: Norm) -> Any:
        calls.append(1)
        return norm(hidden * 2, residual)

    name = "vllm.models.common.ops.fused_allreduce_rms_norm"
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module: Any = types.ModuleType(".".join(parts[:end]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), module)
    sys.modules[name].fused_allreduce_rms_norm = fused_allreduce_rms_norm  # type: ignore[attr-defined]
    yield calls
    FUSED.draft = FUSED.target = True


def test_the_fused_draft_layer_computes_what_the_plain_one_does(helper: list[int]) -> None:
    torch.manual_seed(0)
    draft = DraftModel()
    layer = draft.model.layers["4"]
    assert isinstance(layer, Layer)
    mine = worker(draft=draft)
    inputs = (None, torch.tensor([0, 1, 2]), torch.randn(3, 4), torch.randn(3, 4))
    plain_hidden, plain_next = layer(*inputs)
    plain_logits = layer.logits_input(plain_hidden)
    set_fusion(mine, True)
    assert layer.mtp_block.mlp.experts.moe_config.skip_final_all_reduce
    fused_hidden, fused_next = layer(*inputs)
    torch.testing.assert_close(fused_next, plain_next)
    torch.testing.assert_close(layer.logits_input(fused_hidden), plain_logits)
    assert helper == [1]
    set_fusion(mine, False)
    torch.testing.assert_close(layer(*inputs)[0], plain_hidden, rtol=0, atol=0)
    assert helper == [1]
    assert not layer.mtp_block.mlp.experts.moe_config.skip_final_all_reduce


def test_fusion_sets_the_flag_that_cudas_helper_asks() -> None:
    seen = []
    for on in (False, True):
        set_fusion(worker(draft=nn.Linear(1, 1)), on)
        seen.append((FUSED.draft, FUSED.target))
    assert seen == [(False, True), (True, True)]


def test_an_arm_turns_every_live_switch_on_or_off(helper: list[int]) -> None:
    projection, draft = Projection(True), DraftModel()
    mine = worker(nn.Sequential(projection), draft)
    applied = Applied(switched=frozenset({LOCAL_ARGMAX, COMMUTATIVE_REDUCE, FUSION}))

    def state() -> dict[str, bool]:
        return {
            LOCAL_ARGMAX: mine.model_runner.drafter.use_local_argmax_reduction,
            COMMUTATIVE_REDUCE: projection.reduce_commutative,
            FUSION: FUSED.draft,
        }

    for enabled in ({LOCAL_ARGMAX}, {COMMUTATIVE_REDUCE, FUSION}, set[str]()):
        applied.set(mine, frozenset(enabled))
        assert {name for name, on in state().items() if on} == enabled
        assert applied.enabled == enabled


def test_what_is_not_switched_is_left_alone() -> None:
    projection = Projection(True)
    mine = worker(nn.Sequential(projection))
    Applied(switched=frozenset({LOCAL_ARGMAX})).set(mine, frozenset())
    assert projection.reduce_commutative


def test_switches_are_those_that_the_catalogue_says_vllm_has() -> None:
    assert set(SWITCHES) == {name for name, entry in all_optimizations().items() if "vllm" in entry.switches}


def test_every_switch_can_be_set_somehow() -> None:
    for switch in SWITCHES.values():
        assert switch.live or switch.arguments(True) != switch.arguments(False) or switch.environment(True)
