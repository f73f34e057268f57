"""Collectives over shared memory: the default transport between ranks on one CPU host.

One-shot algorithms: every rank copies its tensor into its own slot, raises its flag, waits for the others' flags and reads all
slots. A rank that raises flag *s* has finished reading the slots of call *s - 1*, so two alternating sets of slots need no second
barrier. Ranks add the slots in rank order, hence to the same bits.

The flags are plain stores and loads from Python. That is sound only where stores become visible in program order (x86-64);
`shm_limits.available()` says no elsewhere, and gloo is used. Waiting yields the core, since ranks can outnumber cores.

The segment is unlinked as soon as every rank has mapped it: whatever kills the ranks afterwards, nothing is left behind.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import torch
from torch import Tensor

from mtpprof.errors import MissingEnvironmentError, RunError
from mtpprof.models.reference.norm import rms_norm
from mtpprof.models.reference.shm_limits import FLAG_BYTES, SHM_DIR, segment_bytes, slot_bytes
from mtpprof.models.traffic import Kind

SPINS_PER_CLOCK_READ = 256
BLOCK_BYTES = 128 * 1024  # of partial sums handled at once by the fused form; stays in a core's L2 cache


def create_segment(name: str, ranks: int, capacity_bytes: int) -> Path:
    """Reserve a segment under `/dev/shm`, zero-filled.

    Raises:
        MissingEnvironmentError: the file system has not enough room. Reserving now turns what would be a SIGBUS in the middle
            of a run into this sentence.
    """
    path = SHM_DIR / name
    size = segment_bytes(ranks, capacity_bytes)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise MissingEnvironmentError(
            f"{SHM_DIR}: cannot reserve {size} bytes of shared memory for {ranks} ranks ({error.strerror}); "
            f"enlarge it or use --transport gloo."
        ) from error
    finally:
        os.close(fd)
    return path


class SharedMemoryBackend:
    """`Backend` over a segment made by `create_segment`."""

    def __init__(self, path: Path, rank: int, size: int, capacity_bytes: int, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        self._slot_bytes = slot_bytes(capacity_bytes)
        fd = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(fd, segment_bytes(size, capacity_bytes))
        finally:
            os.close(fd)
        self._flags = memoryview(self._map)[: size * FLAG_BYTES].cast("q")
        self._slots = torch.frombuffer(self._map, dtype=torch.uint8, offset=size * FLAG_BYTES)
        self._views: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
        self._sequence = 0

    def implementation(self, kind: Kind, tensor: Tensor) -> str:
        """See `Backend`."""
        return "shm_oneshot"

    def fused_norm_implementation(self, tensor: Tensor) -> str | None:
        """See `Backend`."""
        return "shm_oneshot_fused"

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See `Backend`."""
        return _sum_partials(self._exchange(tensor))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `Backend`. The tensors are copies: the slots are reused."""
        return list(self._exchange(tensor).clone().unbind(0))

    def all_reduce_residual_norm(
        self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `Backend`. Block by block: each block's sum is still in cache when the residual and the norm are applied."""
        parts = self._exchange(tensor)
        normed, new_residual = torch.empty_like(tensor), torch.empty_like(tensor)
        row_bytes = tensor[0].numel() * tensor.element_size() * self.size
        rows = max(1, BLOCK_BYTES // row_bytes)
        for start in range(0, tensor.shape[0], rows):
            block = slice(start, start + rows)
            new_residual[block] = _sum_partials(parts[:, block]) + residual[block]
            normed[block] = rms_norm(new_residual[block], weight, eps)
        return normed, new_residual

    def close(self) -> None:
        """Drop the mapping (the kernel frees the memory with the last one)."""
        self._views.clear()
        self._slots = torch.empty(0, dtype=torch.uint8)
        self._flags.release()
        try:
            self._map.close()
        except BufferError:
            return  # a tensor handed out still views it; the mapping goes with the process

    def _exchange(self, tensor: Tensor) -> Tensor:
        """Publish `tensor`, wait for everybody's, return a view of all of them: `[ranks, *tensor.shape]`."""
        self._sequence += 1
        parts = self._view(self._sequence % 2, tensor)
        parts[self.rank].copy_(tensor)
        self._flags[self.rank * FLAG_BYTES // 8] = self._sequence
        self._wait(self._sequence)
        return parts

    def _view(self, parity: int, tensor: Tensor) -> Tensor:
        key = (parity, tensor.shape, tensor.dtype)
        view = self._views.get(key)
        if view is None:
            if tensor.nbytes > self._slot_bytes:
                raise RunError(
                    f"rank {self.rank}: a collective of {tensor.nbytes} bytes exceeds the shared-memory slots of "
                    f"{self._slot_bytes} bytes; use --transport gloo."
                )
            span = self.size * self._slot_bytes
            slots = self._slots[parity * span : (parity + 1) * span].view(self.size, self._slot_bytes)
            view = slots[:, : tensor.nbytes].view(tensor.dtype).view(self.size, *tensor.shape)
            self._views[key] = view
        return view

    def _wait(self, sequence: int) -> None:
        flags, stride = self._flags, FLAG_BYTES // 8
        deadline_s = 0.0
        for peer in range(self.size):
            spins = 0
            while flags[peer * stride] < sequence:
                os.sched_yield()
                spins += 1
                if spins % SPINS_PER_CLOCK_READ == 0:
                    now_s = time.monotonic()
                    deadline_s = deadline_s or now_s + self._timeout_s
                    if now_s > deadline_s:
                        raise RunError(
                            f"rank {peer} did not arrive at collective {sequence} within {self._timeout_s:g} s "
                            f"(seen by rank {self.rank}); see its log, or raise --timeout."
                        )


def _sum_partials(parts: Tensor) -> Tensor:
    """Sum over dimension 0, accumulated in fp32 at least, rounded once."""
    if parts.dtype in (torch.bfloat16, torch.float16):
        return parts.sum(0, dtype=torch.float32).to(parts.dtype)
    return parts.sum(0)
