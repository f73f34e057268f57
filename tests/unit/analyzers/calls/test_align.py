"""Lining up the calls of two ranks whose windows are cut differently."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.calls.align import Pairs, Sequence, align
from mtpprof.analyzers.numeric.arrays import I64

STEP = [0, 0, 1, 0, 0, 0]
"""Kinds of the collectives of one step."""


def sequence(
    kinds: list[int], ends: I64, sizes: list[int] | None = None, seq: list[int] | None = None
) -> Sequence:
    return Sequence(
        kind=np.array(kinds, np.int32),
        payload_bytes=np.array(sizes or [-1] * len(kinds), np.int64),
        seq=np.array(seq or [-1] * len(kinds), np.int64),
        end_ns=np.asarray(ends, np.int64),
    )


def two_ranks(
    steps: int,
    cut_here: slice,
    cut_there: slice,
    seed: int,
    offset_ns: int = 0,
    sizes: list[int] | None = None,
) -> tuple[Sequence, Sequence, list[int], list[int]]:
    """Two views of one run of `steps` steps: uneven steps, ends that agree to a microsecond, windows cut as told."""
    random = np.random.default_rng(seed)
    count = steps * len(STEP)
    ends = np.cumsum(random.integers(50_000, 400_000, count))
    kinds, sizes = STEP * steps, sizes or [-1] * count
    numbers = list(range(count))

    def view(cut: slice, shift: int) -> Sequence:
        jitter = random.integers(-500, 500, count)
        return sequence(kinds[cut], (ends + jitter + shift)[cut], sizes[cut])

    return view(cut_here, 0), view(cut_there, offset_ns), numbers[cut_here], numbers[cut_there]


def partners(pairs: Pairs, here: list[int], there: list[int]) -> set[tuple[int, int]]:
    return {(here[i], there[j]) for i, j in zip(pairs.here.tolist(), pairs.there.tolist(), strict=True)}


@settings(deadline=None, max_examples=60)
@given(
    st.integers(4, 12),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 7_000_000, -3_000_000_000]),
)
def test_windows_cut_anywhere_pair_only_the_same_calls(
    steps: int, front: int, front_there: int, back: int, back_there: int, seed: int, offset: int
) -> None:
    count = steps * len(STEP)
    here, there, numbers, numbers_there = two_ranks(
        steps, slice(front, count - back), slice(front_there, count - back_there), seed, offset
    )
    found = partners(align(here, there, one_clock=True), numbers, numbers_there)
    assert all(one == other for one, other in found)
    assert len(found) == len(set(numbers) & set(numbers_there))


def test_known_sizes_alone_decide_where_they_are_not_periodic() -> None:
    sizes = list(range(1, 25))
    here, there, numbers, numbers_there = two_ranks(4, slice(5, 24), slice(0, 20), 1, sizes=sizes)
    found = partners(align(here, there, one_clock=False), numbers, numbers_there)
    assert found == {(n, n) for n in range(5, 20)}


def test_unknown_sizes_agree_with_any() -> None:
    here = sequence([0, 0, 0], np.array([10, 20, 35]) * 1000, [4, -1, 6])
    there = sequence([0, 0, 0], np.array([10, 20, 35]) * 1000, [-1, 5, 6])
    assert len(align(here, there, one_clock=True).here) == 3


def test_evenly_spaced_calls_without_a_common_clock_are_not_paired() -> None:
    ends = np.arange(12) * 100_000
    pairs = align(sequence([0] * 12, ends), sequence([0] * 10, ends[:10]), one_clock=False)
    assert len(pairs.here) == 0
    assert "line up at 13 shifts" in pairs.reason


def test_windows_of_equal_length_on_one_clock_are_taken_as_they_are() -> None:
    ends = np.arange(12) * 100_000
    pairs = align(sequence([0] * 12, ends), sequence([0] * 12, ends + 300), one_clock=True)
    assert pairs.here.tolist() == pairs.there.tolist() == list(range(12))


def test_equal_length_does_not_hide_a_shift() -> None:
    """The i-th of one is not the i-th of the other, though both have as many."""
    here, there, numbers, numbers_there = two_ranks(8, slice(0, 42), slice(6, 48), 3)
    found = partners(align(here, there, one_clock=True), numbers, numbers_there)
    assert found == {(n, n) for n in range(6, 42)}


def test_different_collectives_are_not_paired() -> None:
    pairs = align(
        sequence([0, 1, 0, 1], np.arange(4) * 1000),
        sequence([2, 2, 2, 2], np.arange(4) * 1000),
        one_clock=True,
    )
    assert len(pairs.here) == 0
    assert "do not line up" in pairs.reason


def test_a_call_missing_in_the_middle_is_refused_and_not_paired_wrongly() -> None:
    sizes = list(range(1, 25))
    here, there, *_ = two_ranks(4, slice(0, 24), slice(0, 24), 5, sizes=sizes)
    holed = sequence(
        np.delete(there.kind, 12).tolist(),
        np.delete(there.end_ns, 12),
        np.delete(there.payload_bytes, 12).tolist(),
    )
    assert align(here, holed, one_clock=True).reason != ""


def test_sequence_numbers_decide_before_everything_else() -> None:
    here = sequence([0, 0, 0], np.array([10, 20, 30]), seq=[4, 5, 6])
    there = sequence([0, 0], np.array([10, 20]), seq=[5, 6])
    pairs = align(here, there, one_clock=False)
    assert (pairs.here.tolist(), pairs.there.tolist()) == ([1, 2], [0, 1])


@pytest.mark.parametrize(
    ("seq", "kinds", "says"),
    [([7, 8], [0, 0], "no sequence number in common"), ([4, 5], [1, 0], "differ in kind or size")],
)
def test_sequence_numbers_that_cannot_be_right_are_refused(
    seq: list[int], kinds: list[int], says: str
) -> None:
    here = sequence([0, 0], np.array([10, 20]), seq=[4, 5])
    assert says in align(here, sequence(kinds, np.array([10, 20]), seq=seq), one_clock=True).reason


def test_repeated_sequence_numbers_are_not_believed() -> None:
    here = sequence([0, 0, 0], np.array([10, 20, 35]) * 1000, seq=[4, 4, 5])
    there = sequence([0, 0, 0], np.array([10, 20, 35]) * 1000, seq=[4, 4, 5])
    assert align(here, there, one_clock=True).here.tolist() == [0, 1, 2]


def test_no_calls_no_pairs() -> None:
    empty = sequence([], np.empty(0, np.int64))
    assert align(empty, empty, one_clock=True).reason != ""


def test_evenly_spaced_calls_on_one_clock_are_paired_by_their_ends() -> None:
    ends = np.arange(12) * 10_000_000
    pairs = align(sequence([0] * 12, ends), sequence([0] * 10, ends[2:] + 800), one_clock=True)
    assert (pairs.here - pairs.there).tolist() == [2] * 10


def test_evenly_spaced_calls_of_clocks_that_differ_too_much_are_not_paired() -> None:
    ends = np.arange(12) * 10_000_000
    pairs = align(sequence([0] * 12, ends), sequence([0] * 10, ends[2:] + 4_000_000), one_clock=True)
    assert len(pairs.here) == 0
