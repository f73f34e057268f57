"""Arguments of an engine: exact windows, the user's own last, and what an older vLLM does not know left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from mtpprof.errors import UsageError
from mtpprof.profilers.engines.vllm.arguments import (
    engine_arguments,
    merged,
    parse_arguments,
    tokens_per_window,
    without_unknown,
)
from mtpprof.profilers.engines.vllm.driver import arm_name, engine_key, is_live
from mtpprof.rundir.records import CaseRecord, RunRecord

from .records import make_run


def arguments(run: RunRecord, *cases: CaseRecord, enabled: frozenset[str] = frozenset()) -> dict[str, Any]:
    return engine_arguments(run, cases or run.cases, model="m", traces="t", enabled=enabled)


def test_a_window_fits_whatever_is_accepted() -> None:
    run = make_run(draft_tokens=3)
    (case,) = run.cases
    found = arguments(run)
    most = tokens_per_window(run, case)
    # prefill, warm-up, window and closing step, each with every draft accepted
    assert most >= (1 + run.warmup + run.steps + 1) * 4
    assert most >= (1 + run.warmup + 1 + run.profile_steps + 1) * 4
    assert found["max_model_len"] >= case.prompt_len + most + case.draft_tokens
    assert found["max_num_batched_tokens"] >= case.concurrency * case.prompt_len
    assert found["max_num_seqs"] == case.concurrency


def test_one_engine_serves_the_largest_of_its_cases() -> None:
    run = make_run(concurrencies=(1, 8), prompt_len=32)
    found = arguments(run)
    assert found["max_num_seqs"] == 8
    assert found["max_num_batched_tokens"] >= 8 * 32


def test_the_profiler_records_shapes_no_stacks_and_is_bounded() -> None:
    run = make_run()
    config = arguments(run)["profiler_config"]
    assert config["torch_profiler_record_shapes"] is True
    assert config["torch_profiler_with_stack"] is False
    assert config["max_iterations"] == run.profile_steps + 2


def test_speculation_only_with_draft_tokens() -> None:
    assert "speculative_config" not in arguments(make_run(draft_tokens=0))
    config = arguments(make_run(draft_tokens=2), enabled=frozenset({"local-argmax"}))["speculative_config"]
    assert config == {"method": "mtp", "num_speculative_tokens": 2, "use_local_argmax_reduction": True}


def test_a_synthetic_acceptance_is_vllms() -> None:
    run = msgspec.structs.replace(make_run(), acceptance_length=2.5, device="cuda")
    config = arguments(run)["speculative_config"]
    assert (config["rejection_sample_method"], config["synthetic_acceptance_length"]) == ("synthetic", 2.5)


def test_switches_are_part_of_the_configuration() -> None:
    on = arguments(make_run(), enabled=frozenset({"commutative-reduce"}))
    setting = {"switched": ["allreduce-norm-fusion", "local-argmax"], "enabled": ["commutative-reduce"]}
    assert on["additional_config"] == {"mtpprof": setting}


def test_what_a_run_does_not_switch_keeps_vllms_default() -> None:
    run = make_run()
    assert "disable_custom_all_reduce" not in arguments(run)
    case = msgspec.structs.replace(run.cases[0], switched=["custom-allreduce", "compiled-norm-fusion"])
    off = engine_arguments(run, [case], model="m", traces="t", enabled=frozenset())
    on = engine_arguments(run, [case], model="m", traces="t", enabled=frozenset(case.switched))
    assert (off["disable_custom_all_reduce"], on["disable_custom_all_reduce"]) == (True, False)
    assert on["compilation_config"] == {"pass_config": {"fuse_allreduce_rms": True}}
    assert "use_local_argmax_reduction" not in on["speculative_config"]


def test_a_dtype_that_vllm_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="--dtype fp64: vLLM has bf16, fp16, fp32"):
        arguments(make_run(dtype="fp64"))


def test_the_users_arguments_go_last() -> None:
    run = make_run(engine_arguments=("max-model-len=999", "speculative_config.method=other"))
    found = arguments(run)
    assert found["max_model_len"] == 999
    assert found["speculative_config"]["method"] == "other"
    assert found["speculative_config"]["num_speculative_tokens"] == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu_memory_utilization=0.8", {"gpu_memory_utilization": 0.8}),
        ("--enforce-eager=true", {"enforce_eager": True}),
        ("enforce_eager=False", {"enforce_eager": False}),
        ("model=deepseek-ai/DeepSeek-V3.2", {"model": "deepseek-ai/DeepSeek-V3.2"}),
        ("a.b.c=[1, 2]", {"a": {"b": {"c": [1, 2]}}}),
        ("revision=", {"revision": ""}),
        ("quantization=None", {"quantization": None}),
        ("x=a=b", {"x": "a=b"}),
    ],
)
def test_values_are_read_as_json_where_they_are(text: str, expected: dict[str, Any]) -> None:
    assert parse_arguments([text]) == expected


@pytest.mark.parametrize("text", ["enforce_eager", "=1", "a..b=1", ""])
def test_what_is_not_key_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write KEY=VALUE"):
        parse_arguments([text])


@pytest.mark.parametrize(
    "name", ["tensor_parallel_size", "profiler-config.max_iterations", "additional_config"]
)
def test_what_a_run_rests_on_cannot_be_passed_through(name: str) -> None:
    with pytest.raises(UsageError, match="mtpprof sets"):
        parse_arguments([f"{name}=1"])


def test_merging_keeps_what_the_second_does_not_say() -> None:
    first = {"a": {"x": 1, "y": 2}, "b": 3}
    assert merged(first, {"a": {"y": 4}, "c": 5}) == {"a": {"x": 1, "y": 4}, "b": 3, "c": 5}
    assert first == {"a": {"x": 1, "y": 2}, "b": 3}
    assert merged({"a": 1}, {"a": {"x": 1}}) == {"a": {"x": 1}}


@dataclass
class OldProfilerConfig:
    profiler: str = ""


def test_keys_that_an_older_vllm_does_not_know_are_left_out_and_named() -> None:
    options = {"profiler_config": {"profiler": "torch", "ignore_frontend": True}, "model": "m"}
    kept, left_out = without_unknown(
        options, {"profiler_config": OldProfilerConfig, "other": OldProfilerConfig}
    )
    assert kept == {"profiler_config": {"profiler": "torch"}, "model": "m"}
    assert left_out == ["profiler_config.ignore_frontend"]


def test_in_eager_mode_one_engine_serves_all_arms_and_concurrencies() -> None:
    run = make_run(concurrencies=(1, 8))
    keys = {
        engine_key(run, case, enabled)
        for case in run.cases
        for enabled in (frozenset[str](), frozenset({"local-argmax"}), frozenset({"allreduce-norm-fusion"}))
    }
    assert is_live(run)
    assert len(keys) == 1


def test_with_compilation_every_arm_has_an_engine_of_its_own() -> None:
    run = make_run(engine_arguments=("enforce_eager=false",))
    (case,) = run.cases
    assert not is_live(run)
    assert engine_key(run, case, frozenset()) != engine_key(run, case, frozenset({"local-argmax"}))
    cuda = msgspec.structs.replace(make_run(), device="cuda")
    assert not is_live(cuda)
    assert is_live(msgspec.structs.replace(cuda, engine_arguments=["enforce_eager=true"]))


def test_a_switch_that_cannot_be_turned_live_takes_an_engine_of_its_own() -> None:
    run = make_run()
    assert is_live(run)
    assert engine_key(run, run.cases[0], frozenset()) != engine_key(
        run, run.cases[0], frozenset({"flashinfer-allreduce"})
    )


def test_engines_differ_where_models_or_draft_lengths_do() -> None:
    first, second = make_run(draft_tokens=3), make_run(draft_tokens=2)
    assert engine_key(first, first.cases[0], frozenset()) != engine_key(second, second.cases[0], frozenset())


def test_an_arm_is_known_by_its_setting() -> None:
    (case,) = make_run().cases
    assert arm_name(case, frozenset()) == "baseline"
    assert arm_name(case, frozenset({"local-argmax"})) == "local-argmax"
