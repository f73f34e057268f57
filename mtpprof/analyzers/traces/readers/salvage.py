"""From a stretch of text to events, whatever state the text is in.

The way down: the whole stretch at full speed; where that fails, halves of it, down to the single events that are damaged;
those with a tolerant decoder; then mended; then left out and counted. A file in which a fifth of the events are damaged
is refused: it was written by several processes at once, or is no trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.readers.events import DECODE_ERRORS, Event, ExactEvent, lenient_event
from mtpprof.analyzers.traces.readers.repair import LENIENT_ERRORS, SECOND_HEAD, decode_at, repair_event
from mtpprof.analyzers.traces.verdicts import Verdict

AnyEvent = Event | ExactEvent
Decode = Callable[[bytes], list[AnyEvent]]

_MAX_CARRY_CHARS = 1 << 20
_MIN_DAMAGE_TO_REFUSE = 1000
_DAMAGE_SHARE_TO_REFUSE = 0.2

_REPLACED = "\ufffd"
_BOUNDARY = re.compile(r"\}\s*,\s*\{")
_CLOSE = re.compile(r"\}\s*(?:,\s*)?\]")
_SKIP = re.compile(r"[\s,]*")


@dataclass(slots=True, kw_only=True)
class TextNotes:
    """What was found wrong with the text of a file."""

    truncated: str | None = None
    """Why the text counts as cut off; None: it is whole."""
    events: int = 0
    repaired: int = 0
    """Events whose text had to be mended."""
    replaced: int = 0
    """Events with bytes that are no UTF-8, which were replaced."""
    unread: int = 0
    """Events of a second list, which were not read."""
    damaged: int = 0
    """Stretches in which no event could be read."""
    first_damage: int | None = None
    """Byte of the text at which the first of them starts."""
    remarks: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Scan:
    """What one stretch of text gave."""

    events: list[AnyEvent]
    left: str = ""
    """Text of an event that goes on beyond the stretch."""
    closed: str | None = None
    """Text after the `]` that ended the list of events; None: the list goes on."""


class Salvager:
    """Decodes the stretches of one file, in order, and keeps the notes."""

    def __init__(self, path: str, decode: Decode, notes: TextNotes) -> None:
        self.notes = notes
        self._path = path
        self._decode = decode

    def events(self, text: bytes, offset: int, separator: bytes | None) -> Scan:
        """The events of a stretch that starts with an event and, in most cases, ends with one.

        Args:
            text: The stretch, without brackets.
            offset: Where it starts in the file's text, for messages.
            separator: What stands between events, where it cannot stand inside one; None: there is no such text.

        Raises:
            TraceFormatError: too much of the file is damaged, or two writers shared it.
        """
        try:
            scan = Scan(events=self._decode(b"[" + text + b"]"))
        except DECODE_ERRORS:
            if separator is None:
                scan = self._scan(text, offset, more=True)
            else:
                scan = self._bisect(text.split(separator), separator, offset, first=True, last=True)
        self.notes.events += len(scan.events)
        return scan

    def last_events(self, text: bytes, offset: int) -> Scan:
        """The events of the stretch at the end of the file, with whatever follows them."""
        scan = self._scan(text, offset, more=False)
        self.notes.events += len(scan.events)
        return scan

    def _bisect(self, pieces: list[bytes], separator: bytes, offset: int, *, first: bool, last: bool) -> Scan:
        text = (b"" if first else b"{") + separator.join(pieces) + (b"" if last else b"}")
        try:
            return Scan(events=self._decode(b"[" + text + b"]"))
        except DECODE_ERRORS:
            pass
        if len(pieces) == 1:
            return self._scan(text, offset, more=False, whole=True)
        middle = len(pieces) // 2
        scan = self._bisect(pieces[:middle], separator, offset, first=first, last=False)
        if scan.closed is not None:
            scan.closed += (separator[1:] + separator.join(pieces[middle:])).decode("utf-8", "replace")
            return scan
        offset += sum(len(piece) + len(separator) for piece in pieces[:middle])
        right = self._bisect(pieces[middle:], separator, offset, first=False, last=last)
        return Scan(events=scan.events + right.events, closed=right.closed)

    def _scan(self, raw: bytes, offset: int, *, more: bool, whole: bool = False) -> Scan:
        """Value by value through a text. `more`: the text goes on; `whole`: it was cut at true boundaries."""
        events: list[AnyEvent] = []
        text, position = raw.decode("utf-8", "replace"), 0
        # A text may hold the replacement character of its own accord.
        lossy = text.count(_REPLACED) > raw.count(_REPLACED.encode())
        while (position := _skip(text, position)) < len(text):
            if text[position] == "]":
                return Scan(events=events, closed=text[position + 1 :])
            try:
                value, end = decode_at(text, position)
            except LENIENT_ERRORS as error:
                if more and _goes_on(error, text, position):
                    self.notes.replaced += lossy and _REPLACED in text[position:]
                    return Scan(events=events, left=text[position:])
                event = None
            else:
                event = lenient_event(value)
                self.notes.replaced += lossy and _REPLACED in text[position:end]
            if event is None:
                event, end = self._mend(text, position, whole=whole)
            if end < 0:
                self.notes.truncated = "it ends in the middle of an event"
                break
            if event is not None and event.ph:
                events.append(event)
            else:
                self._count_damage(text, position, end, offset)
            position = end
        return Scan(events=events)

    def _mend(self, text: str, start: int, *, whole: bool) -> tuple[Event | None, int]:
        """The event of a damaged stretch, if it can be mended, and its end; -1: the file is cut off inside it."""
        ends = [match.start() + 1 for find in (_BOUNDARY, _CLOSE) if (match := find.search(text, start))][:1]
        if whole:
            ends.insert(0, len(text))
        for end in ends:
            event = repair_event(text[start:end])
            if event is not None:
                self.notes.repaired += 1
                return event, end
        return None, ends[-1] if ends else -1

    def _count_damage(self, text: str, start: int, end: int, offset: int) -> None:
        notes = self.notes
        second = SECOND_HEAD.search(text, start, end)
        if second is not None:
            raise TraceFormatError(
                self._path,
                "the beginning of a second trace stands inside the first: several processes wrote to this path",
                verdict=Verdict.INTERLEAVED,
                offset=offset + _encoded_length(text, second.start()),
            )
        notes.damaged += 1
        if notes.first_damage is None:
            notes.first_damage = offset + _encoded_length(text, start)
        if notes.damaged > _MIN_DAMAGE_TO_REFUSE and notes.damaged > _DAMAGE_SHARE_TO_REFUSE * notes.events:
            raise TraceFormatError(
                self._path,
                f"{notes.damaged:,} of its first {notes.damaged + notes.events:,} events cannot be read",
                verdict=Verdict.UNREADABLE,
                offset=notes.first_damage,
            )


def _encoded_length(text: str, end: int) -> int:
    return len(text[:end].encode("utf-8", "replace"))


def _skip(text: str, position: int) -> int:
    match = _SKIP.match(text, position)
    return match.end() if match is not None else position


def _goes_on(error: Exception, text: str, position: int) -> bool:
    """Whether a value could not be read because the stretch ends inside it, and not because it is damaged."""
    if not isinstance(error, json.JSONDecodeError) or len(text) - position > _MAX_CARRY_CHARS:
        return False
    return error.pos >= len(text) or error.msg.startswith("Unterminated string")
