"""NVTX payloads: the schemas that a program registers, and the decoding of its payload bytes by them.

The decision: a payload is decoded only when somebody asks, one at a time into plain values (`Schemas.decode`), or for all
events of one fixed layout at once through a NumPy structured type (`Schemas.dtype`), which is how a million NCCL calls are
read. Pointers are shown as addresses: what they pointed to is gone with the process. Unions, and whatever else has no
rule here, are shown as bytes. Damaged payloads give fewer fields, never an error.

Numbers, flags and layout rules are those of nvToolsExtPayload.h (NVTX 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

PayloadValue: TypeAlias = Union[int, float, str, bytes, list["PayloadValue"], dict[str, "PayloadValue"]]  # noqa: UP007 - `|` cannot hold a name in quotes

NESTING_MAX = 8
VALUES_MAX = 100_000
"""Values decoded from one payload; what is beyond stays bytes."""
STATIC_BYTES_MAX = 128 << 10
"""The injection keeps no payload beyond it."""

_POINTERS = 0b1110
"""Pointer, offset from the payload's start, offset from here: the value lies elsewhere."""
_ARRAY_MASK = 0x70
_ARRAY_ZERO_TERMINATED, _ARRAY_LENGTH_INDEX = 0x20, 0x30
_MESSAGE_MASK, _MESSAGE = 0xC00, 0x400
_SCHEMA_STATIC, _SCHEMA_DYNAMIC = 1, 2

_ADDRESS = 23
_BF16 = 50
_STRING_UNITS = {75: 1, 76: 1, 77: 2, 78: 4}
_STRING_CODECS = {1: "utf-8", 2: "utf-16-le", 4: "utf-32-le"}
_REGISTERED_STRING = 80

_NUMBERS: dict[int, str] = {
    **{1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<i8", 8: "<u8", 9: "<i8", 10: "<u8"},
    **{11: "i1", 12: "u1", 13: "<i2", 14: "<u2", 15: "<i4", 16: "<u4", 17: "<i8", 18: "<u8"},
    **{19: "<f4", 20: "<f8", 22: "<u8", _ADDRESS: "<u8", 24: "<u4", 25: "u1", 26: "<u2", 27: "<u4", 32: "u1"},
    **{42: "<f2", 43: "<f4", 44: "<f8", _BF16: "<u2", 52: "<f4"},
    **{67: "<u8", 68: "<u4", 69: "<u4", 70: "<u8", 71: "<u4", 72: "<u8", 73: "<u4", 74: "<u8"},
    **{_REGISTERED_STRING: "<u8", 100: "<u4"},
}
"""NumPy type of each predefined number on 64-bit Linux."""
_OPAQUE_BYTES = {21: 16, 33: 16, 34: 16, 45: 16}
"""long double and the 128-bit types: no exact counterpart everywhere, so their bytes are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One field of a schema."""

    flags: int
    type: int
    """A predefined type, or the id of a schema or enumeration."""
    detail: int
    """Length of an array or string, or the index of the field that holds it."""
    offset: int
    """In bytes from the start; 0 past the first field: follows the one before."""
    name: str


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Layout of a payload."""

    name: str
    kind: int
    flags: int
    static_bytes: int
    pack_align: int
    entries: tuple[Entry, ...]

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields, made up where the program gave none or gave one twice."""
        names: dict[str, None] = {}
        for index, entry in enumerate(self.entries):
            name = entry.name or f"field {index}"
            while name in names:
                name = f"{name} ({index})"
            names[name] = None
        return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumeration:
    """Names of the values of an integer field."""

    name: str
    value_bytes: int
    names: dict[int, str]
    flags: dict[int, str] = field(default_factory=dict)
    """Bits that can be combined."""

    def text(self, value: int) -> str:
        """Name of a value; flags joined with `|`; the number where it has no name."""
        if value in self.names:
            return self.names[value]
        bits = [name for bit, name in self.flags.items() if bit and value & bit == bit]
        return "|".join(bits) if bits else str(value)


@dataclass(frozen=True, kw_only=True)
class Schemas:
    """Everything that a process registered, keyed by (domain code, id); ids of strings are unique in a process."""

    layouts: dict[tuple[int, int], Schema] = field(default_factory=dict)
    enumerations: dict[tuple[int, int], Enumeration] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)

    def decode(self, domain: int, schema_id: int, data: bytes) -> PayloadValue:
        """Plain values of one payload: a dict for a registered schema, a scalar, list or text for a predefined type.

        Bytes as they are where the schema is unknown or raw.
        """
        decoder = _Decoder(self, domain, data)
        schema = self.layouts.get((domain, schema_id))
        if schema is not None:
            return decoder.structure(schema, 0)[0]
        if schema_id in _STRING_UNITS:
            return _string(data, _STRING_UNITS[schema_id])
        size = np.dtype(_NUMBERS[schema_id]).itemsize if schema_id in _NUMBERS else 0
        if size == 0 or len(data) < size:
            return data
        values = [decoder.scalar(schema_id, at) for at in range(0, len(data) - size + 1, size)]
        return values[0] if len(values) == 1 else values

    def message(self, domain: int, schema_id: int, data: bytes) -> str | None:
        """The field that a schema marks as the event's message; None: it marks none, or it is a pointer."""
        schema = self.layouts.get((domain, schema_id))
        if schema is None:
            return None
        marked = [i for i, entry in enumerate(schema.entries) if entry.flags & _MESSAGE_MASK == _MESSAGE]
        if not marked or _is_elsewhere(schema.entries[marked[-1]]):
            return None
        text = _Decoder(self, domain, data).structure(schema, 0)[0].get(schema.field_names[marked[-1]])
        return text if isinstance(text, str) else None

    def dtype(self, domain: int, schema_id: int) -> np.dtype[np.void] | None:
        """NumPy type of the numbers in a fixed layout, under the fields' names; None: the layout is not fixed.

        Fields that are no single number (text, arrays, types that were never registered) are left out. Enumerations keep
        their number; `enumeration_of` tells which one a field has.
        """
        schema = self.layouts.get((domain, schema_id))
        if schema is None or schema.kind != _SCHEMA_STATIC or not 0 < schema.static_bytes <= STATIC_BYTES_MAX:
            return None
        fields: dict[str, tuple[str, int]] = {}
        end: int | None = 0
        for index, (name, entry) in enumerate(zip(schema.field_names, schema.entries, strict=True)):
            number = self.number_format(domain, entry.type)
            placed = end is not None or entry.offset > 0
            if number is None or entry.flags & (_POINTERS | _ARRAY_MASK) or not placed:
                end = None
                continue
            size = np.dtype(number).itemsize
            offset = _place(schema, index, end or 0, size)
            end = offset + size
            if end <= schema.static_bytes:
                fields[name] = (number, offset)
        layout = {
            "names": list(fields),
            "formats": [number for number, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": schema.static_bytes,
        }
        return np.dtype(layout)  # type: ignore[call-overload, no-any-return]

    def enumeration_of(self, domain: int, schema_id: int, name: str) -> Enumeration | None:
        """The enumeration of the field `name` of a schema; None: it is a plain number, or there is no such field."""
        schema = self.layouts.get((domain, schema_id))
        if schema is None or name not in schema.field_names:
            return None
        entry = schema.entries[schema.field_names.index(name)]
        return self.enumerations.get((domain, entry.type))

    def number_format(self, domain: int, type_id: int) -> str | None:
        """NumPy type of a predefined number, an enumeration, or a layout of one lone number; None: it is none of them.

        The Python package registers such a layout for every NumPy type and nests it in its structures and arrays.
        """
        enumeration = self.enumerations.get((domain, type_id))
        if enumeration is not None:
            return {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}.get(enumeration.value_bytes)
        schema = self.layouts.get((domain, type_id))
        if schema is None or schema.kind != _SCHEMA_STATIC or len(schema.entries) != 1:
            return _NUMBERS.get(type_id)
        lone = schema.entries[0]
        number = _NUMBERS.get(lone.type)
        plain = number is not None and lone.flags == 0 and lone.offset == 0
        return number if plain and np.dtype(number).itemsize == schema.static_bytes else None

    def size_and_alignment(self, domain: int, type_id: int) -> tuple[int, int]:
        """Of one element of a type, in bytes; size 0: not known beforehand."""
        plain = self._plain_bytes(domain, type_id)
        if plain:
            return plain, plain
        schema = self.layouts.get((domain, type_id))
        return (schema.static_bytes, self._alignments[domain, type_id]) if schema is not None else (0, 1)

    def _plain_bytes(self, domain: int, type_id: int) -> int:
        number = self.number_format(domain, type_id)
        if number is not None:
            return np.dtype(number).itemsize
        return _OPAQUE_BYTES.get(type_id, 0) or _STRING_UNITS.get(type_id, 0)

    @cached_property
    def _alignments(self) -> dict[tuple[int, int], int]:
        """Of every registered layout: the largest of its parts. What is nested becomes known one level a round."""
        found = dict.fromkeys(self.layouts, 1)
        for _ in range(NESTING_MAX):
            before = dict(found)
            for (domain, number), schema in self.layouts.items():
                parts = (
                    self._plain_bytes(domain, entry.type) or before.get((domain, entry.type), 1)
                    for entry in schema.entries
                )
                align = max(parts, default=1)
                found[domain, number] = min(align, schema.pack_align) if schema.pack_align else align
            if found == before:
                break
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PayloadColumns:
    """All payloads of one fixed layout."""

    domain: int
    schema_id: int
    rows: NDArray[np.int64]
    """Where each came from in the positions given to `gather`."""
    values: NDArray[np.void]
    """One structured element a row."""


def gather(
    blobs: bytearray, at: NDArray[np.int64], domain: NDArray[np.int32], schemas: Schemas
) -> list[PayloadColumns]:
    """Read the payloads of all events whose one extended payload has a fixed layout, layout by layout.

    Args:
        blobs: The bytes that the positions point into.
        at: Where an event's extended payloads begin; -1: it has none. Events with several are left out.
        domain: Domain code of each event.
        schemas: Layouts.
    """
    data = np.frombuffer(blobs, np.uint8)
    words = np.frombuffer(blobs, "<u8", len(blobs) // 8)
    rows = np.flatnonzero((at >= 0) & (at % 8 == 0) & (at + 24 <= len(data)))
    word = at[rows] // 8
    single = words[word] == 1
    rows, word = rows[single], word[single]
    schema_id, stored = words[word + 1], (words[word + 2] >> np.uint64(32)).astype(np.int64)
    columns: list[PayloadColumns] = []
    for key in np.unique(schema_id):
        for code in np.unique(domain[rows[schema_id == key]]).tolist():
            layout = schemas.dtype(code, int(key))
            if layout is None:
                continue
            here = np.flatnonzero(
                (schema_id == key)
                & (domain[rows] == code)
                & (stored == layout.itemsize)
                & (at[rows] + 24 + layout.itemsize <= len(data))
            )
            picked = data[(at[rows[here]] + 24)[:, None] + np.arange(layout.itemsize)]
            values = np.ascontiguousarray(picked).view(layout)[:, 0]
            columns.append(PayloadColumns(domain=code, schema_id=int(key), rows=rows[here], values=values))
    return columns


class _Decoder:
    """Reads one payload. Hostile layouts (nested in themselves, arrays of arrays) end when the budget of values is spent."""

    def __init__(self, schemas: Schemas, domain: int, data: bytes) -> None:
        self._schemas = schemas
        self._domain = domain
        self._data = data
        self._budget = VALUES_MAX

    def structure(self, schema: Schema, base: int, depth: int = 0) -> tuple[dict[str, PayloadValue], int]:
        """Fields of a structure that starts at `base`, and the position after it."""
        fixed_end = base + schema.static_bytes
        if schema.kind not in (_SCHEMA_STATIC, _SCHEMA_DYNAMIC) or depth >= NESTING_MAX:
            return {"bytes": self._data[base:fixed_end]}, fixed_end
        values: list[PayloadValue] = []
        cursor = base
        for index, entry in enumerate(schema.entries):
            align = self._schemas.size_and_alignment(self._domain, entry.type)[1]
            at = base + _place(schema, index, cursor - base, align)
            self._budget -= 1
            if at > len(self._data) or self._budget < 0:
                break
            value, cursor = self._field(entry, at, values, depth)
            values.append(value)
        named = dict(zip(schema.field_names, values, strict=False))
        return named, fixed_end if schema.kind == _SCHEMA_STATIC and schema.static_bytes else cursor

    def scalar(self, type_id: int, at: int) -> PayloadValue:
        """One number of a predefined type or enumeration; bytes where there is no number for it."""
        number = self._schemas.number_format(self._domain, type_id)
        if number is None:
            size = self._schemas.size_and_alignment(self._domain, type_id)[0]
            return self._data[at : at + size]
        value: int | float = np.frombuffer(self._data, number, 1, at)[0].item()
        enumeration = self._schemas.enumerations.get((self._domain, type_id))
        if enumeration is not None:
            return enumeration.text(int(value))
        if type_id == _REGISTERED_STRING:
            return self._schemas.strings.get(int(value), f"string {value}")
        if type_id == _ADDRESS:
            return f"0x{int(value):x}"
        if type_id == _BF16:
            return float(np.uint32(int(value) << 16).view(np.float32))
        return value

    def _field(
        self, entry: Entry, at: int, before: list[PayloadValue], depth: int
    ) -> tuple[PayloadValue, int]:
        if _is_elsewhere(entry):
            return f"0x{int.from_bytes(self._data[at : at + 8], 'little'):x}", at + 8
        array = entry.flags & _ARRAY_MASK
        nested = None
        if self._schemas.number_format(self._domain, entry.type) is None:
            nested = self._schemas.layouts.get((self._domain, entry.type))
        if nested is not None and not array:
            return self.structure(nested, at, depth + 1)
        size = self._schemas.size_and_alignment(self._domain, entry.type)[0]
        if size == 0:
            return self._data[at:], len(self._data)
        count = self._count(entry, at, size, before)
        end = at + count * size
        after = end + size if array == _ARRAY_ZERO_TERMINATED else end
        if entry.type in _STRING_UNITS:
            return _string(self._data[at:end], size), after
        if not array:
            return self.scalar(entry.type, at) if end <= len(self._data) else self._data[at:], end
        if count > self._budget:
            return self._data[at:end], after
        self._budget -= count
        positions = range(at, end, size)
        if nested is not None:
            return [self.structure(nested, position, depth + 1)[0] for position in positions], after
        return [self.scalar(entry.type, position) for position in positions], after

    def _count(self, entry: Entry, at: int, size: int, before: list[PayloadValue]) -> int:
        """Elements of a field, never more than the data holds."""
        array, room = entry.flags & _ARRAY_MASK, max(0, len(self._data) - at) // size
        if array == _ARRAY_ZERO_TERMINATED:
            zero = bytes(size)
            ends = (i for i in range(room) if self._data[at + i * size : at + (i + 1) * size] == zero)
            return next(ends, room)
        if array == _ARRAY_LENGTH_INDEX:
            length = before[entry.detail] if entry.detail < len(before) else 0
            if isinstance(length, list):
                length = prod(item for item in length if isinstance(item, int))
            return min(max(0, length), room) if isinstance(length, int) else 0
        if array or entry.type in _STRING_UNITS:
            return min(entry.detail, room)
        return 1


def _is_elsewhere(entry: Entry) -> bool:
    """The field holds an address or offset: it says so, or it is a C string of no length."""
    bare_string = entry.type in _STRING_UNITS and entry.detail == 0 and not entry.flags & _ARRAY_MASK
    return bool(entry.flags & _POINTERS) or bare_string


def _place(schema: Schema, index: int, cursor: int, align: int) -> int:
    """Offset of a field: the one given, else after the one before, aligned as C does (capped by `pack_align`)."""
    entry = schema.entries[index]
    if entry.offset or index == 0:
        return entry.offset
    align = min(align, schema.pack_align) if schema.pack_align else align
    return -(-cursor // align) * align


def _string(data: bytes, unit_bytes: int) -> str:
    text = data.decode(_STRING_CODECS[unit_bytes], errors="replace")
    return text.split("\0", 1)[0]
