from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from mtpprof.models.reference import moe as moe_module
from mtpprof.models.reference.block import Cache
from mtpprof.models.reference.layers import activate
from mtpprof.models.reference.moe import MoeBlock, route
from mtpprof.models.spec import Activation, MoeSpec
from tests.unit.models.reference.cases import HIDDEN, context, noise, rows_at, tiny


def moe_spec(**changes: int | float) -> MoeSpec:
    base = MoeSpec(
        experts=8,
        top_k=2,
        intermediate_size=16,
        shared_intermediate_size=16,
        activation=Activation.SILU_GATED,
        routed_scaling=2.5,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def route_written_out(logits: list[float], bias: list[float], moe: MoeSpec) -> dict[int, float]:
    """DeepSeek-V3's routing of one row, expert to weight."""
    scores = [float(torch.tensor(logit, dtype=torch.float64).sigmoid()) for logit in logits]
    choice = [score + shift for score, shift in zip(scores, bias, strict=True)]
    width = moe.experts // moe.expert_groups
    groups = [list(range(first, first + width)) for first in range(0, moe.experts, width)]
    groups.sort(key=lambda group: -sum(sorted((choice[expert] for expert in group), reverse=True)[:2]))
    allowed = [expert for group in groups[: moe.top_k_groups] for expert in group]
    chosen = sorted(allowed, key=lambda expert: -choice[expert])[: moe.top_k]
    total = sum(scores[expert] for expert in chosen)
    return {expert: scores[expert] / total * moe.routed_scaling for expert in chosen}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), groups=st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 1), (8, 4)]))
def test_routing_is_deepseeks(seed: int, groups: tuple[int, int]) -> None:
    moe = moe_spec(expert_groups=groups[0], top_k_groups=groups[1])
    if moe.experts // groups[0] * groups[1] < moe.top_k:
        moe = replace(moe, top_k=1)
    logits, bias = noise(4, 8, seed=seed), noise(8, seed=seed + 1)
    weights = route(logits, bias, moe)
    for row in range(4):
        expected = route_written_out(logits[row].tolist(), bias.tolist(), moe)
        chosen = weights[row].nonzero()[:, 0].tolist()
        assert chosen == sorted(expected)
        assert weights[row, chosen].tolist() == pytest.approx([expected[expert] for expert in chosen])


def block_written_out(block: MoeBlock, x: Tensor) -> Tensor:
    """The block's output with each selected expert applied to its own rows."""
    weights = route(functional.linear(x, block.gate), block.gate_bias, block.moe)
    size, width = block.moe.intermediate_size, block.experts.down.shape[0]
    up = block.experts.up.view(-1, block.moe.experts, size, width)
    down = block.experts.down.view(width, block.moe.experts, size)
    inputs = functional.linear(x, block.latent_in) if block.moe.latent_size else x
    routed = torch.zeros(x.shape[0], width, dtype=x.dtype)
    for row, expert in weights.nonzero().tolist():
        inner = torch.cat([matrix @ inputs[row] for matrix in up[:, expert]])
        output = down[:, expert] @ activate(inner[None], block.moe.activation)[0]
        routed[row] += weights[row, expert] * output
    if block.moe.latent_size:
        if block.latent_norm is not None:
            routed = block.latent_norm(routed)
        routed = functional.linear(routed, block.latent_out, block.latent_bias)
    return routed if block.shared is None else routed + block.shared(x)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "nemotron-3-nano", "nemotron-3-super", "kimi-k3"])
def test_all_experts_side_by_side_are_the_selected_ones(name: str) -> None:
    block = MoeBlock(context(tiny(name)), "layers.0")
    x = noise(7, HIDDEN)
    torch.testing.assert_close(block(x, rows_at(0, 7, 1), Cache()), block_written_out(block, x))


def test_many_rows_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    block = MoeBlock(context(tiny("deepseek-v3.2")), "layers.0")
    x, rows = noise(7, HIDDEN), rows_at(0, 7, 1)
    whole = block(x, rows, Cache())
    monkeypatch.setattr(moe_module, "ROWS_AT_ONCE", 3)
    torch.testing.assert_close(block(x, rows, Cache()), whole)


def test_bias_is_added_once() -> None:
    spec = tiny("nemotron-3-super")
    assert spec.moe is not None
    block = MoeBlock(context(replace(spec, moe=replace(spec.moe, latent_bias=True))), "layers.0")
    x = noise(7, HIDDEN)
    with_bias = block(x, rows_at(0, 7, 1), Cache())
    bias, block.latent_bias = block.latent_bias, None
    assert bias is not None
    torch.testing.assert_close(block(x, rows_at(0, 7, 1), Cache()) + bias, with_bias)
