"""Windows on an engine of the same shape as vLLM's: what is run, what is taken from it, what is refused."""

from __future__ import annotations

import sys
import types
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtpprof.errors import RunError
from mtpprof.profilers.engines.vllm.session import PROBED_PROMPTS, EngineSession, prompts
from mtpprof.rundir.records import CaseRecord, RunRecord

from .records import make_run


class SamplingParams(SimpleNamespace):
    def clone(self) -> SamplingParams:
        return self


class Kind(Enum):
    DELTA = 1


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the session imports of vLLM."""
    module: Any = types.ModuleType("vllm")
    module.SamplingParams = SamplingParams
    params: Any = types.ModuleType("vllm.sampling_params")
    params.RequestOutputKind = Kind
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)


class Engine:
    """Gives every sequence two tokens a step, after one from the prefill."""

    def __init__(self, *, silent: bool = False, late: bool = False) -> None:
        self.requests: dict[str, Any] = {}
        self.steps = 0
        self.log: list[str] = []
        self._silent, self._late = silent, late

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> str:
        self.requests[f"{name}-internal"] = SimpleNamespace(
            prompt=prompt["prompt_token_ids"], params=params, got=0
        )
        return f"{name}-internal"

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.requests.pop(name, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[Any]:
        self.steps += 1
        if self._late and self.steps == 1:
            return []
        outputs = []
        for place, (name, request) in enumerate(list(self.requests.items())):
            count = 1 if not request.got else 2
            if self._silent and place:
                continue
            tokens = list(range(request.got, request.got + count))
            request.got += count
            logprobs = None
            if getattr(request.params, "prompt_logprobs", None) is not None:
                logprobs = [None, *({token: SimpleNamespace(logprob=-token)} for token in request.prompt[1:])]
                del self.requests[name]
            outputs.append(
                SimpleNamespace(
                    request_id=name.removesuffix("-internal"),
                    outputs=[SimpleNamespace(token_ids=tokens)],
                    prompt_logprobs=logprobs,
                )
            )
        return outputs

    def start_profile(self, prefix: str) -> None:
        self.log.append(f"start {prefix}")

    def stop_profile(self) -> None:
        self.log.append("stop")


class Llm:
    def __init__(self, engine: Engine, *, lost_steps: int = 0) -> None:
        self.llm_engine = engine
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._lost = lost_steps
        self._steps = 0

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> Any:
        self.calls.append((method, args))
        if method == "mtpprof_begin":
            self._steps = args[0]
        return [[10] * (self._steps - self._lost)] * 2 if method == "mtpprof_end" else [None, None]

    def get_metrics(self) -> list[Any]:
        return [SimpleNamespace(name="vllm:generation_tokens", value=self.llm_engine.steps)]


def session(llm: Llm, tmp_path: Path, run: RunRecord | None = None) -> tuple[EngineSession, CaseRecord]:
    run = run or make_run()
    (case,) = run.cases
    made = EngineSession(
        llm,
        run,
        case,
        trace_folder=tmp_path / "traces",
        arm_folder=tmp_path / "arm",
        alive=lambda _: None,
        number=7,
    )
    return made, case


def test_a_timed_window_is_exactly_its_steps(tmp_path: Path) -> None:
    engine = Engine()
    llm = Llm(engine)
    mine, _ = session(llm, tmp_path)
    window = mine.time_window(frozenset({"local-argmax"}), warmup=2, steps=4)
    assert window.step_ns == [[10] * 4] * 2
    assert window.accepted == [[2, 2]] * 4
    # One token from the prefill and two warm-up steps of two come before.
    assert window.tokens == [list(range(5, 13))] * 2
    # Prefill, warm-up, window, what closes it; and one for the probe.
    assert engine.steps == 1 + 2 + 4 + 1 + 1
    assert window.metrics is not None
    assert (window.metrics.steps, window.metrics.generation_tokens) == (5, 5)
    assert engine.requests == {}
    set_arm, begin, end = llm.calls
    assert set_arm == ("mtpprof_set_arm", (["local-argmax"], str(tmp_path / "arm" / "rank{rank}.log")))
    assert (begin, end) == (("mtpprof_begin", (4, False, 0)), ("mtpprof_end", ()))


def test_the_probe_is_of_the_prompts_own_tokens(tmp_path: Path) -> None:
    run = make_run(concurrencies=(6,))
    mine, case = session(Llm(Engine()), tmp_path, run)
    window = mine.time_window(frozenset(), warmup=0, steps=1)
    asked = prompts(run.seed, 6, case.prompt_len, case.model["vocab_size"])
    assert window.probe == [[-float(token) for token in prompt[1:]] for prompt in asked[:PROBED_PROMPTS]]


def test_every_arm_gets_the_same_prompts() -> None:
    assert prompts(0, 3, 8, 512) == prompts(0, 3, 8, 512)
    assert prompts(0, 3, 8, 512) != prompts(1, 3, 8, 512)
    assert all(2 <= token < 512 for prompt in prompts(0, 8, 64, 512) for token in prompt)


def test_a_step_that_only_launches_the_prefill_is_waited_for(tmp_path: Path) -> None:
    engine = Engine(late=True)
    window = session(Llm(engine), tmp_path)[0].time_window(frozenset(), warmup=0, steps=2)
    assert window.accepted == [[2, 2]] * 2


def test_sequences_that_are_not_prefilled_together_are_refused(tmp_path: Path) -> None:
    engine = Engine(silent=True)
    with pytest.raises(RunError, match=r"sequences \[1\] got no token from their prefill"):
        session(Llm(engine), tmp_path)[0].time_window(frozenset(), warmup=0, steps=2)


def test_steps_that_the_workers_did_not_see_are_an_error(tmp_path: Path) -> None:
    mine, _ = session(Llm(Engine(), lost_steps=1), tmp_path)
    with pytest.raises(RunError, match="rank 0: 3 steps were seen where 4 were run"):
        mine.time_window(frozenset(), warmup=0, steps=4)


def test_a_window_that_fails_leaves_no_request_in_the_engine(tmp_path: Path) -> None:
    engine = Engine()
    mine, _ = session(Llm(engine, lost_steps=1), tmp_path)
    with pytest.raises(RunError):
        mine.time_window(frozenset(), warmup=1, steps=2)
    assert engine.requests == {}


def test_a_profiled_window_drops_its_first_step_and_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, collected = Engine(), []
    llm = Llm(engine)
    monkeypatch.setattr(
        "mtpprof.profilers.engines.vllm.traces.collect", lambda *args: collected.append(args[:4])
    )
    mine, _ = session(llm, tmp_path)
    assert mine.profile_window(frozenset(), warmup=1, steps=3, folder=tmp_path / "arm") == [[10] * 3] * 2
    assert engine.steps == 1 + 1 + 1 + 3 + 1
    prefix = "mtpprof-0123abcd-7"
    assert engine.log == [f"start {prefix}", "stop"]
    assert ("mtpprof_begin", (3, True, 1)) in llm.calls
    assert collected == [(tmp_path / "traces", prefix, tmp_path / "arm", 2)]
