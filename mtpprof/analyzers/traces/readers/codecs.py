"""Compressed files: by their first bytes, which of them are read, and how.

The decision: gzip has a way of its own in `bytestream`, since launchers append members to it and damaged ones are salvaged; what is
here reads through a stream whose every read is bounded, so that a file that inflates without end is stopped by the limits and not
by the memory. A format that needs a package is named with the package where it is absent.
"""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Protocol

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_WINDOW_BYTES_MAX = 1 << 27
"""The largest window of `zstd --ultra`; a frame may ask for far more."""


class Inflated(Protocol):
    """What is read from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes of text; none at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """One compressed format beside gzip."""

    name: str
    magic: bytes
    suffixes: tuple[str, ...]
    opened: Callable[[IO[bytes]], Inflated]
    """Raises ImportError where the package is absent."""
    errors: Callable[[], tuple[type[Exception], ...]]
    """What reading damaged data raises."""
    advice: str = ""
    """What to do where the package is absent."""


def _zstd(file: IO[bytes]) -> Inflated:
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    reader: Any = decoder.stream_reader(file, read_across_frames=True)
    found: Inflated = reader
    return found


def _zstd_errors() -> tuple[type[Exception], ...]:
    import zstandard

    return (zstandard.ZstdError, OSError, EOFError)


CODECS = (
    Codec(
        name="zstd",
        magic=b"\x28\xb5\x2f\xfd",
        suffixes=(".zst", ".zstd"),
        opened=_zstd,
        errors=_zstd_errors,
        advice="pip install 'mtpprof[zstd]', or unpack it with zstd -d",
    ),
    Codec(
        name="xz",
        magic=b"\xfd7zXZ\0",
        suffixes=(".xz",),
        opened=lzma.LZMAFile,
        errors=lambda: (lzma.LZMAError, OSError, EOFError),
    ),
    Codec(
        name="bzip2",
        magic=b"BZh",
        suffixes=(".bz2",),
        opened=bz2.BZ2File,
        errors=lambda: (OSError, EOFError, ValueError),
    ),
)
"""Registry: to read one more is to add a row."""

MAGIC_BYTES = max(len(codec.magic) for codec in CODECS)
COMPRESSED_SUFFIXES = (".gz", *(suffix for codec in CODECS for suffix in codec.suffixes), ".lz4", ".zip")
"""Of names, also of what is not read: a trace so packed is named and not passed over."""


def plain_name(name: str) -> str:
    """A file's name in lower case, without the endings that compression adds."""
    plain = name.lower()
    while stripped := next((end for end in COMPRESSED_SUFFIXES if plain.endswith(end)), ""):
        plain = plain.removesuffix(stripped)
    return plain


def codec_of(start: bytes) -> Codec | None:
    """The codec of a file with these first bytes; None: plain, gzip, or one that is not read."""
    return next((codec for codec in CODECS if start.startswith(codec.magic)), None)
