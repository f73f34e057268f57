"""The one seam through which every collective of the reference engine goes.

`Communicator` checks nothing about the model: it performs a collective through its backend and, with one call, annotates it
(kind, site, phase, shape, dtype, payload bytes, group, implementation) for NVTX and the torch profiler. What it writes is what
was performed, so an arm that asked for a fused kernel and did not get one shows as such.

Backends implement `Backend`: shared memory on one CPU host, gloo, NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from mtpprof import ranges
from mtpprof.models.traffic import Kind, payload_bytes

DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int64: "int64",
    torch.int32: "int32",
}

Annotate = Callable[[str], AbstractContextManager[object]]
"""Opens a range of the given name around a block of code."""


def no_annotation(name: str) -> AbstractContextManager[object]:
    """The `Annotate` that does nothing."""
    return nullcontext()


class Backend(Protocol):
    """How collectives are carried out. All tensors are contiguous and of one shape and dtype over the ranks."""

    rank: int
    size: int

    def implementation(self, kind: Kind, tensor: Tensor) -> str:
        """Name of what will run for this call, e.g. `shm_oneshot`, `gloo`, `nccl`."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum over the ranks, in a new tensor, to the same bits on every rank."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, in rank order."""

    def fused_norm_implementation(self, tensor: Tensor) -> str | None:
        """Name of the kernel that fuses all-reduce, residual add and RMSNorm for this tensor; None: not available."""

    def all_reduce_residual_norm(
        self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> Tensor:
        """`rmsnorm(residual + sum of tensor over the ranks) * weight`. One kernel, one pass; nothing else is written."""

    def close(self) -> None:
        """Release what the backend holds; idempotent."""


class Communicator:
    """A tensor-parallel group: performs collectives and says what it performed."""

    def __init__(self, backend: Backend, *, group: str = "tp", annotate: Annotate = no_annotation) -> None:
        self.backend = backend
        self.rank = backend.rank
        self.size = backend.size
        self.group = group
        self.annotate = annotate
        self.current_phase = "none"
        self._sequence = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside belongs to phase `name`: `prefill`, `target`, `draft[k]` or `sample`."""
        outer, self.current_phase = self.current_phase, name
        try:
            with self.annotate(ranges.phase_name(name)):
                yield
        finally:
            self.current_phase = outer

    def all_reduce(self, tensor: Tensor, *, site: str) -> Tensor:
        """Sum of `tensor` over the ranks. At size 1 the tensor itself, and no collective."""
        if self.size == 1:
            return tensor
        tensor = tensor.contiguous()
        with self._range(Kind.ALL_REDUCE, site, tensor, self.backend.implementation(Kind.ALL_REDUCE, tensor)):
            return self.backend.all_reduce(tensor)

    def all_gather(self, tensor: Tensor, *, site: str, dim: int = -1) -> Tensor:
        """The ranks' tensors concatenated along `dim`. At size 1 the tensor itself, and no collective.

        The concatenation into the wanted layout is outside the collective's range: it is a cost of its own.
        """
        if self.size == 1:
            return tensor
        tensor = tensor.contiguous()
        with self._range(Kind.ALL_GATHER, site, tensor, self.backend.implementation(Kind.ALL_GATHER, tensor)):
            shards = self.backend.all_gather(tensor)
        return torch.cat(shards, dim=dim)

    def all_reduce_residual_norm(
        self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float, *, site: str
    ) -> Tensor | None:
        """All-reduce + residual add + RMSNorm in one kernel; None where the backend has none for this tensor.

        For the last norm of a stack, after which nobody needs the residual. The caller falls back to the separate operations on None;
        the trace then shows a plain all-reduce.
        """
        if self.size == 1:
            return None
        tensor = tensor.contiguous()
        implementation = self.backend.fused_norm_implementation(tensor)
        if implementation is None:
            return None
        with self._range(Kind.ALL_REDUCE, site, tensor, implementation, fused="residual_rmsnorm"):
            return self.backend.all_reduce_residual_norm(tensor, residual, weight, eps)

    def close(self) -> None:
        """Release the backend."""
        self.backend.close()

    def _range(
        self, kind: Kind, site: str, tensor: Tensor, implementation: str, fused: str = ""
    ) -> AbstractContextManager[object]:
        sequence, self._sequence = self._sequence, self._sequence + 1
        if self.annotate is no_annotation:
            return nullcontext()
        shape = tuple(tensor.shape)
        dtype = DTYPE_NAMES[tensor.dtype]
        return self.annotate(
            ranges.CollectiveRange(
                kind=kind,
                site=site,
                phase=self.current_phase,
                shape=shape,
                dtype=dtype,
                payload_bytes=payload_bytes(kind, shape, dtype, self.size),
                group=self.group,
                group_size=self.size,
                implementation=implementation,
                sequence=sequence,
                fused=fused,
            ).name()
        )
