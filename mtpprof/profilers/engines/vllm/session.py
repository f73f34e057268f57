"""One engine of vLLM, in this process with its workers beside it, and the windows that mtpprof runs on it.

`VLLM_ENABLE_V1_MULTIPROCESSING=0` keeps the engine's core here: every call of `step()` is then one engine step of exactly the rows we
asked for. With the core in a process of its own, requests arrive differently in every run, and arms get different steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtpprof.errors import RunError
from mtpprof.profilers.engines.vllm import traces
from mtpprof.profilers.engines.vllm.arguments import CLOSING_STEPS, PROFILER_START_STEPS, tokens_per_window
from mtpprof.profilers.engines.vllm.metrics import Snapshot
from mtpprof.profilers.process import TimedWindow
from mtpprof.profilers.recording import TORCH, nsys_window
from mtpprof.profilers.sizes import spec_of
from mtpprof.rundir.records import CaseRecord, RunRecord

PROBED_PROMPTS = 4
"""Prompts whose tokens' log-probabilities are compared over the arms."""


@dataclass(slots=True)
class Progress:
    """What each sequence got, step by step."""

    tokens: list[list[int]]
    accepted: list[list[int]] = field(default_factory=list)


class EngineSession:
    """A case on a running engine: `Session`."""

    def __init__(
        self,
        llm: Any,
        run: RunRecord,
        case: CaseRecord,
        *,
        trace_folder: Path,
        arm_folder: Path,
        alive: Callable[[str | None], None],
        number: int = 0,
    ) -> None:
        """Take a running engine.

        Args:
            llm: `vllm.LLM`.
            run: the run.
            case: what is run.
            trace_folder: where the engine's profiler writes.
            arm_folder: of the arm that is run.
            alive: feeds the guard.
            number: of this session in the driver: names of requests and traces are never used twice.
        """
        self._llm = llm
        self._engine = llm.llm_engine
        self._run = run
        self._case = case
        self._traces = trace_folder
        self._arm_folder = arm_folder
        self._alive = alive
        self._number = number
        self._prompts = prompts(run.seed, case.concurrency, case.prompt_len, spec_of(case).vocab_size)

    def time_window(self, enabled: frozenset[str], *, warmup: int, steps: int) -> TimedWindow:
        """See `Session`."""
        with self._batch(enabled, warmup) as batch:
            before = Snapshot.of(self._llm.get_metrics())
            self._rpc("mtpprof_begin", steps, False, 0)
            progress = batch.steps(steps)
            batch.steps(CLOSING_STEPS)
            step_ns: list[list[int]] = self._rpc("mtpprof_end")
            # Not before the closing step: taking it would be charged to the window's last one.
            after = Snapshot.of(self._llm.get_metrics())
        metrics = after.since(before, steps + CLOSING_STEPS)
        self._check(step_ns, steps)
        return TimedWindow(
            step_ns=step_ns,
            tokens=progress.tokens,
            accepted=progress.accepted,
            metrics=metrics,
            probe=self._probe(),
        )

    def profile_window(
        self, enabled: frozenset[str], *, warmup: int, steps: int, folder: Path
    ) -> list[list[int]]:
        """See `Session`."""
        prefix = f"mtpprof-{self._run.id}-{self._number}"
        by_torch = TORCH in self._run.capture
        with (
            self._batch(enabled, warmup) as batch,
            self._traced_by_torch(prefix) if by_torch else nsys_window(),
        ):
            self._rpc("mtpprof_begin", steps, True, PROFILER_START_STEPS)
            batch.steps(PROFILER_START_STEPS + steps + CLOSING_STEPS)
            step_ns: list[list[int]] = self._rpc("mtpprof_end")
        self._check(step_ns, steps)
        if by_torch:
            traces.collect(self._traces, prefix, folder, self._case.tp, self._run.timeout_s, self._alive)
        return step_ns

    @contextmanager
    def _traced_by_torch(self, prefix: str) -> Iterator[None]:
        """The profiler of vLLM around a window that goes well; the engine ends with one that does not."""
        self._engine.start_profile(prefix)
        yield
        self._alive("stopping the profiler")
        self._engine.stop_profile()

    def close(self) -> None:
        """See `Session`: the engine stays with the host for the next case."""

    def _probe(self) -> list[list[float]]:
        """What the model under the arm that is set makes of the prompts: see `RoundOutputs.probe`.

        Not a window: vLLM prefills the prompts once more and gives the log-probabilities of their own tokens.
        """
        batch = _Batch(self._engine, self._alive)
        return batch.prompt_logprobs(self._prompts[:PROBED_PROMPTS], f"{self._number}-probe")

    def _check(self, step_ns: list[list[int]], steps: int) -> None:
        for rank, durations in enumerate(step_ns):
            if len(durations) != steps:
                raise RunError(
                    f"rank {rank}: {len(durations)} steps were seen where {steps} were run; vLLM did not run one step a call."
                )

    @contextmanager
    def _batch(self, enabled: frozenset[str], warmup: int) -> Iterator[_Batch]:
        """All prompts, prefilled and warmed up, under an arm; gone afterwards."""
        self._rpc("mtpprof_set_arm", sorted(enabled), str(self._arm_folder / "rank{rank}.log"))
        batch = _Batch(self._engine, self._alive)
        batch.start(self._prompts, tokens_per_window(self._run, self._case), f"{self._number}")
        try:
            batch.steps(warmup)
            yield batch
        finally:
            batch.abort()

    def _rpc(self, method: str, *args: Any) -> Any:
        return self._llm.collective_rpc(method, args=args)


class _Batch:
    """A fixed set of requests in the engine."""

    def __init__(self, engine: Any, alive: Callable[[str | None], None]) -> None:
        self._engine = engine
        self._alive = alive
        self._ids: list[str] = []
        self._place: dict[str, int] = {}

    def start(self, prompts: Sequence[list[int]], max_tokens: int, tag: str) -> None:
        """Queue all prompts and prefill them: the first step gives every sequence its first token.

        Raises:
            RunError: a sequence got none.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._add(prompts, params, tag)
        for _ in range(2):
            # With asynchronous scheduling the first call only launches the step.
            first = self.steps(1)
            if all(first.tokens):
                return
        silent = [index for index, tokens in enumerate(first.tokens) if not tokens]
        raise RunError(
            f"sequences {silent} got no token from their prefill; vLLM did not prefill them in one step."
        )

    def _add(self, prompts: Sequence[list[int]], params: Any, tag: str) -> None:
        for index, prompt in enumerate(prompts):
            name = f"{tag}-{index}"
            self._ids.append(
                self._engine.add_request(name, {"prompt_token_ids": prompt}, params.clone()) or name
            )
            self._place[name] = self._place[self._ids[-1]] = index

    def prompt_logprobs(self, prompts: Sequence[list[int]], tag: str) -> list[list[float]]:
        """Log-probability of every prompt token but the first, `[prompt][position]`."""
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False, prompt_logprobs=0
        )
        self._add(prompts, params, tag)
        found: list[list[float]] = [[] for _ in prompts]
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                told = [entry for entry in output.prompt_logprobs or [] if entry is not None]
                place = self._place[output.request_id]
                for token, entry in zip(prompts[place][1:], told, strict=False):
                    found[place].append(float(entry[token].logprob))
            self._alive(None)
        return found

    def steps(self, count: int) -> Progress:
        """Run engine steps and collect what they give."""
        progress = Progress(tokens=[[] for _ in self._ids])
        for _ in range(count):
            got = [0] * len(self._ids)
            for output in self._engine.step():
                place = self._place[output.request_id]
                new = list(output.outputs[0].token_ids)
                progress.tokens[place].extend(new)
                got[place] += len(new)
            progress.accepted.append(got)
            self._alive(None)
        return progress

    def abort(self) -> None:
        """Take what is left out of the engine."""
        self._engine.abort_request(list(self._place))


def prompts(seed: int, count: int, length: int, vocabulary: int) -> list[list[int]]:
    """The prompts of a case: seeded, the same for every arm."""
    import random

    generator = random.Random(f"{seed}/{count}/{length}")
    return [[generator.randrange(2, vocabulary) for _ in range(length)] for _ in range(count)]
