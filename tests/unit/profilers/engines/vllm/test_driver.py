"""What the driver tells the processes of an engine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from mtpprof.models.ledger import is_draft_phase
from mtpprof.models.optimizations.catalogue import expected_collectives
from mtpprof.profilers import sizes
from mtpprof.profilers.engines.vllm.driver import VllmHost, handshake_of
from mtpprof.profilers.engines.vllm.guard import Guard
from mtpprof.profilers.engines.vllm.handshake import read_handshake
from mtpprof.rundir.directory import RunDirectory

from .records import make_run


def test_the_plugin_learns_the_model_and_nothing_of_order_where_modules_tell_it() -> None:
    run = make_run()
    (case,) = run.cases
    told = handshake_of(run, case, frozenset())
    assert (told.family, told.blocks, told.draft_blocks, told.tp) == ("deepseek", "ADAEAEAE", "AE", 2)
    assert (told.target_order, told.draft_order) == ([], [])
    environment: dict[str, str] = {}
    told.write(environment)
    assert read_handshake(environment) == told


def test_compiled_code_is_told_the_order_of_its_calls_under_the_arm() -> None:
    run = make_run("nemotron-3-super", draft_tokens=2, engine_arguments=("enforce_eager=false",))
    (case,) = run.cases
    spec, workload = sizes.spec_of(case), sizes.workload_of(case)
    for enabled in (frozenset[str](), frozenset({"commutative-reduce"})):
        told = handshake_of(run, case, enabled)
        ledger = expected_collectives(spec, workload, enabled)
        assert [site for _, site in told.target_order] == [e.site for e in ledger if e.phase == "target"]
        drafts = [entry.site for entry in ledger if is_draft_phase(entry.phase)]
        assert [site for _, site in told.draft_order] * 2 == drafts


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VllmHost:
    monkeypatch.setenv("VLLM_ALLREDUCE_USE_FLASHINFER", "from the user")
    monkeypatch.delenv("VLLM_REPLICATE_EMBED", raising=False)
    guard = Guard(RunDirectory(tmp_path), 60.0)
    guard.stop()
    return VllmHost(make_run(), RunDirectory(tmp_path), guard)


def test_variables_of_switches_are_set_for_one_engine_and_taken_back_for_the_next(host: VllmHost) -> None:
    (case,) = make_run().cases
    switched = msgspec.structs.replace(case, switched=["flashinfer-allreduce", "replicated-embedding"])
    names = ("VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_REPLICATE_EMBED")
    found = []
    for each, enabled in (
        (switched, frozenset({"replicated-embedding"})),
        (switched, frozenset({"flashinfer-allreduce"})),
        (case, frozenset[str]()),
    ):
        host._set_environment(each, enabled)
        found.append(tuple(os.environ.get(name) for name in names))
    assert found == [("0", "1"), ("1", "0"), ("from the user", None)]


def test_the_driver_is_the_only_one_that_decides(host: VllmHost) -> None:
    assert host.is_writer
    assert host.agree({"a": 1}) == {"a": 1}
    host.shut_down()
