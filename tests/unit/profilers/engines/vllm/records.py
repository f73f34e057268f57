"""Records of a run on the vLLM engine, as planning writes them."""

from __future__ import annotations

import msgspec

from mtpprof.profilers.plan import PlanOptions, make_cases
from mtpprof.profilers.run import _case_record
from mtpprof.rundir.directory import SCHEMA_VERSION
from mtpprof.rundir.records import RunRecord


def make_run(
    model: str = "deepseek-v3.2",
    *,
    concurrencies: tuple[int, ...] = (2,),
    draft_tokens: int = 3,
    prompt_len: int = 8,
    dtype: str = "bf16",
    engine_arguments: tuple[str, ...] = (),
    timeout_s: float = 5.0,
) -> RunRecord:
    """A run of one tiny model at TP 2."""
    options = PlanOptions(
        models=(model,),
        tp=2,
        concurrency=concurrencies,
        draft_tokens=draft_tokens,
        prompt_len=prompt_len,
        vocab=512,
        rounds=1,
    )
    cases = [_case_record(case) for case in make_cases(options)]
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        id="0123abcd",
        name="test",
        mtpprof_version="0",
        created_utc="",
        argv=[],
        status="running",
        engine="vllm",
        engine_reason="",
        device="cpu",
        transport="vllm",
        seed=0,
        steps=4,
        warmup=2,
        rounds=1,
        profile_steps=3,
        timeout_s=timeout_s,
        acceptance_length=None,
        machine={},
        versions={},
        cases=[msgspec.structs.replace(case, dtype=dtype) for case in cases],
        engine_arguments=list(engine_arguments),
    )
