"""Which reader reads a file. `READERS` is the registry of trace formats: a new format is a new file in `readers` and a row here."""

from __future__ import annotations

from pathlib import Path

from mtpprof.analyzers.traces.nvtx.table import NvtxReader
from mtpprof.analyzers.traces.readers.base import SNIFF_BYTES, Limits, Reader, TraceFormatError
from mtpprof.analyzers.traces.readers.bytestream import TextSource
from mtpprof.analyzers.traces.readers.kineto import KinetoReader
from mtpprof.analyzers.traces.readers.nsys import NsysReader
from mtpprof.analyzers.traces.table import EventTable
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.files import no_regular_file

READERS: tuple[Reader, ...] = (NsysReader(), NvtxReader(), KinetoReader())
"""Asked in this order."""

_BLANK = b"\0 \t\r\n"
_RAW_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


def reader_for(path: Path, limits: Limits | None = None) -> Reader:
    """The reader of a file, by what it contains.

    Raises:
        TraceFormatError: the file is empty, unreadable, of no known format, or none.
    """
    if kind := no_regular_file(path):
        reason = f"is no regular file but {kind}"
        raise TraceFormatError(str(path), reason, verdict=Verdict.NOT_A_TRACE)
    source = TextSource(path, limits or Limits())
    head = b""
    for block in source.blocks():
        head = (head + block).lstrip(_BLANK)
        if len(head) >= SNIFF_BYTES:
            break
    if not head:
        reason = f"holds no text that can be read: {source.damage}" if source.damage else "is empty"
        raise TraceFormatError(str(path), reason, verdict=Verdict.EMPTY)
    for reader in READERS:
        if reader.recognises(head[:SNIFF_BYTES]):
            return reader
    if path.suffix in _RAW_REPORTS:
        reason = "is a raw report of Nsight Systems; convert it with nsys export --type sqlite"
        raise TraceFormatError(str(path), reason, verdict=Verdict.NOT_A_TRACE)
    raise TraceFormatError(
        str(path), "is neither a JSON trace nor an Nsight Systems SQLite export", verdict=Verdict.NOT_A_TRACE
    )


def read_file(path: Path, limits: Limits | None = None) -> tuple[EventTable, ...]:
    """All tables of a file, parsed anew.

    Raises:
        TraceFormatError: the file gives no table.
    """
    limits = limits or Limits()
    return reader_for(path, limits).read(path, limits)
