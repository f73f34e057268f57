"""Payloads from communication records and from dimensions, in the sense of nccl-tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.calls.payloads import dtype_of_word, from_dims, from_record
from mtpprof.models.traffic import Kind

BF16 = "c10::BFloat16"


@pytest.mark.parametrize(
    ("kind", "in_elems", "out_elems", "size", "expected"),
    [
        (Kind.ALL_REDUCE, 512, 512, 4, 1024),
        (Kind.ALL_GATHER, 128, 512, 4, 1024),
        (Kind.ALL_GATHER, 128, -1, 4, 1024),
        (Kind.ALL_GATHER, 128, -1, None, None),
        (Kind.REDUCE_SCATTER, 512, 128, 4, 1024),
        (Kind.REDUCE_SCATTER, -1, 128, 4, 1024),
        (Kind.ALL_TO_ALL, 512, 512, 4, 1024),
        (Kind.BROADCAST, -1, 512, 4, 1024),
        (Kind.ALL_REDUCE, 0, 0, 4, None),
        (Kind.ALL_REDUCE, -1, -1, 4, None),
        (Kind.ALL_REDUCE, 1 << 62, 1 << 62, 4, None),
    ],
)
def test_records(kind: Kind, in_elems: int, out_elems: int, size: int | None, expected: int | None) -> None:
    found = from_record(kind, in_elems, out_elems, "BFloat16", size)
    assert found.payload_bytes == expected
    assert (found.why_not == "") == (expected is not None)


def test_a_record_of_an_unknown_dtype_is_unknown() -> None:
    assert "Quint4" in from_record(Kind.ALL_REDUCE, 8, 8, "Quint4", 2).why_not


@pytest.mark.parametrize(
    ("kind", "dims", "types", "size", "payload", "shape", "group"),
    [
        (Kind.ALL_REDUCE, ((), (12, 256)), ("Scalar", BF16), 2, 6144, (12, 256), 2),
        (Kind.ALL_REDUCE, ((), (4, 8), (4, 8), (), ()), ("", BF16, BF16, "", ""), 4, 64, (4, 8), 4),
        (Kind.ALL_GATHER, ((), (4, 100), (8, 100)), ("", BF16, BF16), None, 1600, (4, 100), 2),
        (Kind.ALL_GATHER, ((8, 100), (4, 100), ()), (BF16, BF16, ""), None, 1600, (4, 100), 2),
        (Kind.ALL_GATHER, ((4, 100), ()), (BF16, ""), 8, 6400, (4, 100), 8),
        (Kind.ALL_GATHER, ((4, 100), ()), (BF16, ""), None, None, (4, 100), None),
        (Kind.REDUCE_SCATTER, ((2, 16), (8, 16)), (BF16, BF16), None, 256, (8, 16), 4),
        (Kind.BROADCAST, (((1,),), ()), ("TensorList", ""), 2, None, (1,), 2),
        (Kind.ALL_REDUCE, (), (), 2, None, None, None),
        (Kind.ALL_REDUCE, None, None, 2, None, None, None),
    ],
)
def test_dimensions(
    kind: Kind, dims: Any, types: Any, size: int | None, payload: int | None, shape: Any, group: int | None
) -> None:
    found = from_dims(kind, dims, types, size)
    assert (found.payload_bytes, found.shape, found.group_size) == (payload, shape, group)
    assert (found.why_not == "") == (payload is not None)


nested = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3), st.none(), st.booleans()),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)


@given(
    st.sampled_from(Kind), st.lists(nested, max_size=5).map(tuple), st.lists(nested, max_size=5).map(tuple)
)
def test_no_dimensions_are_too_strange(kind: Kind, dims: Any, types: Any) -> None:
    found = from_dims(kind, dims, types, 4)
    assert found.payload_bytes is None or 0 <= found.payload_bytes < 1 << 62


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        ("BFloat16", "bf16"),
        ("c10::Half", "fp16"),
        ("Float", "fp32"),
        ("long int", "int64"),
        ("c10::Float8_e4m3fn", "fp8"),
        ("Scalar", ""),
        ("", ""),
    ],
)
def test_spellings_of_dtypes(word: str, dtype: str) -> None:
    assert dtype_of_word(word) == dtype
