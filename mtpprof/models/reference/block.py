"""What every block is: a residual branch whose output each rank computes a summand of, plus what it remembers between passes.

The split into `partial` (this rank's summand) and the all-reduce is the seam that fused kernels need: whoever runs a block may
take the summand and do the reduction differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from mtpprof.models.reference.collectives.comm import Communicator
from mtpprof.models.reference.layers import rotation
from mtpprof.models.reference.switches import Switches
from mtpprof.models.reference.weights import Weights, wide_dtype
from mtpprof.models.spec import ModelSpec

KEY_BLOCK = 64


def padded_length(length: int) -> int:
    """A number of cached positions, rounded up so that few different ones occur.

    Matrix libraries prepare a kernel for each new shape: a bf16 product over one key more than last time takes 1 ms instead of
    0.04 ms on a CPU, so growing the keys by one position a step would swamp every other cost.
    """
    return -(-length // KEY_BLOCK) * KEY_BLOCK


class Rows:
    """The rows of one forward pass: the same number of consecutive positions of each sequence.

    What all blocks of a pass need alike (which keys a row may see, rotary angles) is computed once, here.
    """

    def __init__(self, positions: Tensor, *, key_length: int, keep_states: bool = True) -> None:
        self.positions = positions
        """`[sequences, per_sequence]`, int64."""
        self.sequences, self.per_sequence = positions.shape
        self.key_length = padded_length(key_length)
        """All positions are below this; known on the host, so that no pass waits for the device."""
        self.keep_states = keep_states
        """Recurrent blocks keep their state after each row, so that any may be committed; else after the last only."""
        self._rotations: dict[tuple[int, float, torch.dtype], tuple[Tensor, Tensor]] = {}

    @cached_property
    def visible(self) -> Tensor:
        """Which keys each row may see, causally: bool `[sequences, per_sequence, key_length]`."""
        keys = torch.arange(self.key_length, device=self.positions.device)
        return keys <= self.positions[..., None]

    @cached_property
    def hidden(self) -> Tensor:
        """The complement of `visible`."""
        return ~self.visible

    @cached_property
    def sequence_index(self) -> Tensor:
        """`[sequences, 1]`: pairs with `positions` to index a cache."""
        return torch.arange(self.sequences, device=self.positions.device)[:, None]

    def rotation(self, size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rotary cosines and sines of the rows, `[sequences, per_sequence, size / 2]` each."""
        key = (size, theta, wide_dtype(dtype))
        if key not in self._rotations:
            self._rotations[key] = rotation(self.positions, size, theta, wide_dtype(dtype))
        return self._rotations[key]


class Cache:
    """What a block remembers of its sequences; this one, nothing."""

    def reset(self) -> None:
        """Forget all sequences."""

    def commit(self, index: Tensor) -> None:
        """Of the rows just computed, those up to `index` `[sequences]` are part of the sequence; the others never were."""


class PositionCache(Cache):
    """Values by position, `[sequences, capacity, *shape]`.

    Needs no rollback: a row sees only positions up to its own, and rejected positions are written again before they are seen.
    """

    def __init__(
        self,
        sequences: int,
        capacity: int,
        shape: tuple[int, ...],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.values = torch.zeros((sequences, padded_length(capacity), *shape), dtype=dtype, device=device)

    def append(self, values: Tensor, rows: Rows) -> Tensor:
        """Store `[sequences, per_sequence, *shape]` and return all keys of the pass, `[sequences, key_length, *shape]`."""
        self.values[rows.sequence_index, rows.positions] = values
        return self.values[:, : rows.key_length]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What blocks are built from."""

    spec: ModelSpec
    comm: Communicator
    weights: Weights
    switches: Switches
    branch_gain: float
    """Size of a block's output relative to the residual stream; see `model.py`."""


CacheT = TypeVar("CacheT", bound=Cache)


class Block(ABC, Generic[CacheT]):
    """One residual branch, tensor-parallel. Reads a normalised `[rows, hidden]`, returns what is added to the residual."""

    site: str
    """Where its last all-reduce is, e.g. `layers.3.moe.final`."""

    def __init__(self, context: Context) -> None:
        self.comm = context.comm
        self.switches = context.switches

    @abstractmethod
    def new_cache(self, sequences: int, capacity: int) -> CacheT:
        """Room for `sequences` sequences of up to `capacity` positions."""

    @abstractmethod
    def partial(self, x: Tensor, rows: Rows, cache: CacheT) -> Tensor:
        """This rank's summand of the output: `[rows, hidden]` to the same shape."""

    @property
    def ends_in_one_sum(self) -> bool:
        """Whether the output is the sum of the ranks' `partial`, and of nothing else."""
        return True

    def __call__(self, x: Tensor, rows: Rows, cache: CacheT) -> Tensor:
        """The output, equal on all ranks."""
        return self.comm.all_reduce(self.partial(x, rows, cache), site=self.site)
