"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), block `A`.

Keys and values of all heads come from one low-rank latent per position, which is all that is cached (with one rotary key shared
by the heads). Attention runs in the *absorbed* form, in prefill too: the key up-projection is applied to the query, the value
up-projection to the result, so heads attend over the latents themselves. Heads are divided over the ranks; latents and their
projections are replicated. With an indexer, each row attends to the keys that it chose only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof.models.ledger import BLOCK_SITES
from mtpprof.models.reference.block import Block, Cache, Context, PositionCache, Rows
from mtpprof.models.reference.indexer import Indexer
from mtpprof.models.reference.layers import Norm, rotate
from mtpprof.models.reference.weights import wide_dtype
from mtpprof.models.spec import MlaSpec


@dataclass(slots=True)
class MlaCache(Cache):
    """Latents (with the rotary key) and, with an indexer, its keys."""

    latents: PositionCache
    index_keys: PositionCache


class MlaBlock(Block[MlaCache]):
    """Block `A`."""

    def __init__(self, context: Context, path: str) -> None:
        super().__init__(context)
        spec, weights = context.spec, context.weights
        assert spec.mla is not None, "a model with block A has MLA dimensions"
        mla: MlaSpec = spec.mla
        self.mla = mla
        self.theta = spec.rope_theta
        self.heads = mla.heads // context.comm.size
        self.dtype, self.device = weights.dtype, weights.device
        self.site = f"{path}.{BLOCK_SITES['A']}"
        path = f"{path}.mla"

        head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        self.scale = head_dim**-0.5
        query_size = mla.q_lora_rank or spec.hidden_size
        if mla.q_lora_rank:
            self.q_a = weights.linear(f"{path}.q_a_proj", mla.q_lora_rank, spec.hidden_size)
            self.q_norm = Norm(weights, f"{path}.q_a_norm", mla.q_lora_rank, spec.norm_eps)
        self.q_b = weights.linear(f"{path}.q_b_proj", mla.heads * head_dim, query_size, split=0)
        latent_size = mla.kv_lora_rank + mla.qk_rope_head_dim
        self.kv_a = weights.linear(f"{path}.kv_a_proj", latent_size, spec.hidden_size)
        self.kv_norm = Norm(weights, f"{path}.kv_a_norm", mla.kv_lora_rank, spec.norm_eps)
        up_std = mla.kv_lora_rank**-0.5
        self.k_up = weights.normal(
            f"{path}.k_up", (mla.heads, mla.qk_nope_head_dim, mla.kv_lora_rank), std=up_std, split=0
        )
        self.v_up = weights.normal(
            f"{path}.v_up", (mla.heads, mla.kv_lora_rank, mla.v_head_dim), std=up_std, split=0
        )
        self.o = weights.linear(
            f"{path}.o_proj",
            spec.hidden_size,
            mla.heads * mla.v_head_dim,
            gain=context.branch_gain,
            split=1,
        )
        self.indexer = (
            Indexer(
                weights,
                f"{path}.indexer",
                mla.indexer,
                hidden_size=spec.hidden_size,
                query_size=query_size,
                rope_dim=mla.qk_rope_head_dim,
                theta=spec.rope_theta,
            )
            if mla.indexer
            else None
        )

    def new_cache(self, sequences: int, capacity: int) -> MlaCache:
        """See `Block`."""
        latent_size = self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
        index_size = self.mla.indexer.head_dim if self.mla.indexer else 0
        wide = wide_dtype(self.dtype)
        return MlaCache(
            latents=PositionCache(sequences, capacity, (latent_size,), dtype=self.dtype, device=self.device),
            index_keys=PositionCache(sequences, capacity, (index_size,), dtype=wide, device=self.device),
        )

    def partial(self, x: Tensor, rows: Rows, cache: MlaCache) -> Tensor:
        """See `Block`."""
        latent_query = self.q_norm(F.linear(x, self.q_a)) if self.mla.q_lora_rank else x
        keys = cache.latents.append(self._latents(x, rows), rows)
        hidden = rows.hidden
        if self.indexer is not None:
            hidden = ~self.indexer(x, latent_query, rows, cache.index_keys)

        query = self._absorbed_query(latent_query, rows)
        scores = torch.matmul(query, keys.transpose(1, 2)).view(
            rows.sequences, self.heads, rows.per_sequence, -1
        )
        scores = scores.to(wide_dtype(x.dtype)).mul_(self.scale).masked_fill_(hidden[:, None], -torch.inf)
        attention = scores.softmax(-1).to(x.dtype).flatten(1, 2)
        attended = torch.matmul(attention, keys[..., : self.mla.kv_lora_rank])
        # [c, h·q, latent] → [h, c·q, latent] @ [h, latent, v] → [c·q, h·v]
        attended = (
            attended.view(rows.sequences, self.heads, rows.per_sequence, -1).transpose(0, 1).flatten(1, 2)
        )
        values = torch.bmm(attended, self.v_up).transpose(0, 1).reshape(x.shape[0], -1)
        return F.linear(values, self.o)

    def _latents(self, x: Tensor, rows: Rows) -> Tensor:
        """Normalised latent and rotated shared key of each row, `[sequences, per_sequence, latent + rope]`."""
        latent, rope_key = torch.split(
            F.linear(x, self.kv_a), [self.mla.kv_lora_rank, self.mla.qk_rope_head_dim], -1
        )
        rope_key = rope_key.view(rows.sequences, rows.per_sequence, -1)
        if self.mla.qk_rope_head_dim:
            rope_key = rotate(rope_key, *rows.rotation(self.mla.qk_rope_head_dim, self.theta, x.dtype))
        return torch.cat([self.kv_norm(latent).view(rows.sequences, rows.per_sequence, -1), rope_key], -1)

    def _absorbed_query(self, latent_query: Tensor, rows: Rows) -> Tensor:
        """Queries in the space of the cached latents, `[sequences, heads · per_sequence, latent + rope]`."""
        query = F.linear(latent_query, self.q_b).view(latent_query.shape[0], self.heads, -1).transpose(0, 1)
        nope, rope = torch.split(query, [self.mla.qk_nope_head_dim, self.mla.qk_rope_head_dim], -1)
        shape = (self.heads, rows.sequences, rows.per_sequence, -1)
        absorbed, rope = torch.bmm(nope, self.k_up).view(shape), rope.reshape(shape)
        if self.mla.qk_rope_head_dim:
            rope = rotate(rope, *rows.rotation(self.mla.qk_rope_head_dim, self.theta, rope.dtype))
        return torch.cat([absorbed, rope], -1).transpose(0, 1).flatten(1, 2)
