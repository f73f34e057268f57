"""MLA and GQA against attention written out head by head, and the indexer against its definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mtpprof.models.reference.block import Rows
from mtpprof.models.reference.gqa import GqaBlock
from mtpprof.models.reference.layers import rotate
from mtpprof.models.reference.mla import MlaBlock
from mtpprof.models.spec import GqaSpec, ModelSpec
from tests.unit.models.reference.cases import SEQUENCES, context, noise, rows_at, tiny

LENGTH = 12


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, hidden: Tensor) -> Tensor:
    """Plain attention: `[c, t, h, d]` each, `hidden` `[c, t, s]` True where a key is not seen."""
    scores = torch.einsum("cthd,cshd->chts", query, key) * scale
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.einsum("chts,cshd->cthd", weights, value)


def mla_written_out(block: MlaBlock, x: Tensor, rows: Rows, hidden: Tensor) -> Tensor:
    """MLA with keys and values of every head made from the latents (no absorption), for one whole sequence at once."""
    mla, shape = block.mla, (rows.sequences, rows.per_sequence)
    latent_query = block.q_norm(functional.linear(x, block.q_a)) if mla.q_lora_rank else x
    query = functional.linear(latent_query, block.q_b).view(*shape, mla.heads, -1)
    latent, rope_key = functional.linear(x, block.kv_a).split([mla.kv_lora_rank, mla.qk_rope_head_dim], -1)  # type: ignore[no-untyped-call]
    latent = block.kv_norm(latent).view(*shape, -1)
    cos, sin = rows.rotation(mla.qk_rope_head_dim, block.theta, x.dtype)
    rope_key = rotate(rope_key.view(*shape, -1), cos, sin)
    nope_key = torch.einsum("ctl,hnl->cthn", latent, block.k_up)
    key = torch.cat([nope_key, rope_key[:, :, None].expand(-1, -1, mla.heads, -1)], -1)
    rope_query = rotate(query[..., mla.qk_nope_head_dim :], cos[:, :, None], sin[:, :, None])
    query = torch.cat([query[..., : mla.qk_nope_head_dim], rope_query], -1)
    value = torch.einsum("ctl,hlv->cthv", latent, block.v_up)
    scale = (mla.qk_nope_head_dim + mla.qk_rope_head_dim) ** -0.5
    return functional.linear(attend(query, key, value, scale, hidden).flatten(2).flatten(0, 1), block.o)


def dense_deepseek(**changes: int) -> ModelSpec:
    spec = tiny("deepseek-v3.2")
    assert spec.mla is not None
    return replace(spec, mla=replace(spec.mla, indexer=None, **changes))


@pytest.mark.parametrize("q_lora_rank", [64, 0])
def test_absorbed_mla_is_mla(q_lora_rank: int) -> None:
    spec = dense_deepseek(q_lora_rank=q_lora_rank)
    block = MlaBlock(context(spec), "layers.0")
    rows = rows_at(0, LENGTH)
    x = noise(SEQUENCES * LENGTH, spec.hidden_size)
    expected = mla_written_out(block, x, rows, rows.hidden[..., :LENGTH])
    torch.testing.assert_close(block.partial(x, rows, block.new_cache(SEQUENCES, LENGTH)), expected)


def test_mla_without_a_rotary_part() -> None:
    spec = dense_deepseek(qk_rope_head_dim=0)
    block = MlaBlock(context(spec), "layers.0")
    x = noise(SEQUENCES * LENGTH, spec.hidden_size)
    output = block.partial(x, rows_at(0, LENGTH), block.new_cache(SEQUENCES, LENGTH))
    assert output.isfinite().all()
    assert output.shape == x.shape


def test_sparse_mla_attends_to_the_chosen_keys_only() -> None:
    spec = tiny("deepseek-v3.2")
    block = MlaBlock(context(spec), "layers.0")
    assert block.indexer is not None
    rows = rows_at(0, LENGTH)
    x = noise(SEQUENCES * LENGTH, spec.hidden_size)
    latent_query = block.q_norm(functional.linear(x, block.q_a))
    visible = block.indexer(x, latent_query, rows, block.new_cache(SEQUENCES, LENGTH).index_keys)
    top_k = block.indexer.spec.top_k
    assert top_k < LENGTH, "else nothing is selected"
    seen = visible.sum(-1)
    assert torch.equal(seen, torch.arange(1, LENGTH + 1).clamp(max=top_k).expand(SEQUENCES, -1))
    assert not (visible & rows.hidden).any(), "never a key of the future"
    expected = mla_written_out(block, x, rows, ~visible[..., :LENGTH])
    torch.testing.assert_close(block.partial(x, rows, block.new_cache(SEQUENCES, LENGTH)), expected)


def test_the_indexer_keeps_the_keys_of_highest_score() -> None:
    spec = tiny("deepseek-v3.2")
    block = MlaBlock(context(spec), "layers.0")
    indexer = block.indexer
    assert indexer is not None
    rows = rows_at(0, LENGTH)
    x, latent_query = noise(SEQUENCES * LENGTH, spec.hidden_size), noise(SEQUENCES * LENGTH, 64, seed=1)
    visible = indexer(x, latent_query, rows, block.new_cache(SEQUENCES, LENGTH).index_keys)

    heads, dim = indexer.spec.heads, indexer.spec.head_dim
    cos, sin = rows.rotation(indexer.rope_dim, indexer.theta, x.dtype)
    key = functional.layer_norm(
        functional.linear(x, indexer.key), (dim,), indexer.key_norm, indexer.key_norm_bias
    )
    key = key.view(SEQUENCES, LENGTH, dim)
    key = torch.cat([rotate(key[..., : indexer.rope_dim], cos, sin), key[..., indexer.rope_dim :]], -1)
    query = functional.linear(latent_query, indexer.query).view(SEQUENCES, LENGTH, heads, dim)
    turned = rotate(query[..., : indexer.rope_dim], cos[:, :, None], sin[:, :, None])
    query = torch.cat([turned, query[..., indexer.rope_dim :]], -1)
    weight = functional.linear(x, indexer.head_weight).view(SEQUENCES, LENGTH, heads)
    scores = torch.einsum("cth,cths->cts", weight, torch.einsum("cthd,csd->cths", query, key).relu())
    for sequence in range(SEQUENCES):
        for row in range(LENGTH):
            by_score = sorted(range(row + 1), key=lambda key: (-float(scores[sequence, row, key]), key))
            chosen = visible[sequence, row].nonzero()[:, 0].tolist()
            assert chosen == sorted(by_score[: indexer.spec.top_k])


@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_gqa_is_attention_with_shared_keys(kv_heads: int, rope: bool) -> None:
    spec = replace(tiny("nemotron-3-nano"), gqa=GqaSpec(heads=8, kv_heads=kv_heads, head_dim=32, rope=rope))
    block = GqaBlock(context(spec), "layers.0")
    rows = rows_at(0, LENGTH)
    x = noise(SEQUENCES * LENGTH, spec.hidden_size)
    query, key, value = (
        functional.linear(x, weight).view(SEQUENCES, LENGTH, -1, 32)
        for weight in (block.query, block.key, block.value)
    )
    if rope:
        cos, sin = rows.rotation(32, spec.rope_theta, x.dtype)
        query, key = (rotate(heads, cos[:, :, None], sin[:, :, None]) for heads in (query, key))
    key, value = (heads.repeat_interleave(8 // kv_heads, dim=2) for heads in (key, value))
    attended = attend(query, key, value, 32**-0.5, rows.hidden[..., :LENGTH])
    expected = functional.linear(attended.flatten(2).flatten(0, 1), block.o)
    torch.testing.assert_close(block.partial(x, rows, block.new_cache(SEQUENCES, LENGTH)), expected)


@pytest.mark.parametrize("kind", ["mla", "gqa"])
def test_rejected_positions_leave_no_trace(kind: str) -> None:
    spec = tiny("deepseek-v3.2") if kind == "mla" else tiny("nemotron-3-nano")
    block: MlaBlock | GqaBlock
    block = MlaBlock(context(spec), "layers.0") if kind == "mla" else GqaBlock(context(spec), "layers.0")
    x, junk = noise(SEQUENCES * LENGTH, spec.hidden_size), noise(SEQUENCES * 3, spec.hidden_size, seed=9)
    whole = block.partial(x, rows_at(0, LENGTH), block.new_cache(SEQUENCES, LENGTH))  # type: ignore[arg-type]
    per_sequence = x.view(SEQUENCES, LENGTH, -1)
    cache = block.new_cache(SEQUENCES, LENGTH + 3)
    pieces = []
    for start, stop in ((0, 5), (5, 6), (6, 9), (9, LENGTH)):
        part = per_sequence[:, start:stop].reshape(-1, spec.hidden_size)
        rows = rows_at(start, stop - start)
        pieces.append(block.partial(part, rows, cache).view(SEQUENCES, stop - start, -1))  # type: ignore[arg-type]
        block.partial(junk, rows_at(stop, 3), cache)  # type: ignore[arg-type]
    torch.testing.assert_close(torch.cat(pieces, 1).flatten(0, 1), whole)
