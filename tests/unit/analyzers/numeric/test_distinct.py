"""Distinct rows are those of NumPy, whatever the numbers are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from mtpprof.analyzers.numeric.distinct import distinct_rows

NUMBERS = st.one_of(st.integers(-2, 3), st.integers(-(2**62), 2**62), st.sampled_from([-(2**63), 2**63 - 1]))


@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=60))
def test_they_are_numpys(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, np.int64)
    expected, first, which, counts = np.unique(
        table, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    found = distinct_rows(*table.T)
    assert_array_equal(found.rows, expected)
    assert_array_equal(found.first, first)
    assert_array_equal(found.which, which.reshape(-1))
    assert_array_equal(found.counts, counts)
    assert len(found) == len(expected)


def test_columns_may_be_of_different_types() -> None:
    found = distinct_rows(np.array([1, 0, 1], np.int8), np.array([2**40, 5, 2**40]))
    assert found.rows.tolist() == [[0, 5], [1, 2**40]]
    assert found.first.tolist() == [1, 0]
    assert found.which.tolist() == [1, 0, 1]


def test_of_nothing_there_is_nothing() -> None:
    found = distinct_rows(np.empty(0, np.int64), np.empty(0, np.int32))
    assert len(found) == 0
    assert found.rows.shape == (0, 2)
    assert found.counts.tolist() == []
