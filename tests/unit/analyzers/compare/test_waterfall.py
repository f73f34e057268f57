"""Waterfalls add up, to the nanosecond, whatever they are made of."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.compare.waterfall import (
    REST,
    Part,
    Waterfall,
    apportion,
    drawn,
    make_waterfall,
    mean_parts,
    per_token,
)
from mtpprof.analyzers.measures.step_parts import COUNTED, PARTS, Composition

nanoseconds = st.integers(0, 10**10)


@st.composite
def compositions(draw: st.DrawFn) -> Composition:
    count = draw(st.integers(1, 5))
    columns = {
        name: np.array(draw(st.lists(nanoseconds, min_size=count, max_size=count)), np.int64)
        for name in PARTS
    }
    return Composition(
        table=np.zeros(count, np.int64),
        step=np.arange(count, dtype=np.int64),
        length_ns=np.sum(list(columns.values()), axis=0).astype(np.int64),
        parts_ns=columns,
        kernels={name: np.zeros(count, np.int64) for name in COUNTED},
        counted=np.ones(count, np.bool_),
        left_out=0,
    )


def _adds_up(fall: Waterfall) -> None:
    assert fall.start_ns + sum(part.delta_ns for part in fall.parts) + fall.rest_ns == fall.end_ns
    rows = drawn(fall)
    assert rows[0].before_ns == fall.start_ns
    assert rows[-1].after_ns == fall.end_ns
    assert rows[-1].name == REST
    assert all(row.before_ns + row.delta_ns == row.after_ns for row in rows)
    assert all(one.after_ns == other.before_ns for one, other in pairwise(rows))


@given(base=compositions(), arm=compositions(), start=nanoseconds, end=nanoseconds)
def test_parts_and_rest_add_up_to_the_difference(
    base: Composition, arm: Composition, start: int, end: int
) -> None:
    fall = make_waterfall(base, arm, start_ns=start, end_ns=end)
    assert fall is not None
    _adds_up(fall)
    assert fall.difference_ns == end - start


@given(base=compositions(), arm=compositions(), tokens=st.tuples(st.floats(1, 6), st.floats(1, 6)))
def test_per_token_adds_up_as_well(base: Composition, arm: Composition, tokens: tuple[float, float]) -> None:
    fall = make_waterfall(base, arm)
    assert fall is not None
    _adds_up(fall)
    assert fall.rest_ns == 0, "without other step times the parts explain everything"
    _adds_up(per_token(fall, *tokens))


@given(st.lists(st.fractions(0, 10**6), min_size=1, max_size=12))
def test_apportioned_numbers_add_up_and_stay_close(shares: list[Fraction]) -> None:
    whole = apportion(shares)
    assert abs(sum(whole) - sum(shares, Fraction(0))) <= Fraction(1, 2)
    assert all(abs(value - share) < 1 for value, share in zip(whole, shares, strict=True))


def test_means_are_of_all_ranks_and_steps() -> None:
    composition = Composition(
        table=np.array([0, 1]),
        step=np.array([0, 1]),
        length_ns=np.array([10, 21]),
        parts_ns={name: np.array([10, 21] if name == "wait" else [0, 0]) for name in PARTS},
        kernels={},
        counted=np.ones(2, np.bool_),
        left_out=0,
    )
    assert mean_parts(composition)["wait"] == 16  # 15.5, rounded half up


def test_no_steps_no_waterfall() -> None:
    empty = Composition(
        table=np.zeros(0, np.int64),
        step=np.zeros(0, np.int64),
        length_ns=np.zeros(0, np.int64),
        parts_ns={name: np.zeros(0, np.int64) for name in PARTS},
        kernels={},
        counted=np.ones(0, np.bool_),
        left_out=3,
    )
    assert make_waterfall(empty, empty, start_ns=1, end_ns=2) is None


def test_no_tokens_are_refused() -> None:
    fall = Waterfall(
        unit="step", basis="", start_ns=1, end_ns=1, parts=[], rest_ns=0, base_steps=1, arm_steps=1
    )
    with pytest.raises(ValueError, match="positive"):
        per_token(fall, 0, 1)


@pytest.mark.parametrize(
    ("end_ns", "rest_ns", "explains"), [(90, 0, True), (90, 10, True), (90, -11, False), (100, 1, False)]
)
def test_parts_that_leave_more_than_they_explain_are_known(end_ns: int, rest_ns: int, explains: bool) -> None:
    part = Part(name="transfer", base_ns=50, arm_ns=50 + end_ns - 100 - rest_ns)
    fall = Waterfall(
        unit="step",
        basis="",
        start_ns=100,
        end_ns=end_ns,
        parts=[part],
        rest_ns=rest_ns,
        base_steps=1,
        arm_steps=1,
    )
    assert fall.explains is explains
