"""What the optimizations should save on a machine that is not at hand, from the ledger and an α-β model of every collective.

A call costs a start-up and its bytes over a bandwidth, by the algorithm that carries it out: `t = α + hop·(n - 2) + sent/β`. The
ledger says which calls a step has, before and after. The decision: the answer is a bracket, not a number. Which implementation an
engine takes at a size is known only once it has run, so a saving is given for the fastest and for the slowest way that the machine
has for each call. What the model does not have is said: waiting for late ranks, which can be most of the time, overlap, and the host.

Kernels that come or go with the calls are costed too, apart: the norm that a fusion swallows, the layout copy of gathered logits and
the choice of tokens out of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mtpprof.errors import UsageError
from mtpprof.models.hardware import CollectiveCost, HardwareProfile
from mtpprof.models.ledger import DRAFT_LM_HEAD, LM_HEAD, LedgerEntry, Workload, is_draft_phase
from mtpprof.models.optimizations import PAIR_WIDTH, eligible_optimizations, expected_collectives
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import DTYPE_BYTES, Kind
from mtpprof.rundir import Record

PREDICTION_SCHEMA_VERSION = 1
COLLECTIVES = "collectives"
NORM = "norm kernels"
COPY = "logit copies"
ARGMAX = "argmax"
PASSES_OF_NORM = 4
"""Residual add + RMSNorm reads the sum and the residual and writes both: passes over [rows, hidden]."""
LOCAL_ARGMAX_KERNELS = 3
"""max, stacking of (value, index), and the argmax over pairs, in place of one argmax (vLLM's `get_top_tokens`)."""
MISSING_FROM_MODEL = (
    "waiting for late ranks (in traces often most of the time in collectives)",
    "overlap with other kernels",
    "launches that a CUDA graph does not hide",
)


class Bracket(Record, frozen=True, kw_only=True):
    """Time with the fastest and with the slowest way that the machine has for each call."""

    fastest_ns: float
    slowest_ns: float


class ArmPrediction(Record, frozen=True, kw_only=True):
    """One setting of the switches: per step and rank."""

    name: str
    enabled: list[str]
    calls: int
    payload_bytes: int
    terms: dict[str, Bracket]
    """By what takes the time; a term that cannot be costed is not in it."""
    ways: list[str]
    """What the fastest way uses, by kind and size class, in words."""


class PredictedDifference(Record, frozen=True, kw_only=True):
    """An arm against the baseline; negative is saved."""

    arm: str
    calls: int
    payload_bytes: int
    terms: dict[str, Bracket]
    total: Bracket
    share: Bracket | None
    """Of the step time that was given, as fractions (in the fields of a bracket); None: none was given."""


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
    return Prediction(
        model=spec.name,
        scale=spec.scale,
        tp=workload.tp,
        concurrency=workload.concurrency,
        draft_tokens=workload.draft_tokens,
        hardware=profile.name,
        link=link,
        arms=arms,
        differences=[_difference(arms[0], arm, step_ns) for arm in arms[1:]],
        not_applicable={name: verdict.reason for name, verdict in verdicts.items() if not verdict.ok},
        without=[
            *MISSING_FROM_MODEL,
            *(
                ["kernels beside the collectives: the profile has no memory bandwidth"]
                if profile.memory_gb_s is None or profile.kernel_us is None
                else []
            ),
        ],
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
    terms = {COLLECTIVES: _collectives(ledger, profile, link)}
    if profile.memory_gb_s is not None and profile.kernel_us is not None:
        for term, time_ns in _kernels(ledger, spec, workload, profile).items():
            terms[term] = Bracket(fastest_ns=time_ns, slowest_ns=time_ns)
    return ArmPrediction(
        name=name,
        enabled=sorted(enabled),
        calls=sum(entry.count for entry in ledger),
        payload_bytes=sum(entry.total_payload_bytes for entry in ledger),
        terms=terms,
        ways=list(dict.fromkeys(_way(entry, profile, link) for entry in ledger)),
    )


def _collectives(ledger: Iterable[LedgerEntry], profile: HardwareProfile, link: str) -> Bracket:
    fastest = slowest = 0.0
    for entry in ledger:
        times = [time for _, time in _times(entry, profile, link)]
        fastest += entry.count * min(times)
        slowest += entry.count * max(times)
    return Bracket(fastest_ns=fastest, slowest_ns=slowest)


def _times(entry: LedgerEntry, profile: HardwareProfile, link: str) -> list[tuple[CollectiveCost, float]]:
    """Every way of doing one call, with its time."""
    found = [
        (cost, time)
        for cost in profile.costs(entry.kind, link, entry.payload_bytes)
        if (time := cost.time_ns(entry.payload_bytes, entry.group_size)) is not None
    ]
    if not found:
        raise UsageError(
            f"hardware {profile.name} has no figure for {entry.kind} of {entry.payload_bytes} bytes on its {link} link; "
            f"choose another link or machine."
        )
    return found


def _way(entry: LedgerEntry, profile: HardwareProfile, link: str) -> str:
    cost, _ = min(_times(entry, profile, link), key=lambda pair: pair[1])
    return f"{entry.kind}: {cost.by} ({cost.algorithm})"


def _kernels(
    ledger: Sequence[LedgerEntry], spec: ModelSpec, workload: Workload, profile: HardwareProfile
) -> dict[str, float]:
    """Kernels that come or go with the collectives: nanoseconds per step and rank, by term."""
    assert profile.memory_gb_s is not None
    assert profile.kernel_us is not None
    kernel_ns, memory = 1000 * profile.kernel_us.value, profile.memory_gb_s.value
    size = DTYPE_BYTES[workload.dtype]
    found: dict[str, float] = {}
    for entry in ledger:
        rows, width = entry.shape[0], entry.shape[-1]
        if entry.site in (LM_HEAD, DRAFT_LM_HEAD):
            local = width == PAIR_WIDTH and entry.site == DRAFT_LM_HEAD
            logits = rows * spec.vocab_size * size
            if not local:
                _add(found, COPY, entry.count * (kernel_ns + 2 * logits / memory))
            kernels, read = (LOCAL_ARGMAX_KERNELS, logits / workload.tp) if local else (1, logits)
            _add(found, ARGMAX, entry.count * (kernels * kernel_ns + read / memory))
        elif not entry.fused and _ends_draft_pass(entry, ledger):
            passes = PASSES_OF_NORM * rows * width * size
            _add(found, NORM, entry.count * (kernel_ns + passes / memory))
    return found


def _ends_draft_pass(entry: LedgerEntry, ledger: Sequence[LedgerEntry]) -> bool:
    """Whether this is the last all-reduce of a draft pass, which the final norm follows."""
    if entry.kind != Kind.ALL_REDUCE or not is_draft_phase(entry.phase):
        return False
    return entry is [other for other in ledger if other.phase == entry.phase and other.kind == entry.kind][-1]


def _add(found: dict[str, float], term: str, time_ns: float) -> None:
    found[term] = found.get(term, 0.0) + time_ns


def _difference(base: ArmPrediction, arm: ArmPrediction, step_ns: float | None) -> PredictedDifference:
    terms = {
        name: Bracket(
            fastest_ns=_term(arm, name).fastest_ns - _term(base, name).fastest_ns,
            slowest_ns=_term(arm, name).slowest_ns - _term(base, name).slowest_ns,
        )
        for name in dict.fromkeys([*base.terms, *arm.terms])
    }
    total = Bracket(
        fastest_ns=sum(term.fastest_ns for term in terms.values()),
        slowest_ns=sum(term.slowest_ns for term in terms.values()),
    )
    return PredictedDifference(
        arm=arm.name,
        calls=arm.calls - base.calls,
        payload_bytes=arm.payload_bytes - base.payload_bytes,
        terms=terms,
        total=total,
        share=Bracket(fastest_ns=total.fastest_ns / step_ns, slowest_ns=total.slowest_ns / step_ns)
        if step_ns
        else None,
    )


def _term(arm: ArmPrediction, name: str) -> Bracket:
    return arm.terms.get(name, Bracket(fastest_ns=0.0, slowest_ns=0.0))
