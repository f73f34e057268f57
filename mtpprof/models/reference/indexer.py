"""DeepSeek sparse attention's indexer: a small attention that picks the keys which the real attention may see.

After DeepSeek-V3.2's report and its published inference code: `score(t, s) = Σ_h w_h(t) · relu(q_h(t) · k(s))`, the `top_k` best
keys of each row. The Hadamard rotation and FP8 quantization of the published kernels change precision, not structure, and are
left out. Every rank computes all of it, so it issues no collective and all ranks pick the same keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof.models.reference.block import PositionCache, Rows
from mtpprof.models.reference.layers import rotate
from mtpprof.models.reference.weights import Weights
from mtpprof.models.spec import IndexerSpec


class Indexer:
    """Chooses up to `top_k` keys for each row."""

    def __init__(
        self,
        weights: Weights,
        path: str,
        spec: IndexerSpec,
        *,
        hidden_size: int,
        query_size: int,
        rope_dim: int,
        theta: float,
    ) -> None:
        self.spec = spec
        self.rope_dim = min(rope_dim, spec.head_dim)
        self.theta = theta
        self.query = weights.linear(f"{path}.wq_b", spec.heads * spec.head_dim, query_size)
        self.key = weights.linear(f"{path}.wk", spec.head_dim, hidden_size)
        self.key_norm = weights.norm(f"{path}.k_norm", spec.head_dim)
        self.key_norm_bias = weights.normal(f"{path}.k_norm.bias", (spec.head_dim,), std=0.02)
        self.head_weight = weights.linear(f"{path}.weights_proj", spec.heads, hidden_size)

    def __call__(self, x: Tensor, latent_query: Tensor, rows: Rows, cache: PositionCache) -> Tensor:
        """Which keys each row may see: bool `[sequences, per_sequence, key_length]`, a subset of the causal ones."""
        wide = cache.values.dtype
        shape = (rows.sequences, rows.per_sequence)
        key = F.layer_norm(F.linear(x, self.key), (self.spec.head_dim,), self.key_norm, self.key_norm_bias)
        keys = cache.append(self._rotate(key.view(*shape, 1, -1), rows).squeeze(2).to(wide), rows)
        query = F.linear(latent_query, self.query).view(*shape, self.spec.heads, self.spec.head_dim)
        query = self._rotate(query, rows).to(wide)
        # [c, q·h, d] @ [c, d, s]: one product for all heads, since they share the key
        scores = torch.matmul(query.flatten(1, 2), keys.transpose(1, 2)).relu_()
        head_weight = F.linear(x, self.head_weight).to(wide).view(*shape, self.spec.heads, 1)
        scores = (scores.view(*shape, self.spec.heads, -1) * head_weight).sum(2)
        return self._best(scores, rows)

    def _best(self, scores: Tensor, rows: Rows) -> Tensor:
        if rows.key_length <= self.spec.top_k:
            return rows.visible
        # A stable sort, since scores can tie at exactly 0 (no head fires): the earliest key wins on every rank and TP size.
        order = scores.masked_fill(rows.hidden, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
        chosen = torch.zeros_like(rows.visible).scatter_(-1, order[..., : self.spec.top_k], True)
        return chosen & rows.visible

    def _rotate(self, x: Tensor, rows: Rows) -> Tensor:
        if not self.rope_dim:
            return x
        cos, sin = rows.rotation(self.rope_dim, self.theta, x.dtype)
        turned = rotate(x[..., : self.rope_dim], cos[:, :, None], sin[:, :, None])
        return torch.cat([turned, x[..., self.rope_dim :]], dim=-1)
