"""What the optimizations should save on a machine that is not at hand, from the ledger and an α-β model of every collective.

A call costs a start-up and its bytes over a bandwidth, by the algorithm that carries it out: `t = α + hop·(n - 2) + sent/β`. The
ledger says which calls a step has, before and after. The decision: the answer is a bracket, not a number. Which implementation an
engine takes at a size is known only once it has run, so a saving is given for the fastest and for the slowest way that the machine
has for each call. What the model does not have is said: waiting for late ranks, which can be most of the time, overlap, and the host.

Kernels that come or go with the calls are costed too, apart: the norm that a fusion swallows, the layout copy of gathered logits and
the choice of tokens out of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mtpprof.errors import UsageError
from mtpprof.models.hardware import CollectiveCost, HardwareProfile
from mtpprof.models.ledger import LedgerEntry, Workload
from mtpprof.models.optimizations.base import KernelWork, Ledger
from mtpprof.models.optimizations.catalogue import CATALOGUE, eligible_optimizations, expected_collectives
from mtpprof.models.spec import ModelSpec
from mtpprof.rundir.records import Record

PREDICTION_SCHEMA_VERSION = 2
COLLECTIVES = "collectives"
MISSING_FROM_MODEL = (
    "waiting for late ranks (in traces often most of the time in collectives)",
    "overlap with other kernels",
    "launches that a CUDA graph does not hide",
)


class Bracket(Record, frozen=True, kw_only=True):
    """Time with the fastest and with the slowest way that the machine has for each call."""

    fastest_ns: float
    slowest_ns: float


NO_TIME = Bracket(fastest_ns=0.0, slowest_ns=0.0)
NO_WORK = KernelWork(kernels=0, moved_bytes=0.0)


class ArmPrediction(Record, frozen=True, kw_only=True):
    """One setting of the switches: per step and rank."""

    name: str
    enabled: list[str]
    calls: int
    payload_bytes: int
    terms: dict[str, Bracket | None]
    """By what takes the time; None: there is no figure to cost it with."""
    kernels: dict[str, KernelWork]
    """What the terms beside the collectives consist of."""
    ways: list[str]
    """What the fastest way uses, by kind and size class, in words."""


class PredictedDifference(Record, frozen=True, kw_only=True):
    """An arm against the baseline; negative is saved."""

    arm: str
    calls: int
    payload_bytes: int
    terms: dict[str, Bracket | None]
    """Zero: nothing of it changes. None: it changes, and there is no figure to cost it with."""
    total: Bracket | None
    """None: one of the terms is not known."""
    reason: str | None
    """Why terms are not known; None: all are."""
    share: Bracket | None
    """Of the step time that was given, as fractions (in the fields of a bracket); None: none was given, it contradicts the prediction, or
    the total is not known."""


class Prediction(Record, frozen=True, kw_only=True):
    """The answer of `predict` for one concurrency."""

    model: str
    scale: str
    tp: int
    concurrency: int
    draft_tokens: int
    hardware: str
    link: str
    arms: list[ArmPrediction]
    differences: list[PredictedDifference]
    not_applicable: dict[str, str]
    without: list[str]
    """What the model does not contain."""
    contradiction: str | None
    """Why the step time that was given cannot be that of the baseline; None: it can, or none was given."""
    profile: HardwareProfile
    """Every figure that the prediction stands on, with its source."""


class PredictionReport(Record, frozen=True, kw_only=True):
    """The answer of `predict`, one entry a concurrency."""

    schema_version: int = PREDICTION_SCHEMA_VERSION
    predictions: list[Prediction]


def predict(
    spec: ModelSpec,
    workload: Workload,
    profile: HardwareProfile,
    *,
    link: str = "scale-up",
    step_ns: float | None = None,
) -> Prediction:
    """Cost the ledger of every setting of the switches.

    Args:
        spec: Model at the scale that is asked about.
        workload: Batch, draft tokens, ranks.
        profile: The machine.
        link: What the ranks are connected by: `scale-up` or `scale-out`.
        step_ns: Step time of the baseline, if known: savings are then also shares of it.

    Raises:
        UsageError: a collective of the ledger for which the profile has no figure on this link.
    """
    verdicts = eligible_optimizations(spec, workload)
    plain = expected_collectives(spec, workload, frozenset())
    # What only changes who carries a call has nothing in the ledger to cost: the bracket spans its ways already.
    usable = [
        name
        for name, verdict in verdicts.items()
        if verdict.ok and expected_collectives(spec, workload, frozenset({name})) != plain
    ]
    arms = [_predicted(name, enabled, spec, workload, profile, link) for name, enabled in _arms(usable)]
    sent = [_sent(expected_collectives(spec, workload, frozenset(arm.enabled))) for arm in arms]
    differences = [
        _difference(arms[0], arm, step_ns, same_calls=calls == sent[0])
        for arm, calls in zip(arms[1:], sent[1:], strict=True)
    ]
    return Prediction(
        model=spec.name,
        scale=spec.scale,
        tp=workload.tp,
        concurrency=workload.concurrency,
        draft_tokens=workload.draft_tokens,
        hardware=profile.name,
        link=link,
        arms=arms,
        differences=differences,
        not_applicable={name: verdict.reason for name, verdict in verdicts.items() if not verdict.ok},
        without=[
            *MISSING_FROM_MODEL,
            *(
                ["kernels beside the collectives: the profile has no memory bandwidth"]
                if profile.memory_gb_s is None or profile.kernel_us is None
                else []
            ),
        ],
        contradiction=_contradiction(arms[0], differences, step_ns),
        profile=profile,
    )


def _arms(usable: Sequence[str]) -> Iterator[tuple[str, frozenset[str]]]:
    yield "baseline", frozenset()
    for name in usable:
        yield name, frozenset({name})
    if len(usable) > 1:
        yield "all-on", frozenset(usable)


def _predicted(
    name: str,
    enabled: frozenset[str],
    spec: ModelSpec,
    workload: Workload,
    profile: HardwareProfile,
    link: str,
) -> ArmPrediction:
    ledger = expected_collectives(spec, workload, enabled)
    kernels = _kernels(ledger, spec, workload)
    terms = {COLLECTIVES: _collectives(ledger, profile, link)}
    terms |= {term: _kernel_time(work, profile) for term, work in kernels.items()}
    return ArmPrediction(
        name=name,
        enabled=sorted(enabled),
        calls=sum(entry.count for entry in ledger),
        payload_bytes=sum(entry.total_payload_bytes for entry in ledger),
        terms=terms,
        kernels=kernels,
        ways=list(dict.fromkeys(_way(entry, profile, link) for entry in ledger)),
    )


def _collectives(ledger: Iterable[LedgerEntry], profile: HardwareProfile, link: str) -> Bracket | None:
    fastest = slowest = 0.0
    for entry in ledger:
        times = [time for _, time in _times(entry, profile, link)]
        if not times:
            return None
        fastest += entry.count * min(times)
        slowest += entry.count * max(times)
    return Bracket(fastest_ns=fastest, slowest_ns=slowest)


def _times(entry: LedgerEntry, profile: HardwareProfile, link: str) -> list[tuple[CollectiveCost, float]]:
    """Every way of doing one call, with its time; empty: at other sizes only.

    Raises:
        UsageError: there is no way at all.
    """
    costs = profile.costs(entry.kind, link, entry.payload_bytes)
    if not costs:
        raise UsageError(
            f"hardware {profile.name} has no figure for {entry.kind} of {entry.payload_bytes} bytes on its {link} link; "
            f"choose another link or machine."
        )
    return [
        (cost, time)
        for cost in costs
        if (time := cost.time_ns(entry.payload_bytes, entry.group_size)) is not None
    ]


def _way(entry: LedgerEntry, profile: HardwareProfile, link: str) -> str:
    times = _times(entry, profile, link)
    if not times:
        return f"{entry.kind}: not known at this size"
    cost, _ = min(times, key=lambda pair: pair[1])
    return f"{entry.kind}: {cost.by} ({cost.algorithm})"


def _kernels(ledger: Ledger, spec: ModelSpec, workload: Workload) -> dict[str, KernelWork]:
    """Kernels that come or go with the collectives, by term; which they are, the optimizations say."""
    found: dict[str, KernelWork] = {}
    for optimization in CATALOGUE.values():
        for term, work in optimization.kernels(ledger, spec, workload):
            so_far = found.get(term, NO_WORK)
            found[term] = KernelWork(
                kernels=so_far.kernels + work.kernels, moved_bytes=so_far.moved_bytes + work.moved_bytes
            )
    return found


def _kernel_time(work: KernelWork, profile: HardwareProfile) -> Bracket | None:
    if profile.memory_gb_s is None or profile.kernel_us is None:
        return None
    time_ns = 1000 * profile.kernel_us.value * work.kernels + work.moved_bytes / profile.memory_gb_s.value
    return Bracket(fastest_ns=time_ns, slowest_ns=time_ns)


def _sent(ledger: Iterable[LedgerEntry]) -> Counter[tuple[str, int, int]]:
    """How often which call is made, as far as its cost goes."""
    found: Counter[tuple[str, int, int]] = Counter()
    for entry in ledger:
        found[entry.kind, entry.payload_bytes, entry.group_size] += entry.count
    return found


def _difference(
    base: ArmPrediction, arm: ArmPrediction, step_ns: float | None, *, same_calls: bool
) -> PredictedDifference:
    terms = {
        name: _change(base, arm, name, same_calls=same_calls)
        for name in dict.fromkeys([*base.terms, *arm.terms])
    }
    known = [term for term in terms.values() if term is not None]
    total = None
    if len(known) == len(terms):
        total = Bracket(
            fastest_ns=sum(term.fastest_ns for term in known),
            slowest_ns=sum(term.slowest_ns for term in known),
        )
    share = None
    if total is not None and step_ns is not None and not _why_not(base, arm.name, total, step_ns):
        share = Bracket(fastest_ns=total.fastest_ns / step_ns, slowest_ns=total.slowest_ns / step_ns)
    unknown = [name for name, term in terms.items() if term is None]
    return PredictedDifference(
        arm=arm.name,
        calls=arm.calls - base.calls,
        payload_bytes=arm.payload_bytes - base.payload_bytes,
        terms=terms,
        total=total,
        reason=f"the profile has no figure for what changes of {', '.join(unknown)}" if unknown else None,
        share=share,
    )


def _contradiction(
    base: ArmPrediction, differences: Iterable[PredictedDifference], step_ns: float | None
) -> str | None:
    if step_ns is None:
        return None
    totals = [(found.arm, found.total) for found in differences if found.total is not None]
    reasons = (_why_not(base, arm, total, step_ns) for arm, total in [(base.name, NO_TIME), *totals])
    return next(filter(None, reasons), None)


def _why_not(base: ArmPrediction, arm: str, total: Bracket, step_ns: float) -> str:
    """Why a step cannot last as long as was said, by the costs; empty: it can."""
    collectives = base.terms[COLLECTIVES]
    step = f"a step of {step_ns / 1e6:g} ms contradicts this prediction"
    if collectives is not None and collectives.fastest_ns > step_ns:
        return f"{step}, by which the baseline's collectives alone take {collectives.fastest_ns / 1e6:.3g} ms at the least"
    saved_ns = -min(total.fastest_ns, total.slowest_ns)
    return f"{step}, by which {arm} saves up to {saved_ns / 1e6:.3g} ms of it" if saved_ns >= step_ns else ""


def _change(base: ArmPrediction, arm: ArmPrediction, term: str, *, same_calls: bool) -> Bracket | None:
    """How much longer a term takes; None: it changes, and one side has no figure."""
    if same_calls if term == COLLECTIVES else arm.kernels.get(term) == base.kernels.get(term):
        return NO_TIME
    ours, theirs = base.terms.get(term, NO_TIME), arm.terms.get(term, NO_TIME)
    if ours is None or theirs is None:
        return None
    return Bracket(
        fastest_ns=theirs.fastest_ns - ours.fastest_ns, slowest_ns=theirs.slowest_ns - ours.slowest_ns
    )
