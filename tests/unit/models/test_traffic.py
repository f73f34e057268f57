from __future__ import annotations

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.models.traffic import Algorithm, Kind, busbw_factor, payload_bytes, wire_bytes

KINDS = st.sampled_from(Kind)
ALGORITHMS = st.sampled_from(Algorithm)
PAYLOADS = st.integers(0, 2**50)
GROUPS = st.integers(1, 256)


@pytest.mark.parametrize(
    ("kind", "algorithm", "group_size", "per_payload"),
    [
        (Kind.ALL_REDUCE, Algorithm.RING, 8, Fraction(14, 8)),
        (Kind.ALL_REDUCE, Algorithm.TREE, 4, Fraction(6, 4)),
        (Kind.ALL_REDUCE, Algorithm.TWO_SHOT, 8, Fraction(14, 8)),
        (Kind.ALL_REDUCE, Algorithm.LOGICAL, 2, Fraction(1)),
        (Kind.ALL_REDUCE, Algorithm.ONE_SHOT, 8, Fraction(7)),
        (Kind.ALL_REDUCE, Algorithm.MNNVL_ONE_SHOT, 8, Fraction(1)),
        (Kind.ALL_REDUCE, Algorithm.MNNVL_TWO_SHOT, 8, Fraction(1)),
        (Kind.ALL_REDUCE, Algorithm.NVLS, 8, Fraction(9, 8)),
        (Kind.ALL_REDUCE, Algorithm.QUICKREDUCE_FP, 8, Fraction(14, 8)),
        (Kind.ALL_REDUCE, Algorithm.QUICKREDUCE_Q8, 8, Fraction(14, 8) * Fraction(17, 32)),
        (Kind.ALL_REDUCE, Algorithm.QUICKREDUCE_Q6, 8, Fraction(14, 8) * Fraction(13, 32)),
        (Kind.ALL_REDUCE, Algorithm.QUICKREDUCE_Q4, 8, Fraction(14, 8) * Fraction(9, 32)),
        (Kind.ALL_GATHER, Algorithm.RING, 8, Fraction(7, 8)),
        (Kind.ALL_GATHER, Algorithm.DIRECT, 4, Fraction(3, 4)),
        (Kind.ALL_GATHER, Algorithm.LOGICAL, 4, Fraction(3, 4)),
        (Kind.ALL_GATHER, Algorithm.MULTICAST, 4, Fraction(1, 4)),
        (Kind.ALL_GATHER, Algorithm.NVLS, 4, Fraction(1, 4)),
        (Kind.REDUCE_SCATTER, Algorithm.RING, 4, Fraction(3, 4)),
        (Kind.REDUCE_SCATTER, Algorithm.DIRECT, 4, Fraction(3, 4)),
        (Kind.ALL_TO_ALL, Algorithm.DIRECT, 4, Fraction(3, 4)),
    ],
)
def test_wire_bytes_by_algorithm(
    kind: Kind, algorithm: Algorithm, group_size: int, per_payload: Fraction
) -> None:
    payload = 2**20
    assert wire_bytes(kind, algorithm, payload, group_size) == payload * per_payload


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        *((kind, Algorithm.UNKNOWN) for kind in Kind),
        *((kind, Algorithm.RING) for kind in (Kind.BROADCAST, Kind.SEND_RECV, Kind.BARRIER, Kind.UNKNOWN)),
        (Kind.ALL_GATHER, Algorithm.ONE_SHOT),
        (Kind.REDUCE_SCATTER, Algorithm.NVLS),
    ],
)
def test_what_is_not_determined_is_unknown_and_not_zero(kind: Kind, algorithm: Algorithm) -> None:
    assert wire_bytes(kind, algorithm, 1024, 8) is None
    assert wire_bytes(kind, algorithm, 1024, 1) is None


def test_sizes_that_make_no_sense_are_unknown() -> None:
    assert wire_bytes(Kind.ALL_REDUCE, Algorithm.RING, 1024, 0) is None
    assert wire_bytes(Kind.ALL_REDUCE, Algorithm.RING, -1, 2) is None
    assert busbw_factor(Kind.ALL_REDUCE, 0) is None


@pytest.mark.parametrize(
    ("group_size", "payload", "sent"),
    [(3, 1, 1), (3, 2, 3), (3, 3, 4), (3, 5, 7), (4, 1, 2), (4, 3, 5), (4, 5, 8)],
)
def test_a_fraction_of_a_byte_is_rounded_half_up(group_size: int, payload: int, sent: int) -> None:
    assert wire_bytes(Kind.ALL_REDUCE, Algorithm.RING, payload, group_size) == sent


@given(KINDS, ALGORITHMS, PAYLOADS)
def test_a_group_of_one_sends_nothing(kind: Kind, algorithm: Algorithm, payload: int) -> None:
    assert wire_bytes(kind, algorithm, payload, 1) in (0, None)


@given(PAYLOADS, GROUPS)
def test_ring_is_exact_at_any_size(payload: int, group_size: int) -> None:
    exact = Fraction(2 * (group_size - 1), group_size) * payload
    assert wire_bytes(Kind.ALL_REDUCE, Algorithm.RING, payload, group_size) == floor(exact + Fraction(1, 2))


@given(KINDS, ALGORITHMS, PAYLOADS, PAYLOADS, GROUPS)
def test_more_payload_never_sends_less(
    kind: Kind, algorithm: Algorithm, a: int, b: int, group_size: int
) -> None:
    less, more = (wire_bytes(kind, algorithm, size, group_size) for size in sorted((a, b)))
    assert (less is None) == (more is None)
    assert less is None or more is None or 0 <= less <= more


@given(PAYLOADS, st.integers(2, 256))
def test_reduce_scatter_and_all_gather_make_an_all_reduce(payload: int, group_size: int) -> None:
    halves = [
        wire_bytes(kind, Algorithm.RING, payload * group_size, group_size)
        for kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
    ]
    whole = wire_bytes(Kind.ALL_REDUCE, Algorithm.RING, payload * group_size, group_size)
    assert sum(half for half in halves if half is not None) == whole


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        (Kind.ALL_REDUCE, 1.75),
        (Kind.ALL_GATHER, 0.875),
        (Kind.REDUCE_SCATTER, 0.875),
        (Kind.ALL_TO_ALL, 0.875),
        (Kind.GATHER, 0.875),
        (Kind.SCATTER, 0.875),
        (Kind.BROADCAST, 1.0),
        (Kind.REDUCE, 1.0),
        (Kind.SEND_RECV, 1.0),
        (Kind.BARRIER, None),
        (Kind.UNKNOWN, None),
    ],
)
def test_busbw_factor_of_nccl_tests(kind: Kind, factor: float | None) -> None:
    assert busbw_factor(kind, 8) == factor


def test_payload_is_the_full_output_of_a_gather_and_the_tensor_otherwise() -> None:
    assert payload_bytes(Kind.ALL_REDUCE, (16, 256), "bf16", 4) == 16 * 256 * 2
    assert payload_bytes(Kind.ALL_GATHER, (64, 154880 // 8), "bf16", 8) == 64 * 154880 * 2
    assert payload_bytes(Kind.ALL_GATHER, (64, 2), "fp32", 8) == 64 * 2 * 4 * 8
    assert payload_bytes(Kind.REDUCE_SCATTER, (16, 256), "fp16", 4) == 16 * 256 * 2
