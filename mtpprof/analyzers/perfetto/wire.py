"""Many protobuf messages of one shape at once, as NumPy columns.

The decision: a message class per event costs microseconds; here a batch of messages is one matrix of bytes, a row a
message and a column a byte of the widest form, beside a matrix that says which bytes are there. Picking those in
order gives the file's bytes: varints of their shortest form, absent fields absent, 30 times as fast as one object per
event. Only what repeats by the million goes this way; descriptors and tables of texts are ordinary protobuf objects.

Source of the format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I64, U8, Bools

_VARINT, _FIXED64, _BYTES = 0, 1, 2


class Messages:
    """`count` messages, to which fields are appended in order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._bytes: list[U8] = []
        self._there: list[Bools] = []
        self._length = np.zeros(count, np.int64)

    def varint(self, field: int, values: int | NDArray[Any], present: Bools | None = None) -> None:
        """An integer, enum or bool field; negative numbers take ten bytes, as the format says."""
        self._tag(field, _VARINT, present)
        self._varint(values, present)

    def fixed64(self, field: int, values: NDArray[Any], present: Bools | None = None) -> None:
        """A `fixed64` (int64 or uint64 values) or `double` (float64 values) field."""
        self._tag(field, _FIXED64, present)
        columns = np.ascontiguousarray(values).view("<u8").view(np.uint8).reshape(self._count, 8)
        self._append(columns, present, 8)

    def message(self, field: int, inner: Messages, present: Bools | None = None) -> None:
        """A field that holds one message of `inner` each; where not `present`, `inner` is left out whole."""
        self._tag(field, _BYTES, present)
        self._varint(inner._length, present)
        for columns, there in zip(inner._bytes, inner._there, strict=True):
            self._bytes.append(columns)
            self._there.append(there if present is None else there & present[:, None])
        self._length += inner._length if present is None else np.where(present, inner._length, 0)

    def encode(self) -> bytes:
        """All messages one after the other, as they stand (wrap them in a field to delimit them)."""
        if not self._bytes:
            return b""
        return np.concatenate(self._bytes, axis=1)[np.concatenate(self._there, axis=1)].tobytes()

    def _tag(self, field: int, wire_type: int, present: Bools | None) -> None:
        self._varint(field << 3 | wire_type, present)

    def _varint(self, values: int | NDArray[Any], present: Bools | None) -> None:
        if isinstance(values, int):
            digits, _, length = _digits(np.full(1, values, np.int64))
            self._append(np.broadcast_to(digits, (self._count, digits.shape[1])), present, digits.shape[1])
            return
        digits, there, length = _digits(values)
        if present is not None:
            there &= present[:, None]
            length *= present
        self._bytes.append(digits)
        self._there.append(there)
        self._length += length

    def _append(self, columns: U8, present: Bools | None, width: int) -> None:
        there = np.ones(1, np.bool_) if present is None else present
        self._bytes.append(columns)
        self._there.append(np.broadcast_to(there[:, None], (self._count, width)))
        self._length += there * width


def _digits(values: NDArray[Any]) -> tuple[U8, Bools, I64]:
    """Groups of seven bits, lowest first; which of them the shortest form has; and how many."""
    rest = values.astype(np.int64, copy=False).view(np.uint64)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    digits = np.empty((len(rest), width), np.uint8)
    there = np.ones((len(rest), width), np.bool_)
    length = np.ones(len(rest), np.int64)
    for place in range(width):
        np.bitwise_and(rest, 0x7F, out=digits[:, place], casting="unsafe")
        rest = rest >> np.uint64(7)
        if place + 1 < width:
            more = rest > 0
            digits[:, place] |= more.view(np.uint8) << 7
            there[:, place + 1] = more
            length += more
    return digits, there, length
