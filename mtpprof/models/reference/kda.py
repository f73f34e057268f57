"""Kimi delta attention (Kimi Linear, arXiv 2510.26692), block `K`: linear attention by a gated delta rule.

Per head, with keys and queries normalised to length one:

    S ← diag(α) S;   S ← S + β k (v - Sᵀk)ᵀ;   o = Sᵀq

α is a decay per key channel, β a write strength per head, both computed from the input; the output passes a gated norm. Written
as that recurrence, position by position, in fp32: the reference engine decodes few positions at a time. Heads are divided over the
ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof.models.ledger import BLOCK_SITES
from mtpprof.models.reference.block import Block, Context, Rows
from mtpprof.models.reference.layers import Norm
from mtpprof.models.reference.recurrent import RecurrentCache, short_convolution
from mtpprof.models.spec import KdaSpec


class KdaBlock(Block[RecurrentCache]):
    """Block `K`."""

    def __init__(self, context: Context, path: str) -> None:
        super().__init__(context)
        spec, weights = context.spec, context.weights
        assert spec.kda is not None, "a model with block K has KDA dimensions"
        kda: KdaSpec = spec.kda
        self.kda = kda
        self.heads = kda.heads // context.comm.size
        self.dtype, self.wide, self.device = weights.dtype, weights.wide_dtype, weights.device
        self.site = f"{path}.{BLOCK_SITES['K']}"
        path = f"{path}.kda"

        hidden, width = spec.hidden_size, kda.heads * kda.head_dim
        names = ("q", "k", "v")
        self.qkv = torch.cat(
            [weights.linear(f"{path}.{name}_proj", width, hidden, split=0) for name in names]
        )
        self.filters = torch.cat(
            [
                weights.normal(
                    f"{path}.{name}_conv", (width, kda.conv_kernel), std=kda.conv_kernel**-0.5, split=0
                )
                for name in names
            ]
        )
        self.decay_a = weights.linear(f"{path}.f_a_proj", kda.head_dim, hidden)
        self.decay_b = weights.linear(f"{path}.f_b_proj", width, kda.head_dim, split=0)
        self.decay_log = weights.normal(
            f"{path}.A_log", (kda.heads,), mean=1.4, std=0.7, split=0, dtype=self.wide
        )
        self.decay_bias = weights.normal(
            f"{path}.dt_bias", (width,), mean=-4.0, std=1.0, split=0, dtype=self.wide
        )
        self.strength = weights.linear(f"{path}.b_proj", kda.heads, hidden, split=0)
        self.gate_a = weights.linear(f"{path}.g_a_proj", kda.head_dim, hidden)
        self.gate_b = weights.linear(f"{path}.g_b_proj", width, kda.head_dim, split=0)
        self.norm = Norm(weights, f"{path}.o_norm", kda.head_dim, spec.norm_eps)
        self.o = weights.linear(f"{path}.o_proj", hidden, width, gain=context.branch_gain, split=1)

    def new_cache(self, sequences: int, capacity: int) -> RecurrentCache:
        """See `Block`; `capacity` costs nothing."""
        size = self.kda.head_dim
        return RecurrentCache(
            sequences,
            channels=3 * self.heads * size,
            kernel=self.kda.conv_kernel,
            state_shape=(self.heads, size, size),
            dtype=self.dtype,
            state_dtype=self.wide,
            device=self.device,
        )

    def partial(self, x: Tensor, rows: Rows, cache: RecurrentCache) -> Tensor:
        """See `Block`."""
        shape = (rows.sequences, rows.per_sequence, self.heads, -1)
        qkv = short_convolution(F.linear(x, self.qkv), self.filters, None, rows, cache)
        query, key, value = (part.view(shape) for part in qkv.to(self.wide).chunk(3, dim=-1))
        query = F.normalize(query, dim=-1) * self.kda.head_dim**-0.5
        key = F.normalize(key, dim=-1)
        decay = F.linear(F.linear(x, self.decay_a), self.decay_b).to(self.wide)
        decay = F.softplus(decay + self.decay_bias).view(shape) * -self.decay_log.exp()[:, None]
        strength = F.linear(x, self.strength).to(self.wide).sigmoid().view(shape)

        outputs, states = delta_rule(
            query, key, value, decay.exp(), strength, cache.state, keep_states=rows.keep_states
        )
        cache.keep(states)
        gate = F.linear(F.linear(x, self.gate_a), self.gate_b).sigmoid().view(shape)
        gated = self.norm(outputs).to(self.dtype) * gate
        return F.linear(gated.view(x.shape[0], -1), self.o)


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    strength: Tensor,
    state: Tensor,
    *,
    keep_states: bool,
) -> tuple[Tensor, Tensor]:
    """The recurrence in the module's docstring.

    Args:
        query: `[sequences, rows, heads, dim]`, as are key, value and decay.
        key: of length one.
        value: what is written.
        decay: factor of each key channel, 0 to 1.
        strength: `[sequences, rows, heads, 1]`, 0 to 1.
        state: `[sequences, heads, dim (key), dim (value)]` before the first row.
        keep_states: return the state after every row, not after the last only.

    Returns:
        Outputs like `query`, and states `[sequences, rows or 1, heads, dim, dim]`.
    """
    outputs, states = [], []
    for row in range(query.shape[1]):
        state = state * decay[:, row, :, :, None]
        row_key = key[:, row, :, :, None]
        known = torch.matmul(row_key.transpose(-1, -2), state)
        state = state + row_key * (strength[:, row, :, :, None] * (value[:, row, :, None] - known))
        outputs.append(torch.matmul(query[:, row, :, None], state)[..., 0, :])
        if keep_states:
            states.append(state)
    return torch.stack(outputs, 1), torch.stack(states, 1) if keep_states else state[:, None]
