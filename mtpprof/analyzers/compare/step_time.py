"""Step times of two sides, and what may be said of their difference."""

from __future__ import annotations

from statistics import fmean, median

from mtpprof.analyzers.compare.side import Side
from mtpprof.analyzers.numeric.stats import (
    CONFIDENCE,
    Claim,
    Interval,
    NoiseFloor,
    judge,
    noise_floor,
    paired_interval,
    welch_interval,
)
from mtpprof.rundir.records import Record


class StepChange(Record, frozen=True, kw_only=True):
    """Step times without a profiler, the slowest rank of each step, and what may be said of their difference."""

    base_ns: int | None
    """Mean over the rounds of each round's median step; None: not measured."""
    arm_ns: int | None
    difference: Interval | None
    """Arm minus baseline, negative is saved; None: fewer than two rounds."""
    noise: NoiseFloor | None
    """What two visits to the unchanged baseline differ by; None: it was not repeated."""
    claim: str
    """A `Claim`."""
    reason: str
    shared_cores: bool = False
    """Whether ranks shared CPU cores: a claim is then one about turns on those cores, not about communication."""
    paired: bool = True
    """Whether both sides were measured in the same rounds of one run; False: `noise` is that of the noisier run."""

    @property
    def difference_ns(self) -> int | None:
        """Arm minus baseline; None: not measured on both sides."""
        return None if self.base_ns is None or self.arm_ns is None else self.arm_ns - self.base_ns

    @property
    def relative(self) -> float | None:
        """Difference over the baseline."""
        difference = self.difference_ns
        return None if difference is None or not self.base_ns else difference / self.base_ns


def step_change(base: Side, arm: Side, confidence: float = CONFIDENCE) -> StepChange:
    """Step times of two sides: paired by round within a session, as independent samples between sessions."""
    paired = bool(base.session) and base.session == arm.session and base.case == arm.case
    ours, theirs = base.medians, arm.medians
    if not ours or not theirs:
        label = base.label if not ours else arm.label
        return _unmeasured(f"no step times without a profiler of {label}")
    if paired:
        rounds = sorted(ours.keys() & theirs.keys())
        ours, theirs = ({number: side[number] for number in rounds} for side in (ours, theirs))
        if not rounds:
            return _unmeasured("no round was finished on both sides")
    noise = (
        noise_of(base, confidence)
        if paired
        else _larger(noise_of(base, confidence), noise_of(arm, confidence))
    )
    difference = (paired_interval if paired else welch_interval)(
        list(theirs.values()), list(ours.values()), confidence
    )
    judgement = judge(difference, noise)
    claim, reason = judgement.claim, judgement.reason
    if not paired:
        unequal = [name for name in base.setting if name != "seed" and differs(base, arm, name)]
        if unequal:
            claim, reason = Claim.UNKNOWN, f"the sides differ in {', '.join(unequal)}"
        else:
            reason += "; measured in different runs, so drift between them is not in the interval"
    return StepChange(
        base_ns=round(fmean(ours.values())),
        arm_ns=round(fmean(theirs.values())),
        difference=difference,
        noise=noise,
        claim=claim,
        reason=reason,
        shared_cores=bool(base.shared_cores or arm.shared_cores),
        paired=paired,
    )


def _unmeasured(reason: str) -> StepChange:
    return StepChange(
        base_ns=None, arm_ns=None, difference=None, noise=None, claim=Claim.UNKNOWN, reason=reason
    )


def noise_of(side: Side, confidence: float = CONFIDENCE) -> NoiseFloor | None:
    """The A/A floor of a side's case; None: its baseline was not repeated in two rounds."""
    rounds = sorted(side.repeat.keys() & side.baseline.keys())
    return noise_floor(
        [float(median(side.repeat[number])) for number in rounds],
        [float(median(side.baseline[number])) for number in rounds],
        confidence,
    )


def _larger(one: NoiseFloor | None, other: NoiseFloor | None) -> NoiseFloor | None:
    if one is None or other is None:
        return None
    return max(one, other, key=lambda noise: noise.floor)


def differs(base: Side, arm: Side, name: str) -> bool:
    """Whether a setting is known of both sides and not the same."""
    ours, theirs = base.setting.get(name), arm.setting.get(name)
    return ours is not None and theirs is not None and ours != theirs
