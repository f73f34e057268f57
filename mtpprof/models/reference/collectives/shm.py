"""Collectives over shared memory: the default transport between ranks on one CPU host.

One-shot algorithms: every rank copies its tensor into its own slot, raises its flag, waits for the others' flags and reads all
slots. A rank that raises flag *s* has finished reading the slots of call *s - 1*, so two alternating sets of slots need no second
barrier. Ranks add the slots in rank order, hence to the same bits.

All-reduces, alone or with the residual add and RMSNorm that follow, are one C kernel each (`shm_kernels`) where a compiler is there;
else the plain one is torch's operations on the slots, and there is no fused one. The all-gather is always torch's.

The flags that Python writes are plain stores and loads. That is sound only where stores become visible in program order (x86-64);
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
from mtpprof.models.reference.collectives.shm_kernels import Call, Kernels, absent
from mtpprof.models.reference.collectives.shm_limits import FLAG_BYTES, SHM_DIR, segment_bytes, slot_bytes
from mtpprof.models.traffic import Kind

SPINS_PER_CLOCK_READ = 256
PLAIN, FUSED = "shm_oneshot", "shm_oneshot_fused"


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

    def __init__(
        self,
        path: Path,
        rank: int,
        size: int,
        capacity_bytes: int,
        timeout_s: float,
        kernels: Kernels | None = None,
    ) -> None:
        """Map the segment.

        Args:
            path: Of the segment.
            rank: Of this process in the group.
            size: Ranks of the group.
            capacity_bytes: Size of the largest tensor, as given to `create_segment`.
            timeout_s: How long to wait for another rank.
            kernels: The compiled all-reduces; None: there are none. All ranks must have them or none, since they add in another order.
        """
        self.rank = rank
        self.size = size
        self._kernels = kernels
        self._timeout_s = timeout_s
        self._slot_bytes = slot_bytes(capacity_bytes)
        fd = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(fd, segment_bytes(size, capacity_bytes))
        finally:
            os.close(fd)
        self._flags = memoryview(self._map)[: size * FLAG_BYTES].cast("q")
        self._slots = torch.frombuffer(self._map, dtype=torch.uint8, offset=size * FLAG_BYTES)
        self._address = self._slots.data_ptr() - size * FLAG_BYTES
        self._views: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
        self._sequence = 0

    def implementation(self, kind: Kind, tensor: Tensor) -> str:
        """See `Backend`."""
        return PLAIN

    def fused_norm_implementation(self, tensor: Tensor) -> str | None:
        """See `Backend`."""
        return FUSED if self._kernels is not None and self._kernels.take(tensor) else None

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See `Backend`."""
        if self._kernels is not None and self._kernels.take(tensor):
            return self._kernels.all_reduce(self._next_call(tensor), tensor)
        return _sum_partials(self._exchange(tensor))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `Backend`. The tensors are copies: the slots are reused."""
        return list(self._exchange(tensor).clone().unbind(0))

    def all_reduce_residual_norm(
        self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> Tensor:
        """See `Backend`."""
        assert self._kernels is not None, "fused_norm_implementation is asked first"
        return self._kernels.all_reduce_residual_rmsnorm(
            self._next_call(tensor), tensor, residual, weight, eps
        )

    def close(self) -> None:
        """Drop the mapping (the kernel frees the memory with the last one)."""
        self._views.clear()
        self._slots = torch.empty(0, dtype=torch.uint8)
        self._flags.release()
        try:
            self._map.close()
        except BufferError:
            return  # a tensor handed out still views it; the mapping goes with the process

    def _next_call(self, tensor: Tensor) -> Call:
        """The place of the next collective in the segment, for the kernels."""
        self._check_size(tensor)
        self._sequence += 1
        slots = self.size * FLAG_BYTES + self._sequence % 2 * self.size * self._slot_bytes
        return Call(
            flags=self._address,
            slots=self._address + slots,
            slot_bytes=self._slot_bytes,
            rank=self.rank,
            ranks=self.size,
            sequence=self._sequence,
            timeout_s=self._timeout_s,
        )

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
            self._check_size(tensor)
            span = self.size * self._slot_bytes
            slots = self._slots[parity * span : (parity + 1) * span].view(self.size, self._slot_bytes)
            view = slots[:, : tensor.nbytes].view(tensor.dtype).view(self.size, *tensor.shape)
            self._views[key] = view
        return view

    def _check_size(self, tensor: Tensor) -> None:
        if tensor.nbytes > self._slot_bytes:
            raise RunError(
                f"rank {self.rank}: a collective of {tensor.nbytes} bytes exceeds the shared-memory slots of "
                f"{self._slot_bytes} bytes; use --transport gloo."
            )

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
                        raise absent(peer, sequence, self._timeout_s, self.rank)


def _sum_partials(parts: Tensor) -> Tensor:
    """Sum over dimension 0, accumulated in fp32 at least, rounded once."""
    if parts.dtype in (torch.bfloat16, torch.float16):
        return parts.sum(0, dtype=torch.float32).to(parts.dtype)
    return parts.sum(0)
