"""The shared-memory transport: sums, order, fused form, and what goes wrong."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from mtpprof.errors import MissingEnvironmentError, RunError
from mtpprof.models.reference.collectives import shm
from mtpprof.models.reference.collectives.shm_limits import SHM_DIR, available, segment_bytes
from mtpprof.models.traffic import Kind

pytestmark = pytest.mark.skipif(not available(), reason="shared memory needs Linux on x86-64 with /dev/shm")

CAPACITY = 1 << 16
RANKS = 4
T = TypeVar("T")
Ranked = Callable[[Callable[[shm.SharedMemoryBackend], T]], list[T]]


@pytest.fixture
def segment() -> Iterator[Path]:
    path = shm.create_segment(f"mtpprof-test-{os.getpid()}", RANKS, CAPACITY)
    yield path
    path.unlink(missing_ok=True)


def on_every_rank(
    segment: Path, work: Callable[[shm.SharedMemoryBackend], T], timeout_s: float = 20
) -> list[T]:
    """Run `work` on all ranks at once, in threads."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def rank(index: int) -> None:
        backend = shm.SharedMemoryBackend(segment, index, RANKS, CAPACITY, timeout_s)
        try:
            results[index] = work(backend)
        except RunError as error:
            errors.append(error)
        finally:
            backend.close()

    threads = [threading.Thread(target=rank, args=(index,)) for index in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(RANKS)]


def partial(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_all_reduce_is_the_sum_rounded_once_and_alike_on_all_ranks(segment: Path, dtype: torch.dtype) -> None:
    shape = (5, 24)
    parts = torch.stack([partial(rank, shape, dtype) for rank in range(RANKS)])
    wide = parts.double() if dtype == torch.float64 else parts.float()
    expected = wide.sum(0).to(dtype)
    results = on_every_rank(
        segment, lambda b: [b.all_reduce(partial(b.rank, shape, dtype)) for _ in range(7)]
    )
    for result in results:
        for tensor in result:
            torch.testing.assert_close(tensor, expected)
            assert torch.equal(tensor, results[0][0])


def test_all_gather_is_in_rank_order_and_outlives_the_slots(segment: Path) -> None:
    def work(backend: shm.SharedMemoryBackend) -> list[Tensor]:
        gathered = backend.all_gather(torch.full((2, 3), float(backend.rank)))
        for _ in range(4):
            backend.all_reduce(torch.zeros(2, 3))
        return gathered

    for gathered in on_every_rank(segment, work):
        assert [float(tensor[0, 0]) for tensor in gathered] == [0.0, 1.0, 2.0, 3.0]


def test_without_compiled_kernels_there_is_no_fused_form(segment: Path) -> None:
    backend = shm.SharedMemoryBackend(segment, 0, RANKS, CAPACITY, 1)
    assert backend.fused_norm_implementation(torch.zeros(2, 8)) is None


def test_shapes_and_dtypes_may_alternate(segment: Path) -> None:
    def work(backend: shm.SharedMemoryBackend) -> bool:
        good = True
        for index in range(60):
            shape = (1 + index % 5, 8 * (1 + index % 3))
            dtype = (torch.float32, torch.bfloat16, torch.int64)[index % 3]
            total = backend.all_reduce(torch.full(shape, backend.rank + index, dtype=dtype))
            good &= bool((total == 6 + RANKS * index).all())
        return good

    assert on_every_rank(segment, work) == [True] * RANKS


def test_a_tensor_larger_than_its_slot_is_refused(segment: Path) -> None:
    with pytest.raises(RunError, match=r"exceeds the shared-memory slots.*--transport gloo"):
        on_every_rank(segment, lambda b: b.all_reduce(torch.zeros(CAPACITY)))


def test_a_rank_that_does_not_come_is_named(segment: Path) -> None:
    def work(backend: shm.SharedMemoryBackend) -> Tensor | None:
        return None if backend.rank == 2 else backend.all_reduce(torch.zeros(1))

    with pytest.raises(RunError, match="rank 2 did not arrive"):
        on_every_rank(segment, work, timeout_s=0.2)


def test_too_little_shared_memory_is_said_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    name = f"mtpprof-test-full-{os.getpid()}"
    with pytest.raises(MissingEnvironmentError, match=r"cannot reserve \d+ bytes.*--transport gloo"):
        shm.create_segment(name, RANKS, CAPACITY)
    assert not (SHM_DIR / name).exists()


def test_the_segment_has_the_size_that_is_announced(segment: Path) -> None:
    assert segment.stat().st_size == segment_bytes(RANKS, CAPACITY)


def test_the_implementation_is_named(segment: Path) -> None:
    backend = shm.SharedMemoryBackend(segment, 0, RANKS, CAPACITY, 1)
    assert backend.implementation(Kind.ALL_REDUCE, torch.zeros(1)) == "shm_oneshot"
    backend.close()
    backend.close()
