"""The way from the baseline's step time to the arm's, part by part, adding up to the nanosecond.

The decision: the two ends are step times measured without a profiler; the parts come from the profiled windows, where alone they can
be seen. What the parts do not explain of the difference is shown as a part of its own, never spread over the others: it is what the
profiler changes, and it says how far the parts can be trusted. Means are whole nanoseconds, apportioned so that rounding loses none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from mtpprof.analyzers.measures.step_parts import PARTS, Composition
from mtpprof.rundir.records import Record

REST = "unattributed"


class Part(Record, frozen=True, kw_only=True):
    """One part of a step, on both sides."""

    name: str
    base_ns: int
    arm_ns: int

    @property
    def delta_ns(self) -> int:
        """Change of the part; negative: saved."""
        return self.arm_ns - self.base_ns


class Waterfall(Record, frozen=True, kw_only=True):
    """`start_ns` plus the changes of all parts plus `rest_ns` is `end_ns`, exactly."""

    unit: str
    """What the times are of: `step`, or `accepted token`."""
    basis: str
    """Where `start_ns` and `end_ns` were measured."""
    start_ns: int
    end_ns: int
    parts: list[Part]
    """Means over ranks and steps; of both sides each adds up to the length of a profiled step."""
    rest_ns: int
    """Of the difference, what the parts do not explain."""
    base_steps: int
    """(rank, step) pairs that the base parts are means over."""
    arm_steps: int

    @property
    def difference_ns(self) -> int:
        """Change of the whole; negative: saved."""
        return self.end_ns - self.start_ns

    @property
    def explains(self) -> bool:
        """Whether the parts explain more of the difference than they leave: otherwise profiled steps were other steps."""
        return abs(self.rest_ns) <= abs(self.difference_ns)


class WaterfallRow(Record, frozen=True, kw_only=True):
    """A line of a waterfall as it is drawn."""

    name: str
    delta_ns: int
    before_ns: int
    """Running total above it."""
    after_ns: int


def make_waterfall(
    base: Composition,
    arm: Composition,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
) -> Waterfall | None:
    """Waterfall from one side to the other; None where a side has no step with an end.

    Args:
        base: Steps of the baseline.
        arm: Steps of the arm, of the same batch.
        start_ns: Step time of the baseline without a profiler; None: the mean of its steps in the trace.
        end_ns: The same of the arm.
    """
    if not len(base) or not len(arm):
        return None
    ours, theirs = mean_parts(base), mean_parts(arm)
    measured = start_ns is not None and end_ns is not None
    start = start_ns if measured and start_ns is not None else sum(ours.values())
    end = end_ns if measured and end_ns is not None else sum(theirs.values())
    parts = [
        Part(name=name, base_ns=ours[name], arm_ns=theirs[name])
        for name in PARTS
        if ours[name] or theirs[name]
    ]
    return Waterfall(
        unit="step",
        basis="step times without a profiler" if measured else "mean step of the profiled windows",
        start_ns=start,
        end_ns=end,
        parts=parts,
        rest_ns=end - start - sum(part.delta_ns for part in parts),
        base_steps=len(base),
        arm_steps=len(arm),
    )


def per_token(waterfall: Waterfall, base_tokens: float, arm_tokens: float) -> Waterfall:
    """The same waterfall per accepted token, each side divided by its own tokens per step.

    Raises:
        ValueError: a side without tokens.
    """
    if base_tokens <= 0 or arm_tokens <= 0:
        raise ValueError("tokens per step must be positive")
    start, end = round(waterfall.start_ns / base_tokens), round(waterfall.end_ns / arm_tokens)
    ours = _divided({part.name: part.base_ns for part in waterfall.parts}, base_tokens)
    theirs = _divided({part.name: part.arm_ns for part in waterfall.parts}, arm_tokens)
    parts = [Part(name=name, base_ns=ours[name], arm_ns=theirs[name]) for name in ours]
    return Waterfall(
        unit="accepted token",
        basis=waterfall.basis,
        start_ns=start,
        end_ns=end,
        parts=parts,
        rest_ns=end - start - sum(part.delta_ns for part in parts),
        base_steps=waterfall.base_steps,
        arm_steps=waterfall.arm_steps,
    )


def _divided(parts: Mapping[str, int], tokens: float) -> dict[str, int]:
    shares = [Fraction(value) / Fraction(tokens) for value in parts.values()]
    return dict(zip(parts, apportion(shares), strict=True))


def mean_parts(composition: Composition) -> dict[str, int]:
    """Mean of every part over the steps, in whole nanoseconds that add up to the rounded mean length."""
    count = max(1, len(composition))
    shares = [Fraction(int(composition.parts_ns[name].sum()), count) for name in PARTS]
    return dict(zip(PARTS, apportion(shares), strict=True))


def apportion(shares: Sequence[Fraction]) -> list[int]:
    """Whole numbers close to `shares` that add up to their rounded sum (largest remainder)."""
    floors = [share.numerator // share.denominator for share in shares]
    total = sum(shares, Fraction(0))
    missing = (2 * total.numerator + total.denominator) // (2 * total.denominator) - sum(floors)
    by_remainder = sorted(range(len(shares)), key=lambda index: floors[index] - shares[index])
    for index in by_remainder[:missing]:
        floors[index] += 1
    return floors


def drawn(waterfall: Waterfall) -> list[WaterfallRow]:
    """The lines of a waterfall with their running totals; the last one ends at `end_ns`."""
    rows, total = [], waterfall.start_ns
    for name, delta in (
        *((part.name, part.delta_ns) for part in waterfall.parts),
        (REST, waterfall.rest_ns),
    ):
        rows.append(WaterfallRow(name=name, delta_ns=delta, before_ns=total, after_ns=total + delta))
        total += delta
    return rows
