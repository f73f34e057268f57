"""The dense MLP, also used as the shared expert of a mixture of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof.models.ledger import BLOCK_SITES
from mtpprof.models.reference.block import Block, Cache, Context, Rows
from mtpprof.models.reference.layers import ACTIVATION_SIZE, activate
from mtpprof.models.reference.weights import Weights
from mtpprof.models.spec import Activation


class FeedForward:
    """Column-parallel up projection(s), activation, row-parallel down projection without its all-reduce."""

    def __init__(
        self, weights: Weights, path: str, hidden_size: int, size: int, activation: Activation, gain: float
    ) -> None:
        names = ("gate", "up") if activation is Activation.SILU_GATED else ("up",)
        self.up = torch.cat(
            [weights.linear(f"{path}.{name}_proj", size, hidden_size, split=0) for name in names]
        )
        gain /= ACTIVATION_SIZE[activation]
        self.down = weights.linear(f"{path}.down_proj", hidden_size, size, gain=gain, split=1)
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """This rank's summand: `[rows, hidden]` to the same shape."""
        return F.linear(activate(F.linear(x, self.up), self.activation), self.down)


class MlpBlock(Block[Cache]):
    """Block `D`."""

    def __init__(self, context: Context, path: str) -> None:
        super().__init__(context)
        spec = context.spec
        self.site = f"{path}.{BLOCK_SITES['D']}"
        self.feed_forward = FeedForward(
            context.weights,
            f"{path}.mlp",
            spec.hidden_size,
            spec.dense_intermediate_size,
            spec.dense_activation,
            context.branch_gain,
        )

    def new_cache(self, sequences: int, capacity: int) -> Cache:
        """Remembers nothing."""
        return Cache()

    def partial(self, x: Tensor, rows: Rows, cache: Cache) -> Tensor:
        """See `Block`."""
        return self.feed_forward(x)
