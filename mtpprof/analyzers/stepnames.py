"""How engines name their steps, and what a name tells of the batch. `STEP_NAMES` is the registry: to add an engine is to add a row.

Sources: mtpprof's own ranges; vLLM's `execute_*` annotation (`vllm/v1/worker/gpu_worker.py`, plain and detailed
form); SGLang's `step[...]` (`python/sglang/srt/model_executor/model_runner.py`); `ProfilerStep#` of torch's profiler
schedule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mtpprof import ranges

PREFILL = "prefill"
TARGET = "target"
MIXED = "mixed"
"""Prefill and decode rows in one batch."""
DRAFT = "draft"
SAMPLE = "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepName:
    """What the name of a step tells; -1 and empty: it does not."""

    number: int = -1
    phase: str = ""
    """Phase of what runs inside the annotation."""
    rows: int = -1
    """Rows (tokens) of the forward pass."""
    sequences: int = -1
    draft_tokens: int = -1
    """Draft tokens verified per decoding sequence."""
    empty: bool = False
    """A step without work: it ends the one before it and is none itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNames:
    """One engine's way of naming steps."""

    title: str
    parse: Callable[[str], StepName | None]
    whole: bool
    """The annotation spans the step; False: a step lasts from the start of one to the start of the next."""


def _own(name: str) -> StepName | None:
    parts = ranges.split(name)
    if parts is None or parts[0] != ranges.STEP:
        return None
    index = parts[1].get("index", "")
    return StepName(number=int(index) if index.isdecimal() and len(index) < 10 else -1)


_VLLM = re.compile(
    r"^execute_(?:\d+_)?context_(\d{1,9})\((?:sq)?(\d{1,9})(?!\d)[^)]*\)"
    r"_generation_(\d{1,9})\((?:sq)?(\d{1,9})(?!\d)[^)]*\)"
)


def _vllm(name: str) -> StepName | None:
    match = _VLLM.match(name)
    if match is None:
        return None
    contexts, context_rows, generations, generation_rows = map(int, match.groups())
    phase = MIXED if contexts and generations else PREFILL if contexts else TARGET
    whole = generations > 0 and generation_rows % generations == 0
    return StepName(
        phase=phase,
        rows=context_rows + generation_rows,
        sequences=contexts + generations,
        draft_tokens=generation_rows // generations - 1 if whole else -1,
        empty=not contexts + generations,
    )


_SGLANG = re.compile(r"^step\[(\w+)\b([^\]]*)\]")
_SGLANG_WORD = re.compile(r"\b(bs|toks)=(\d{1,9})\b")
_SGLANG_PHASES = {
    "EXTEND": PREFILL,
    "SPLIT_PREFILL": PREFILL,
    "DLLM_EXTEND": PREFILL,
    "MIXED": MIXED,
    "DECODE": TARGET,
    "TARGET_VERIFY": TARGET,
    "DRAFT_EXTEND": DRAFT,
    "DRAFT_EXTEND_V2": DRAFT,
}


def _sglang(name: str) -> StepName | None:
    match = _SGLANG.match(name)
    if match is None:
        return None
    mode, words = match[1], dict(_SGLANG_WORD.findall(match[2]))
    sequences = int(words.get("bs", -1))
    rows = int(words.get("toks", sequences if mode == "DECODE" else -1))
    return StepName(
        phase=_SGLANG_PHASES.get(mode, ""),
        rows=rows,
        sequences=sequences,
        empty=mode == "IDLE" or sequences == 0,
    )


_PROFILER = re.compile(r"^ProfilerStep#(\d{1,9})$")


def _profiler(name: str) -> StepName | None:
    match = _PROFILER.match(name)
    return StepName(number=int(match[1])) if match else None


STEP_NAMES: tuple[StepNames, ...] = (
    StepNames(title="mtpprof::step ranges", parse=_own, whole=True),
    StepNames(title="vLLM execute_* annotations, start to start", parse=_vllm, whole=False),
    StepNames(title="SGLang step[...] annotations, start to start", parse=_sglang, whole=False),
    StepNames(title="ProfilerStep# annotations", parse=_profiler, whole=True),
)
"""Asked in this order: the first kind of which a trace has any is what its steps are."""

PHASE_NAMES = {
    "draft": DRAFT,
    "draft_extend": DRAFT,
    "EAGLE_VERIFY": SAMPLE,
    "gpu_model_runner: draft": DRAFT,
    "gpu_model_runner: sample": SAMPLE,
}
"""Annotations of engines that span a phase: SGLang's speculative worker, vLLM with VLLM_CUSTOM_SCOPES_FOR_PROFILING."""


def phase_of_name(name: str) -> str:
    """Phase that an annotation spans; empty: none."""
    parts = ranges.split(name)
    if parts is not None:
        return parts[1].get("name", "") if parts[0] == ranges.PHASE else ""
    return PHASE_NAMES.get(name, "")
