"""Seeded weights, generated shard by shard, so that every tensor-parallel size computes the same function.

A tensor is defined by the seed, its name, its full shape and its distribution, never by the number of ranks: it is drawn in
blocks along the dimension that tensor parallelism splits, each block from a generator of its own. A rank draws only the blocks
that its shard touches. Values are drawn in fp32 and then cast, so that all dtypes share them.

Values are the same for one kind of device; CPU and CUDA generators differ from each other.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

BLOCKS = 16
"""Blocks along the split dimension: up to this TP size a rank draws nothing that it throws away."""

NORM_SPREAD = 0.02
"""Standard deviation of norm weights around one: enough that a norm applied twice, or not at all, changes the output."""


class Weights:
    """Draws this rank's shard of named tensors."""

    def __init__(
        self,
        *,
        seed: int,
        rank: int = 0,
        size: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.seed = seed
        self.rank = rank
        self.size = size
        self.dtype = dtype
        self.device = torch.device(device)

    @property
    def wide_dtype(self) -> torch.dtype:
        """The dtype of what is kept in fp32 at least: router scores, recurrent states, softmax."""
        return wide_dtype(self.dtype)

    def normal(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        std: float,
        mean: float = 0.0,
        split: int | None = None,
        part: slice | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Normally distributed values of the tensor `name`, whose full shape is `shape`.

        Args:
            name: identifies the tensor; two tensors of one name and shape are equal.
            shape: full shape, over all ranks.
            std: standard deviation.
            mean: mean.
            split: dimension that is divided over the ranks; None: every rank gets the whole tensor.
            part: what this rank gets along `split`, where that is not its 1/size.
            dtype: of the result; the model's by default.

        Returns:
            `shape`, with `part` of dimension `split`.
        """
        dim = split or 0
        if part is None:
            part = slice(0, shape[dim]) if split is None else self.share(shape[dim])
        step = -(-shape[dim] // BLOCKS)
        pieces = [
            self._block(name, shape, dim, start, min(step, shape[dim] - start))[
                (slice(None),) * dim + (slice(max(part.start - start, 0), part.stop - start),)
            ]
            for start in range(part.start // step * step, part.stop, step)
        ]
        return torch.cat(pieces, dim).mul_(std).add_(mean).to(dtype or self.dtype)

    def linear(
        self, name: str, outputs: int, inputs: int, *, gain: float = 1.0, split: int | None = None
    ) -> Tensor:
        """A projection `[outputs, inputs]` that multiplies the size of its input by about `gain`."""
        return self.normal(name, (outputs, inputs), std=gain / inputs**0.5, split=split)

    def norm(self, name: str, size: int, *, split: int | None = None) -> Tensor:
        """Weight of a norm: `[size]`, spread around one."""
        return self.normal(name, (size,), std=NORM_SPREAD, mean=1.0, split=split)

    def share(self, length: int) -> slice:
        """This rank's part of a dimension that is divided evenly."""
        return slice(length * self.rank // self.size, length * (self.rank + 1) // self.size)

    def _block(self, name: str, shape: tuple[int, ...], dim: int, start: int, length: int) -> Tensor:
        text = f"{self.seed}/{name}/{'x'.join(map(str, shape))}/{dim}/{start}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        generator = torch.Generator(device=self.device).manual_seed(int.from_bytes(digest, "little") >> 1)
        block_shape = (*shape[:dim], length, *shape[dim + 1 :])
        return torch.randn(block_shape, generator=generator, device=self.device, dtype=torch.float32)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32
