from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.traces.nvtx.payload import Entry, Enumeration, PayloadValue, Schema, Schemas, gather

ID = 1 << 24
OTHER = ID + 1
INT8, UINT8, INT32, UINT64, DOUBLE, SIZE, CSTRING, UTF32 = 11, 12, 15, 18, 20, 22, 75, 78
FIXED, ZERO_TERMINATED, LENGTH_INDEX, POINTER = 0x10, 0x20, 0x30, 0x2
STATIC, DYNAMIC, UNION = 1, 2, 3


def entry(type_: int, name: str = "", *, offset: int = 0, detail: int = 0, flags: int = 0) -> Entry:
    return Entry(flags=flags, type=type_, detail=detail, offset=offset, name=name)


def schema(*entries: Entry, size: int = 0, kind: int = STATIC, pack: int = 0) -> Schema:
    return Schema(name="", kind=kind, flags=0, static_bytes=size, pack_align=pack, entries=entries)


def decode(data: bytes, layout: Schema, **others: Schema) -> PayloadValue:
    layouts = {(0, ID): layout} | {(0, OTHER + i): other for i, other in enumerate(others.values())}
    return Schemas(layouts=layouts).decode(0, ID, data)


def test_explicit_offsets_skip_padding() -> None:
    layout = schema(entry(INT8, "a"), entry(UINT64, "b", offset=8), size=16)
    assert decode(struct.pack("<b7xQ", -1, 5), layout) == {"a": -1, "b": 5}


def test_implicit_offsets_follow_natural_alignment() -> None:
    layout = schema(entry(INT8, "a"), entry(UINT64, "b"), entry(INT8, "c"), entry(INT32, "d"))
    assert decode(struct.pack("<b7xQb3xi", -1, 5, 7, -9), layout) == {"a": -1, "b": 5, "c": 7, "d": -9}


def test_packing_caps_the_alignment() -> None:
    layout = schema(entry(INT8, "a"), entry(UINT64, "b"), entry(INT32, "c"), pack=1)
    assert decode(struct.pack("<bQi", -1, 5, 7), layout) == {"a": -1, "b": 5, "c": 7}
    layout = schema(entry(INT8, "a"), entry(UINT64, "b"), pack=4)
    assert decode(struct.pack("<b3xQ", -1, 5), layout) == {"a": -1, "b": 5}


def test_arrays_of_all_lengths() -> None:
    fixed = schema(entry(INT32, "a", detail=3, flags=FIXED))
    assert decode(struct.pack("<3i", 1, 2, 3), fixed) == {"a": [1, 2, 3]}
    by_index = schema(entry(UINT64, "n"), entry(INT32, "a", detail=0, flags=LENGTH_INDEX), kind=DYNAMIC)
    assert decode(struct.pack("<Q2i", 2, 5, 6), by_index) == {"n": 2, "a": [5, 6]}
    ended = schema(entry(INT32, "a", flags=ZERO_TERMINATED), entry(INT32, "after", flags=0), kind=DYNAMIC)
    assert decode(struct.pack("<4i", 8, 9, 0, 4), ended) == {"a": [8, 9], "after": 4}


def test_several_dimensions_multiply() -> None:
    layout = schema(
        entry(INT32, "shape", detail=2, flags=FIXED),
        entry(UINT8, "a", detail=0, flags=LENGTH_INDEX),
        kind=DYNAMIC,
    )
    assert decode(struct.pack("<2i6B", 2, 3, *range(6)), layout) == {"shape": [2, 3], "a": list(range(6))}


def test_a_negative_length_is_no_element() -> None:
    layout = schema(entry(INT32, "n"), entry(INT32, "a", detail=0, flags=LENGTH_INDEX), kind=DYNAMIC)
    assert decode(struct.pack("<2i", -4, 1), layout) == {"n": -4, "a": []}


def test_texts() -> None:
    fixed = schema(entry(CSTRING, "t", detail=8))
    assert decode(b"abc\0defg", fixed) == {"t": "abc"}
    assert decode(b"abcdefgh", fixed) == {"t": "abcdefgh"}
    wide = schema(entry(UTF32, "t", detail=3))
    assert decode("aé\0".encode("utf-32-le"), wide) == {"t": "aé"}
    assert Schemas().decode(0, CSTRING, b"inline\0rest") == "inline"


def test_pointers_are_shown_as_addresses() -> None:
    layout = schema(entry(CSTRING, "t"), entry(INT32, "p", offset=8, flags=POINTER), size=16)
    assert decode(struct.pack("<2Q", 0x1234, 0xFF), layout) == {"t": "0x1234", "p": "0xff"}


def test_enumerations_have_names_and_flags() -> None:
    colors = Enumeration(name="", value_bytes=4, names={1: "red"}, flags={2: "bold", 4: "italic"})
    schemas = Schemas(layouts={(0, ID): schema(entry(OTHER, "c"), size=4)}, enumerations={(0, OTHER): colors})
    assert [schemas.decode(0, ID, bytes([n, 0, 0, 0])) for n in (1, 6, 9)] == [
        {"c": "red"},
        {"c": "bold|italic"},
        {"c": "9"},
    ]


def test_nested_structures_and_arrays_of_them() -> None:
    inner = schema(entry(INT8, "a"), entry(INT32, "b", offset=4), size=8)
    outer = schema(entry(INT8, "x"), entry(OTHER, "one"), entry(OTHER, "two", detail=2, flags=FIXED))
    one, two, three = (struct.pack("<b3xi", n, 10 * n) for n in (1, 2, 3))
    assert decode(struct.pack("<b3x", 9) + one + two + three, outer, inner=inner) == {
        "x": 9,
        "one": {"a": 1, "b": 10},
        "two": [{"a": 2, "b": 20}, {"a": 3, "b": 30}],
    }


def test_a_layout_of_one_number_is_that_number_where_it_is_nested() -> None:
    """The Python package has one for every NumPy type."""
    lone = schema(entry(INT32, "int32"), size=4)
    array = schema(entry(UINT64, "size"), entry(OTHER, "data", detail=0, flags=LENGTH_INDEX), kind=DYNAMIC)
    assert decode(struct.pack("<Q2i", 2, 5, -6), array, lone=lone) == {"size": 2, "data": [5, -6]}
    assert decode(struct.pack("<i", 5), lone) == {"int32": 5}


def test_fields_without_or_with_the_same_name_stay_apart() -> None:
    layout = schema(entry(INT8), entry(INT8, "a"), entry(INT8, "a"), entry(INT8, "a (2)"))
    decoded = decode(bytes([1, 2, 3, 4]), layout)
    assert isinstance(decoded, dict)
    assert list(decoded.values()) == [1, 2, 3, 4]


def test_what_has_no_rule_stays_bytes() -> None:
    assert decode(b"12345678", schema(entry(INT8, "a"), size=8, kind=UNION)) == {"bytes": b"12345678"}
    assert Schemas().decode(0, ID, b"xyz") == b"xyz"
    assert Schemas().decode(0, 1023, b"xyz") == b"xyz"


def test_a_short_payload_gives_the_fields_it_has() -> None:
    layout = schema(entry(UINT64, "a"), entry(UINT64, "b"), size=16)
    assert decode(struct.pack("<Q", 5), layout) == {"a": 5, "b": b""}


@pytest.mark.parametrize(
    ("type_id", "data", "value"),
    [
        (UINT64, (1 << 64) - 1, (1 << 64) - 1),
        (INT8, 0xFF, -1),
        (DOUBLE, 0x4004000000000000, 2.5),
        (50, 0x3FC0, 1.5),
        (42, 0x3E00, 1.5),
        (23, 0xABC, "0xabc"),
    ],
)
def test_predefined_types(type_id: int, data: int, value: PayloadValue) -> None:
    size = np.dtype({UINT64: "u8", INT8: "u1", DOUBLE: "u8", 50: "u2", 42: "u2", 23: "u8"}[type_id]).itemsize
    assert Schemas().decode(0, type_id, data.to_bytes(size, "little")) == value
    assert Schemas().decode(0, type_id, data.to_bytes(size, "little") * 2) == [value, value]


def test_layouts_nested_in_themselves_end() -> None:
    """Eight levels of arrays of itself would be more values than there are atoms."""
    layout = schema(*(entry(ID, f"a{i}", detail=1 << 20, flags=FIXED) for i in range(64)), size=1)
    assert decode(bytes(1000), layout) is not None
    assert Schemas(layouts={(0, ID): layout}).dtype(0, ID) is not None


LAYOUTS = st.lists(
    st.builds(
        entry,
        st.sampled_from([*range(28), 32, 42, 50, 67, 75, 77, 78, 80, 100, ID, OTHER, OTHER + 1, 1 << 40]),
        st.sampled_from(["", "a", "b"]),
        offset=st.one_of(st.integers(0, 40), st.just(1 << 60)),
        detail=st.one_of(st.integers(0, 5), st.just((1 << 64) - 1)),
        flags=st.sampled_from(
            [0, FIXED, ZERO_TERMINATED, LENGTH_INDEX, 0x40, POINTER, 0x400, 0x410, (1 << 64) - 1]
        ),
    ),
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(
    LAYOUTS,
    LAYOUTS,
    st.sampled_from([0, 1, 8, 17, 1 << 62]),
    st.sampled_from([0, 1, 2, 3, 9]),
    st.sampled_from([0, 1, 1 << 63]),
    st.binary(max_size=64),
)
def test_no_layout_and_no_bytes_make_an_error(
    one: list[Entry], two: list[Entry], size: int, kind: int, pack: int, data: bytes
) -> None:
    layouts = {
        (0, ID): schema(*one, size=size, kind=kind, pack=pack),
        (0, OTHER): schema(*two, size=size, pack=pack),
    }
    numbers = Enumeration(name="", value_bytes=size, names={}, flags={})
    schemas = Schemas(layouts=layouts, enumerations={(0, OTHER + 1): numbers})
    schemas.decode(0, ID, data)
    schemas.message(0, ID, data)
    schemas.dtype(0, ID)


def test_gather_reads_fixed_layouts_as_columns() -> None:
    layout = schema(entry(UINT64, "id"), entry(SIZE, "bytes"), entry(CSTRING, "text", detail=4), size=24)
    schemas = Schemas(layouts={(0, ID): layout})
    blobs, at = bytearray(), []
    for i in range(5):
        at.append(len(blobs))
        data = struct.pack("<QQ4s4x", i, 100 + i, b"abcd")
        blobs += struct.pack("<QQII", 1, ID, len(data), len(data)) + data
    at += [-1, len(blobs) - 8, 1 << 40]
    (columns,) = gather(blobs, np.array(at), np.zeros(len(at), np.int32), schemas)
    assert columns.rows.tolist() == [0, 1, 2, 3, 4]
    assert columns.values["bytes"].tolist() == [100, 101, 102, 103, 104]
    assert columns.values.dtype.names == ("id", "bytes")
