"""Arguments of the vLLM engine for a case: ours first, then whatever the user passes through.

What mtpprof sets is what makes a window exact: all sequences fit in one batch and are prefilled in one step, prefixes are not cached
between windows, the profiler records shapes and no stacks and is bounded. Where this differs from vLLM's defaults in a way that
matters to a reader of the report, it is told as a deviation.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from mtpprof.errors import UsageError
from mtpprof.profilers.engines.vllm.handshake import Setting
from mtpprof.profilers.engines.vllm.switches import SWITCHES
from mtpprof.rundir.records import CaseRecord, RunRecord

VLLM_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CPU_KV_CACHE_BYTES = 512 * 1024**2
CLOSING_STEPS = 1
"""Steps after a window, whose start ends the window's last step."""
PROFILER_START_STEPS = 1
"""Steps at the start of a profiled window that carry the profiler's own start-up."""
OWNED = ("tensor_parallel_size", "worker_extension_cls", "profiler_config", "additional_config")
"""Arguments without which a run would not be one; they cannot be passed through."""
EXTENSION = "mtpprof.profilers.engines.vllm.worker.WorkerCommands"


def tokens_per_window(run: RunRecord, case: CaseRecord) -> int:
    """Most tokens that a sequence can get in a window."""
    steps = run.warmup + max(run.steps, run.profile_steps + PROFILER_START_STEPS) + CLOSING_STEPS + 1
    return steps * (case.draft_tokens + 1)


def engine_arguments(
    run: RunRecord, cases: Iterable[CaseRecord], *, model: str, traces: str, enabled: frozenset[str]
) -> dict[str, Any]:
    """Arguments of one engine that serves all of `cases`, which differ in concurrency only, started with `enabled` on.

    Raises:
        UsageError: a dtype that vLLM does not have.
    """
    cases = list(cases)
    case = cases[0]
    if case.dtype not in VLLM_DTYPES:
        raise UsageError(f"--dtype {case.dtype}: vLLM has {', '.join(VLLM_DTYPES)} only.")
    setting = Setting(switched=case.switched, enabled=sorted(enabled))
    sequences = max(each.concurrency for each in cases)
    length = case.prompt_len + tokens_per_window(run, case) + case.draft_tokens + 1
    rows = sequences * max(case.prompt_len, case.draft_tokens + 1)
    arguments: dict[str, Any] = {
        "model": model,
        "skip_tokenizer_init": True,
        "tensor_parallel_size": case.tp,
        "dtype": VLLM_DTYPES[case.dtype],
        "seed": run.seed,
        "max_model_len": length,
        "max_num_seqs": sequences,
        "max_num_batched_tokens": max(rows, length),
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "worker_extension_cls": EXTENSION,
        "additional_config": setting.additional_config(),
        "profiler_config": {
            "profiler": "torch",
            "torch_profiler_dir": traces,
            "torch_profiler_record_shapes": True,
            "torch_profiler_with_stack": False,
            "torch_profiler_use_gzip": True,
            "torch_profiler_dump_cuda_time_total": False,
            "ignore_frontend": True,
            "max_iterations": run.profile_steps + PROFILER_START_STEPS + CLOSING_STEPS,
        },
    }
    if case.draft_tokens:
        arguments["speculative_config"] = {
            "method": "mtp",
            "num_speculative_tokens": case.draft_tokens,
            **_acceptance(run.acceptance_length),
        }
    if run.device == "cpu":
        arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES}
    for name in case.switched:
        arguments = merged(arguments, SWITCHES[name].arguments(name in enabled))
    return merged(arguments, parse_arguments(run.engine_arguments))


def _acceptance(length: float | None) -> dict[str, Any]:
    """Synthetic acceptance as vLLM has it; there is none on the CPU."""
    if length is None:
        return {}
    return {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": length}


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """`first` with what `second` says otherwise; dictionaries within are merged too."""
    result = dict(first)
    for key, value in second.items():
        mine = result.get(key)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        result[key] = merged(mine, value) if both else value  # type: ignore[arg-type]
    return result


def parse_arguments(texts: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as engine arguments: values are JSON where they read as such, else text; `a.b=1` sets a key within.

    Raises:
        UsageError: not `KEY=VALUE`, or an argument that mtpprof must set itself.
    """
    result: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        keys = name.strip().lstrip("-").replace("-", "_").split(".")
        if not equals or not all(keys):
            raise UsageError(f"--vllm-arg {text}: write KEY=VALUE, e.g. gpu_memory_utilization=0.8.")
        if keys[0] in OWNED:
            raise UsageError(f"--vllm-arg {text}: mtpprof sets {keys[0]} itself; leave it out.")
        parsed: Any = _value(value)
        for key in reversed(keys):
            parsed = {key: parsed}
        result = merged(result, parsed)
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def without_unknown(
    arguments: Mapping[str, Any], known: Mapping[str, type]
) -> tuple[dict[str, Any], list[str]]:
    """Arguments without keys that the installed vLLM's configuration classes do not have.

    Args:
        arguments: of the engine.
        known: configuration class of an argument that is a dictionary, e.g. `profiler_config`.

    Returns:
        The arguments, and what was left out as `profiler_config.ignore_frontend`.
    """
    left_out = []
    result = dict(arguments)
    for name, kind in known.items():
        value = result.get(name)
        if not isinstance(value, Mapping) or not dataclasses.is_dataclass(kind):
            continue
        fields = {field.name for field in dataclasses.fields(kind)}
        left_out += [f"{name}.{key}" for key in value if key not in fields]
        result[name] = {key: entry for key, entry in value.items() if key in fields}
    return result, left_out
