"""Reading JSON that is not JSON: what profilers write and strict parsers refuse.

Seen in real files: range names with unescaped double quotes, lone backslashes in paths, raw control characters, bytes
that are no UTF-8, `NaN`, `inf` and numbers beyond float64. The tolerant decoder takes all but the first two as they are;
`repair_event` mends those two. All of it is slow and runs on damaged stretches only.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mtpprof.analyzers.traces.readers.events import Event, lenient_event

LENIENT_ERRORS = (ValueError, RecursionError)
"""What `decode_at` raises; `json.JSONDecodeError` is a `ValueError`."""

SECOND_HEAD = re.compile(r'"(?:schemaVersion|traceEvents|distributedInfo|baseTimeNanoseconds)"\s*:')
"""Found among events, it is the beginning of another trace: several processes wrote to one path."""

_MAX_REPAIR_CHARS = 256 << 10
_MAX_INT_DIGITS = 25

_NAMES = tuple(
    re.compile(rf'("name"\s*:\s*")({any_text})("\s*(?:{after}))')
    for any_text, after in (
        (r"[^\n]*?", r',\s*"pid"\s*:'),
        (r"[^\n]*", r',\s*"pid"\s*:'),
        (r"[^\n]*?", r',\s*"(?:ph|cat|tid|ts|dur|args)"\s*:'),
        (r"[^\n]*?", r',\s*"pid"\s*:|\}'),
    )
)
"""A name on one line and what follows it. Kineto writes the process id next, so those readings are tried first."""
_LONE_BACKSLASH = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BARE_QUOTE = re.compile(r'(?<!\\)((?:\\\\)*)"')
_NO_NUMBER = re.compile(r":\s*[-+]?(?:nan|inf(?:inity)?)(?:\([a-z0-9]*\))?(?=\s*[,}\]])", re.IGNORECASE)


def _parse_int(text: str) -> int | None:
    return int(text) if len(text) <= _MAX_INT_DIGITS else None


def _parse_float(text: str) -> float | str | None:
    # Long decimals stay text, so that times too fine for float64 are still read to the nanosecond.
    if len(text) > 16 and "e" not in text and "E" not in text:
        return text
    value = float(text)
    return value if abs(value) != float("inf") else None


def _parse_constant(_text: str) -> None:
    return None


_DECODER = json.JSONDecoder(
    strict=False, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_parse_constant
)


def decode_at(text: str, position: int) -> tuple[Any, int]:
    """The JSON value that starts at `position`, and where it ends.

    Raises:
        ValueError, RecursionError: there is none, or it is nested too deeply.
    """
    return _DECODER.raw_decode(text, position)


def repair_event(text: str) -> Event | None:
    """The event that a damaged piece of text was meant to be; None where that cannot be told."""
    if len(text) > _MAX_REPAIR_CHARS or SECOND_HEAD.search(text):
        return None
    for pattern in _NAMES:
        mended = pattern.sub(_escape_name, text)
        mended = _LONE_BACKSLASH.sub(r"\\\\", mended)
        mended = _NO_NUMBER.sub(": null", mended)
        try:
            value, end = decode_at(mended, 0)
        except LENIENT_ERRORS:
            continue
        if not mended[end:].strip():
            return lenient_event(value)
    return None


def _escape_name(match: re.Match[str]) -> str:
    head, name, tail = match.groups()
    return head + _BARE_QUOTE.sub(r'\1\\"', name) + tail


def recover_metadata(text: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """The values of `keys` in a damaged text of a JSON object, as far as each by itself can be read."""
    found: dict[str, Any] = {}
    for key in keys:
        match = re.search(rf'"{re.escape(key)}"\s*:\s*', text)
        if match is None:
            continue
        try:
            found[key], _ = decode_at(text, match.end())
        except LENIENT_ERRORS:
            continue
    return found
