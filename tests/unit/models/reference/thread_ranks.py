"""Tensor-parallel ranks as threads of the test's own process: real collectives over plain lists, no launcher, no sockets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from mtpprof.models.reference.collectives.comm import Communicator
from mtpprof.models.reference.norm import rms_norm
from mtpprof.models.traffic import Kind
from mtpprof.ranges import CollectiveRange, parse_collective

T = TypeVar("T")
TIMEOUT_S = 60.0


class Exchange:
    """Where the ranks of one group meet."""

    def __init__(self, size: int) -> None:
        self.slots: list[Tensor] = [torch.empty(0)] * size
        self.barrier = Barrier(size, timeout=TIMEOUT_S)


class ThreadBackend:
    """`Backend` whose ranks are threads. `fused` offers the fused all-reduce + residual + RMSNorm."""

    def __init__(self, exchange: Exchange, rank: int, *, fused: bool) -> None:
        self.rank = rank
        self.size = len(exchange.slots)
        self.fused = fused
        self._exchange = exchange

    def implementation(self, kind: Kind, tensor: Tensor) -> str:
        return "threads"

    def all_reduce(self, tensor: Tensor) -> Tensor:
        parts = torch.stack(self.all_gather(tensor))
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        return parts.sum(0, dtype=wide).to(tensor.dtype)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        self._exchange.slots[self.rank] = tensor
        self._exchange.barrier.wait()
        parts = list(self._exchange.slots)
        self._exchange.barrier.wait()
        return parts

    def fused_norm_implementation(self, tensor: Tensor) -> str | None:
        return "threads_fused" if self.fused else None

    def all_reduce_residual_norm(
        self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> Tensor:
        return rms_norm(residual + self.all_reduce(tensor), weight, eps)

    def close(self) -> None:
        self._exchange.barrier.abort()


@dataclass(slots=True)
class Recorder:
    """An `Annotate` that notes the collectives and phases it is called with."""

    names: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> AbstractContextManager[object]:
        self.names.append(name)
        return nullcontext()

    def collectives(self) -> list[CollectiveRange]:
        return [found for name in self.names if (found := parse_collective(name)) is not None]


def run_ranks(size: int, work: Callable[[Communicator], T], *, fused: bool = False) -> list[T]:
    """What `work` returns on each of `size` ranks. One rank's error frees the others and is raised."""
    exchange = Exchange(size)

    def rank_main(rank: int) -> T:
        torch.set_num_threads(1)
        try:
            return work(Communicator(ThreadBackend(exchange, rank, fused=fused)))
        except BaseException:
            exchange.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(rank_main, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: type(error).__name__ == "BrokenBarrierError"):
        raise error
    return [future.result() for future in futures]


def solo() -> Communicator:
    """The only rank of a group of one."""
    return Communicator(ThreadBackend(Exchange(1), 0, fused=False))
