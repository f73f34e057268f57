"""The compiled all-reduces over shared memory as a file, built once for this processor.

Apart from `shm_kernels` so that checks need no torch.
"""

from __future__ import annotations

from pathlib import Path

from mtpprof.clibrary import CLibrary

LIBRARY = CLibrary(
    sources=(Path(__file__).with_name("shm_kernels.c"),),
    name="kernels",
    purpose="the all-reduce kernel of the reference engine",
    otherwise="run without allreduce-norm-fusion",
    symbol="mtpprof_all_reduce_residual_rmsnorm",
    # No contraction: a multiplication and an addition round apart, as they do in torch's operations.
    flags=("-O3", "-march=native", "-ffp-contract=off", "-fvisibility=hidden"),
)


def kernel_library(*, cache: Path | None = None) -> Path:
    """Path of the compiled kernels, compiled now if they are not in the cache.

    Args:
        cache: Folder to keep them in; by default `mtpprof/kernels` in the user's cache folder.

    Raises:
        MissingEnvironmentError: no compiler, no place to write, or they do not compile or load.
    """
    return LIBRARY.path(depends_on=[_processor_features()], cache=cache)


def _processor_features() -> bytes:
    """What the processor can do: a cache may be shared by machines that differ in it."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return b""
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")
