"""Compiles the injection library with the system's C compiler, once, into a cache.

The decision: shipped as source, because a binary would have to be built per architecture and C library while any machine
that serves models has a compiler or can get one. The cache key covers the source, the NVTX headers and the machine, so an
upgrade of either builds anew; the file is moved into place whole, so that ranks may build at the same time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mtpprof.errors import MissingEnvironmentError

SOURCES = Path(__file__).with_name("injection")
"""Folder of the C files, which are compiled together."""
HEADER = "nvtx3/nvToolsExtPayload.h"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra")
COMPILE_TIMEOUT_S = 120


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
    folder = cache if cache is not None else default_cache()
    library = folder / f"libmtpprof-nvtx-{_key(include)}.so"
    if not library.is_file():
        _compile(find_compiler(), include, library)
    return library


def c_files() -> list[Path]:
    """The C files of the library."""
    return sorted(SOURCES.glob("*.c"))


def default_cache() -> Path:
    """Folder of compiled libraries in the user's cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".cache") / "mtpprof" / "nvtx"


def find_compiler() -> list[str]:
    """The C compiler as the head of a command: `CC` where it is set, with its options, else the first of cc, gcc, clang.

    Raises:
        MissingEnvironmentError: there is none.
    """
    chosen = shlex.split(os.environ.get("CC", ""))
    for words in [chosen] if chosen else [[name] for name in COMPILERS]:
        found = shutil.which(words[0])
        if found:
            return [found, *words[1:]]
    looked_for = chosen[0] if chosen else ", ".join(COMPILERS)
    raise MissingEnvironmentError(
        f"NVTX capture needs a C compiler to build its library and none was found ({looked_for}); "
        f"install one (Debian: apt-get install gcc) or capture without nvtx."
    )


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


def _key(include: Path) -> str:
    digest = hashlib.sha256(platform.machine().encode())
    for header in sorted((include / "nvtx3").rglob("*.h")):
        digest.update(header.read_bytes())
    for source in sorted(SOURCES.glob("*.[ch]")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: list[str], include: Path, library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=library.parent)
    except OSError as error:
        raise MissingEnvironmentError(
            f"NVTX capture cannot keep its library in {library.parent}: {error.strerror}; "
            f"set XDG_CACHE_HOME to a folder that can be written."
        ) from error
    with scratch as folder:
        built = Path(folder) / library.name
        _run(
            [*compiler, *FLAGS, "-isystem", str(include), "-o", str(built), *map(str, c_files())],
            what=f"{compiler[0]} could not build the NVTX capture library",
        )
        # A library that cannot be loaded would be ignored by NVTX without a word.
        _run(
            [
                sys.executable,
                "-c",
                "import ctypes, sys; ctypes.CDLL(sys.argv[1]).InitializeInjectionNvtx2",
                str(built),
            ],
            what=f"the NVTX capture library that {compiler[0]} built cannot be loaded",
        )
        built.replace(library)


def _run(command: list[str], *, what: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingEnvironmentError(f"{what}: {error}; capture without nvtx.") from error
    if done.returncode != 0:
        reason = next(
            (line for line in done.stderr.splitlines() if "error" in line.lower()), done.stderr.strip()
        )
        raise MissingEnvironmentError(
            f"{what}: {reason.strip() or f'exit code {done.returncode}'}; "
            f"set CC to another compiler or capture without nvtx."
        )
