"""What each optimization does by itself, out of the arms of a factorial design: main effects and interactions.

With every combination of k switches measured in every round, the effect of one switch is estimated from all arms at once, half of them
with it and half without, so that the all-reduce fusion and the local argmax are told apart although they ship together. An
interaction says whether two of them together save more or less than the sum of what each saves alone.

The decision: each effect is a contrast within the round, a number per round, and is judged like any difference. Its noise floor is
that of the A/A pair, scaled by the contrast's own standard error: a main effect averages several differences and is quieter, an
interaction is louder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from mtpprof.analyzers.stats import CONFIDENCE, Interval, NoiseFloor, judge, mean_interval
from mtpprof.analyzers.totals import Totals
from mtpprof.rundir import Record

PLAIN_NORM = math.sqrt(2)
"""Norm of the contrast arm - baseline, to which the A/A floor belongs."""


class Effect(Record, frozen=True, kw_only=True):
    """Main effect of one optimization, or interaction of two; negative is saved. Per step and rank."""

    optimizations: list[str]
    """One: its main effect; two: their interaction."""
    arms: int
    """Arms that the estimate is made of."""
    calls: float | None
    payload_bytes: float | None
    wire_bytes: float | None
    step: Interval | None
    """Of the step time without a profiler; None: fewer than two whole rounds."""
    noise: NoiseFloor | None
    claim: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorialArm:
    """What a contrast needs of an arm."""

    enabled: frozenset[str]
    medians: Mapping[int, float]
    """Median step of every round."""
    totals: Totals | None


def factorial_effects(
    arms: Sequence[FactorialArm], noise: NoiseFloor | None, confidence: float = CONFIDENCE
) -> list[Effect]:
    """Main effects and two-way interactions; empty where the arms are not every combination of two or more switches.

    Args:
        arms: Without repeats; each combination once.
        noise: A/A floor of a plain difference.
        confidence: Of the intervals.
    """
    settings = {arm.enabled: arm for arm in arms}
    common = frozenset.intersection(*settings) if settings else frozenset()
    factors = sorted(frozenset().union(*settings) - common)
    if len(factors) < 2 or len(settings) != len(arms) or len(arms) != 2 ** len(factors):
        return []
    subjects = [*combinations(factors, 1), *combinations(factors, 2)]
    return [_effect(subject, arms, noise, confidence) for subject in subjects]


def _effect(
    subject: tuple[str, ...], arms: Sequence[FactorialArm], noise: NoiseFloor | None, confidence: float
) -> Effect:
    # Half the arms have sign +1: the effect is the mean over them minus the mean over the others; for an interaction, half the
    # difference of differences is doubled, so that it reads as "both together, beyond the sum of each alone".
    scale = 2 ** len(subject) / len(arms)
    weights = [scale * math.prod(1 if name in arm.enabled else -1 for name in subject) for arm in arms]
    rounds = sorted(set.intersection(*(set(arm.medians) for arm in arms)))
    values = [
        sum(weight * arm.medians[number] for weight, arm in zip(weights, arms, strict=True))
        for number in rounds
    ]
    interval = mean_interval(values, confidence)
    floor = noise.scaled(math.hypot(*weights) / PLAIN_NORM) if noise else None
    judgement = judge(interval, floor)
    totals = [arm.totals for arm in arms]
    return Effect(
        optimizations=list(subject),
        arms=len(arms),
        calls=_contrast(weights, totals, "calls"),
        payload_bytes=_contrast(weights, totals, "payload_bytes"),
        wire_bytes=_contrast(weights, totals, "wire_bytes"),
        step=interval,
        noise=floor,
        claim=judgement.claim,
        reason=judgement.reason,
    )


def _contrast(weights: Iterable[float], totals: Iterable[Totals | None], name: str) -> float | None:
    value = 0.0
    for weight, total in zip(weights, totals, strict=True):
        figure: float | None = getattr(total, name) if total is not None else None
        if figure is None:
            return None
        value += weight * figure
    return value
