"""Grouped-query attention, block `*`. Query heads are divided over the ranks.

Key/value heads are divided too; where there are fewer of them than ranks, each rank holds the one that its query heads need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof.models.ledger import BLOCK_SITES
from mtpprof.models.reference.block import Block, Cache, Context, PositionCache, Rows
from mtpprof.models.reference.layers import rotate
from mtpprof.models.reference.weights import wide_dtype
from mtpprof.models.spec import GqaSpec


@dataclass(slots=True)
class GqaCache(Cache):
    """Keys and values by position, `[sequences, capacity, kv heads, head dim]` each."""

    keys: PositionCache
    values: PositionCache


class GqaBlock(Block[GqaCache]):
    """Block `*`."""

    def __init__(self, context: Context, path: str) -> None:
        super().__init__(context)
        spec, weights, ranks = context.spec, context.weights, context.comm.size
        assert spec.gqa is not None, "a model with block * has GQA dimensions"
        gqa: GqaSpec = spec.gqa
        self.gqa = gqa
        self.theta = spec.rope_theta
        self.heads = gqa.heads // ranks
        self.kv_heads = max(1, gqa.kv_heads // ranks)
        self.dtype, self.device = weights.dtype, weights.device
        self.site = f"{path}.{BLOCK_SITES['*']}"
        path = f"{path}.attn"

        hidden, gain = spec.hidden_size, context.branch_gain
        self.query = weights.linear(f"{path}.q_proj", gqa.heads * gqa.head_dim, hidden, split=0)
        first = gqa.kv_heads * context.comm.rank // ranks
        part = slice(first, first + self.kv_heads)
        self.key, self.value = (
            weights.normal(
                f"{path}.{name}",
                (gqa.kv_heads, gqa.head_dim, hidden),
                std=hidden**-0.5,
                split=0,
                part=part,
            ).flatten(0, 1)
            for name in ("k_proj", "v_proj")
        )
        self.o = weights.linear(f"{path}.o_proj", hidden, gqa.heads * gqa.head_dim, gain=gain, split=1)

    def new_cache(self, sequences: int, capacity: int) -> GqaCache:
        """See `Block`."""
        keys, values = (
            PositionCache(
                sequences, capacity, (self.kv_heads, self.gqa.head_dim), dtype=self.dtype, device=self.device
            )
            for _ in range(2)
        )
        return GqaCache(keys=keys, values=values)

    def partial(self, x: Tensor, rows: Rows, cache: GqaCache) -> Tensor:
        """See `Block`."""
        query, key = (self._heads(F.linear(x, weight), rows) for weight in (self.query, self.key))
        if self.gqa.rope:
            cos, sin = rows.rotation(self.gqa.head_dim, self.theta, x.dtype)
            query, key = (rotate(heads, cos[:, :, None], sin[:, :, None]) for heads in (query, key))
        keys = cache.keys.append(key, rows)
        values = cache.values.append(self._heads(F.linear(x, self.value), rows), rows)

        # [c, q, kv, g, d] → [c, kv, q·g, d]: the queries that share a key/value head side by side
        query = query.view(*query.shape[:2], self.kv_heads, -1, query.shape[-1]).transpose(1, 2).flatten(2, 3)
        shape = (rows.sequences, self.kv_heads, rows.per_sequence, self.heads // self.kv_heads, -1)
        scores = torch.matmul(query, keys.permute(0, 2, 3, 1)).view(shape).to(wide_dtype(x.dtype))
        scores = scores.mul_(self.gqa.head_dim**-0.5)
        attention = scores.masked_fill_(rows.hidden[:, None, :, None], -torch.inf).softmax(-1)
        attended = torch.matmul(attention.to(x.dtype).flatten(2, 3), values.transpose(1, 2))
        attended = attended.view(shape).transpose(1, 2)
        return F.linear(attended.reshape(x.shape[0], -1), self.o)

    def _heads(self, x: Tensor, rows: Rows) -> Tensor:
        return x.view(rows.sequences, rows.per_sequence, -1, self.gqa.head_dim)
