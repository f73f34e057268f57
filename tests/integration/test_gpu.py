"""The reference engine on CUDA. Not run so far: no machine with GPUs was at hand; skipped without them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mtpprof.profilers.machine import gpu_names
from tests.integration.conftest import Started

GPUS = len(gpu_names())
pytestmark = pytest.mark.gpu


@pytest.mark.skipif(GPUS < 1, reason="needs a CUDA device")
def test_one_rank_runs_and_its_trace_is_read(start: Callable[..., Started]) -> None:
    options = (
        "--tp",
        "1",
        "--device",
        "cuda",
        "--scale",
        "tiny",
        "--steps",
        "2",
        "--rounds",
        "1",
        "--format",
        "json",
    )
    code, out, err = start(*options).finish(200)
    assert code == 0, err
    assert {case["tp"] for case in json.loads(out)["cases"]} == {1}


@pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices")
def test_nccl_ranks_issue_the_expected_collectives(start: Callable[..., Started]) -> None:
    options = (
        "--tp",
        "2",
        "--device",
        "cuda",
        "--scale",
        "tiny",
        "--steps",
        "2",
        "--rounds",
        "1",
        "--format",
        "json",
    )
    code, out, err = start(*options).finish(300)
    assert code == 0, err
    arms = [arm for case in json.loads(out)["cases"] for arm in case["arms"] if not arm["repeats"]]
    assert all(arm["as_expected"] for arm in arms)
