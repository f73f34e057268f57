"""What the reference model issues is its ledger, call for call, in every arm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from mtpprof.models.ledger import LedgerEntry, Workload
from mtpprof.models.optimizations.catalogue import (
    CATALOGUE,
    expected_collectives,
    expected_prefill_collectives,
)
from mtpprof.models.reference.collectives.comm import Communicator, no_annotation
from mtpprof.models.reference.speculative import DecodeSession
from mtpprof.models.reference.switches import SWITCHES
from mtpprof.models.spec import ModelSpec
from mtpprof.ranges import CollectiveRange, split
from tests.unit.models.reference.cases import (
    ALL,
    PROMPT_LEN,
    SEQUENCES,
    WITH_DRAFTS,
    all_arms,
    arms,
    build,
    default_draft_tokens,
    prompts,
    tiny,
)
from tests.unit.models.reference.thread_ranks import Recorder, run_ranks

Row = tuple[str, str, str, tuple[int, ...], str, int, int, str]


def observed_row(call: CollectiveRange) -> Row:
    return (
        call.kind,
        call.site,
        call.phase,
        call.shape,
        call.dtype,
        call.group_size,
        call.payload_bytes,
        call.fused,
    )


def expected_row(entry: LedgerEntry) -> Row:
    return (
        entry.kind,
        entry.site,
        entry.phase,
        entry.shape,
        entry.dtype,
        entry.group_size,
        entry.payload_bytes,
        entry.fused,
    )


def observe(
    spec: ModelSpec, arm: frozenset[str], draft_tokens: int, dtype: torch.dtype, comm: Communicator
) -> tuple[list[Row], list[Row]]:
    """Collectives of the prefill and of the second step."""
    model = build(spec, comm, dtype)
    session = DecodeSession(model, prompts(), draft_tokens=draft_tokens, max_steps=2)
    model.set_arm(arm)
    calls = []
    for run in (session.prefill, session.step, session.step):
        recorder = Recorder()
        comm.annotate = recorder
        run()
        calls.append([observed_row(call) for call in recorder.collectives()])
    comm.annotate = no_annotation
    assert sorted(calls[1]) == sorted(calls[2]), "every step has the same collectives"
    return calls[0], calls[2]


def test_switches_are_those_of_the_catalogue() -> None:
    assert set(SWITCHES) == set(CATALOGUE)


@pytest.mark.parametrize("name", ALL)
def test_a_step_issues_its_ledger_in_every_arm(name: str) -> None:
    spec = tiny(name)
    for draft_tokens in {0, default_draft_tokens(spec)}:
        workload = Workload(concurrency=SEQUENCES, draft_tokens=draft_tokens, tp=2, dtype="bf16")
        for arm in arms(spec, workload):
            ranks = run_ranks(
                2,
                partial(observe, spec, arm, draft_tokens, torch.bfloat16),
                fused=True,
            )
            prefill = [
                expected_row(entry) for entry in expected_prefill_collectives(spec, workload, arm, PROMPT_LEN)
            ]
            step = [expected_row(entry) for entry in expected_collectives(spec, workload, arm)]
            for observed_prefill, observed_step in ranks:
                assert observed_prefill == prefill, sorted(arm)
                assert observed_step == step, sorted(arm)


@pytest.mark.parametrize("draft_tokens", [1, 2])
def test_few_draft_tokens_issue_their_ledger(draft_tokens: int) -> None:
    spec = tiny("nemotron-3-super")
    workload = Workload(concurrency=SEQUENCES, draft_tokens=draft_tokens, tp=2, dtype="fp32")
    for arm in all_arms(spec):
        for _, step in run_ranks(2, partial(observe, spec, arm, draft_tokens, torch.float32), fused=True):
            assert step == [expected_row(entry) for entry in expected_collectives(spec, workload, arm)]


@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_one_rank_issues_nothing(name: str) -> None:
    spec = tiny(name)
    for arm in all_arms(spec):
        for calls in run_ranks(1, partial(observe, spec, arm, 2, torch.float32), fused=True)[0]:
            assert calls == []


def test_without_a_fused_kernel_the_calls_are_those_of_the_off_arm() -> None:
    spec = tiny("deepseek-v3.2")
    on = frozenset({"allreduce-norm-fusion"})
    off_calls, on_calls = (
        run_ranks(2, partial(observe, spec, arm, 3, torch.bfloat16), fused=False)
        for arm in (frozenset[str](), on)
    )
    assert on_calls == off_calls


def test_mixed_quantization_of_the_latent_projection_is_per_layer() -> None:
    spec = tiny("nemotron-3-super")
    assert spec.moe is not None
    quantized = spec.block_path(spec.blocks.index("E"))
    spec = replace(spec, moe=replace(spec.moe, latent_quantized_layers=(quantized,)))
    workload = Workload(concurrency=SEQUENCES, draft_tokens=3, tp=2, dtype="bf16")
    arm = frozenset({"commutative-reduce"})
    step = run_ranks(2, partial(observe, spec, arm, 3, torch.bfloat16))[0][1]
    assert step == [expected_row(entry) for entry in expected_collectives(spec, workload, arm)]
    assert any(row[1] == f"{quantized}.moe.latent" for row in step)


def test_phases_come_in_order_and_every_choice_of_a_token_is_named() -> None:
    spec = tiny("deepseek-v3.2")

    def record(comm: Communicator) -> list[tuple[str, dict[str, str]]]:
        session = DecodeSession(build(spec, comm), prompts(), draft_tokens=2, max_steps=1)
        session.prefill()
        recorder = Recorder()
        comm.annotate = recorder
        session.step()
        return [parts for name in recorder.names if (parts := split(name))]

    parts = run_ranks(1, record)[0]
    phases = [words["name"] for head, words in parts if head == "phase"]
    assert phases == ["target", "sample", "draft[0]", "draft[1]"]
    choices = [(words["site"], words["rows"]) for head, words in parts if head == "argmax"]
    assert choices == [("lm_head", "9"), ("mtp.lm_head", "3"), ("mtp.lm_head", "3")]
