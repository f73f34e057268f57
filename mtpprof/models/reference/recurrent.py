"""What recurrent blocks (Kimi delta attention, Mamba-2) share: a short causal convolution, and a cache that can go back.

A verification step computes several positions of which only some are accepted. Unlike keys and values, a recurrent state cannot
be shortened afterwards, so a pass keeps the state after every row until `commit` says which row was the last accepted one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof.models.reference.block import Cache, Rows


class RecurrentCache(Cache):
    """The last inputs of the convolution, `[sequences, kernel - 1, channels]`, and a state `[sequences, *shape]`."""

    def __init__(
        self,
        sequences: int,
        *,
        channels: int,
        kernel: int,
        state_shape: tuple[int, ...],
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.inputs = torch.zeros((sequences, kernel - 1, channels), dtype=dtype, device=device)
        self.state = torch.zeros((sequences, *state_shape), dtype=state_dtype, device=device)
        self._recent = self.inputs
        self._states = self.state[:, None]

    def reset(self) -> None:
        """See `Cache`."""
        self.inputs = torch.zeros_like(self.inputs)
        self.state = torch.zeros_like(self.state)

    def with_inputs(self, x: Tensor) -> Tensor:
        """`x` `[sequences, rows, channels]` after the last committed inputs: `[sequences, kernel - 1 + rows, channels]`."""
        self._recent = torch.cat([self.inputs, x], 1)
        return self._recent

    def keep(self, states: Tensor) -> None:
        """The state after each row of this pass, `[sequences, rows, *shape]`, or after the last one only."""
        self._states = states

    def commit(self, index: Tensor) -> None:
        """See `Cache`."""
        sequence = torch.arange(index.shape[0], device=index.device)
        window = index[:, None] + 1 + torch.arange(self.inputs.shape[1], device=index.device)
        self.inputs = self._recent[sequence[:, None], window]
        self.state = self._states[sequence, index if self._states.shape[1] > 1 else 0]


def short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows, cache: RecurrentCache
) -> Tensor:
    """Causal convolution over positions, a filter per channel, then SiLU.

    Args:
        x: `[rows, channels]`.
        weight: `[channels, kernel]`; its last tap meets the row itself.
        bias: `[channels]`.
        rows: which rows these are.
        cache: the block's, which remembers the inputs.

    Returns:
        `[sequences, per_sequence, channels]`.
    """
    recent = cache.with_inputs(x.view(rows.sequences, rows.per_sequence, -1))
    mixed = (recent.unfold(1, weight.shape[1], 1) * weight).sum(-1)
    return F.silu(mixed if bias is None else mixed + bias)
