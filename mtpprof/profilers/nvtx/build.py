"""The injection library: its source, the NVTX headers it is compiled with, and its path once compiled."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mtpprof import clibrary
from mtpprof.errors import MissingEnvironmentError

SOURCES = Path(__file__).with_name("injection")
"""Folder of the C files, which are compiled together."""
HEADER = "nvtx3/nvToolsExtPayload.h"
PURPOSE, OTHERWISE = "NVTX capture", "capture without nvtx"


def injection_library(*, cache: Path | None = None) -> Path:
    """Path of the compiled library, compiled now if it is not in the cache.

    Args:
        cache: Folder to keep it in; by default `mtpprof/nvtx` in the user's cache folder (`XDG_CACHE_HOME`).

    Raises:
        MissingEnvironmentError: not Linux, no compiler, no headers, no place to write, or it does not compile or load.
    """
    if sys.platform != "linux":
        raise MissingEnvironmentError(
            f"NVTX capture works on Linux only and this is {sys.platform}; capture with torch's profiler instead."
        )
    include = include_directory()
    return _library(include).path(depends_on=_headers(include), cache=cache)


def c_files() -> list[Path]:
    """The C files of the library."""
    return sorted(SOURCES.glob("*.c"))


def find_compiler() -> list[str]:
    """The C compiler that would build it, as the head of a command.

    Raises:
        MissingEnvironmentError: there is none.
    """
    return clibrary.find_compiler(PURPOSE, OTHERWISE)


def include_directory() -> Path:
    """Folder that holds `nvtx3/`: the `nvidia-nvtx` wheel's, else a CUDA toolkit's, else the system's.

    Raises:
        MissingEnvironmentError: none of them has the payload extension.
    """
    for folder in _include_candidates():
        if (folder / HEADER).is_file():
            return folder
    raise MissingEnvironmentError(
        f"NVTX capture needs the NVTX headers ({HEADER}) and found none; run: pip install 'nvidia-nvtx>=13'."
    )


def _include_candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for package in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(package).glob("*/include"), reverse=True)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "include"
    yield Path("/usr/local/cuda/include")
    yield Path("/usr/include")


def _headers(include: Path) -> Iterator[bytes]:
    for header in (*sorted((include / "nvtx3").rglob("*.h")), *sorted(SOURCES.glob("*.h"))):
        yield header.read_bytes()


def _library(include: Path) -> clibrary.CLibrary:
    return clibrary.CLibrary(
        sources=tuple(c_files()),
        name="nvtx",
        purpose=PURPOSE,
        otherwise=OTHERWISE,
        symbol="InitializeInjectionNvtx2",
        flags=("-O2", "-pthread", "-fvisibility=hidden"),
        includes=(include,),
    )
