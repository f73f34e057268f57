"""Switches that only vLLM has: who may use them, what they leave of the ledger, and how a trace proves them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mtpprof.errors import UsageError
from mtpprof.models.ledger import LedgerEntry, Workload, base_ledger
from mtpprof.models.optimizations.base import Proof
from mtpprof.models.optimizations.catalogue import (
    CATALOGUE,
    OPT_IN,
    all_optimizations,
    expected_collectives,
    find_optimization,
)
from mtpprof.models.presets import load_preset
from mtpprof.models.spec import ModelSpec, Scale
from mtpprof.models.traffic import Kind
from mtpprof.profilers.engines.reference import ReferenceEngine
from mtpprof.profilers.plan import PlanOptions, make_cases

DEEPSEEK, SUPER, K2 = (
    load_preset(name, Scale.TINY) for name in ("deepseek-v3.2", "nemotron-3-super", "kimi-k2")
)
LOAD = Workload(concurrency=2, draft_tokens=3, tp=2)
CARRIERS = {
    "custom-allreduce": "vllm_custom",
    "flashinfer-allreduce": "flashinfer",
    "symmetric-memory-allreduce": "torch_symm_mem",
}


def eligible(name: str, spec: ModelSpec, workload: Workload = LOAD) -> bool:
    verdict = OPT_IN[name].eligible(spec, workload)
    assert verdict.ok or verdict.reason
    return verdict.ok


def test_they_are_found_by_name_and_compared_only_when_asked_for() -> None:
    assert not set(OPT_IN) & set(CATALOGUE)
    assert set(all_optimizations()) == set(OPT_IN) | set(CATALOGUE)
    assert find_optimization("custom-allreduce") is OPT_IN["custom-allreduce"]
    with pytest.raises(UsageError, match="did you mean custom-allreduce"):
        find_optimization("custom-allreduc")
    for name, entry in OPT_IN.items():
        assert entry.id == name
        assert all((entry.title, entry.source, entry.summary, entry.changes, entry.proof))
        assert set(entry.switches) == {"vllm"}


@pytest.mark.parametrize("name", ["allreduce-norm-fusion-main", "replicated-embedding"])
def test_what_is_in_vllms_own_models_needs_one_of_them(name: str) -> None:
    assert eligible(name, DEEPSEEK)
    assert not eligible(name, SUPER)
    assert not eligible(name, K2)
    assert not eligible(name, DEEPSEEK, replace(LOAD, tp=1))
    assert not eligible(name, replace(DEEPSEEK, sequence_parallel=True))


def test_the_compilers_fusion_is_for_the_others() -> None:
    assert not eligible("compiled-norm-fusion", DEEPSEEK)
    assert eligible("compiled-norm-fusion", SUPER)
    assert eligible("compiled-norm-fusion", K2, Workload(concurrency=1, draft_tokens=0, tp=2))


def test_a_replicated_embedding_takes_one_sum_a_pass() -> None:
    off, on = (
        base_ledger(DEEPSEEK, LOAD),
        expected_collectives(DEEPSEEK, LOAD, frozenset({"replicated-embedding"})),
    )
    assert len(off) - len(on) == 4
    evidence = OPT_IN["replicated-embedding"].proof_by_site
    assert evidence(off) == Proof(engaged_calls=0, opportunities=4)
    assert evidence(on) == Proof(engaged_calls=4, opportunities=4)
    assert evidence(()) == Proof(engaged_calls=0, opportunities=0)


@pytest.mark.parametrize(
    ("name", "spec"), [("allreduce-norm-fusion-main", DEEPSEEK), ("compiled-norm-fusion", SUPER)]
)
def test_fusion_in_the_target_changes_neither_calls_nor_bytes(name: str, spec: ModelSpec) -> None:
    off, on = base_ledger(spec, LOAD), expected_collectives(spec, LOAD, frozenset({name}))
    assert [replace(entry, fused="") for entry in on] == list(off)
    evidence = OPT_IN[name].proof_by_site
    assert evidence(off).engaged_calls == 0
    assert evidence(on).engaged
    fused = [entry for entry in on if entry.fused]
    assert fused
    assert {entry.phase for entry in fused} == {"target"}
    assert evidence((*off, *on)).partial


@pytest.mark.parametrize(("name", "carrier"), CARRIERS.items())
def test_a_backend_is_proved_by_what_carried_the_calls(name: str, carrier: str) -> None:
    ledger = base_ledger(DEEPSEEK, LOAD)
    assert expected_collectives(DEEPSEEK, LOAD, frozenset({name})) == ledger

    def carried(by: str) -> tuple[LedgerEntry, ...]:
        return tuple(replace(entry, implementation=by) for entry in ledger)

    evidence = OPT_IN[name].proof_by_site
    assert evidence(ledger).opportunities == 0
    assert evidence(carried("nccl")).engaged_calls == 0
    assert evidence(carried(carrier)).engaged
    reduces = sum(entry.count for entry in ledger if entry.kind == Kind.ALL_REDUCE)
    assert evidence(carried(carrier)).opportunities == reduces
    assert evidence((*carried(carrier), *carried("nccl"))).partial


def test_the_reference_engine_refuses_them_by_name() -> None:
    refused = ReferenceEngine().refusals("cpu")
    assert set(refused) == set(OPT_IN)
    assert refused["custom-allreduce"] == "only the vllm engine has it"


def test_a_plan_names_them_only_when_they_are_asked_for() -> None:
    options = PlanOptions(models=("deepseek-v3.2",), tp=2, concurrency=(1,))
    (case,) = make_cases(options)
    assert not set(case.not_applicable) & set(OPT_IN)
    assert set(case.switched) == {"allreduce-norm-fusion", "local-argmax"}
    (case,) = make_cases(replace(options, settings={"custom-allreduce": "both"}))
    assert [arm.name for arm in case.arms] == ["baseline", "baseline-repeat", "custom-allreduce"]
    assert "custom-allreduce" in case.switched
    refused = {"custom-allreduce": "only the vllm engine has it"}
    with pytest.raises(UsageError, match=r"--opt custom-allreduce=both: none .*only the vllm engine has it"):
        make_cases(replace(options, settings={"custom-allreduce": "both"}, refused=refused))
