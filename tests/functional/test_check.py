"""`mtpprof check` of captures, as a user types it."""

from __future__ import annotations

from collections.abc import Callable

from tests.functional.conftest import Answer
from tests.traces import trace_folder

Call = Callable[..., Answer]


def test_the_ledger_of_another_model_is_refused(mtpprof: Call) -> None:
    capture = str(trace_folder("vllm-cpu-tp4-nemotron") / "latent-reduce-on")
    answer = mtpprof("check", capture, "--model", "nemotron-3-super")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert answer.stderr == (
        "mtpprof: latent-reduce-on: messages are 256 wide, the hidden width of nemotron-3-super is 4096: "
        "not this model; give its own with --model.\n"
    )
