"""Shared libraries that are shipped as C source and compiled with the system's compiler, once, into the user's cache.

The decision: a binary would have to be built per architecture and C library, while any machine that serves models has a compiler or
can get one. The caller's key covers what the result depends on, so an upgrade builds anew; the file is moved into place whole, so
that several processes may build at the same time.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mtpprof.errors import MissingEnvironmentError

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-fPIC", "-shared", "-Wall", "-Wextra")
COMPILE_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class CLibrary:
    """One library in C: where its source is, and how sentences about it read."""

    sources: tuple[Path, ...]
    """The C files, which are compiled together."""
    name: str
    """Of the file, `libmtpprof-<name>-<key>.so`, and of its folder in the cache."""
    purpose: str
    """What needs it, the subject of a sentence, e.g. `NVTX capture`."""
    otherwise: str
    """What a user can do without it, an imperative, e.g. `capture without nvtx`."""
    symbol: str
    """A function that it must have."""
    flags: tuple[str, ...] = ()
    """For the compiler, beside `FLAGS`."""
    includes: tuple[Path, ...] = field(default=())
    """Folders of headers."""

    def path(self, *, depends_on: Iterable[bytes] = (), cache: Path | None = None) -> Path:
        """Path of the compiled library, compiled now if it is not in the cache.

        Args:
            depends_on: What the result depends on beside the sources, the flags and the machine's architecture.
            cache: Folder to keep it in; by default the library's in the user's cache folder.

        Raises:
            MissingEnvironmentError: no compiler, no place to write, or it does not compile or load.
        """
        folder = cache if cache is not None else cache_folder(self.name)
        library = folder / f"libmtpprof-{self.name}-{self.key(depends_on)}.so"
        if not library.is_file():
            self._compile(find_compiler(self.purpose, self.otherwise), library)
        return library

    def key(self, depends_on: Iterable[bytes] = ()) -> str:
        """What tells one build from another."""
        digest = hashlib.sha256(platform.machine().encode())
        digest.update(" ".join(self.flags).encode())
        for part in depends_on:
            digest.update(part)
        for source in self.sources:
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]

    def _compile(self, compiler: list[str], library: Path) -> None:
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            scratch = tempfile.TemporaryDirectory(dir=library.parent)
        except OSError as error:
            raise MissingEnvironmentError(
                f"{self.purpose} cannot keep its library in {library.parent}: {error.strerror}; "
                f"set XDG_CACHE_HOME to a folder that can be written."
            ) from error
        with scratch as folder:
            built = Path(folder) / library.name
            headers = [word for path in self.includes for word in ("-isystem", str(path))]
            self._run(
                [*compiler, *FLAGS, *self.flags, *headers, "-o", str(built), *map(str, self.sources), "-lm"],
                what=f"{compiler[0]} could not build the library for {self.purpose}",
            )
            # What cannot be loaded would be found out in the middle of a run, or never.
            self._run(
                [
                    sys.executable,
                    "-c",
                    f"import ctypes, sys; ctypes.CDLL(sys.argv[1]).{self.symbol}",
                    str(built),
                ],
                what=f"the library for {self.purpose} that {compiler[0]} built cannot be loaded",
            )
            built.replace(library)

    def _run(self, command: list[str], *, what: str) -> None:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMPILE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MissingEnvironmentError(f"{what}: {error}; {self.otherwise}.") from error
        if done.returncode != 0:
            reason = next(
                (line for line in done.stderr.splitlines() if "error" in line.lower()), done.stderr.strip()
            )
            raise MissingEnvironmentError(
                f"{what}: {reason.strip() or f'exit code {done.returncode}'}; "
                f"set CC to another compiler or {self.otherwise}."
            )


def cache_folder(name: str) -> Path:
    """Folder of compiled libraries of one kind in the user's cache (`XDG_CACHE_HOME`)."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".cache") / "mtpprof" / name


def find_compiler(purpose: str, otherwise: str) -> list[str]:
    """The C compiler as the head of a command: `CC` where it is set, with its options, else the first of cc, gcc, clang.

    Args:
        purpose: What needs it, for the error.
        otherwise: What can be done without it, for the error.

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
        f"{purpose} needs a C compiler to build its library and none was found ({looked_for}); "
        f"install one (Debian: apt-get install gcc) or {otherwise}."
    )
