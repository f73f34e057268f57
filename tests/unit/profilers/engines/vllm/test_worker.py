"""A worker's hooks and commands, on objects of the same shape as vLLM's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtpprof.profilers.engines.vllm import worker as module
from mtpprof.profilers.engines.vllm.handshake import Handshake, Setting
from mtpprof.profilers.engines.vllm.switches import Applied
from mtpprof.profilers.engines.vllm.tracker import Tracker
from mtpprof.profilers.engines.vllm.worker import WorkerCommands, set_up

from .test_tracker import Clock, Ranges


class Model:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def modules(self) -> list[Any]:
        return []

    def forward(self) -> None:
        self.log.append(f"{self.name} {module.TRACKER.phase}")

    def compute_logits(self) -> None:
        self.log.append(f"{self.name} logits {module.TRACKER.phase}")

    def get_top_tokens(self) -> None:
        self.compute_logits()


class Worker(WorkerCommands):
    rank = 1

    def __init__(self, *, drafts: int) -> None:
        self.log: list[str] = []
        target, draft = Model(self.log, "target"), Model(self.log, "draft")

        def propose() -> None:
            for _ in range(drafts):
                draft.forward()
                draft.compute_logits()

        drafter = SimpleNamespace(model=draft, propose=propose, use_local_argmax_reduction=False)
        self.model_runner = SimpleNamespace(get_model=lambda: target, drafter=drafter if drafts else None)
        self.vllm_config = SimpleNamespace(
            additional_config=Setting(switched=["local-argmax"], enabled=["local-argmax"]).additional_config()
        )
        self.profiler = SimpleNamespace(dump_cpu_time_total=True)
        self.drafter, self.target = drafter, target

    def execute_model(self, scheduled: Any) -> str:
        self.target.forward()
        self.target.compute_logits()
        if self.model_runner.drafter is not None:
            self.drafter.propose()
        return "output"


def scheduled(tokens: int, *, new: bool = False) -> Any:
    return SimpleNamespace(total_num_scheduled_tokens=tokens, scheduled_new_reqs=["r"] if new else [])


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker and settings of this test's own, in a process that mtpprof started."""
    environment: dict[str, str] = {}
    Handshake(family="deepseek", blocks="AD", draft_blocks="AE").write(environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "TRACKER", Tracker(Ranges().annotate, Clock()))
    monkeypatch.setattr(module, "APPLIED", Applied())


def test_phases_follow_the_models_that_run() -> None:
    mine = Worker(drafts=2)
    set_up(mine)
    mine.mtpprof_begin(1, True, 0)
    assert mine.execute_model(scheduled(8)) == "output"
    assert mine.log == [
        "target target",
        "target logits target",
        "draft draft[0]",
        "draft logits draft[0]",
        "draft draft[1]",
        "draft logits draft[1]",
    ]
    assert module.TRACKER.phase == "sample"


def test_a_prefill_is_known_by_its_new_requests_and_empty_steps_are_none() -> None:
    mine = Worker(drafts=0)
    set_up(mine)
    mine.mtpprof_begin(1, True, 0)
    mine.execute_model(scheduled(0))
    mine.execute_model(scheduled(8, new=True))
    mine.execute_model(scheduled(2))
    assert mine.log[2] == "target prefill"
    assert len(mine.mtpprof_end()) == 1


def test_switches_are_set_as_the_engine_was_configured_and_then_as_told(tmp_path: Path) -> None:
    mine = Worker(drafts=1)
    set_up(mine)
    assert mine.drafter.use_local_argmax_reduction is True
    module.APPLIED.set(mine, frozenset())
    assert mine.drafter.use_local_argmax_reduction is False


def test_the_operator_table_is_left_out_of_profiled_windows_only() -> None:
    mine = Worker(drafts=0)
    mine.mtpprof_begin(1, False, 0)
    assert mine.profiler.dump_cpu_time_total
    mine.mtpprof_begin(1, True, 1)
    assert not mine.profiler.dump_cpu_time_total


def test_a_worker_of_somebody_else_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MTPPROF_VLLM")
    mine = Worker(drafts=1)
    before = dict(vars(mine))
    set_up(mine)
    assert vars(mine) == before


def test_what_a_rank_prints_during_an_arm_goes_to_its_log(tmp_path: Path) -> None:
    program = (
        "from mtpprof.profilers.engines.vllm.worker import _print_to; from pathlib import Path; import os, sys\n"
        "print('before'); _print_to(Path(sys.argv[1])); print('python'); os.system('echo program; echo error >&2')\n"
    )
    log = tmp_path / "arm" / "rank1.log"
    done = subprocess.run(
        [sys.executable, "-c", program, str(log)],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout == "before\n"
    assert sorted(log.read_text().split()) == ["error", "program", "python"]
