"""The formats of an export, and how a file of one comes to be: under a temporary name, compressed where its name says
so, then renamed.

`FORMATS` is the registry: to add a format is to write a `Writer` and to add a row.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, cast

from mtpprof.analyzers.calls.table import Vocabulary
from mtpprof.analyzers.perfetto.chromejson import ChromeWriter
from mtpprof.analyzers.perfetto.model import Writer
from mtpprof.analyzers.perfetto.protobuf import ProtobufWriter
from mtpprof.errors import InputError, UsageError

_gzip: ModuleType = gzip
with suppress(ImportError):
    from isal import igzip

    _gzip = igzip

COMPRESSED = ".gz"
_LEVEL = 1
"""Of compression: the fastest; higher ones cost more time than the whole export and save a fifth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A file format."""

    title: str
    suffix: str
    make: Callable[[IO[bytes], Vocabulary, Mapping[str, Any]], Writer]
    argument_prefix: str
    """What Perfetto puts before the keys of arguments of this format."""
    bytes_per_slice: int
    """Uncompressed, on real traces."""


FORMATS = (
    Format(
        title="Perfetto protobuf",
        suffix=".pftrace",
        make=lambda file, texts, metadata: ProtobufWriter(file, texts, metadata.get("baseTimeNanoseconds")),
        argument_prefix="debug.",
        bytes_per_slice=75,
    ),
    Format(
        title="Chrome JSON",
        suffix=".json",
        make=ChromeWriter,
        argument_prefix="args.",
        bytes_per_slice=200,
    ),
)


def format_of(path: Path) -> Format:
    """The format that a file name asks for.

    Raises:
        UsageError: it is none of ours.
    """
    name = path.name.removesuffix(COMPRESSED)
    for form in FORMATS:
        if name.endswith(form.suffix):
            return form
    known = ", ".join(f"{form.suffix} and {form.suffix}{COMPRESSED}" for form in FORMATS)
    raise UsageError(f"-o {path}: the name does not tell the format; end it in {known}.")


@contextmanager
def written(path: Path, form: Format, texts: Vocabulary, metadata: Mapping[str, Any]) -> Iterator[Writer]:
    """A writer to a file that appears when the block ends without an error.

    Raises:
        InputError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _open(temporary, path.name.endswith(COMPRESSED)) as file:
            writer = form.make(file, texts, metadata)
            yield writer
            writer.close()
        temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); give another -o or make room."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _open(path: Path, compressed: bool) -> IO[bytes]:
    if not compressed:
        return path.open("wb")
    return cast(IO[bytes], _gzip.open(path, "wb", compresslevel=_LEVEL))
