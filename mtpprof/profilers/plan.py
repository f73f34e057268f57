"""What a run will do: cases × arms × rounds, resolved and checked before anything starts.

A case is what arms are compared within (model × TP × concurrency × draft length × dtype). Its arms are visited once a round in a
seeded order; every second round goes the other way round, so that a linear drift of the machine cancels. `baseline` is visited twice
(`baseline-repeat`): the difference of the two is the noise floor.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mtpprof.errors import UsageError
from mtpprof.models.hf import resolve_model
from mtpprof.models.ledger import Workload
from mtpprof.models.optimizations.base import Eligibility
from mtpprof.models.optimizations.catalogue import CATALOGUE, all_optimizations
from mtpprof.models.spec import ModelSpec, Scale
from mtpprof.rundir.records import BASELINE, MAX_BLOCKS, MAX_COUNT, MAX_RANKS

BASELINE_REPEAT = "baseline-repeat"
ALL_ON = "all-on"
DEFAULT_MODELS = ("deepseek-v3.2", "nemotron-3-super")
MAX_SEED = 2**63 - 1
"""What a generator of torch takes."""
MAX_VARIED = 5

Setting = Literal["on", "off", "both"]
Design = Literal["one-at-a-time", "factorial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One setting of all switches."""

    name: str
    enabled: frozenset[str]
    repeats: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison: a model under one workload, and the arms to compare."""

    spec: ModelSpec
    workload: Workload
    prompt_len: int
    arms: tuple[Arm, ...]
    switched: tuple[str, ...]
    """Optimizations that the engine sets, on or off; what is neither here nor refused keeps the engine's own default."""
    not_applicable: dict[str, str]
    order: tuple[tuple[str, ...], ...]
    """Arm names as visited, one tuple a round."""

    @property
    def id(self) -> str:
        """Folder name of the case."""
        w = self.workload
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", self.spec.name).strip("-.")[:100] or "model"
        return f"{name}-{self.spec.scale}-tp{w.tp}-c{w.concurrency}-k{w.draft_tokens}-{w.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the user asked for; None: the default for the model and device."""

    models: tuple[str, ...] = DEFAULT_MODELS
    tp: int = 1
    concurrency: tuple[int, ...] | None = None
    draft_tokens: int | None = None
    """None: the default of the model's family."""
    prompt_len: int = 16
    scale: Scale | None = None
    layers: int | None = None
    vocab: int | None = None
    dtype: str = "bf16"
    settings: dict[str, Setting] = field(default_factory=dict)
    design: Design = "factorial"
    rounds: int = 3
    seed: int = 0
    on_cuda: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    """Optimizations that the engine cannot switch, each with the reason."""


def make_cases(options: PlanOptions) -> tuple[Case, ...]:
    """Resolve models, check every size, and lay out arms and order.

    Raises:
        UsageError: an unknown model or optimization, a TP size that does not divide, an optimization asked for that no model can use.
        InputError: a model directory or config.json that cannot be read.
    """
    _check_numbers(options)
    for name in options.settings:
        if name not in all_optimizations():
            raise UsageError(
                f"--opt {name}: no such optimization; choose from {', '.join(all_optimizations())}."
            )
    scale = options.scale or (Scale.SLICE if options.on_cuda else Scale.TINY)
    concurrencies = options.concurrency or ((1, 64) if options.on_cuda else (1, 8))
    cases = []
    for model in dict.fromkeys(options.models):
        spec = resolve_model(model, scale=scale, layers=options.layers, vocab=options.vocab)
        spec.check_tp(options.tp)
        drafts = _draft_tokens(spec, options.draft_tokens)
        for concurrency in dict.fromkeys(concurrencies):
            workload = Workload(
                concurrency=concurrency, draft_tokens=drafts, tp=options.tp, dtype=options.dtype
            )
            cases.append(_make_case(spec, workload, options))
    _check_asked_for(cases, options)
    ids = [case.id for case in cases]
    if len(set(ids)) < len(ids):
        raise UsageError("two of the models have the same name; give them one run each.")
    return tuple(cases)


def _check_numbers(options: PlanOptions) -> None:
    for name, value, least, most in (
        ("--tp", options.tp, 1, MAX_RANKS),
        ("--prompt-len", options.prompt_len, 1, MAX_COUNT),
        ("--rounds", options.rounds, 1, MAX_COUNT),
        ("--draft-tokens", options.draft_tokens or 0, 0, MAX_BLOCKS),
        ("--seed", options.seed, 0, MAX_SEED),
        *(("--concurrency", value, 1, MAX_COUNT) for value in options.concurrency or ()),
    ):
        if not least <= value <= most:
            raise UsageError(f"{name} {value}: must be from {least} to {most}.")


def _draft_tokens(spec: ModelSpec, asked: int | None) -> int:
    if asked is None:
        return spec.default_draft_tokens
    if asked and spec.mtp is None:
        raise UsageError(f"{spec.name} has no MTP module to draft tokens with; use --draft-tokens 0.")
    return asked


def _make_case(spec: ModelSpec, workload: Workload, options: PlanOptions) -> Case:
    eligibility = {
        name: Eligibility(ok=False, reason=options.refused[name])
        if name in options.refused
        else entry.eligible(spec, workload)
        for name, entry in all_optimizations().items()
        if name in CATALOGUE or name in options.settings
    }
    usable = [name for name, verdict in eligibility.items() if verdict.ok]
    default: Setting = "off" if options.settings else "both"
    settings = {name: options.settings.get(name, default) for name in usable}
    arms = lay_out_arms(
        always=[name for name, setting in settings.items() if setting == "on"],
        varied=[name for name, setting in settings.items() if setting == "both"],
        design=options.design,
    )
    return Case(
        spec=spec,
        workload=workload,
        prompt_len=options.prompt_len,
        arms=arms,
        switched=tuple(usable),
        not_applicable={name: verdict.reason for name, verdict in eligibility.items() if not verdict.ok},
        order=visit_order([arm.name for arm in arms], options.rounds, options.seed),
    )


def lay_out_arms(always: list[str], varied: list[str], design: Design) -> tuple[Arm, ...]:
    """The arms of a case, baseline and its repeat first.

    Args:
        always: optimizations that are on in every arm.
        varied: optimizations that are compared off and on.
        design: `one-at-a-time`: each alone, then all together; `factorial`: every combination.

    Raises:
        UsageError: a factorial of more than 2^5 arms.
    """
    if design == "factorial":
        if len(varied) > MAX_VARIED:
            raise UsageError(
                f"a factorial of {len(varied)} optimizations has {2 ** len(varied)} arms; use --arms one-at-a-time."
            )
        sizes = range(1, len(varied) + 1)
        subsets = [subset for size in sizes for subset in itertools.combinations(varied, size)]
    else:
        subsets = [(name,) for name in varied]
        if len(varied) > 1:
            subsets.append(tuple(varied))
    base = frozenset(always)
    arms = [
        Arm(name=BASELINE, enabled=base),
        Arm(name=BASELINE_REPEAT, enabled=base, repeats=BASELINE),
    ]
    for subset in subsets:
        name = ALL_ON if len(subset) == len(varied) > 1 else "+".join(subset)
        arms.append(Arm(name=name, enabled=base | set(subset)))
    return tuple(arms)


def visit_order(arms: list[str], rounds: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Order of visits: a seeded shuffle, and its reverse in the following round; then a new shuffle."""
    rng = random.Random(seed)
    order: list[tuple[str, ...]] = []
    for index in range(rounds):
        if index % 2:
            order.append(order[-1][::-1])
        else:
            order.append(tuple(rng.sample(arms, len(arms))))
    return tuple(order)


def _check_asked_for(cases: list[Case], options: PlanOptions) -> None:
    for name, setting in options.settings.items():
        if setting != "off" and all(name in case.not_applicable for case in cases):
            reasons = {f"{case.spec.name}: {case.not_applicable[name]}" for case in cases}
            raise UsageError(
                f"--opt {name}={setting}: none of the models can use it ({'; '.join(sorted(reasons))})."
            )
