"""vLLM's own NVTX scopes, of the engine and of every worker, without Nsight."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtpprof.analyzers.traces.nvtx.capture import load_captures
from mtpprof.profilers.engines.vllm.scratch import SEGMENT_PATTERNS
from mtpprof.profilers.lifetime import remove_leftovers, segments
from mtpprof.profilers.nvtx import capture_environment
from tests.integration.real_vllm import PYTHON, needs_vllm

STEPS = 8
MODEL = Path(__file__).parents[1] / "data" / "configs" / "dsv3s"

PROGRAM = f"""
import sys

def main():
    from vllm import LLM, SamplingParams
    llm = LLM(
        model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, tensor_parallel_size=2, dtype="bfloat16",
        max_model_len=256, max_num_seqs=4, enforce_eager=True, enable_prefix_caching=False,
    )
    sampling = SamplingParams(max_tokens={STEPS}, temperature=0, ignore_eos=True, detokenize=False)
    llm.generate([{{"prompt_token_ids": [5, 6, 7]}}], sampling, use_tqdm=False)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def _tidy() -> Iterator[None]:
    """vLLM leaves segments even at a clean end, and nobody else removes those of this one."""
    before = segments(SEGMENT_PATTERNS)
    yield
    remove_leftovers(SEGMENT_PATTERNS, before)


@needs_vllm
@pytest.mark.usefixtures("_tidy")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_engine_and_workers_are_recorded(tmp_path: Path) -> None:
    captured, script = tmp_path / "captured", tmp_path / "program.py"
    captured.mkdir()
    script.write_text(PROGRAM)
    variables = {
        **capture_environment(captured),
        "VLLM_NVTX_SCOPES_FOR_PROFILING": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run(
            [PYTHON, script, MODEL],
            env=os.environ | variables,
            stdout=log,
            stderr=log,
            check=False,
            timeout=550,
        )
    assert done.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    forwards = []
    for capture in load_captures(captured):
        counts = Counter(capture.names[code] for code in capture.name)
        if counts["gpu_model_runner: forward"]:
            forwards.append(counts["gpu_model_runner: forward"])
            assert counts["gpu_model_runner: sample"] == counts["gpu_model_runner: forward"]
    assert len(forwards) == 2  # one a worker
    assert forwards[0] == forwards[1] >= STEPS
