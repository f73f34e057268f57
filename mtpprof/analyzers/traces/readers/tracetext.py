"""The text of a Chrome-format trace, split into head, batches of events and tail without holding it in memory.

The decision: text is cut at event boundaries into stretches of about 1 MiB, each of which is ordinary JSON once it is put
in brackets and goes through msgspec at full speed. Profilers write a raw newline between events, and no JSON string can
hold one, so the cut is safe; where a file is compact and a cut falls inside an event, decoding fails and `salvage` finds
the event's end by scanning.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import msgspec

from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.readers.bytestream import TextSource
from mtpprof.analyzers.traces.readers.columns import FLOAT64_EXACT_BELOW_US
from mtpprof.analyzers.traces.readers.events import DECODE_ERRORS, decode_events, decode_exact_events
from mtpprof.analyzers.traces.readers.repair import LENIENT_ERRORS, SECOND_HEAD, decode_at, recover_metadata
from mtpprof.analyzers.traces.readers.salvage import AnyEvent, Decode, Salvager, TextNotes
from mtpprof.analyzers.traces.verdicts import Verdict

METADATA_KEYS = (
    "distributedInfo",
    "baseTimeNanoseconds",
    "trace_id",
    "host_name",
    "deviceProperties",
    "vllm_version",
    "record_shapes",
    "with_stack",
    "cuda_runtime_version",
    "cuda_driver_version",
    "traceName",
)
"""What is looked for by name where the metadata as a whole cannot be read."""

_STRETCH_BYTES = 1 << 19
"""Small enough that the decoded events stay in the processor's cache until their columns are made."""
_LEARN_BYTES = 1 << 20
_SEARCH_BACK_BYTES = 2 << 20
_KEY_BYTES = 64

_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"
_FIRST_KEY = re.compile(rb'[\xef\xbb\xbf\s]*\{\s*"([^"\\\x00-\x1f]{1,80})"')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(\S)')
_FRACTIONAL_TIME = re.compile(rb'"ts"\s*:\s*"?(\d{1,18})\.\d')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_BETWEEN = re.compile(r"\s*,\s*(?=\{)")


class TraceText:
    """One pass over a file. `metadata` and `notes` are complete once `batches` is exhausted."""

    def __init__(self, source: TextSource) -> None:
        self.metadata: dict[str, Any] = {}
        self.exact = False
        """Times are delivered as text, because float64 would round them."""
        self.notes = TextNotes()
        self._source = source
        self._path = str(source.path)
        self._blocks = source.blocks()
        self._salvager: Salvager | None = None
        self._separator: bytes | None = None
        self._by_line = False
        """The separator holds a newline, so that it cannot stand inside a string."""
        self._in_object = True
        self._buffer = b""
        self._offset = 0

    def batches(self) -> Iterator[list[AnyEvent]]:
        """Lists of events in the order of the file.

        Raises:
            TraceFormatError: the text is no trace, or damaged beyond use.
        """
        try:
            yield from self._batches()
        except TraceFormatError as error:
            # What damaged compressed data inflates to says nothing of who wrote the file.
            if not self._is_corrupt():
                raise
            if events := self._before(error):
                yield events
            elif not self.notes.events:
                reason = f"{self._source.damage}, before its first event"
                raise TraceFormatError(self._path, reason, verdict=Verdict.UNREADABLE) from error

    def _batches(self) -> Iterator[list[AnyEvent]]:
        self._read_head()
        more = self._fill(_STRETCH_BYTES)
        self._learn()
        decode = cast("Decode", decode_exact_events if self.exact else decode_events)
        salvager = self._salvager = Salvager(self._path, decode, self.notes)
        while (cut := self._cut(more)) is not None or more:
            if cut is None:
                self._check_gap("has no boundary between events in")
                more = self._fill(len(self._buffer) + _STRETCH_BYTES)
                continue
            end, start, certain = cut
            scan = salvager.events(self._buffer[:end], self._offset, self._separator if certain else None)
            if scan.events:
                yield scan.events
            if scan.closed is not None:
                self._read_tail(scan.closed + self._buffer[end:].decode("utf-8", "replace"))
                return
            left = scan.left.encode("utf-8", "replace")
            self._advance(left, end if left else start)
            if left and not more:
                break
            # What is left needs more text than it had, so the buffer must grow.
            more = self._fill(_STRETCH_BYTES + (len(self._buffer) if left else 0))
        scan = salvager.last_events(self._buffer, self._offset)
        if scan.events:
            yield scan.events
        if scan.closed is None:
            self.notes.truncated = (
                self._source.damage or self.notes.truncated or "its list of events is not closed"
            )
        else:
            self._read_tail(scan.closed)

    def head(self) -> tuple[dict[str, Any], list[AnyEvent]]:
        """Metadata before the events, and the first few of them: for a cheap look.

        Raises:
            TraceFormatError: the text is no trace.
        """
        first = next(self.batches(), [])
        return self.metadata, first

    def _before(self, error: TraceFormatError) -> list[AnyEvent]:
        """The events of the present stretch that stand before its first damage."""
        found = [at for at in (self.notes.first_damage, error.offset) if at is not None]
        length = min(found, default=0) - self._offset
        if self._salvager is None or length <= 0:
            return []
        self.notes.damaged = 0  # all of it lies behind, in what is not read again
        events = self._salvager.last_events(self._buffer[:length], self._offset).events
        self.notes.truncated = self._source.damage
        return events

    def _is_corrupt(self) -> bool:
        """Whether the compressed data is damaged, which may show at its end only; it then counts as cut off."""
        for _ in self._blocks:
            pass
        if not (self._source.corrupt or self._source.cut):
            return False
        self.notes.truncated = self._source.damage
        return True

    def _fill(self, wanted: int) -> bool:
        """Read until the buffer holds `wanted` bytes; False: the file has ended."""
        parts, size = [self._buffer], len(self._buffer)
        while size < wanted:
            block = next(self._blocks, b"")
            if not block:
                self._buffer = b"".join(parts)
                return False
            parts.append(block)
            size += len(block)
        self._buffer = b"".join(parts)
        return True

    def _advance(self, left: bytes, consumed: int) -> None:
        self._offset += consumed - len(left)
        self._buffer = left + self._buffer[consumed:]

    def _check_gap(self, what: str) -> None:
        limit = self._source.limits.max_gap_bytes
        if len(self._buffer) > limit:
            raise TraceFormatError(
                self._path, f"{what} {limit:,} bytes of text", verdict=Verdict.TOO_LARGE, offset=self._offset
            )

    def _check_head(self) -> None:
        limit = self._source.limits.max_gap_bytes
        if len(self._buffer) > limit:
            raise TraceFormatError(
                self._path,
                f"has no traceEvents list in its first {limit:,} bytes{self._first_key()}",
                verdict=Verdict.NOT_A_TRACE,
                advice="give a trace (docs/analyze.md lists the formats that are read); "
                "where the list does follow, analyze and doctor find it with --max-gb",
            )

    def _first_key(self) -> str:
        """Of an object: what its first key says of the tool that wrote it."""
        match = _FIRST_KEY.match(self._buffer)
        return f'; its first key is "{match[1].decode("utf-8", "replace")}"' if match else ""

    def _read_head(self) -> None:
        """Up to the first event: sets the metadata and leaves the buffer at the list's first byte."""
        searched = 0
        more = True
        while True:
            if self._buffer.lstrip(_BEFORE_JSON).startswith(b"["):
                self._in_object = False
                self._advance(b"", self._buffer.index(b"[") + 1)
                return
            match = _EVENTS_KEY.search(self._buffer, searched)
            if match is not None:
                if match[1] != b"[":
                    raise TraceFormatError(
                        self._path,
                        "its traceEvents is no list",
                        verdict=Verdict.NOT_A_TRACE,
                        offset=match.start(),
                    )
                self._read_metadata(self._buffer[: match.end()] + b"]}")
                self._advance(b"", match.end())
                return
            if not more:
                self._refuse_head()
            self._check_head()
            searched = max(0, len(self._buffer) - _KEY_BYTES)
            more = self._fill(len(self._buffer) + _STRETCH_BYTES)

    def _refuse_head(self) -> None:
        if re.search(rb'"(?:schemaVersion|deviceProperties)"', self._buffer):
            reason, verdict = "is cut off before its first event", Verdict.TRUNCATED
        else:
            reason, verdict = f"is JSON without a traceEvents list{self._first_key()}", Verdict.NOT_A_TRACE
        raise TraceFormatError(self._path, reason, verdict=verdict)

    def _learn(self) -> None:
        """Find out from the first events how this file separates events and how fine its times are."""
        times = islice(_FRACTIONAL_TIME.finditer(self._buffer), 1000)
        self.exact = any(int(time[1]) >= FLOAT64_EXACT_BELOW_US for time in times)
        text = self._buffer[:_LEARN_BYTES].decode("utf-8", "replace")
        start = text.find("{")
        if start < 0:
            return
        try:
            _, end = decode_at(text, start)
        except LENIENT_ERRORS:
            return
        between = _BETWEEN.match(text, end)
        if between is not None:
            self._separator = b"}" + between[0].encode() + b"{"
            self._by_line = "\n" in between[0]

    def _cut(self, more: bool) -> tuple[int, int, bool] | None:
        """End and start of the events around the last boundary in the buffer, and whether it is one for certain.

        None: there is none, or none worth the risk while the file's own separator may still come.
        """
        if self._separator is not None:
            found = self._buffer.rfind(self._separator)
            if found >= 0:
                return found + 1, found + len(self._separator) - 1, self._by_line
            if self._by_line and (not more or len(self._buffer) < 2 * _STRETCH_BYTES):
                return None
        back = max(0, len(self._buffer) - _SEARCH_BACK_BYTES)
        last = next(iter(deque(_BOUNDARY.finditer(self._buffer, back), maxlen=1)), None)
        return (last.start() + 1, last.end() - 1, False) if last is not None else None

    def _read_metadata(self, text: bytes) -> None:
        try:
            values = msgspec.json.decode(text)
        except DECODE_ERRORS:
            values = self._damaged_metadata(text.decode("utf-8", "replace"))
        if isinstance(values, dict):
            values.pop("traceEvents", None)
            self.metadata.update(values)

    def _damaged_metadata(self, text: str) -> object:
        try:
            return decode_at(text.lstrip("\ufeff \t\r\n"), 0)[0]
        except LENIENT_ERRORS:
            self.notes.remarks.append("its metadata is damaged; what could be read of it was taken")
            return recover_metadata(text, METADATA_KEYS)

    def _read_tail(self, closed: str) -> None:
        """What follows the list of events: metadata of an object, and nothing else."""
        limit = self._source.limits.max_gap_bytes
        parts, size = [closed], len(closed)
        for block in self._blocks:
            parts.append(block.decode("utf-8", "replace"))
            size += len(block)
            if size > limit:
                self.notes.remarks.append(f"more than {limit:,} bytes follow its events and were not read")
                break
        text = "".join(parts).strip(" \t\r\n\0")
        rest = self._tail_metadata(text) if self._in_object else text
        if SECOND_HEAD.search(rest) or '"ph"' in rest:
            if self._is_corrupt():
                return
            raise TraceFormatError(
                self._path,
                "a second trace follows the first: several processes wrote to this path, or files were joined",
                verdict=Verdict.INTERLEAVED,
                offset=self._source.text_bytes - len(rest.encode("utf-8", "replace")),
            )
        if rest:
            self.notes.remarks.append("text that belongs to no trace follows it")
        if self._source.corrupt:
            self.notes.truncated = self._source.damage
        elif self._source.damage:
            self.notes.remarks.append(self._source.damage)

    def _tail_metadata(self, text: str) -> str:
        """Take over the keys after the events; returns what follows the object."""
        body = "{" + text.removeprefix(",")
        try:
            values, end = decode_at(body, 0)
        except LENIENT_ERRORS:
            pass
        else:
            second = values.pop("traceEvents", ())
            self.notes.unread += len(second) if isinstance(second, list) else 1 if second else 0
            self.metadata.update(values)
            return body[end:].strip()
        if '"ph"' in text:
            return text
        self.metadata.update(recover_metadata(body, METADATA_KEYS))
        if not text.endswith("}"):
            self.notes.truncated = self._source.damage or "it ends before its closing brace"
            return ""
        self.notes.remarks.append("its metadata is damaged; what could be read of it was taken")
        return ""
