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

import msgspec

from mtpprof.analyzers.measures.totals import Totals
from mtpprof.analyzers.numeric.stats import CONFIDENCE, Claim, Interval, NoiseFloor, judge, mean_interval
from mtpprof.rundir.records import Record

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
    """The A/A floor of this contrast, which `step` has to exceed."""
    claim: str
    """A `Claim`."""
    reason: str
    shared_cores: bool = False
    """Whether ranks shared CPU cores: a claim is then one about turns on those cores, not about communication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorialArm:
    """What a contrast needs of an arm."""

    enabled: frozenset[str]
    idle: frozenset[str] = frozenset()
    """Of `enabled`, those that are known not to have engaged."""
    medians: Mapping[int, float]
    """Median step of every round."""
    totals: Totals | None


def factorial_effects(
    arms: Sequence[FactorialArm],
    noise: NoiseFloor | None,
    confidence: float = CONFIDENCE,
    *,
    shared_cores: bool = False,
) -> list[Effect]:
    """Main effects and two-way interactions; empty where the arms are not every combination of two or more switches.

    Args:
        arms: Without repeats; each combination once.
        noise: A/A floor of a plain difference.
        confidence: Of the intervals.
        shared_cores: Whether ranks shared CPU cores.
    """
    settings = {arm.enabled: arm for arm in arms}
    common = frozenset.intersection(*settings) if settings else frozenset()
    factors = sorted(frozenset().union(*settings) - common)
    if len(factors) < 2 or len(settings) != len(arms) or len(arms) != 2 ** len(factors):
        return []
    subjects = [*combinations(factors, 1), *combinations(factors, 2)]
    found = [_effect(subject, arms, noise, confidence, shared_cores=shared_cores) for subject in subjects]
    idle = frozenset(name for name in factors if all(name in arm.idle for arm in arms if name in arm.enabled))
    return [_resting_on_engagement(effect, idle, found) for effect in found] if idle else found


def _resting_on_engagement(effect: Effect, idle: frozenset[str], effects: Iterable[Effect]) -> Effect:
    """An effect of what engaged nowhere is none, and where there seems to be one, the arms differ in more than their switches."""
    mine = [name for name in effect.optimizations if name in idle]
    if mine:
        reason = f"{' and '.join(mine)} engaged in no arm"
        return msgspec.structs.replace(effect, claim=Claim.NOT_ENGAGED, reason=reason)
    apart = {
        name
        for other in effects
        if other.claim in (Claim.SAVED, Claim.SLOWER)
        for name in idle.intersection(other.optimizations)
    }
    if not apart or effect.claim not in (Claim.SAVED, Claim.SLOWER):
        return effect
    reason = f"arms that differ in nothing but {' and '.join(sorted(apart))}, which engaged in none, differ beyond the A/A floor"
    return msgspec.structs.replace(effect, claim=Claim.UNKNOWN, reason=reason)


def _effect(
    subject: tuple[str, ...],
    arms: Sequence[FactorialArm],
    noise: NoiseFloor | None,
    confidence: float,
    *,
    shared_cores: bool,
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
        shared_cores=shared_cores,
    )


def _contrast(weights: Iterable[float], totals: Iterable[Totals | None], name: str) -> float | None:
    value = 0.0
    for weight, total in zip(weights, totals, strict=True):
        figure: float | None = getattr(total, name) if total is not None else None
        if figure is None:
            return None
        value += weight * figure
    return value
