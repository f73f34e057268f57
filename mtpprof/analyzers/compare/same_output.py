"""Do two arms produce the same output, and is the acceptance length the same?

Greedy speculative decoding gives the target's tokens whatever the drafts are, so an optimization of the communication must not
change a token, except where rounding in another order flips a near tie. The decision: agreement is counted up to and including
the first token that differs of each sequence, since everything after it follows from another history; and output that hardly
varies (weights that are constant, a stuck sampler) is named as the weak evidence that it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from mtpprof.analyzers.numeric.stats import Interval, bootstrap_interval
from mtpprof.rundir.records import OutputsRecord, Record

ROUNDING = {"bf16": 0.01, "fp16": 0.005, "fp32": 1e-4, "fp64": 1e-8}
"""Relative distance of log-probabilities up to which arms are taken to compute the same function, by dtype."""
MIN_DISTINCT_TOKENS = 8
"""Fewer distinct tokens than this in an output, and equal tokens prove little."""


class Divergence(Record, frozen=True, kw_only=True):
    """Where a sequence first differs from the reference."""

    sequence: int
    position: int
    token: int
    reference: int


class SameOutput(Record, frozen=True, kw_only=True):
    """Tokens held against the baseline's."""

    same: bool
    tokens: int
    """Tokens compared: of each sequence up to its first difference."""
    agreeing: int
    sequences: int
    diverging: int
    """Sequences with a difference."""
    first_difference: tuple[int, int] | None
    """(sequence, position) of the earliest token that differs."""
    divergences: list[Divergence]
    """The first difference of each sequence that has one."""
    weak: str | None
    """Why sameness proves little here; None: the output varies enough."""
    distance: float | None = None
    """Largest relative distance of a round's log-probabilities of the prompts' tokens to the reference's; None: not measured."""
    within_rounding: bool | None = None
    """Whether that is what rounding in another order can do; None: not measured."""
    sentence: str = ""
    """All of it in words: what every view shows."""


class Acceptance(Record, frozen=True, kw_only=True):
    """Tokens that a step gives a sequence: accepted drafts + 1."""

    mean: float
    low: float | None
    high: float | None
    """Confidence interval; None: a single observation."""
    confidence: float | None
    sequences: int
    observations: int
    method: str


def same_output(
    outputs: OutputsRecord | None, reference: OutputsRecord | None, dtype: str = "bf16"
) -> SameOutput | None:
    """Token agreement of every distinct round with the reference's first round, as far as both go; None: nothing to compare.

    Args:
        outputs: Of the arm.
        reference: Of the baseline.
        dtype: In which both computed: how much rounding in another order can do.
    """
    if outputs is None or reference is None or not outputs.rounds or not reference.rounds:
        return None
    expected = reference.rounds[0].tokens
    compared = agreeing = sequences = 0
    divergences: list[Divergence] = []
    distinct: set[int] = set()
    for tokens in _distinct_rounds(outputs):
        for sequence, (mine, theirs) in enumerate(zip(tokens, expected, strict=False)):
            length = min(len(mine), len(theirs))
            position = next((index for index in range(length) if mine[index] != theirs[index]), length)
            distinct.update(theirs[:length])
            sequences += 1
            agreeing += position
            compared += min(position + 1, length)
            if position < length:
                divergences.append(
                    Divergence(
                        sequence=sequence,
                        position=position,
                        token=mine[position],
                        reference=theirs[position],
                    )
                )
    distance = probe_distance(outputs, reference)
    within = None if distance is None else distance <= ROUNDING[dtype]
    first = min(
        ((entry.sequence, entry.position) for entry in divergences), key=lambda at: at[1], default=None
    )
    found = SameOutput(
        same=not divergences and compared > 0 and within is not False,
        tokens=compared,
        agreeing=agreeing,
        sequences=sequences,
        diverging=len(divergences),
        first_difference=first,
        divergences=divergences,
        weak=_weakness(compared, len(distinct)),
        distance=distance,
        within_rounding=within,
    )
    return msgspec.structs.replace(found, sentence=_sentence(found, dtype))


def _sentence(found: SameOutput, dtype: str) -> str:
    """What a reader concludes, with what it rests on."""
    numbers = ""
    if found.distance is not None:
        numbers = f"log-probabilities of the same input differ by {_percent(found.distance)}"
    if found.within_rounding is False:
        return f"the arms do not compute the same: {numbers}, more than rounding does in {dtype}"
    if found.same:
        return f"tokens match, but this is weak evidence: {found.weak}" if found.weak else "same tokens"
    if found.first_difference is None:
        return found.weak or "nothing to compare"
    sequence, position = found.first_difference
    verb = "differs" if found.diverging == 1 else "differ"
    where = f"{found.diverging} of {found.sequences} sequences {verb}, first at token {position} of sequence {sequence}"
    if found.within_rounding is None:
        return f"{where}; log-probabilities were not measured, so rounding or an error may be the cause"
    return f"{where}, a near tie: {numbers}, which is rounding, expected in {dtype}"


def _percent(distance: float) -> str:
    """A relative distance with two digits that count."""
    return f"{100 * distance:.2g} %"


def probe_distance(outputs: OutputsRecord, reference: OutputsRecord) -> float | None:
    """Largest distance of a round's probe to the reference's first; None: one of the two was not measured."""
    expected = next((entry.probe for entry in reference.rounds if entry.probe), None)
    if expected is None:
        return None
    flat = [value for prompt in expected for value in prompt]
    found = [
        relative_distance([value for prompt in entry.probe for value in prompt], flat)
        for entry in outputs.rounds
        if entry.probe
    ]
    known = [distance for distance in found if distance is not None]
    return max(known) if known else None


def _weakness(compared: int, distinct: int) -> str | None:
    if not compared:
        return "no tokens were compared"
    if distinct < MIN_DISTINCT_TOKENS:
        return f"only {distinct} distinct {'token was' if distinct == 1 else 'tokens were'} generated"
    return None


def _distinct_rounds(outputs: OutputsRecord) -> list[list[list[int]]]:
    """The rounds' tokens without exact repeats, of which a deterministic engine gives many."""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    rounds = []
    for entry in outputs.rounds:
        key = tuple(map(tuple, entry.tokens))
        if key not in seen:
            seen.add(key)
            rounds.append(entry.tokens)
    return rounds


def acceptance(outputs: OutputsRecord | None) -> Acceptance | None:
    """Acceptance length with a bootstrap interval over the sequences; None: no outputs.

    Rounds that repeat one another to the token are one observation. With fewer than five sequences the steps are resampled
    instead, as if they were independent; the method says so.
    """
    if outputs is None:
        return None
    seen: set[tuple[tuple[int, ...], ...]] = set()
    per_sequence: list[list[int]] = []
    for entry in outputs.rounds:
        key = tuple(map(tuple, entry.accepted))
        if not entry.accepted or key in seen:
            continue
        seen.add(key)
        per_sequence += [list(counts) for counts in zip(*entry.accepted, strict=False)]
    counts = [count for sequence in per_sequence for count in sequence]
    if not counts:
        return None
    mean = sum(counts) / len(counts)
    interval, unit = _acceptance_interval(per_sequence, counts)
    return Acceptance(
        mean=mean,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        confidence=interval.confidence if interval else None,
        sequences=len(per_sequence),
        observations=len(counts),
        method=f"{interval.method}, {unit}" if interval else "a single observation",
    )


def _acceptance_interval(per_sequence: list[list[int]], counts: list[int]) -> tuple[Interval | None, str]:
    if len(per_sequence) >= 5:
        means = [sum(sequence) / len(sequence) for sequence in per_sequence if sequence]
        return bootstrap_interval(means), "over sequences"
    return bootstrap_interval(counts), "over steps, taken as independent"


def relative_distance(values: Sequence[float], reference: Sequence[float]) -> float | None:
    """Numeric distance of two block outputs: |a - b| / |b| in the Euclidean norm; None: lengths differ, or nothing to compare.

    Two zeros are at distance 0; a nonzero vector is at infinite distance from zero.
    """
    if len(values) != len(reference) or not values:
        return None
    difference = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(values, reference, strict=True)))
    norm = math.sqrt(math.fsum(b * b for b in reference))
    if norm:
        return difference / norm
    return math.inf if difference else 0.0
