"""When a difference of step times may be called a saving.

The decision: the unit of observation is the *round*, not the step. Steps of one window share the state of the machine, so a
hundred of them are not a hundred observations; two arms visited in one round are a pair, and drift between rounds cancels in
their difference. A saving is claimed only where two things hold: Student's interval of the paired differences excludes zero,
and the difference exceeds what the A/A arm (the baseline against its own repeat, in the same rounds) shows to be possible
without any change. Either alone would claim a saving out of nothing in some reports: the first in 1 of 20 at 95 %, the second
whenever the repeat happens to fall close.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import fmean, stdev

CONFIDENCE = 0.95
POWER = 0.8
"""Probability with which a saving of the minimum detectable size is found."""
MIN_ROUNDS = 2


class Claim(StrEnum):
    """What may be said of a difference of times."""

    SAVED = "saved"
    SLOWER = "slower"
    WITHIN_NOISE = "within noise"
    DIFFERS = "differs, not engaged"
    """Beyond noise, and nothing that was switched changed what ran: whatever it comes from, it is no saving of theirs."""
    NOT_ENGAGED = "not engaged"
    """An effect of something that engaged in no arm."""
    UNKNOWN = "unknown"
    """The measurement cannot answer; the reason says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float
    confidence: float
    samples: int
    method: str

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside."""
        return self.low > 0 or self.high < 0

    @property
    def half_width(self) -> float:
        """Largest distance of a bound from the estimate."""
        return max(self.high - self.estimate, self.estimate - self.low)

    def scaled(self, factor: float) -> Interval:
        """The interval of `factor` times the quantity."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(
            estimate=self.estimate * factor,
            low=low,
            high=high,
            confidence=self.confidence,
            samples=self.samples,
            method=self.method,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """What a difference looks like when nothing was changed: the A/A pairs of a case."""

    interval: Interval
    """Of the differences between the baseline's repeat and the baseline."""
    floor: float
    """No difference up to this size is called one: the A/A interval's bound that is farthest from zero."""
    detectable: float
    """Minimum detectable effect: a true difference of this size is found with probability `POWER`."""
    level: float
    """Mean of the baseline that was repeated: what the others are small or large against."""

    def scaled(self, factor: float) -> NoiseFloor:
        """The floor of a contrast whose standard error is `factor` times that of a plain difference."""
        return NoiseFloor(
            interval=self.interval.scaled(factor),
            floor=self.floor * abs(factor),
            detectable=self.detectable * abs(factor),
            level=self.level,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A claim and the reason for it, as one sentence without a full stop."""

    claim: Claim
    reason: str


def student_cdf(t: float, dof: int) -> float:
    """Probability that Student's t with `dof` degrees of freedom is at most `t`.

    Exact for whole degrees of freedom: the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(abs(t) / math.sqrt(dof))
    cosine, sine = math.cos(angle), math.sin(angle)
    term, total = (cosine if dof % 2 else 1.0), 0.0
    for index in range(1, dof // 2 + 1):
        total += term
        term *= cosine * cosine * (2 * index - (dof + 1) % 2) / (2 * index + dof % 2)
    inside = 2 / math.pi * (angle + sine * total) if dof % 2 else sine * total
    return (1 + inside) / 2 if t >= 0 else (1 - inside) / 2


@cache
def student_quantile(probability: float, dof: int) -> float:
    """The t that Student's distribution does not exceed with `probability`.

    Raises:
        ValueError: the probability is not within (0, 1).
    """
    if not 0 < probability < 1:
        raise ValueError(f"no quantile has the probability {probability}")
    if probability < 0.5:
        return -student_quantile(1 - probability, dof)
    low, high = 0.0, 1.0
    while student_cdf(high, dof) < probability and high < 1e300:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if student_cdf(middle, dof) < probability else (low, middle)
    return (low + high) / 2


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Student's interval of a mean; None for fewer than two values, which have no spread."""
    if len(values) < MIN_ROUNDS:
        return None
    middle = fmean(values)
    half = (
        student_quantile((1 + confidence) / 2, len(values) - 1)
        * stdev(values, middle)
        / math.sqrt(len(values))
    )
    return Interval(
        estimate=middle,
        low=middle - half,
        high=middle + half,
        confidence=confidence,
        samples=len(values),
        method="paired t",
    )


def paired_interval(
    arm: Sequence[float], base: Sequence[float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Interval of the mean of `arm - base`, pair by pair; None for fewer than two pairs.

    Raises:
        ValueError: not the same number of values on both sides.
    """
    return mean_interval([mine - theirs for mine, theirs in zip(arm, base, strict=True)], confidence)


def welch_interval(
    arm: Sequence[float], base: Sequence[float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Interval of the difference of two independent means (Welch); None where a side has fewer than two values.

    The degrees of freedom of Welch and Satterthwaite are rounded down, which widens the interval.
    """
    if len(arm) < MIN_ROUNDS or len(base) < MIN_ROUNDS:
        return None
    parts = [(stdev(side) ** 2 / len(side), len(side) - 1) for side in (arm, base)]
    variance = sum(part for part, _ in parts)
    difference = fmean(arm) - fmean(base)
    half = 0.0
    if variance > 0:
        dof = max(1, int(variance**2 / sum(part**2 / dof for part, dof in parts if part > 0)))
        half = student_quantile((1 + confidence) / 2, dof) * math.sqrt(variance)
    return Interval(
        estimate=difference,
        low=difference - half,
        high=difference + half,
        confidence=confidence,
        samples=min(len(arm), len(base)),
        method="Welch t, unpaired",
    )


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = fmean,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap of any statistic of independent values; None for fewer than two."""
    if len(values) < MIN_ROUNDS:
        return None
    rng = random.Random(seed)
    found = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(resamples))
    tail = (1 - confidence) / 2
    low, high = found[int(tail * resamples)], found[min(resamples - 1, int((1 - tail) * resamples))]
    return Interval(
        estimate=statistic(values),
        low=low,
        high=high,
        confidence=confidence,
        samples=len(values),
        method=f"bootstrap, {resamples} resamples",
    )


def minimum_detectable(spread: float, rounds: int, confidence: float = CONFIDENCE) -> float:
    """Smallest true difference that the interval finds with probability `POWER`.

    `(t(1 - alpha/2) + t(power)) * spread / sqrt(rounds)` with `rounds - 1` degrees of freedom (Bloom 1995), where `spread` is
    the standard deviation of the paired differences.
    """
    dof = rounds - 1
    multiple = student_quantile((1 + confidence) / 2, dof) + student_quantile(POWER, dof)
    return multiple * spread / math.sqrt(rounds)


def noise_floor(
    repeat: Sequence[float], base: Sequence[float], confidence: float = CONFIDENCE
) -> NoiseFloor | None:
    """The floor from the rounds of the baseline and of its repeat; None for fewer than two rounds."""
    interval = paired_interval(repeat, base, confidence)
    if interval is None:
        return None
    spread = stdev([mine - theirs for mine, theirs in zip(repeat, base, strict=True)])
    return NoiseFloor(
        interval=interval,
        floor=max(abs(interval.low), abs(interval.high)),
        detectable=minimum_detectable(spread, len(base), confidence),
        level=fmean(base),
    )


def judge(difference: Interval | None, noise: NoiseFloor | None) -> Judgement:
    """Whether a difference of times (arm minus baseline) is a saving, by the two conditions of this module."""
    if difference is None:
        return Judgement(
            claim=Claim.UNKNOWN, reason="fewer than two rounds: a single pair of windows has no spread"
        )
    if noise is None:
        return Judgement(
            claim=Claim.UNKNOWN, reason="the baseline was not repeated, so the noise floor is not known"
        )
    if not difference.excludes_zero:
        return Judgement(
            claim=Claim.WITHIN_NOISE, reason=f"the {difference.confidence:.0%} interval includes zero"
        )
    if abs(difference.estimate) <= noise.floor:
        return Judgement(
            claim=Claim.WITHIN_NOISE, reason="two visits to the unchanged baseline can differ by as much"
        )
    claim = Claim.SAVED if difference.estimate < 0 else Claim.SLOWER
    return Judgement(
        claim=claim,
        reason=f"the {difference.confidence:.0%} interval excludes zero and the difference exceeds the A/A floor",
    )
