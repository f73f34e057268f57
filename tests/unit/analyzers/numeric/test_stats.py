"""Intervals, the noise floor, and that nothing is claimed out of nothing."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.numeric.stats import (
    Claim,
    Interval,
    bootstrap_interval,
    judge,
    mean_interval,
    noise_floor,
    paired_interval,
    student_cdf,
    student_quantile,
    welch_interval,
)

RECORDED = Path(__file__).parents[3] / "data" / "timings" / "aa.json"
SEEDS = range(20)

values = st.floats(-1e9, 1e9, allow_nan=False)


@pytest.mark.parametrize(
    ("dof", "table"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227), (120, 1.97993)],
)
def test_quantiles_are_those_of_the_printed_table(dof: int, table: float) -> None:
    assert student_quantile(0.975, dof) == pytest.approx(table, rel=3e-6)
    assert student_quantile(0.025, dof) == pytest.approx(-table, rel=3e-6)


@given(t=st.floats(-50, 50), dof=st.integers(1, 60))
def test_the_distribution_is_symmetric_and_inverted_by_the_quantile(t: float, dof: int) -> None:
    p = student_cdf(t, dof)
    assert p + student_cdf(-t, dof) == pytest.approx(1)
    if 1e-6 < p < 1 - 1e-6:
        assert student_quantile(p, dof) == pytest.approx(t, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_no_quantile_lies_outside(probability: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(probability, 3)


@given(dof=st.integers(1, 60))
def test_the_last_quantile_below_one_is_found(dof: int) -> None:
    assert student_quantile(math.nextafter(1.0, 0.0), dof) > 8


def test_a_paired_interval_by_hand() -> None:
    interval = paired_interval([12.0, 14.0, 13.0], [10.0, 11.0, 12.0])
    assert interval is not None
    # differences 2, 3, 1: mean 2, standard deviation 1, half width 4.30265 / sqrt(3)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((2, -0.48414, 4.48414), rel=1e-5)
    assert not interval.excludes_zero


@given(st.lists(values, min_size=2, max_size=20), values)
def test_pairing_cancels_what_a_round_has_in_common(base: list[float], saving: float) -> None:
    interval = paired_interval([value + saving for value in base], base)
    assert interval is not None
    assert interval.estimate == pytest.approx(saving, abs=1e-5, rel=1e-6)


@given(st.lists(values, max_size=1))
def test_a_single_value_has_no_spread(few: list[float]) -> None:
    assert mean_interval(few) is None
    assert bootstrap_interval(few) is None
    assert welch_interval(few, [1.0, 2.0]) is None


def test_unequal_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_interval([1.0, 2.0], [1.0])


def test_bootstrap_is_seeded_and_brackets_the_estimate() -> None:
    sample = [float(value) for value in range(30)]
    first, second = bootstrap_interval(sample), bootstrap_interval(sample)
    assert first == second
    assert first is not None
    assert first.low < first.estimate == 14.5 < first.high


def test_scaling_turns_an_interval_over() -> None:
    interval = Interval(estimate=2, low=1, high=4, confidence=0.95, samples=3, method="t")
    assert (interval.scaled(-1).low, interval.scaled(-1).high) == (-4, -1)


def test_without_repeat_or_rounds_nothing_is_said() -> None:
    difference = paired_interval([1.0, 1.1, 0.9], [2.0, 2.1, 1.9])
    assert judge(difference, None).claim is Claim.UNKNOWN
    assert judge(None, None).claim is Claim.UNKNOWN
    assert "single" in judge(None, None).reason


def test_a_difference_as_large_as_the_repeats_is_noise() -> None:
    base = [100.0, 100.0, 100.0]
    noise = noise_floor([104.0, 97.0, 103.0], base)
    exact = paired_interval([98.0, 98.0, 98.0], base)
    assert judge(exact, noise).claim is Claim.WITHIN_NOISE
    assert "unchanged baseline" in judge(exact, noise).reason


def _claim(arm: list[float], repeat: list[float], base: list[float]) -> Claim:
    return judge(paired_interval(arm, base), noise_floor(repeat, base)).claim


def _recorded_windows() -> list[list[list[float]]]:
    """Per recorded case, the median step of every window in the order in which they were measured."""
    cases = json.loads(RECORDED.read_text())["windows_step_ns"]
    return [[[median(steps)] for steps in windows] for windows in cases.values()]


def _rounds(windows: list[list[float]], rounds: int, seed: int) -> list[list[float]]:
    """Three arms that are one and the same: neighbouring windows, shuffled within each round."""
    rng = random.Random(seed)
    start = rng.randrange(len(windows) - 3 * rounds + 1)
    arms: list[list[float]] = [[], [], []]
    for index in range(rounds):
        visits = [window[0] for window in windows[start + 3 * index : start + 3 * index + 3]]
        rng.shuffle(visits)
        for arm, visit in zip(arms, visits, strict=True):
            arm.append(visit)
    return arms


@pytest.mark.parametrize("rounds", [3, 5, 10])
def test_recorded_timings_of_one_arm_never_show_a_saving(rounds: int) -> None:
    for windows in _recorded_windows():
        claims = [_claim(*_rounds(windows, rounds, seed)) for seed in SEEDS]
        assert claims.count(Claim.SAVED) == 0, claims
        assert claims.count(Claim.SLOWER) <= 1, claims


def _recorded_noise() -> list[float]:
    """Steps over the median step of their window: the spikes and stalls of a busy machine, without its drift."""
    cases = json.loads(RECORDED.read_text())["windows_step_ns"]
    return [step / median(steps) for windows in cases.values() for steps in windows for step in steps]


def test_five_percent_above_the_noise_floor_is_found_in_recorded_noise() -> None:
    noise, tried, found = _recorded_noise(), 0, 0
    for seed in range(40):
        rng = random.Random(seed)
        arm, repeat, base = (
            [median(level * 1e7 * rng.choice(noise) for _ in range(400)) for _ in range(6)]
            for level in (0.95, 1.0, 1.0)
        )
        floor = noise_floor(repeat, base)
        assert floor is not None
        if floor.detectable + floor.floor < 0.05e7:
            tried += 1
            found += _claim(arm, repeat, base) is Claim.SAVED
    assert tried >= 20, "the recorded noise is too large to test on"
    assert found / tried >= 0.9


@pytest.mark.parametrize("rounds", [3, 5])
def test_five_percent_is_found_in_noise_of_half_a_percent(rounds: int) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        drift = [1 + 0.02 * index for index in range(rounds)]
        arm, repeat, base = (
            [level * 1e7 * slow * (1 + rng.gauss(0, 0.002)) for slow in drift] for level in (0.95, 1.0, 1.0)
        )
        assert _claim(arm, repeat, base) is Claim.SAVED, seed


def test_false_claims_are_rarer_than_the_stated_confidence_allows() -> None:
    rng = random.Random(1)
    claims = []
    for _ in range(2000):
        arm, repeat, base = ([rng.gauss(1e7, 1e5) for _ in range(4)] for _ in range(3))
        claims.append(_claim(arm, repeat, base))
    assert claims.count(Claim.SAVED) / len(claims) < 0.025
    assert claims.count(Claim.SLOWER) / len(claims) < 0.025
