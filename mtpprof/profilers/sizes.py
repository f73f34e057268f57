"""How large a run's collectives and files get, from its ledger: what preflight checks and the transport reserves."""

from __future__ import annotations

import math

import msgspec

from mtpprof.models.ledger import Workload, prefill_ledger
from mtpprof.models.optimizations.catalogue import expected_collectives
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import DTYPE_BYTES
from mtpprof.rundir.records import CaseRecord, RunRecord

TRACE_BYTES_PER_CALL = 4_000
"""Compressed trace bytes a rank writes per collective call and profiled step, with the operators around it (measured: 1,500)."""


def workload_of(case: CaseRecord) -> Workload:
    """The workload of a stored case."""
    return Workload(
        concurrency=case.concurrency, draft_tokens=case.draft_tokens, tp=case.tp, dtype=case.dtype
    )


def spec_of(case: CaseRecord) -> ModelSpec:
    """The model of a stored case."""
    return msgspec.convert(case.model, ModelSpec)


def largest_tensor_bytes(run: RunRecord) -> int:
    """Size of the largest tensor that one rank hands to a collective, over all cases, phases and arms."""
    largest = 0
    for case in run.cases:
        spec, workload = spec_of(case), workload_of(case)
        entries = [*prefill_ledger(spec, workload, case.prompt_len)]
        for arm in case.arms:
            entries += expected_collectives(spec, workload, frozenset(arm.enabled))
        for entry in entries:
            largest = max(largest, math.prod(entry.shape) * DTYPE_BYTES[entry.dtype])
    return largest


def run_directory_bytes(run: RunRecord) -> int:
    """Rough size of a finished run directory; errs on the large side."""
    total = 1_000_000
    for case in run.cases:
        spec, workload = spec_of(case), workload_of(case)
        for arm in case.arms:
            calls = sum(entry.count for entry in expected_collectives(spec, workload, frozenset(arm.enabled)))
            total += (calls + 20) * TRACE_BYTES_PER_CALL * (run.profile_steps + 1) * case.tp
    return total


def segment_prefix(run: RunRecord) -> str:
    """Start of the names of this run's shared-memory segments."""
    return f"mtpprof-{run.id}-"
