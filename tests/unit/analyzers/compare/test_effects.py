"""Main effects and interactions out of a factorial design."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mtpprof.analyzers.compare.effects import Effect, FactorialArm, factorial_effects
from mtpprof.analyzers.measures.totals import Totals
from mtpprof.analyzers.numeric.stats import Claim, NoiseFloor, noise_floor


def totals(calls: float, payload: float | None = 0) -> Totals:
    return Totals(calls=calls, payload_bytes=payload, wire_bytes=None, collective_ns=0, fused_ns=0)


def arms(
    effects: dict[frozenset[str], float], rounds: int = 6, noise: float = 0, factors: str = "AB"
) -> list[FactorialArm]:
    """Arms whose step time is 1000 plus the effects of every subset that is switched on, with drift over the rounds."""
    rng = random.Random(3)
    made = []
    for bits in range(2 ** len(factors)):
        on = frozenset(name for index, name in enumerate(factors) if bits >> index & 1)
        level = 1000 + sum(value for subset, value in effects.items() if subset <= on)
        medians = {number: level + 100 * number + rng.gauss(0, noise) for number in range(rounds)}
        made.append(FactorialArm(enabled=on | {"always"}, medians=medians, totals=totals(10 - 3 * len(on))))
    return made


def floor(noise: float) -> NoiseFloor | None:
    rng = random.Random(7)
    base = [1000 + rng.gauss(0, noise) for _ in range(6)]
    return noise_floor([value + rng.gauss(0, noise) for value in base], base)


def by_name(found: list[Effect]) -> dict[str, Effect]:
    return {"x".join(effect.optimizations): effect for effect in found}


def test_a_two_by_two_isolates_each() -> None:
    A, B = frozenset("A"), frozenset("B")
    found = by_name(factorial_effects(arms({A: -40, B: -10, A | B: 6}, noise=0.1), floor(0.1)))
    assert list(found) == ["A", "B", "AxB"]
    estimates = {name: effect.step.estimate for name, effect in found.items() if effect.step}
    # A main effect is the mean over both settings of the other switch: half of the interaction is in it.
    assert estimates == pytest.approx({"A": -37, "B": -7, "AxB": 6}, abs=0.5)
    assert {effect.claim for effect in found.values()} == {Claim.SAVED, Claim.SLOWER}
    assert [effect.calls for effect in found.values()] == [-3, -3, 0]


def test_drift_between_rounds_cancels() -> None:
    found = by_name(factorial_effects(arms({frozenset("A"): -5}), floor(0.1)))
    assert found["A"].step is not None
    assert found["A"].step.low == found["A"].step.high == -5


def test_three_factors() -> None:
    found = by_name(factorial_effects(arms({frozenset("B"): -8}, factors="ABC"), floor(0.1)))
    assert list(found) == ["A", "B", "C", "AxB", "AxC", "BxC"]
    assert found["B"].step is not None
    assert found["B"].step.estimate == -8
    assert found["AxB"].step is not None
    assert found["AxB"].step.estimate == 0


def test_the_noise_floor_follows_the_contrast() -> None:
    noise = floor(1)
    assert noise is not None
    found = by_name(factorial_effects(arms({}), noise))
    main, interaction = found["A"].noise, found["AxB"].noise
    assert main is not None
    assert interaction is not None
    assert main.floor == pytest.approx(noise.floor / 2**0.5)
    assert interaction.floor == pytest.approx(noise.floor * 2**0.5)


def test_what_engaged_nowhere_has_no_effect_and_no_interaction() -> None:
    A, B = frozenset("A"), frozenset("B")
    measured = arms({B: -40}, noise=0.1)
    idle = [replace(arm, idle=arm.enabled & A) for arm in measured]
    found = by_name(factorial_effects(idle, floor(0.1), shared_cores=True))
    assert {name: effect.claim for name, effect in found.items()} == {
        "A": Claim.NOT_ENGAGED,
        "B": Claim.SAVED,
        "AxB": Claim.NOT_ENGAGED,
    }
    assert "A engaged in no arm" in found["A"].reason
    assert found["A"].step is not None, "the difference of times is shown all the same"
    assert found["B"].shared_cores
    once = [replace(arm, idle=A if arm.enabled >= A | B else frozenset()) for arm in measured]
    assert by_name(factorial_effects(once, floor(0.1)))["A"].claim != Claim.NOT_ENGAGED


def test_arms_that_differ_by_what_did_not_engage_show_that_the_floor_is_too_low() -> None:
    A, B = frozenset("A"), frozenset("B")
    idle = [replace(arm, idle=arm.enabled & A) for arm in arms({A: -100, B: -40}, noise=0.1)]
    found = by_name(factorial_effects(idle, floor(0.1)))
    assert found["B"].claim == Claim.UNKNOWN
    assert "nothing but A" in found["B"].reason


def test_other_designs_have_no_effects() -> None:
    full = arms({})
    assert factorial_effects(full[:3], floor(1)) == []
    assert factorial_effects(arms({}, factors="A"), floor(1)) == []
    assert factorial_effects([], None) == []


def test_unknown_stays_unknown() -> None:
    found = by_name(factorial_effects(arms({}, rounds=1), None))
    assert found["A"].step is None
    assert found["A"].claim == Claim.UNKNOWN
    assert found["A"].wire_bytes is None
