"""Which reader reads a file. `READERS` is the registry of trace formats: a new format is a new file in `readers` and a row here."""

from __future__ import annotations

from pathlib import Path

from mtpprof.analyzers.traces.nvtx.table import NvtxReader
from mtpprof.analyzers.traces.readers import foreign
from mtpprof.analyzers.traces.readers.base import SNIFF_BYTES, Limits, Reader, TraceFormatError
from mtpprof.analyzers.traces.readers.bytestream import TextSource
from mtpprof.analyzers.traces.readers.kineto import KinetoReader
from mtpprof.analyzers.traces.readers.nsys import NsysReader
from mtpprof.analyzers.traces.table import EventTable
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.files import no_regular_file

READERS: tuple[Reader, ...] = (NsysReader(), NvtxReader(), KinetoReader())
"""Asked in this order."""

_NOT_REGULAR = "give the file with the trace itself"
_BLANK = b"\0 \t\r\n"


def reader_for(path: Path, limits: Limits | None = None) -> Reader:
    """The reader of a file, by what it contains.

    Raises:
        TraceFormatError: the file is empty, unreadable, of a format that is not read, or none.
    """
    if kind := no_regular_file(path):
        reason = f"is not a regular file but {kind}"
        raise TraceFormatError(str(path), reason, verdict=Verdict.NOT_A_TRACE, advice=_NOT_REGULAR)
    source = TextSource(path, limits or Limits())
    head = b""
    for block in source.blocks():
        head = (head + block).lstrip(_BLANK)
        if len(head) >= SNIFF_BYTES:
            break
    if not head:
        reason = f"holds no text that can be read: {source.damage}" if source.damage else "is empty"
        raise TraceFormatError(str(path), reason, verdict=Verdict.EMPTY)
    head = head[:SNIFF_BYTES]
    found = foreign.by_content(head)
    if found is None:
        for reader in READERS:
            if reader.recognises(head, path):
                return reader
        found = foreign.by_name(path.name)
    if found is not None:
        raise TraceFormatError(
            str(path), f"is {found.what}", verdict=Verdict.OTHER_FORMAT, advice=found.advice
        )
    raise TraceFormatError(str(path), "is of no format that is known", verdict=Verdict.NOT_A_TRACE)


def read_file(path: Path, limits: Limits | None = None) -> tuple[EventTable, ...]:
    """All tables of a file, parsed anew.

    Raises:
        TraceFormatError: the file gives no table.
    """
    limits = limits or Limits()
    reader = reader_for(path, limits)
    try:
        return reader.read(path, limits)
    except ArithmeticError as error:
        # A reader that meets a number beyond all bounds names it itself; this is for the one that it did not foresee.
        reason = f"holds a number that no trace holds ({error})"
        raise TraceFormatError(str(path), reason, verdict=Verdict.UNREADABLE) from error
