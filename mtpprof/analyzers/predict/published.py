"""Results that were published for these optimizations, and what the cost model makes of them.

A prediction that is never held against anything is an opinion. `PUBLISHED` is the table; to add a result is to add a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mtpprof.analyzers.predict.predict import PREDICTION_SCHEMA_VERSION, Bracket, PredictedDifference, predict
from mtpprof.models.hardware import load_profile
from mtpprof.models.hf import resolve_model
from mtpprof.models.ledger import Workload
from mtpprof.models.spec import Scale
from mtpprof.models.traffic import Kind
from mtpprof.rundir.records import Record

AR = Kind.ALL_REDUCE
EXPLAINS = "explains"
NOT_MEASURABLE = 0.01
"""Share of a step below which nobody measured a difference end to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published result."""

    id: str
    source: str
    model: str
    tp: int
    concurrency: int
    draft_tokens: int
    arm: str
    hardware: str
    """Profile that it is held against; the source does not always say what it ran on."""
    link: str
    before_ns: float
    """Step time before."""
    after_ns: float
    basis: str
    """How the step times follow from what was published."""


def _step_ns(tokens_per_s: float, concurrency: int, acceptance: float) -> float:
    return 1e9 * concurrency * acceptance / tokens_per_s


_ACCEPTANCE = 3.0
_FROM_THROUGHPUT = "from tokens/s, for an acceptance length of 3, which was not published: 2.5 to 4.5 moves step and saving alike"

PUBLISHED = (
    Published(
        id="Super, one all-reduce per latent layer",
        source="vllm#52301",
        model="nemotron-3-super",
        tp=4,
        concurrency=1,
        draft_tokens=0,
        arm="commutative-reduce",
        hardware="h200",
        link="scale-up",
        before_ns=4.64e6,
        after_ns=4.08e6,
        basis="inter-token latency; the machine was not named",
    ),
    Published(
        id="Ultra, one all-reduce per latent layer",
        source="vllm#52301",
        model="nemotron-3-ultra",
        tp=4,
        concurrency=1,
        draft_tokens=0,
        arm="commutative-reduce",
        hardware="h200",
        link="scale-up",
        before_ns=7.21e6,
        after_ns=6.79e6,
        basis="inter-token latency; the machine was not named",
    ),
    Published(
        id="GLM-5.2 MTP at concurrency 1",
        source="vllm#49793",
        model="glm-5.2",
        tp=8,
        concurrency=1,
        draft_tokens=5,
        arm="all-on",
        hardware="gb300",
        link="scale-up",
        before_ns=10e6,
        after_ns=10e6,
        basis="no measurable change; a step of 10 ms is assumed",
    ),
    Published(
        id="GLM-5.2 MTP at concurrency 64",
        source="vllm#49793",
        model="glm-5.2",
        tp=8,
        concurrency=64,
        draft_tokens=5,
        arm="all-on",
        hardware="gb300",
        link="scale-up",
        before_ns=_step_ns(2923.2, 64, _ACCEPTANCE),
        after_ns=_step_ns(3321.1, 64, _ACCEPTANCE),
        basis=_FROM_THROUGHPUT,
    ),
)


class HeldAgainst(Record, frozen=True, kw_only=True):
    """A published result beside its prediction; negative is saved."""

    id: str
    source: str
    hardware: str
    link: str
    published_ns: float
    predicted: Bracket
    verdict: str
    basis: str
    would_explain: list[str]
    """Where the prediction falls short: what would account for the rest, with its size where it can be costed."""


class PublishedReport(Record, frozen=True, kw_only=True):
    """The answer of `predict --published`."""

    schema_version: int = PREDICTION_SCHEMA_VERSION
    results: list[HeldAgainst]


def hold_against_published() -> Iterator[HeldAgainst]:
    """Every published result with what the model predicts for it, and how far off that is."""
    for result in PUBLISHED:
        difference = _predicted(result, result.link)
        total = _known(difference.total)
        verdict = _verdict(result, total)
        yield HeldAgainst(
            id=result.id,
            source=result.source,
            hardware=result.hardware,
            link=result.link,
            published_ns=result.after_ns - result.before_ns,
            predicted=total,
            verdict=verdict,
            basis=result.basis,
            would_explain=list(_explanations(result, difference)) if verdict.startswith(EXPLAINS) else [],
        )


def _predicted(result: Published, link: str) -> PredictedDifference:
    spec = resolve_model(result.model, scale=Scale.FULL)
    workload = Workload(concurrency=result.concurrency, draft_tokens=result.draft_tokens, tp=result.tp)
    prediction = predict(spec, workload, load_profile(result.hardware), link=link)
    return next(entry for entry in prediction.differences if entry.arm == result.arm)


def _known(bracket: Bracket | None) -> Bracket:
    """What is known because the profiles of the table have every figure."""
    assert bracket is not None
    return bracket


def _explanations(result: Published, difference: PredictedDifference) -> Iterator[str]:
    """What a difference that the bytes do not explain can consist of: sizes first, then what only a trace shows."""
    saved = result.before_ns - result.after_ns
    for term, bracket in difference.terms.items():
        if bracket is not None and bracket.fastest_ns:
            yield f"{term} on the {result.link} link: {-bracket.fastest_ns / 1e3:,.0f} µs ({-bracket.fastest_ns / saved:.0%})"
    sent = -difference.payload_bytes * (result.tp - 1) / result.tp
    yield (
        f"bytes alone: the {sent / 1e6:,.0f} MB that a rank no longer sends would have to have moved at {sent / saved:.0f} GB/s, "
        f"far below any link of this machine"
    )
    if result.link == "scale-up":
        other = _known(_predicted(result, "scale-out").total)
        yield (
            f"gathers by NCCL over the network in place of NVLink: {-other.fastest_ns / 1e3:,.0f} µs "
            f"({-other.fastest_ns / saved:.0%})"
        )
    start_us = {
        link: min(
            cost.alpha_us
            for cost in load_profile(result.hardware).collective
            if (cost.kind, cost.link) == (AR, link)
        )
        for link in ("scale-up", "scale-out")
    }
    swap_us = result.draft_tokens * (start_us["scale-out"] - start_us["scale-up"])
    yield (
        f"the draft passes' last all-reduce by NCCL between nodes before, in one NVLink kernel after: {swap_us:,.0f} µs "
        f"({1e3 * swap_us / saved:.0%})"
    )
    yield (
        "a change of acceptance length between the runs (the published +13.6 % tokens/s and +17.8 % per acceptance imply a "
        "ratio of 0.964), prefills among the decode steps, and launches of copy and argmax outside a CUDA graph: a trace of "
        "both arms shows each (mtpprof run --model glm-5.2 --concurrency 64 --draft-tokens 5)"
    )


def _verdict(result: Published, predicted: Bracket) -> str:
    published = result.after_ns - result.before_ns
    low, high = sorted((predicted.fastest_ns, predicted.slowest_ns))
    if not published:
        share = max(abs(low), abs(high)) / result.before_ns
        return (
            f"agrees: {share:.2%} of the step"
            if share < NOT_MEASURABLE
            else f"differs: {share:.1%} of the step"
        )
    if low <= published <= high:
        return "within the bracket"
    nearest = low if published < low else high
    ratio = published / nearest
    if 0 < ratio < 1:
        return f"overestimated {1 / ratio:.1f} times"
    if ratio < 0:
        return "of the wrong sign"
    return f"{EXPLAINS} {1 / ratio:.0%} of it"
