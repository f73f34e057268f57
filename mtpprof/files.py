"""What a path is where a file is expected: for whoever opens what a user named.

The decision: devices, pipes and sockets are refused before they are opened. `/dev/zero` never ends, and a pipe without a writer is
waited for forever.

Whether a file that a run recorded was written to its end: for whoever must decide to keep it or to record it again.

The decision: a gzip file is inflated once, since nothing short of its checksum tells a cut or altered stream from a whole one, and
nothing of it is kept; a JSON text must end as one does; an SQLite database must be as long as its header says. What a trace holds is
the readers' business.
"""

from __future__ import annotations

import stat
import zlib
from collections.abc import Iterator
from errno import ELOOP
from pathlib import Path
from typing import IO

_KINDS = (
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISFIFO, "a pipe, which cannot be read twice"),
    (stat.S_ISSOCK, "a socket"),
)


def no_regular_file(path: Path) -> str:
    """What `path` is in place of a regular file; empty: it is one, a directory or nothing, which the system itself refuses to open."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno == ELOOP:
            return "a symbolic link that leads back to itself"
        return "a symbolic link to a file that is not there" if path.is_symlink() else ""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return next((kind for test, kind in _KINDS if test(mode)), "something else")


def identity(path: Path) -> Path:
    """The file behind links, to tell one file under several names; the path itself where links lead in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # RuntimeError up to Python 3.12
        return path.absolute()


_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 64
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
_SQLITE_MAGIC = b"SQLite format 3\0"


def trace_is_whole(path: Path) -> bool:
    """Whether a trace (JSON, plain or gzip, or an SQLite database) is there, readable, and not cut off."""
    try:
        with path.open("rb") as stream:
            head = stream.read(100)
            if head.startswith(_SQLITE_MAGIC):
                return _database_is_whole(head, path.stat().st_size)
            stream.seek(0)
            text = _inflated(stream) if head.startswith(_GZIP_MAGIC) else _end(stream)
            tail = b""
            for block in text:
                tail = (tail + block)[-_TAIL_BYTES:]
            return tail.rstrip().endswith((b"}", b"]"))
    except (OSError, EOFError, zlib.error):
        return False


def _inflated(stream: IO[bytes]) -> Iterator[bytes]:
    """The text of a single gzip stream.

    Raises:
        EOFError, zlib.error: it is cut off, or its checksum is wrong.
    """
    decoder = zlib.decompressobj(wbits=_GZIP_WINDOW)
    while data := stream.read(_CHUNK_BYTES):
        while data:
            yield decoder.decompress(data, _CHUNK_BYTES)
            data = decoder.unconsumed_tail
    if not decoder.eof:
        raise EOFError


def _end(stream: IO[bytes]) -> Iterator[bytes]:
    size = stream.seek(0, 2)
    stream.seek(max(0, size - _TAIL_BYTES))
    yield stream.read()


def _database_is_whole(head: bytes, size: int) -> bool:
    """By the page size and count of the header (https://www.sqlite.org/fileformat.html, 1.3)."""
    page_bytes = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    return len(head) == 100 and size == pages * (65536 if page_bytes == 1 else page_bytes)
