"""Mamba-2 mixer (arXiv 2405.21060) as in Nemotron-H, block `M`.

Per head, with a scalar decay `a = exp(-A·dt)` and input and output maps B, C shared by the heads of a group:

    S ← a S + (dt·x) Bᵀ;   y = S C + D x

computed chunk by chunk in the paper's dual form (section 6), in which a chunk is a masked matrix product, in fp32. The output
passes a norm gated by z within each group. Heads and groups are divided over the ranks, so the norm needs no collective.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof.models.ledger import BLOCK_SITES
from mtpprof.models.reference.block import Block, Context, Rows
from mtpprof.models.reference.norm import rms_norm
from mtpprof.models.reference.recurrent import RecurrentCache, short_convolution
from mtpprof.models.spec import MambaSpec

CHUNK = 64


class MambaBlock(Block[RecurrentCache]):
    """Block `M`."""

    def __init__(self, context: Context, path: str) -> None:
        super().__init__(context)
        spec, weights, ranks = context.spec, context.weights, context.comm.size
        assert spec.mamba is not None, "a model with block M has Mamba dimensions"
        mamba: MambaSpec = spec.mamba
        self.mamba = mamba
        self.heads, self.groups = mamba.heads // ranks, mamba.groups // ranks
        self.dtype, self.wide, self.device = weights.dtype, weights.wide_dtype, weights.device
        self.eps = spec.norm_eps
        self.site = f"{path}.{BLOCK_SITES['M']}"
        path = f"{path}.mamba"

        hidden, width, maps = spec.hidden_size, mamba.heads * mamba.head_dim, mamba.groups * mamba.state_size
        sizes = {"z": width, "x": width, "B": maps, "C": maps, "dt": mamba.heads}
        self.split_sizes = [size // ranks for size in sizes.values()]
        self.in_proj = torch.cat(
            [weights.linear(f"{path}.in_proj.{name}", size, hidden, split=0) for name, size in sizes.items()]
        )
        convolved = [(f"{path}.conv.{name}", sizes[name]) for name in ("x", "B", "C")]
        kernel = mamba.conv_kernel
        self.filters = torch.cat(
            [weights.normal(name, (size, kernel), std=kernel**-0.5, split=0) for name, size in convolved]
        )
        self.filter_bias = torch.cat(
            [weights.normal(f"{name}.bias", (size,), std=0.1, split=0) for name, size in convolved]
        )
        self.decay_log, self.dt_bias, self.skip = (
            weights.normal(f"{path}.{name}", (mamba.heads,), mean=mean, std=std, split=0, dtype=self.wide)
            for name, mean, std in (("A_log", 1.4, 0.7), ("dt_bias", -4.0, 1.0), ("D", 1.0, 0.3))
        )
        self.norm_weight = weights.norm(f"{path}.norm", width, split=0).view(self.groups, -1)
        self.out_proj = weights.linear(f"{path}.out_proj", hidden, width, gain=context.branch_gain, split=1)

    def new_cache(self, sequences: int, capacity: int) -> RecurrentCache:
        """See `Block`; `capacity` costs nothing."""
        return RecurrentCache(
            sequences,
            channels=self.filters.shape[0],
            kernel=self.mamba.conv_kernel,
            state_shape=(self.heads, self.mamba.head_dim, self.mamba.state_size),
            dtype=self.dtype,
            state_dtype=self.wide,
            device=self.device,
        )

    def partial(self, x: Tensor, rows: Rows, cache: RecurrentCache) -> Tensor:
        """See `Block`."""
        z, *convolved, dt = torch.split(F.linear(x, self.in_proj), self.split_sizes, -1)
        mixed = short_convolution(torch.cat(convolved, -1), self.filters, self.filter_bias, rows, cache)
        inputs, into, out_of = torch.split(mixed.to(self.wide), self.split_sizes[1:4], -1)
        shape = (rows.sequences, rows.per_sequence, self.heads, -1)
        inputs = inputs.view(shape)
        dt = F.softplus(dt.to(self.wide) + self.dt_bias).view(shape)

        outputs, states = state_space_scan(
            inputs * dt,
            dt[..., 0] * -self.decay_log.exp(),
            self._per_head(into, rows),
            self._per_head(out_of, rows),
            cache.state,
            keep_states=rows.keep_states,
        )
        cache.keep(states)
        outputs = (outputs + inputs * self.skip[:, None]).view(x.shape[0], self.groups, -1)
        gated = outputs.to(self.dtype) * F.silu(z).view(outputs.shape)
        return F.linear(rms_norm(gated, self.norm_weight, self.eps).flatten(1), self.out_proj)

    def _per_head(self, x: Tensor, rows: Rows) -> Tensor:
        grouped = x.view(rows.sequences, rows.per_sequence, self.groups, 1, -1)
        return grouped.expand(-1, -1, -1, self.heads // self.groups, -1).flatten(2, 3)


def state_space_scan(
    inputs: Tensor, log_decay: Tensor, into: Tensor, out_of: Tensor, state: Tensor, *, keep_states: bool
) -> tuple[Tensor, Tensor]:
    """The recurrence in the module's docstring, without `D x`.

    Args:
        inputs: `dt·x`, `[sequences, rows, heads, dim]`.
        log_decay: logarithm of a, `[sequences, rows, heads]`, at most 0.
        into: B, `[sequences, rows, heads, state size]`.
        out_of: C, like `into`.
        state: `[sequences, heads, dim, state size]` before the first row.
        keep_states: return the state after every row, not after the last only.

    Returns:
        Outputs like `inputs`, and states `[sequences, rows or 1, heads, dim, state size]`.
    """
    outputs, states = [], []
    for start in range(0, inputs.shape[1], CHUNK):
        u, a, b, c = (
            part[:, start : start + CHUNK].transpose(1, 2) for part in (inputs, log_decay, into, out_of)
        )
        output, chunk_states = _scan_chunk(u, a, b, c, state, keep_states)
        outputs.append(output.transpose(1, 2))
        states.append(chunk_states.transpose(1, 2))
        state = chunk_states[:, :, -1]
    return torch.cat(outputs, 1), torch.cat(states, 1) if keep_states else states[-1]


def _scan_chunk(
    inputs: Tensor, log_decay: Tensor, into: Tensor, out_of: Tensor, state: Tensor, keep_states: bool
) -> tuple[Tensor, Tensor]:
    """One chunk, heads before rows: outputs `[c, heads, rows, dim]`, states `[c, heads, rows or 1, dim, state size]`."""
    total = log_decay.cumsum(-1)
    gap = total[..., :, None] - total[..., None, :]
    future = torch.ones(gap.shape[-2:], dtype=torch.bool, device=gap.device).triu(1)
    decay = gap.masked_fill(future, -torch.inf).exp()  # [c, heads, row t, row s]: what is left at t of s
    decay_before = total.exp()[..., None]

    within = torch.matmul(torch.matmul(out_of, into.transpose(-1, -2)) * decay, inputs)
    outputs = within + torch.matmul(out_of, state.transpose(-1, -2)) * decay_before

    if not keep_states:
        decay, decay_before = decay[:, :, -1:], decay_before[:, :, -1:]
    written = torch.matmul((inputs.transpose(-1, -2)[:, :, None] * decay[:, :, :, None]), into[:, :, None])
    return outputs, written + state[:, :, None] * decay_before[..., None]
