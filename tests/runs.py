"""Run directories for tests, written without starting a process: every arm's traces are its ledger, call for call."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mtpprof.models.ledger import LedgerEntry
from mtpprof.models.optimizations.base import FUSED_RESIDUAL_RMSNORM
from mtpprof.models.optimizations.catalogue import CATALOGUE, expected_collectives
from mtpprof.models.traffic import Kind
from mtpprof.profilers.plan import Case, PlanOptions, make_cases
from mtpprof.ranges import CollectiveRange, argmax_name, phase_name, step_name
from mtpprof.rundir.directory import OUTPUTS_FILE, SCHEMA_VERSION, TIMING_FILE, RunDirectory
from mtpprof.rundir.records import (
    ArmRecord,
    CaseRecord,
    OutputsRecord,
    RoundOutputs,
    RoundTiming,
    RunRecord,
    TimingRecord,
)

COMPARED = ("allreduce-norm-fusion", "local-argmax", "commutative-reduce")
STEP_NS = 10_000_000
CALL_NS = 40_000
FUSED_OPERATION = "mtpprof_shm::all_reduce_residual_rmsnorm"
BASE_NS = 1_790_857_026_000_000_000

Ledger = tuple[LedgerEntry, ...]


@dataclass(frozen=True)
class Recipe:
    """What a written run looks like."""

    models: tuple[str, ...] = ("deepseek-v3.2", "nemotron-3-super")
    tp: int = 2
    concurrency: tuple[int, ...] = (2,)
    vocab: int = 1024
    rounds: int = 5
    steps: int = 8
    profile_steps: int = 3
    noise: float = 0.002
    seed: int = 0
    status: str = "complete"
    device: str = "cpu"
    cpus: int = 2
    name: str = "made"
    speed: Callable[[str], float] = lambda arm: 1.0
    """Factor on the step time of an arm."""
    seen: Callable[[str, Ledger], Ledger] = lambda arm, ledger: ledger
    """What the traces of an arm show, given its ledger."""
    tokens: Callable[[str, list[int]], list[int]] = lambda arm, tokens: tokens


def write_run(root: Path, recipe: Recipe | None = None) -> RunDirectory:
    """Write a finished run directory."""
    recipe = recipe or Recipe()
    cases = make_cases(
        PlanOptions(
            models=recipe.models,
            tp=recipe.tp,
            concurrency=recipe.concurrency,
            vocab=recipe.vocab,
            rounds=recipe.rounds,
            seed=recipe.seed,
            refused={name: "not part of this run" for name in CATALOGUE if name not in COMPARED},
        )
    )
    directory = RunDirectory(root)
    directory.write_run(_run_record(recipe, [_case_record(case) for case in cases]))
    for case in cases:
        for arm in case.arms:
            folder = directory.arm(case.id, arm.name)
            directory.write(folder / TIMING_FILE, _timing(recipe, case, arm.name))
            directory.write(folder / OUTPUTS_FILE, _outputs(recipe, case, arm.name))
            if arm.repeats is None:
                ledger = expected_collectives(case.spec, case.workload, arm.enabled)
                _write_traces(directory, recipe, case, arm.name, recipe.seen(arm.name, ledger))
    return directory


def _run_record(recipe: Recipe, cases: list[CaseRecord]) -> RunRecord:
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        id=f"{recipe.name}-{recipe.seed}",
        name=recipe.name,
        mtpprof_version="0",
        created_utc="2026-01-01T12:00:00Z",
        argv=["run", "--tp", str(recipe.tp)],
        status=recipe.status,  # type: ignore[arg-type]
        engine="reference",
        engine_reason="asked for",
        device=recipe.device,
        transport="shm",
        seed=recipe.seed,
        steps=recipe.steps,
        warmup=1,
        rounds=recipe.rounds,
        profile_steps=recipe.profile_steps,
        timeout_s=60,
        acceptance_length=None,
        machine={"host": "box", "cpus": recipe.cpus, "gpus": []},
        versions={"mtpprof": "0", "torch": "2"},
        cases=cases,
    )


def _case_record(case: Case) -> CaseRecord:
    workload = case.workload
    return CaseRecord(
        id=case.id,
        model=msgspec.to_builtins(case.spec),
        tp=workload.tp,
        concurrency=workload.concurrency,
        draft_tokens=workload.draft_tokens,
        dtype=workload.dtype,
        prompt_len=case.prompt_len,
        arms=[
            ArmRecord(name=arm.name, enabled=sorted(arm.enabled), repeats=arm.repeats) for arm in case.arms
        ],
        not_applicable=case.not_applicable,
        order=[list(names) for names in case.order],
    )


def _timing(recipe: Recipe, case: Case, arm: str) -> TimingRecord:
    rng = random.Random(f"{recipe.seed} {case.id} {arm}")
    rounds = []
    for number, names in enumerate(case.order):
        level = STEP_NS * recipe.speed(arm) * (1 + 0.03 * number)
        steps = [[round(level * (1 + rng.gauss(0, recipe.noise))) for _ in range(recipe.steps)]] * recipe.tp
        rounds.append(
            RoundTiming(round=number, position=len(names) * number + names.index(arm), step_ns=steps)
        )
    profiled = [[round(1.5 * STEP_NS * recipe.speed(arm))] * recipe.profile_steps] * recipe.tp
    return TimingRecord(schema_version=SCHEMA_VERSION, rounds=rounds, profiled_step_ns=profiled)


def _outputs(recipe: Recipe, case: Case, arm: str) -> OutputsRecord:
    rng = random.Random(f"{recipe.seed} {case.id}")
    sequences = range(case.workload.concurrency)
    accepted = [
        [rng.randint(1, case.workload.draft_tokens + 1) for _ in sequences] for _ in range(recipe.steps)
    ]
    tokens = [[rng.randrange(1000) for _ in range(sum(step[s] for step in accepted))] for s in sequences]
    produced = [recipe.tokens(arm, list(sequence)) for sequence in tokens]
    return OutputsRecord(
        schema_version=SCHEMA_VERSION,
        rounds=[
            RoundOutputs(round=number, tokens=produced, accepted=accepted) for number in range(recipe.rounds)
        ],
    )


def _write_traces(directory: RunDirectory, recipe: Recipe, case: Case, arm: str, ledger: Ledger) -> None:
    for rank in range(recipe.tp):
        events = list(_events(recipe, arm, ledger, rank, recipe.tp))
        path = directory.trace(case.id, arm, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(trace(events, rank, recipe.tp)).encode(), 1, mtime=0))


def trace(events: Sequence[dict[str, Any]], rank: int, world: int) -> dict[str, Any]:
    """A Kineto trace of these events."""
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world},
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": list(events),
    }


def _events(recipe: Recipe, arm: str, ledger: Ledger, rank: int, tp: int) -> Iterable[dict[str, Any]]:
    """Steps, phases and collectives of one rank; rank 0 arrives late by 10 µs at every second collective."""
    length = round(1.5 * STEP_NS * recipe.speed(arm))
    calls = sum(entry.count for entry in ledger)
    sequence = 0
    for step in range(recipe.profile_steps):
        start = 1_000_000 + step * length
        yield _event(step_name(step), start, length - 1000)
        place, stride = start + 20_000, (length - 60_000) // max(1, calls)
        phases: dict[str, list[int]] = {}
        for entry in [row for row in ledger for _ in range(row.count)]:
            late = 10_000 if rank == 0 and sequence % 2 else 0
            phases.setdefault(entry.phase, []).extend((place, place + stride - 1000))
            yield _event("aten::mm", place, stride // 3, "cpu_op")
            yield _event(_range(entry, sequence, tp), place + stride // 2 + late, CALL_NS - late)
            if entry.kind == Kind.ALL_REDUCE and not entry.fused:
                yield _event("aten::rsqrt", place + stride // 2 + CALL_NS + 500, 3000, "cpu_op")
            if entry.fused:
                yield _event(
                    FUSED_OPERATION, place + stride // 2 + late + 100, CALL_NS - late - 200, "cpu_op"
                )
            if entry.site.endswith("lm_head"):
                name = argmax_name(entry.site, entry.shape[0], entry.shape[1] * tp)
                yield _event(name, place + stride // 2 + CALL_NS + 500, 3000)
            place += stride
            sequence += 1
        for phase, times in phases.items():
            yield _event(phase_name(phase), min(times) - 500, max(times) - min(times) + 1000)


def _range(entry: LedgerEntry, sequence: int, tp: int) -> str:
    fused = entry.fused == FUSED_RESIDUAL_RMSNORM
    return CollectiveRange(
        kind=entry.kind,
        site=entry.site,
        phase=entry.phase,
        shape=entry.shape,
        dtype=entry.dtype,
        payload_bytes=entry.payload_bytes,
        group="tp",
        group_size=tp,
        implementation="shm_oneshot_fused" if fused else "shm_oneshot",
        sequence=sequence,
        fused=entry.fused,
    ).name()


def _event(name: str, ts_ns: int, dur_ns: int, category: str = "user_annotation") -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 7,
        "tid": 7,
        "ts": ts_ns / 1000,
        "dur": dur_ns / 1000,
    }
