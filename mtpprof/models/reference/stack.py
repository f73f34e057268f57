"""A stack of blocks with its final norm: the target model's body and the draft module's body.

Pre-norm with the residual stream kept apart, as vLLM runs it: each norm first adds the last block's output to the residual. The
last all-reduce, residual add and final norm can be asked of the communicator as one kernel (vLLM PR 49793).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mtpprof.models.reference.block import Block, Cache, Context, Rows
from mtpprof.models.reference.gqa import GqaBlock
from mtpprof.models.reference.kda import KdaBlock
from mtpprof.models.reference.layers import Norm
from mtpprof.models.reference.mamba import MambaBlock
from mtpprof.models.reference.mla import MlaBlock
from mtpprof.models.reference.mlp import MlpBlock
from mtpprof.models.reference.moe import MoeBlock

BLOCKS: dict[str, Callable[[Context, str], Block[Any]]] = {
    "A": MlaBlock,
    "*": GqaBlock,
    "K": KdaBlock,
    "M": MambaBlock,
    "D": MlpBlock,
    "E": MoeBlock,
}
"""Every kind of block by its letter in a spec's block string. A new kind is one class and one row here."""


class Stack:
    """Blocks, a norm before each, and the final norm."""

    def __init__(self, context: Context, blocks: str, prefix: str = "") -> None:
        spec, weights = context.spec, context.weights
        self.comm = context.comm
        self.blocks: list[Block[Any]] = []
        self.norms: list[Norm] = []
        for index, kind in enumerate(blocks):
            path = spec.block_path(index, prefix)
            self.norms.append(Norm(weights, f"{prefix}norm.{index}", spec.hidden_size, spec.norm_eps))
            self.blocks.append(BLOCKS[kind](context, path))
        self.final_norm = Norm(weights, f"{prefix}norm.final", spec.hidden_size, spec.norm_eps)

    def new_caches(self, sequences: int, capacity: int) -> list[Cache]:
        """One cache per block."""
        return [block.new_cache(sequences, capacity) for block in self.blocks]

    def __call__(self, x: Tensor, rows: Rows, caches: list[Cache], *, fuse_last: bool = False) -> Tensor:
        """Hidden states after the final norm: `[rows, hidden]` to the same shape.

        Args:
            x: input of the first block.
            rows: which rows these are.
            caches: from `new_caches`.
            fuse_last: ask for the last all-reduce, residual add and final norm in one kernel.
        """
        residual = x
        x = self.norms[0](x)
        for block, cache, norm in zip(self.blocks[:-1], caches[:-1], self.norms[1:], strict=True):
            x, residual = norm.after_add(block(x, rows, cache), residual)
        return self._last(x, residual, rows, caches[-1], fuse=fuse_last)

    def _last(self, x: Tensor, residual: Tensor, rows: Rows, cache: Cache, *, fuse: bool) -> Tensor:
        block, norm = self.blocks[-1], self.final_norm
        if not (fuse and block.ends_in_one_sum):
            return norm.after_add(block(x, rows, cache), residual)[0]
        partial = block.partial(x, rows, cache)
        fused = self.comm.all_reduce_residual_norm(partial, residual, norm.weight, norm.eps, site=block.site)
        if fused is not None:
            return fused
        return norm.after_add(self.comm.all_reduce(partial, site=block.site), residual)[0]
