"""Tensor-parallel ranks as processes over one shared-memory segment, for tests.

    python -m tests.unit.models.reference.collectives.rank_processes FOLDER RANKS PROGRAM

One process imports torch and forks the ranks, each of which runs `PROGRAM(backend)` and saves what it returns to `FOLDER/rank<r>.pt`, or
writes the error to `FOLDER/rank<r>.error`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtpprof.errors import RunError
from mtpprof.models.reference.collectives import shm, shm_kernels, shm_library

CAPACITY = 1 << 20
EPS = 1e-5
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SHAPES = ((1, 1), (1, 7), (3, 16), (5, 17), (2, 511), (2, 512), (3, 513), (1, 1031), (4, 2048), (37, 33))
LARGE_EPS = 1e4
"""So large that a norm shows how large its input was."""
ABSENT_RANK = 1
TURNS = 400


def inputs(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A rank's summand; rank -1: the residual; rank -2: something of the shape of the weight."""
    generator = torch.Generator().manual_seed(1000 * shape[0] + 10 * shape[-1] + rank)
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def sums(backend: shm.SharedMemoryBackend) -> list[tuple[Tensor, Tensor]]:
    """The plain and the fused form for every dtype and shape."""
    found = []
    for dtype in DTYPES:
        for shape in SHAPES:
            mine = inputs(backend.rank, shape, dtype)
            residual, weight = inputs(-1, shape, dtype), inputs(-2, shape[-1:], dtype)
            fused = backend.all_reduce_residual_norm(mine, residual, weight, EPS)
            found.append((backend.all_reduce(mine), fused))
    return found


def turns(backend: shm.SharedMemoryBackend) -> list[int]:
    """Calls in close succession, of ranks that are late by turns; returns those that mixed two calls."""
    wrong = []
    ones = torch.ones(512)
    for turn in range(TURNS):
        if turn % (17 + backend.rank) == 0:
            time.sleep(0.001)
        mine = torch.full((3, 512), float(turn % 97 + backend.rank))
        total = sum(turn % 97 + rank for rank in range(backend.size))
        if turn % 3 == 2:
            gathered = torch.stack(backend.all_gather(mine))[:, 0, 0].tolist()
            good = gathered == [turn % 97 + rank for rank in range(backend.size)]
        elif turn % 3 == 1:
            normed = backend.all_reduce_residual_norm(mine, torch.zeros(3, 512), ones, LARGE_EPS)
            expected = total / (total**2 + LARGE_EPS) ** 0.5
            good = bool(((normed - expected).abs() < 1e-5).all())
        else:
            good = bool((backend.all_reduce(mine) == total).all())
        if not good:
            wrong.append(turn)
    return wrong


def absent(backend: shm.SharedMemoryBackend) -> None:
    """One rank never comes."""
    if backend.rank != ABSENT_RANK:
        backend.all_reduce_residual_norm(torch.ones(2, 8), torch.ones(2, 8), torch.ones(8), EPS)


PROGRAMS: dict[str, tuple[Callable[[shm.SharedMemoryBackend], Any], float]] = {
    "sums": (sums, 60.0),
    "turns": (turns, 60.0),
    "absent": (absent, 0.3),
}
"""By name, with how long a rank waits for another."""


def run(folder: Path, ranks: int, program: str) -> list[Any]:
    """What each rank returned, or the text of its error."""
    command = [sys.executable, "-m", __name__, str(folder), str(ranks), program]
    subprocess.run(command, check=True, timeout=120)
    found: list[Any] = []
    for rank in range(ranks):
        error = folder / f"rank{rank}.error"
        found.append(error.read_text() if error.is_file() else torch.load(folder / f"rank{rank}.pt"))
    return found


def main() -> int:
    """Fork the ranks and wait for them; 1 when one ended otherwise than it should."""
    folder, ranks, program = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    library = shm_library.kernel_library()
    segment = shm.create_segment(f"mtpprof-test-{os.getpid()}", ranks, CAPACITY)
    try:
        children = [
            os.fork() or _rank(folder, segment, rank, ranks, program, library) for rank in range(ranks)
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    finally:
        segment.unlink()
    return int(any(codes))


def _rank(folder: Path, segment: Path, rank: int, ranks: int, program: str, library: Path) -> int:
    work, timeout_s = PROGRAMS[program]
    code = 1
    try:
        kernels = shm_kernels.Kernels(library)
        backend = shm.SharedMemoryBackend(segment, rank, ranks, CAPACITY, timeout_s, kernels)
        try:
            torch.save(work(backend), folder / f"rank{rank}.pt")
        except RunError as error:
            (folder / f"rank{rank}.error").write_text(str(error))
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
