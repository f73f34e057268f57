"""The text of a trace as a stream of blocks, decompressed on the way, in bounded memory.

A gzip file is taken member by member, because launchers append; what was whole before a damage is delivered, and the
damage is remembered instead of raised, so that the reader above can salvage. isal decompresses at about 1 GB/s, three
times zlib; where it is not installed zlib does the same work. Other compressed files are read through `codecs`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from mtpprof.analyzers.traces.readers.base import Limits, TraceFormatError
from mtpprof.analyzers.traces.readers.codecs import GZIP_MAGIC, MAGIC_BYTES, Codec, codec_of
from mtpprof.analyzers.traces.verdicts import Verdict

_inflate: ModuleType = zlib
with suppress(ImportError):
    from isal import isal_zlib

    _inflate = isal_zlib

_GZIP_WINDOW = 31
_READ_BYTES = 256 << 10
_BLOCK_BYTES = 1 << 20
_DECOMPRESSION_ERRORS: tuple[type[Exception], ...] = (zlib.error, _inflate.error, OSError, EOFError)


class TextSource:
    """One file's text. `blocks` may be iterated once."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.damage: str | None = None
        """Why the text ended early; None: it did not (as far as it was read)."""
        self.corrupt = False
        """The compressed data is damaged: text before its end may be wrong as well."""
        self.cut = False
        """The compressed data does not end, for lack of bytes or because what says where it ends is damaged."""
        self.text_bytes = 0
        self._taken_bytes = 0

    def blocks(self) -> Iterator[bytes]:
        """Blocks of text, of about 1 MiB at most.

        Raises:
            TraceFormatError: the file cannot be opened, or inflates beyond the limits.
        """
        try:
            with self.path.open("rb") as file:
                for block in self._text(file):
                    self.text_bytes += len(block)
                    self._check_size()
                    yield block
        except OSError as error:
            raise TraceFormatError(
                str(self.path), f"cannot be read ({error.strerror or error})", verdict=Verdict.UNREADABLE
            ) from error

    def _text(self, file: IO[bytes]) -> Iterator[bytes]:
        start = file.read(MAGIC_BYTES)
        file.seek(0)
        if start.startswith(GZIP_MAGIC):
            return self._inflated(file)
        codec = codec_of(start)
        return self._plain(file) if codec is None else self._unpacked(file, codec)

    def _unpacked(self, file: IO[bytes], codec: Codec) -> Iterator[bytes]:
        try:
            stream, errors = codec.opened(file), codec.errors()
        except ImportError as error:
            reason = f"is compressed with {codec.name}, and the package that unpacks it is not installed"
            raise TraceFormatError(
                str(self.path), reason, verdict=Verdict.OTHER_FORMAT, advice=codec.advice
            ) from error
        while True:
            try:
                block = stream.read(_BLOCK_BYTES)
            except EOFError:
                self.damage, self.cut = "its compressed data ends in the middle", True
                return
            except errors as error:
                self.damage, self.corrupt = f"its compressed data is damaged ({error})", True
                return
            self._taken_bytes = file.tell()
            if not block:
                return
            yield block

    def _plain(self, file: IO[bytes]) -> Iterator[bytes]:
        while block := file.read(_BLOCK_BYTES):
            self._taken_bytes += len(block)
            yield block

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        member: Any = None
        data = b""
        while data := data or self._compressed(file):
            if member is None:
                data = data.lstrip(b"\0")  # tape and block padding between or after members
                if not data:
                    continue
                if not GZIP_MAGIC.startswith(data[: len(GZIP_MAGIC)]):
                    self.damage = "bytes that are no gzip data follow the compressed text"
                    return
                member = _inflate.decompressobj(_GZIP_WINDOW)
            try:
                block = member.decompress(data, _BLOCK_BYTES)
            except _DECOMPRESSION_ERRORS as error:
                self.damage, self.corrupt = f"its compressed data is damaged ({error})", True
                return
            data = member.unconsumed_tail
            if member.eof:
                data, member = member.unused_data, None
            if block:
                yield block
        if member is not None:
            yield from self._rest(member)

    def _compressed(self, file: IO[bytes]) -> bytes:
        data = file.read(_READ_BYTES)
        self._taken_bytes += len(data)
        return data

    def _rest(self, member: Any) -> Iterator[bytes]:
        """What a member still holds when the file ends inside it."""
        try:
            block = member.flush()
        except _DECOMPRESSION_ERRORS:
            block = b""
        if not member.eof:
            self.damage, self.cut = "its compressed data ends in the middle", True
        if block:
            yield block

    def _check_size(self) -> None:
        limits, size = self.limits, self.text_bytes
        if size > limits.max_text_bytes:
            raise TraceFormatError(
                str(self.path),
                f"holds more than {limits.max_text_bytes:,} bytes of text",
                verdict=Verdict.TOO_LARGE,
            )
        if size > limits.ratio_from_bytes and size > limits.max_ratio * max(self._taken_bytes, 1):
            raise TraceFormatError(
                str(self.path),
                f"inflates to more than {limits.max_ratio:g} times its size, as no trace does",
                verdict=Verdict.TOO_LARGE,
            )


def last_text(path: Path, limits: Limits, size: int = 1 << 18) -> str:
    """The last `size` bytes of a file's text, damaged bytes replaced; all of a gzip file is inflated for it.

    Raises:
        TraceFormatError: the file cannot be opened, or inflates beyond the limits.
    """
    source = TextSource(path, limits)
    last = b""
    for block in source.blocks():
        last = (last + block)[-size:]
    return last.decode("utf-8", "replace")
