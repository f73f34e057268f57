"""A difference between two sides as tables of text, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mtpprof.analyzers.compare.changes import CallForm, Change
from mtpprof.analyzers.compare.difference import Difference
from mtpprof.analyzers.compare.effects import Effect
from mtpprof.analyzers.compare.engagement import Engaged, Engagement
from mtpprof.analyzers.compare.same_output import SameOutput
from mtpprof.analyzers.compare.step_time import StepChange
from mtpprof.analyzers.compare.waterfall import REST, Waterfall, drawn
from mtpprof.analyzers.ledger.excess import Excess
from mtpprof.analyzers.numeric.stats import Claim, Interval, NoiseFloor
from mtpprof.cli.render.output import Table
from mtpprof.cli.render.units import UNKNOWN, bytes_text, count_text, percent_text, signed, time_text
from mtpprof.models.optimizations.base import FUSED_RESIDUAL_RMSNORM

NOTHING = "-"


def savings_table(title: str, differences: Sequence[Difference], notes: Iterable[str] = ()) -> Table:
    """One row a difference: engaged, calls, bytes, step time, and whether a saving may be claimed."""
    columns = ("arm", "engaged", "calls", "payload", "wire", "step time", "verdict")
    return Table(
        title=title,
        columns=columns,
        rows=[_savings_row(difference) for difference in differences],
        right=frozenset(columns[2:6]),
        note="\n".join([*_noise_notes(differences), *notes]),
    )


def summary_table(groups: Iterable[tuple[str, Sequence[Difference]]]) -> Table:
    """Every difference of every case in a line: what a run ends with."""
    columns = ("arm", "engaged", "calls", "payload", "step time", "verdict")
    rows: list[tuple[str, ...]] = []
    for name, differences in groups:
        rows.append((f"{name}:", *[""] * (len(columns) - 1)))
        for difference in differences:
            arm, engaged, calls, payload, _, step, verdict = _savings_row(difference)
            rows.append((f"  {arm}", engaged, calls, payload, step, verdict))
    return Table(
        title="saved against the baseline, per step and rank",
        columns=columns,
        rows=rows,
        right=frozenset(columns[2:5]),
    )


def _savings_row(difference: Difference) -> tuple[str, ...]:
    return (
        difference.arm,
        engaged_text(difference),
        signed(count_text(difference.calls)),
        signed(bytes_text(difference.payload_bytes)),
        signed(bytes_text(difference.wire_bytes)),
        step_text(difference.step),
        verdict_text(difference.step),
    )


def _noise_notes(differences: Sequence[Difference]) -> Iterator[str]:
    step = next((difference.step for difference in differences if difference.step.noise), None)
    if step is not None and step.noise is not None:
        yield noise_text(step.noise, paired=step.paired)
    for difference in differences:
        yield from claim_notes(difference)
        if difference.no_waterfall:
            what = "waterfall" if difference.strata else "calls, bytes or waterfall"
            yield f"{difference.arm}: no {what}: {difference.no_waterfall}."


def claim_notes(difference: Difference) -> Iterator[str]:
    """Why nothing is claimed of a difference of times, or what a claim rests on where not everything switched on engaged."""
    step = difference.step
    if step.claim in (Claim.UNKNOWN, Claim.DIFFERS):
        yield f"{difference.arm}: no claim on time: {step.reason}."
    elif step.claim in (Claim.SAVED, Claim.SLOWER) and any(_unproven(difference)):
        yield f"{difference.arm}: {step.claim}: {step.reason}."


def _unproven(difference: Difference) -> Iterator[str]:
    """What was switched on and is not seen to have engaged, not even partly."""
    for name in difference.optimizations:
        found = difference.engagement.get(name)
        if found is not None and found.verdict not in (Engaged.ENGAGED, Engaged.PARTLY):
            yield name


def noise_text(noise: NoiseFloor, *, paired: bool) -> str:
    """The A/A floor and the minimum detectable effect, as a sentence."""
    share = f" ({percent_text(noise.detectable / noise.level)} of a step)" if noise.level else ""
    return (
        f"A/A{'' if paired else ' of the noisier run'}: two visits to the unchanged baseline differ by up to {time_text(noise.floor)} in "
        f"{noise.interval.samples} rounds; were arms as steady as that, a true difference of "
        f"{time_text(noise.detectable)}{share} would be found in 4 of 5 runs."
    )


def engaged_text(difference: Difference) -> str:
    """Verdicts of the optimizations that were switched on, in few words."""
    found = {
        name: difference.engagement[name]
        for name in difference.optimizations
        if name in difference.engagement
    }
    verdicts = {engagement.verdict for engagement in found.values()}
    if len(verdicts) == 1:
        verdict = verdicts.pop()
        if verdict == Engaged.PARTLY and len(found) == 1:
            return _partly(next(iter(found.values())))
        return verdict
    engaged = sum(engagement.verdict == Engaged.ENGAGED for engagement in found.values())
    return f"{engaged} of {len(found)}" if found else NOTHING


def _partly(engagement: Engagement) -> str:
    return f"PARTLY {engagement.engaged_calls}/{engagement.opportunities}"


def engagement_notes(difference: Difference) -> Iterator[str]:
    """What was switched on and did not engage, or only partly, with the sizes at which it fell back."""
    for name in difference.optimizations:
        engagement = difference.engagement.get(name)
        if engagement is None or engagement.verdict == Engaged.ENGAGED:
            continue
        sizes = [
            f"{size.engaged_calls} of {size.opportunities} calls at {size.rows} rows"
            for size in engagement.by_rows
        ]
        subject = name if name == difference.arm else f"{difference.arm}: {name}"
        yield f"{subject} {engagement.verdict}: {', '.join(sizes) or engagement.reason}."


def step_text(step: StepChange) -> str:
    """`-0.61 ms ±1.18`: the difference with the half width of its interval, in one unit."""
    if step.difference_ns is None:
        return UNKNOWN
    if step.difference is None:
        return f"{signed(time_text(step.difference_ns))} ±?"
    return interval_text(step.difference)


def interval_text(interval: Interval) -> str:
    """An estimate and the half width of its interval in the unit of the larger of the two."""
    size = max(abs(interval.estimate), interval.half_width)
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if size >= scale:
            value, half = interval.estimate / scale, interval.half_width / scale
            digits = 2 if size / scale < 10 else 1
            return f"{value:+.{digits}f} ±{half:.{digits}f} {unit}"
    return f"{interval.estimate:+.0f} ±{interval.half_width:.0f} ns"


def verdict_text(step: StepChange) -> str:
    """The claim, with its size where one is made, and with the caveat of shared CPU cores."""
    size = f" {percent_text(abs(step.relative))}" if step.relative is not None else ""
    return _claim_text(step, size)


def effect_verdict(effect: Effect) -> str:
    """The claim on an effect, with the caveat of shared CPU cores."""
    return _claim_text(effect)


def _claim_text(judged: StepChange | Effect, size: str = "") -> str:
    if judged.claim in (Claim.SAVED, Claim.SLOWER):
        return f"{judged.claim}{size}{' (CPU)' if judged.shared_cores else ''}"
    return judged.claim


def changes_table(title: str, differences: Sequence[Difference]) -> Table:
    """What became of which collectives, per step and rank; the draft passes taken together."""
    rows: list[tuple[str, ...]] = []
    for difference in differences:
        found = [change for change in merged_drafts(difference.changes) if change.what != "moved"]
        if found:
            rows.append((f"{difference.arm}:", "", "", ""))
            rows += [change_row(change) for change in found]
    columns = ("calls", "what", "where", "payload")
    return Table(title=title, columns=columns, rows=rows, right=frozenset({"payload"}))


def change_row(change: Change) -> tuple[str, ...]:
    """Cells of one change: calls with their form, what became of them, site or phase, payload."""
    return (
        f"  {count_text(change.calls)} × {change.kind} {form_change(change.before, change.after)}",
        change.what,
        ", ".join(change.sites) or change.phase or NOTHING,
        signed(bytes_text(change.payload_bytes)),
    )


def form_change(before: CallForm | None, after: CallForm | None) -> str:
    """`[1, 2048] bf16 → [1, 2] fp32`."""
    if before is None or after is None:
        form = before or after
        return form.text if form else ""
    if before.text == after.text:
        return f"by {before.implementation} → by {after.implementation}"
    if before.shape == after.shape and before.shape is not None and after.fused and not before.fused:
        return f"{before.text} + {short_fused(after.fused)}"
    return f"{before.text} → {after.text}"


def short_fused(fused: str) -> str:
    """`norm` for the residual add and RMSNorm; other fusions by their name."""
    return "norm" if fused == FUSED_RESIDUAL_RMSNORM else fused


def merged_drafts(found: Iterable[Change]) -> list[Change]:
    """Changes with the draft passes taken together where they differ in the number of the pass only."""
    merged: dict[tuple[object, ...], Change] = {}
    for change in found:
        phase = "draft" if change.phase.startswith("draft") else change.phase
        key = (change.what, change.kind, phase, str(change.before), str(change.after))
        known = merged.get(key)
        merged[key] = Change(
            what=change.what,
            kind=change.kind,
            phase=phase,
            calls=change.calls + (known.calls if known else 0),
            before=change.before,
            after=change.after,
            sites=sorted({*change.sites, *(known.sites if known else ())}),
            net_calls=change.net_calls + (known.net_calls if known else 0),
            payload_bytes=plus(change.payload_bytes, known.payload_bytes if known else 0),
            wire_bytes=plus(change.wire_bytes, known.wire_bytes if known else 0),
            time_ns=plus(change.time_ns, known.time_ns if known else 0),
        )
    return list(merged.values())


def plus(a: float | None, b: float | None) -> float | None:
    """A sum; None: a part of it is not known."""
    return None if a is None or b is None else a + b


def waterfall_tables(title: str, differences: Sequence[Difference]) -> list[Table]:
    """Baseline step, change of every part, step of the arm, with a column an arm; none where there is no waterfall."""
    falls = [(difference.arm, difference.waterfall) for difference in differences if difference.waterfall]
    if not falls:
        return []
    base = falls[0][1]
    columns = ("part", differences[0].base, *(name for name, _ in falls))
    rows = [
        ("step before", time_text(base.start_ns), *(time_text(fall.start_ns) for _, fall in falls)),
        *_part_rows([fall for _, fall in falls]),
        ("step after", "", *(time_text(fall.end_ns) for _, fall in falls)),
    ]
    return [
        Table(
            title=title,
            columns=columns,
            rows=rows,
            right=frozenset(columns[1:]),
            note="\n".join(_rest_notes(falls)),
        )
    ]


def _part_rows(falls: Sequence[Waterfall]) -> Iterator[tuple[str, ...]]:
    names = dict.fromkeys(part.name for fall in falls for part in fall.parts)
    for name in names:
        base = next(part.base_ns for fall in falls for part in fall.parts if part.name == name)
        deltas = [next((part.delta_ns for part in fall.parts if part.name == name), 0) for fall in falls]
        yield name, time_text(base), *(signed(time_text(delta)) for delta in deltas)
    yield REST, "", *(signed(time_text(drawn(fall)[-1].delta_ns)) for fall in falls)


def _rest_notes(falls: Sequence[tuple[str, Waterfall]]) -> Iterator[str]:
    base = falls[0][1]
    profiled = sum(part.base_ns for part in base.parts)
    if base.start_ns == profiled:
        return
    yield (
        f"Parts are means of profiled steps ({time_text(profiled)} in the baseline); steps before and after are measured "
        f"without a profiler. What the parts do not explain is {REST}."
    )
    vague = [name for name, fall in falls if not fall.explains]
    if vague:
        yield (
            f"More is {REST} than the whole difference ({', '.join(vague)}): there the parts say where profiled steps spent "
            f"their time, and not what was saved."
        )


def effects_table(title: str, effects: Sequence[Effect]) -> Table:
    """Main effects and interactions of a factorial design."""
    columns = ("effect of", "calls", "payload", "wire", "step time", "verdict")
    rows = [
        (
            " × ".join(effect.optimizations),
            signed(count_text(effect.calls)),
            signed(bytes_text(effect.payload_bytes)),
            signed(bytes_text(effect.wire_bytes)),
            interval_text(effect.step) if effect.step else UNKNOWN,
            effect_verdict(effect),
        )
        for effect in effects
    ]
    return Table(
        title=title,
        columns=columns,
        rows=rows,
        right=frozenset(columns[1:5]),
        note="\n".join(effect_notes(effects)),
    )


def effect_notes(effects: Sequence[Effect]) -> Iterator[str]:
    """What the effects were held against, and why nothing is claimed of some."""
    if not effects:
        return
    yield "A × B: what both together change beyond the sum of each alone."
    floors = {len(effect.optimizations): effect.noise.floor for effect in effects if effect.noise}
    if floors:
        held = [
            f"{time_text(floors[size])} for {word}" for size, word in _CONTRASTS.items() if size in floors
        ]
        yield f"A/A floor: {', '.join(held)}: that of two arms, scaled by the standard error of what is held against it."
    for reason in dict.fromkeys(effect.reason for effect in effects if effect.claim == Claim.UNKNOWN):
        names = [" × ".join(one.optimizations) for one in effects if one.reason == reason]
        yield f"{', '.join(names)}: no claim on time: {reason}."


_CONTRASTS = {1: "an effect", 2: "an interaction"}


def saviour_text(entry: Excess) -> str:
    """What takes redundant or oversized collectives away, as the end of a sentence."""
    cost = f" ({time_text(entry.time_ns)} in them)" if entry.time_ns is not None else ""
    if entry.avoided_by is None:
        return cost
    return f"{cost}; {entry.avoided_by} {'removes' if entry.what == 'redundant' else 'shrinks'} them"


def output_text(output: SameOutput | None) -> str:
    """Agreement of tokens in few words, for a cell; the sentence of the answer says what it means."""
    if output is None:
        return UNKNOWN
    if output.same:
        return "same (weak)" if output.weak else "same"
    if output.within_rounding is False:
        return "not the same function"
    if output.first_difference is None:
        return UNKNOWN
    cause = "rounding" if output.within_rounding else "cause not known"
    return f"{output.diverging} of {output.sequences} differ: {cause}"


def output_sentence(output: SameOutput | None) -> str:
    """What the answer says of the outputs, or that it knows nothing of them."""
    return output.sentence if output is not None else "not known: there are no outputs of both"


def kernels_text(difference: Difference) -> str:
    """Kernels beside the collectives that come or go, e.g. `-33 operations`."""
    found = difference.kernels
    return f"{signed(count_text(found.difference))} {found.what}" if found is not None else UNKNOWN


def memory_text(difference: Difference) -> str:
    """What those kernels read and write in memory."""
    return signed(bytes_text(difference.memory_bytes))


def kernels_table(differences: Sequence[Difference]) -> Table:
    """One row a difference: kernels beside the collectives on both sides, and the memory traffic that comes or goes with them."""
    columns = ("arm", "before", "after", "change", "memory traffic")
    rows = []
    for difference in differences:
        found = difference.kernels
        rows.append(
            (
                difference.arm,
                count_text(found.base) if found else UNKNOWN,
                count_text(found.arm) if found else UNKNOWN,
                kernels_text(difference),
                memory_text(difference),
            )
        )
    known = any(difference.kernels or difference.memory_bytes is not None for difference in differences)
    return Table(
        title="kernels beside the collectives, per step and rank",
        columns=columns,
        rows=rows if known else [],
        right=frozenset(columns[1:]),
    )
