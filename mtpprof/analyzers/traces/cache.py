"""Parsed tables kept on disk, so that the second look at a trace costs a tenth of a second.

The key is the file's path, size and time of change together with the versions of mtpprof, of all readers and of the
layout, so that nothing ever has to be invalidated. The cache is a convenience and never an error: where it cannot be read or written, or
an entry is damaged, the trace is parsed. `MTPPROF_CACHE=0` switches it off.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from mtpprof import __version__
from mtpprof.analyzers.traces.formats import READERS
from mtpprof.analyzers.traces.table import EventTable
from mtpprof.files import identity

LAYOUT_VERSION = 1
"""Raised whenever `EventTable.save` changes."""
SWITCH = "MTPPROF_CACHE"

_MAX_BYTES = 4 << 30
_MIN_FILE_BYTES = 128 << 10
"""Smaller files parse as fast as an entry loads."""
_ENTRY = re.compile(r"\.(\d+)of(\d+)\.npz$")
_READ_ERRORS = (ValueError, KeyError, OSError, EOFError, TypeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """What a cached table was made from."""

    digest: str


def directory() -> Path | None:
    """Where entries live; None: the cache is switched off, or there is no home to put it in."""
    if os.environ.get(SWITCH, "").lower() in ("0", "off", "false", "no"):
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    if base:
        return Path(base) / "mtpprof" / "tables"
    try:
        return Path.home() / ".cache" / "mtpprof" / "tables"
    except RuntimeError:
        return None


def key(path: Path) -> CacheKey | None:
    """Key of a file as it is now; None: it is too small to be worth an entry, or cannot be asked."""
    try:
        state = path.stat()
        where = identity(path)
    except OSError:
        return None
    if state.st_size < _MIN_FILE_BYTES:
        return None
    versions = [f"{reader.name}={reader.version}" for reader in READERS]
    parts = [
        __version__,
        str(LAYOUT_VERSION),
        *versions,
        str(path),
        str(where),
        str(state.st_size),
        str(state.st_mtime_ns),
    ]
    return CacheKey(digest=sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:40])


def load(entry: CacheKey) -> tuple[EventTable, ...] | None:
    """The tables of a key; None: there are none, or they are damaged."""
    home = directory()
    if home is None:
        return None
    found = sorted(home.glob(f"{entry.digest}.*of*.npz"))
    numbers = [match.groups() for file in found if (match := _ENTRY.search(file.name))]
    if not numbers or {(str(index), str(len(found))) for index in range(len(found))} != set(numbers):
        return None
    ordered = [home / _file_name(entry, index, len(found)) for index in range(len(found))]
    try:
        tables = tuple(EventTable.load(file) for file in ordered)
    except _READ_ERRORS:
        _remove(ordered)
        return None
    for file in ordered:
        with suppress(OSError):
            os.utime(file)
    return tables


def store(entry: CacheKey, tables: Sequence[EventTable]) -> bool:
    """Keep tables under a key; False: they could not be kept, and nothing is left behind."""
    home = directory()
    if home is None:
        return False
    written: list[Path] = []
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for index, table in enumerate(tables):
            written.append(_write(home, _file_name(entry, index, len(tables)), table))
    except OSError:
        _remove(written)
        return False
    _prune(home)
    return True


def _write(home: Path, name: str, table: EventTable) -> Path:
    descriptor, temporary = tempfile.mkstemp(dir=home, prefix=".writing-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            table.save(file)
        return Path(temporary).replace(home / name)
    finally:
        _remove([Path(temporary)])


def _file_name(entry: CacheKey, index: int, count: int) -> str:
    return f"{entry.digest}.{index}of{count}.npz"


def _prune(home: Path) -> None:
    """Remove the entries not used for longest, until the rest fits."""
    entries = []
    for file in home.iterdir():
        with suppress(OSError):
            state = file.stat()
            entries.append((state.st_mtime, state.st_size, file))
    entries.sort(key=lambda item: item[0])
    total = sum(size for _, size, _ in entries)
    for _, size, file in entries[:-1]:
        if total <= _MAX_BYTES:
            return
        _remove([file])
        total -= size


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()
