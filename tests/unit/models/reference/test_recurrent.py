"""Mamba-2 and Kimi delta attention against their recurrences, and their caches' way back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from mtpprof.models.reference import mamba
from mtpprof.models.reference.kda import KdaBlock, delta_rule
from mtpprof.models.reference.mamba import MambaBlock, state_space_scan
from mtpprof.models.reference.recurrent import RecurrentCache, short_convolution
from tests.unit.models.reference.cases import SEQUENCES, context, noise, rows_at, tiny


def scan_step_by_step(
    inputs: Tensor, log_decay: Tensor, into: Tensor, out_of: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """`S ← a S + u Bᵀ; y = S C`, one row at a time."""
    outputs, states = [], []
    for row in range(inputs.shape[1]):
        state = state * log_decay[:, row].exp()[..., None, None]
        state = state + torch.einsum("chd,chn->chdn", inputs[:, row], into[:, row])
        outputs.append(torch.einsum("chdn,chn->chd", state, out_of[:, row]))
        states.append(state)
    return torch.stack(outputs, 1), torch.stack(states, 1)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 9), chunk=st.integers(1, 5), seed=st.integers(0, 1000))
def test_the_chunked_scan_is_the_recurrence(rows: int, chunk: int, seed: int) -> None:
    inputs, into, out_of = noise(2, rows, 3, 4, seed=seed), noise(2, rows, 3, 5), noise(2, rows, 3, 5, seed=2)
    log_decay, state = -noise(2, rows, 3).abs(), noise(2, 3, 4, 5)
    expected, states = scan_step_by_step(inputs, log_decay, into, out_of, state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mamba, "CHUNK", chunk)
        for keep_states in (True, False):
            actual, kept = state_space_scan(inputs, log_decay, into, out_of, state, keep_states=keep_states)
            torch.testing.assert_close(actual, expected)
            torch.testing.assert_close(kept, states if keep_states else states[:, -1:])


def test_a_strong_decay_neither_overflows_nor_remembers() -> None:
    rows = 64
    inputs, into, out_of = noise(1, rows, 1, 2), noise(1, rows, 1, 3), noise(1, rows, 1, 3, seed=2)
    state = noise(1, 1, 2, 3) * 1e30
    actual, _ = state_space_scan(
        inputs, torch.full((1, rows, 1), -1000.0, dtype=torch.float64), into, out_of, state, keep_states=True
    )
    alone = inputs * (into * out_of).sum(-1, keepdim=True)
    torch.testing.assert_close(actual, alone)


def test_the_delta_rule_replaces_what_a_key_held() -> None:
    key = functional.normalize(noise(1, 1, 1, 4), dim=-1).expand(1, 3, 1, 4)
    value = noise(1, 3, 1, 4, seed=1)
    ones, strength = torch.ones(1, 3, 1, 4, dtype=torch.float64), torch.ones(1, 3, 1, 1, dtype=torch.float64)
    state = noise(1, 1, 4, 4, seed=2)
    outputs, _ = delta_rule(key, key, value, ones, strength, state, keep_states=True)
    torch.testing.assert_close(outputs, value)


def test_the_delta_rule_is_its_matrix_form() -> None:
    query, value = noise(2, 5, 3, 4), noise(2, 5, 3, 4, seed=1)
    key = functional.normalize(noise(2, 5, 3, 4, seed=2), dim=-1)
    decay, strength = noise(2, 5, 3, 4, seed=3).sigmoid(), noise(2, 5, 3, 1, seed=4).sigmoid()
    state = noise(2, 3, 4, 4, seed=5)
    outputs, states = delta_rule(query, key, value, decay, strength, state, keep_states=True)
    for row in range(5):
        k, beta = key[:, row], strength[:, row, :, :, None]
        forget = torch.eye(4, dtype=torch.float64) - beta * k[..., :, None] * k[..., None, :]
        write = beta * k[..., :, None] * value[:, row, :, None, :]
        state = forget @ torch.diag_embed(decay[:, row]) @ state + write
        torch.testing.assert_close(states[:, row], state)
        torch.testing.assert_close(outputs[:, row], torch.einsum("chkv,chk->chv", state, query[:, row]))


def test_the_short_convolution_is_causal() -> None:
    cache = RecurrentCache(
        SEQUENCES,
        channels=6,
        kernel=4,
        state_shape=(1,),
        dtype=torch.float64,
        state_dtype=torch.float64,
        device=torch.device("cpu"),
    )
    x, weight, bias = noise(SEQUENCES * 7, 6), noise(6, 4, seed=1), noise(6, seed=2)
    actual = short_convolution(x, weight, bias, rows_at(0, 7), cache)
    channels_first = functional.pad(x.view(SEQUENCES, 7, 6).transpose(1, 2), (3, 0))
    expected = functional.silu(functional.conv1d(channels_first, weight[:, None], bias, groups=6)).transpose(
        1, 2
    )
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("kind", ["kda", "mamba"])
def test_passes_with_rejected_rows_give_what_one_pass_gives(kind: str) -> None:
    spec = tiny("kimi-k3" if kind == "kda" else "nemotron-3-nano")
    block = KdaBlock(context(spec), "layers.0") if kind == "kda" else MambaBlock(context(spec), "layers.0")
    length = 17
    x = noise(SEQUENCES, length, spec.hidden_size)
    whole = block.partial(x.flatten(0, 1), rows_at(0, length), block.new_cache(SEQUENCES, length)).view(
        x.shape
    )

    cache = block.new_cache(SEQUENCES, length)
    prefill = block.partial(x[:, :5].flatten(0, 1), rows_at(0, 5, keep_states=False), cache)
    torch.testing.assert_close(prefill.view(SEQUENCES, 5, -1), whole[:, :5])
    cache.commit(torch.full((SEQUENCES,), 4))

    generator = torch.Generator().manual_seed(4)
    done = torch.full((SEQUENCES,), 5)
    junk = noise(SEQUENCES, 4, spec.hidden_size, seed=7)
    sequence = torch.arange(SEQUENCES)[:, None]
    while int(done.max()) + 4 < length:
        accepted = torch.randint(0, 4, (SEQUENCES,), generator=generator)
        offsets = torch.arange(4)
        rows = x[sequence, done[:, None] + offsets]
        rows = torch.where((offsets <= accepted[:, None])[..., None], rows, junk)
        output = block.partial(rows.flatten(0, 1), rows_at(0, 4), cache).view(SEQUENCES, 4, -1)
        for index, (start, count) in enumerate(zip(done.tolist(), accepted.tolist(), strict=True)):
            torch.testing.assert_close(output[index, : count + 1], whole[index, start : start + count + 1])
        cache.commit(accepted)
        done = done + accepted + 1
    assert len(set(done.tolist())) > 1, "sequences advanced unevenly"

    cache.reset()
    again = block.partial(x[:, :5].flatten(0, 1), rows_at(0, 5, keep_states=False), cache)
    torch.testing.assert_close(again.view(SEQUENCES, 5, -1), whole[:, :5])


def kda_written_out(block: KdaBlock, x: Tensor) -> Tensor:
    """Kimi delta attention of one sequence `[rows, hidden]`, head by head and row by row."""
    rows, dim = x.shape[0], block.kda.head_dim
    convolved = functional.pad(functional.linear(x, block.qkv).T, (block.kda.conv_kernel - 1, 0))
    convolved = functional.conv1d(convolved[None], block.filters[:, None], groups=len(block.filters))[0].T
    query, key, value = functional.silu(convolved).view(rows, 3, block.heads, dim).unbind(1)
    raw_decay = (block.decay_b @ (block.decay_a @ x.T)).T.view(rows, block.heads, dim)
    bias = block.decay_bias.view(block.heads, dim)
    strength = (x @ block.strength.T).sigmoid()
    gate = (block.gate_b @ (block.gate_a @ x.T)).T.sigmoid().view(rows, block.heads, dim)
    outputs = torch.zeros(rows, block.heads, dim, dtype=x.dtype)
    for head in range(block.heads):
        state = torch.zeros(dim, dim, dtype=x.dtype)
        for row in range(rows):
            rate = block.decay_log[head].exp() * functional.softplus(raw_decay[row, head] + bias[head])
            state = torch.diag((-rate).exp()) @ state
            k = key[row, head] / key[row, head].norm()
            q = query[row, head] / query[row, head].norm() / dim**0.5
            state = state + strength[row, head] * torch.outer(k, value[row, head] - state.T @ k)
            outputs[row, head] = state.T @ q
    return (block.norm(outputs) * gate).flatten(1) @ block.o.T


def mamba_written_out(block: MambaBlock, x: Tensor) -> Tensor:
    """Mamba-2 of one sequence `[rows, hidden]`, head by head and row by row."""
    rows, dim, size = x.shape[0], block.mamba.head_dim, block.mamba.state_size
    width, maps = block.heads * dim, block.groups * size
    z, convolved, dt = torch.split(x @ block.in_proj.T, [width, width + 2 * maps, block.heads], -1)
    convolved = functional.pad(convolved.T, (block.mamba.conv_kernel - 1, 0))
    convolved = functional.conv1d(
        convolved[None], block.filters[:, None], block.filter_bias, groups=len(block.filters)
    )[0].T
    inputs, into, out_of = torch.split(functional.silu(convolved), [width, maps, maps], -1)
    inputs, into, out_of = inputs.view(rows, -1, dim), into.view(rows, -1, size), out_of.view(rows, -1, size)
    outputs = torch.zeros(rows, block.heads, dim, dtype=x.dtype)
    for head in range(block.heads):
        group = head * block.groups // block.heads
        state = torch.zeros(dim, size, dtype=x.dtype)
        for row in range(rows):
            step = functional.softplus(dt[row, head] + block.dt_bias[head])
            state = (-step * block.decay_log[head].exp()).exp() * state
            state = state + torch.outer(step * inputs[row, head], into[row, group])
            outputs[row, head] = state @ out_of[row, group] + block.skip[head] * inputs[row, head]
    gated = (outputs.flatten(1) * functional.silu(z)).view(rows, block.groups, -1)
    normed = gated * (gated.square().mean(-1, keepdim=True) + block.eps).rsqrt() * block.norm_weight
    return normed.flatten(1) @ block.out_proj.T


def test_kda_is_its_formulas() -> None:
    spec = tiny("kimi-k3")
    block = KdaBlock(context(spec), "layers.0")
    x = noise(6, spec.hidden_size)
    actual = block.partial(x, rows_at(0, 6, 1), block.new_cache(1, 6))
    torch.testing.assert_close(actual, kda_written_out(block, x))


@pytest.mark.parametrize("groups", [2, 8])
def test_mamba_is_its_formulas(groups: int) -> None:
    spec = tiny("nemotron-3-nano")
    assert spec.mamba is not None
    spec = replace(spec, mamba=replace(spec.mamba, groups=groups))
    block = MambaBlock(context(spec), "layers.0")
    x = noise(6, spec.hidden_size)
    actual = block.partial(x, rows_at(0, 6, 1), block.new_cache(1, 6))
    torch.testing.assert_close(actual, mamba_written_out(block, x))
