"""What one side saves against another: engagement, calls, bytes, time, above noise or not, same output or not.

The rungs stand in the order in which they can be trusted, and each says what the one below it rests on. A rung that the two sides
do not support is None with its reason, and what stands in the way of a comparison is a caveat: nothing is scaled until it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from mtpprof.analyzers.compare.changes import Change, changes, in_doubt
from mtpprof.analyzers.compare.engagement import (
    Engaged,
    Engagement,
    doubted,
    engagement_by_change,
    engagement_of,
    withheld_engagement,
)
from mtpprof.analyzers.compare.kernels import (
    KernelChange,
    KernelCount,
    kernel_change,
    kernel_counts,
    memory_change,
)
from mtpprof.analyzers.compare.replacements import came_instead
from mtpprof.analyzers.compare.same_output import Acceptance, SameOutput, acceptance, same_output
from mtpprof.analyzers.compare.side import Side
from mtpprof.analyzers.compare.step_time import StepChange, differs, step_change
from mtpprof.analyzers.compare.waterfall import Waterfall, make_waterfall, per_token
from mtpprof.analyzers.ledger.mismatches import observed_entries
from mtpprof.analyzers.measures.batches import Pairing, Stratum, added, pair
from mtpprof.analyzers.measures.step_parts import Composition
from mtpprof.analyzers.measures.totals import Totals
from mtpprof.analyzers.numeric.stats import CONFIDENCE, Claim
from mtpprof.models.optimizations.catalogue import CATALOGUE, OPT_IN
from mtpprof.rundir.records import Record

SAME_BATCH_SETTINGS = ("model", "TP", "concurrency", "draft tokens", "dtype")
"""Settings without which not even bytes per step compare."""
SAME_TOKENS_SETTINGS = (*SAME_BATCH_SETTINGS, "prompt length", "seed")
"""Settings without which tokens are not expected to agree. The seed alone does not change what a step costs."""


class StratumDifference(Record, frozen=True, kw_only=True):
    """Steps of one batch on both sides, per step and rank."""

    batch: str
    arm_batch: str
    same_batch: bool
    """Of one batch, and of sides that are alike in all else that decides message sizes; False: only numbers of calls compare."""
    base_steps: int
    arm_steps: int
    base: Totals
    arm: Totals
    changes: list[Change]
    kernels: list[KernelCount]
    """Kernels of other kinds whose number changed; without a device, operations that compute."""
    kernel_change: KernelChange | None = None
    """All of them together; None: the traces do not show them."""
    memory_bytes: float | None = None
    """What the kernels beside the collectives read and write more; None: not known."""
    notes: list[str]


class Difference(Record, frozen=True, kw_only=True):
    """An arm against its baseline; negative is saved. Calls, bytes and collective time are per step and rank."""

    base: str
    arm: str
    optimizations: list[str]
    """Switches that are on in the arm and not in the baseline; where flags are not known, those seen to engage."""
    engagement: dict[str, Engagement]
    calls: float | None
    payload_bytes: float | None
    wire_bytes: float | None
    kernels: KernelChange | None = None
    """Kernels beside the collectives that come or go; None: the traces do not show them."""
    memory_bytes: float | None = None
    """What those kernels read and write in memory, by the optimizations' description of them; None: not known."""
    collective_ns: float | None
    step_ns: float | None
    noise_ns: float | None
    """The A/A floor that `step_ns` has to exceed."""
    step: StepChange
    strata: list[StratumDifference]
    """The one that the figures above are of comes first."""
    waterfall: Waterfall | None
    waterfall_per_token: Waterfall | None
    no_waterfall: str
    """Why there is none; empty: there is."""
    output: SameOutput | None
    base_acceptance: Acceptance | None
    arm_acceptance: Acceptance | None
    caveats: list[str]
    newcomers: tuple[str, ...] = ()
    """Those of the caveats that name what stands where collectives were."""

    @property
    def kernels_change(self) -> float | None:
        """Kernels beside the collectives more or fewer; None: not known."""
        return self.kernels.difference if self.kernels is not None else None

    @property
    def changes(self) -> list[Change]:
        """What changed in the steps that the figures are of."""
        return self.strata[0].changes if self.strata else []


def compare_sides(base: Side, arm: Side, confidence: float = CONFIDENCE) -> Difference:
    """Everything that two sides support saying of their difference."""
    caveats = list(_setting_caveats(base, arm))
    pairings: list[Pairing] = []
    if base.traces is not None and arm.traces is not None and base.traces.strata and arm.traces.strata:
        alike = not _unlike(base, arm)
        pairings, alone = pair(base.traces.strata, arm.traces.strata, alike=alike)
        caveats += [f"{sentence}." for sentence in alone]
    changed = [changes(pairing) for pairing in pairings]
    strata = [_stratum_difference(base, arm, *each) for each in zip(pairings, changed, strict=True)]
    caveats += _trace_caveats(base, arm, strata)
    newcomers = tuple(
        dict.fromkeys(
            sentence
            for each in zip(pairings, changed, strict=True)
            for sentence in _newcomers(base, arm, *each)
        )
    )
    engagement = _engagement(base, arm, pairings, changed)
    step = _resting_on(_switches(base, arm, engagement), strata, step_change(base, arm, confidence))
    waterfall, reason = _waterfall(base, arm, pairings, step)
    ours, theirs = acceptance(base.outputs), acceptance(arm.outputs)
    caveats += _acceptance_caveats(ours, theirs)
    main = strata[0] if strata else None
    counted = not (base.doubt or arm.doubt)
    comparable = main if main is not None and main.same_batch and counted else None
    return Difference(
        base=base.label,
        arm=arm.label,
        optimizations=_switched(base, arm, engagement),
        engagement=engagement,
        calls=_minus(main if counted else None, "calls"),
        payload_bytes=_minus(comparable, "payload_bytes"),
        wire_bytes=_minus(comparable, "wire_bytes"),
        kernels=main.kernel_change if main is not None else None,
        memory_bytes=comparable.memory_bytes if comparable is not None else None,
        collective_ns=_minus(comparable, "collective_ns"),
        step_ns=step.difference_ns,
        noise_ns=step.noise.floor if step.noise else None,
        step=step,
        strata=strata,
        waterfall=waterfall,
        waterfall_per_token=per_token(waterfall, ours.mean, theirs.mean)
        if waterfall and ours and theirs and ours.mean > 0 and theirs.mean > 0
        else None,
        no_waterfall=reason,
        output=None
        if any(differs(base, arm, name) for name in SAME_TOKENS_SETTINGS)
        else same_output(arm.outputs, base.outputs, arm.setting.get("dtype", "bf16")),
        base_acceptance=ours,
        arm_acceptance=theirs,
        caveats=[*caveats, *newcomers],
        newcomers=newcomers,
    )


def _unlike(base: Side, arm: Side) -> list[str]:
    """Settings that decide message sizes in which the sides differ."""
    return [name for name in SAME_BATCH_SETTINGS if differs(base, arm, name)]


def _setting_caveats(base: Side, arm: Side) -> Iterable[str]:
    for name in base.setting:
        if differs(base, arm, name):
            yield f"The sides differ in {name}: {base.setting[name]} against {arm.setting[name]}."
    if base.shared_cores or arm.shared_cores:
        yield (
            "Ranks share CPU cores: time in a collective is mostly waiting for the other ranks' turn, and a change of step "
            "time says nothing of a machine with a core or a GPU per rank."
        )
    if not base.setting or not arm.setting:
        yield "At least one side is a capture without a run record: that model and settings are equal is not known."


def _trace_caveats(base: Side, arm: Side, strata: Sequence[StratumDifference]) -> Iterable[str]:
    for side in (base, arm):
        for reason in side.unreadable.values():
            yield f"{side.label}: {reason}; what it holds is not compared."
        if side.traces is None:
            yield f"{side.label}: {side.missing}; collectives are not compared."
            continue
        if side.traces.apart:
            yield f"{side.label}: {side.traces.apart}; steps of such a batch are not compared."
        for item in side.traces.found.withheld:
            yield f"{side.label}: {item.answer}: {item.reason.rstrip('.')}."
    unlike = _unlike(base, arm)
    for stratum in strata:
        if stratum.same_batch:
            continue
        if stratum.batch != stratum.arm_batch:
            what = f"Batches differ ({stratum.batch} against {stratum.arm_batch})"
        elif unlike:
            what = f"{stratum.batch}: the sides differ in {' and '.join(unlike)}"
        else:
            what = f"The batch of {stratum.batch} is not told"
        yield f"{what}: numbers of calls compare, bytes and times do not."


def _newcomers(base: Side, arm: Side, pairing: Pairing, changed: list[Change]) -> Iterable[str]:
    if base.traces is None or arm.traces is None:
        return ()
    ours, theirs = base.traces.others.of(pairing.base.rows), arm.traces.others.of(pairing.arm.rows)
    return came_instead(changed, ours, theirs, (base.label, arm.label))


def _acceptance_caveats(ours: Acceptance | None, theirs: Acceptance | None) -> Iterable[str]:
    if ours is None or theirs is None or ours.mean == theirs.mean:
        return
    text = f"Acceptance lengths differ: {ours.mean:.3f} against {theirs.mean:.3f}"
    bounds = [ours.low, ours.high, theirs.low, theirs.high]
    if any(bound is None for bound in bounds):
        yield f"{text}, each from too few observations to tell; compare times per step."
    elif (theirs.low or 0) <= (ours.high or 0) and (ours.low or 0) <= (theirs.high or 0):
        yield f"{text}, within their intervals; a change of acceptance is not a communication saving, so compare per step."
    else:
        yield f"{text}, beyond their intervals: the sides do different work per token, so compare per step only."


def _stratum_difference(base: Side, arm: Side, pairing: Pairing, changed: list[Change]) -> StratumDifference:
    notes = []
    if pairing.base.uneven or pairing.arm.uneven:
        notes.append("not every rank and step issues the same collectives; figures are means")
    counts, change = _kernels(base, arm, pairing)
    return StratumDifference(
        batch=pairing.base.batch.text,
        arm_batch=pairing.arm.batch.text,
        same_batch=pairing.same_batch,
        base_steps=pairing.base.steps,
        arm_steps=pairing.arm.steps,
        base=stratum_totals(pairing.base),
        arm=stratum_totals(pairing.arm),
        changes=in_doubt(changed, base=bool(base.doubt), arm=bool(arm.doubt)),
        kernels=[count for count in counts if count.base != count.arm],
        kernel_change=change,
        memory_bytes=memory_change(base, arm, pairing, changed),
        notes=notes,
    )


def _kernels(base: Side, arm: Side, pairing: Pairing) -> tuple[list[KernelCount], KernelChange | None]:
    if base.traces is None or arm.traces is None:
        return [], None
    counts = kernel_counts(base.traces, arm.traces, pairing)
    return counts, kernel_change(base.traces, arm.traces, counts)


def stratum_totals(stratum: Stratum) -> Totals:
    """Sums over the collectives of a stratum, per step and rank."""
    whole = added(list(stratum.forms.values()))
    fused = sum(found.time_ns for form, found in stratum.forms.items() if form.fused)
    return Totals(
        calls=whole.calls / stratum.pairs,
        payload_bytes=None if whole.payload_bytes is None else whole.payload_bytes / stratum.pairs,
        wire_bytes=None if whole.wire_bytes is None else whole.wire_bytes / stratum.pairs,
        collective_ns=whole.time_ns / stratum.pairs,
        fused_ns=fused / stratum.pairs,
    )


def _minus(stratum: StratumDifference | None, name: str) -> float | None:
    if stratum is None:
        return None
    mine, theirs = getattr(stratum.arm, name), getattr(stratum.base, name)
    return None if mine is None or theirs is None else mine - theirs


def _engagement(
    base: Side, arm: Side, pairings: Sequence[Pairing], changed: Sequence[list[Change]]
) -> dict[str, Engagement]:
    if arm.traces is None or arm.workload is not None:
        return engagement_of_side(arm)
    if not pairings:
        reason = "the sides have no steps in common to compare"
        return {name: withheld_engagement(Engaged.UNKNOWN, reason, requested=None) for name in CATALOGUE}
    by_arm = engagement_of_side(arm)
    found = {name: engagement_by_change(pairings[0], changed[0], name) or by_arm[name] for name in CATALOGUE}
    return doubted(found, arm.doubt or base.doubt)


def engagement_of_side(side: Side) -> dict[str, Engagement]:
    """The verdict on every optimization of the catalogue that one arm of a run allows by itself."""
    found = {}
    entries = observed_entries(side.traces.calls) if side.traces is not None else ()
    for name in (*CATALOGUE, *(name for name in OPT_IN if name in (side.enabled or ()))):
        requested = None if side.enabled is None else name in side.enabled
        if name in side.not_applicable:
            found[name] = _refused(side.not_applicable[name], requested)
        elif side.traces is None:
            found[name] = withheld_engagement(Engaged.UNKNOWN, side.missing, requested=requested)
        else:
            found[name] = engagement_of(
                entries, name, requested=requested, fallback=side.unavailable.get(name, "")
            )
    return doubted(found, side.doubt)


def _refused(reason: str, requested: bool | None) -> Engagement:
    """An optimization that a case does not have: the model or the batch cannot use it, or the engine cannot switch it."""
    prefix, _, rest = reason.partition(": ")
    if prefix == Engaged.UNSUPPORTED:
        return withheld_engagement(Engaged.UNSUPPORTED, rest, requested=requested)
    return withheld_engagement(Engaged.NOT_APPLICABLE, reason, requested=requested)


def _switched(base: Side, arm: Side, engagement: dict[str, Engagement]) -> list[str]:
    if base.enabled is not None and arm.enabled is not None:
        return sorted(arm.enabled - base.enabled)
    return [name for name, found in engagement.items() if found.engaged_calls]


def _switches(base: Side, arm: Side, engagement: dict[str, Engagement]) -> dict[str, Engagement]:
    """Every switch that is on one side only, with the verdict of the side that has it on; empty: they are not known."""
    if base.enabled is None or arm.enabled is None:
        return {}
    off = engagement_of_side(base) if base.enabled - arm.enabled else {}
    switched = {name: engagement.get(name) for name in arm.enabled - base.enabled}
    switched |= {name: off.get(name) for name in base.enabled - arm.enabled}
    return {name: found for name, found in sorted(switched.items()) if found is not None}


def _resting_on(
    switches: dict[str, Engagement], strata: Sequence[StratumDifference], step: StepChange
) -> StepChange:
    """The claim as far as the first rungs carry it.

    Where the traces show that no switch changed what ran, a difference of times is nobody's saving. Where some did, the reason says which,
    and where that is not known, that it is not.
    """
    if step.claim not in (Claim.SAVED, Claim.SLOWER) or not switches:
        return step
    idle = [name for name, found in switches.items() if found.idle]
    unknown = [name for name, found in switches.items() if found.verdict == Engaged.UNKNOWN]
    engaged = [name for name in switches if name not in (*idle, *unknown)]
    changed = any(change.what != "moved" for stratum in strata for change in stratum.changes)
    if len(idle) == len(switches) and not changed:
        reason = "nothing that was switched engaged, so the difference comes from something else"
        return msgspec.structs.replace(step, claim=Claim.DIFFERS, reason=reason)
    if len(engaged) == len(switches):
        return step
    told = (("engaged", engaged), ("did not engage", idle), ("not known to have engaged", unknown))
    parts = [f"{' and '.join(names)} {word}" for word, names in told if names]
    return msgspec.structs.replace(step, reason=f"{step.reason}; {', '.join(parts)}")


def _waterfall(
    base: Side, arm: Side, pairings: Sequence[Pairing], step: StepChange
) -> tuple[Waterfall | None, str]:
    if base.traces is None or arm.traces is None:
        return None, base.missing or arm.missing
    main = pairings[0] if pairings else None
    if main is None and (base.traces.apart or arm.traces.apart):
        apart = base if base.traces.apart else arm
        return None, f"{apart.label}: {base.traces.apart or arm.traces.apart}"
    if unlike := _unlike(base, arm):
        return None, f"the sides differ in {' and '.join(unlike)}"
    if main is None or not main.same_batch:
        return None, "the sides have no steps that are known to be of the same batch"
    ours = _steps_in(base.traces.composition, main.base.rows)
    theirs = _steps_in(arm.traces.composition, main.arm.rows)
    found = make_waterfall(ours, theirs, start_ns=step.base_ns, end_ns=step.arm_ns)
    if found is None:
        return None, "the traces do not show where their steps end"
    return found, ""


def _steps_in(composition: Composition, rows: frozenset[int]) -> Composition:
    return composition.take(np.isin(composition.step, np.fromiter(rows, np.int64)))
