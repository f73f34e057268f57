"""The process that runs vLLM for a run: one engine after another, never two, and the only writer of the run directory.

    python -m mtpprof.profilers.engines.vllm.driver RUN_DIRECTORY

It is the leader of a process group that vLLM's workers belong to. A worker that dies is named with its signal; a start, step or stop
that hangs ends with the stacks of this process and what vLLM's log said last. Whoever started this process ends the group and removes
what vLLM leaves in /dev/shm.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import shutil
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from mtpprof.errors import MtpprofError, RunError
from mtpprof.models.ledger import TARGET, draft_phase
from mtpprof.models.optimizations.catalogue import expected_collectives
from mtpprof.profilers import lifetime, sizes
from mtpprof.profilers.engines.vllm import arguments, checkpoint, patches
from mtpprof.profilers.engines.vllm.guard import Guard
from mtpprof.profilers.engines.vllm.handshake import Handshake
from mtpprof.profilers.engines.vllm.scratch import SEGMENT_PATTERNS, scratch_folder
from mtpprof.profilers.engines.vllm.session import EngineSession
from mtpprof.profilers.engines.vllm.switches import SWITCHES
from mtpprof.profilers.experiment import run_cases
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.records import CaseRecord, RunRecord

EngineKey = tuple[Any, ...]


def main() -> None:
    """Run all that is left of the run. What ends it early, whatever it is, is told as an event of the run."""
    directory = RunDirectory(Path(sys.argv[1]))
    run = directory.run()
    before = lifetime.segments(SEGMENT_PATTERNS)
    guard = Guard(directory, run.timeout_s, clean_up=functools.partial(_clean_up, directory, before))
    sys.excepthook = functools.partial(_tell, guard)
    host = VllmHost(run, directory, guard)
    run_cases(run, directory, host)
    host.shut_down()
    guard.stop()


def _clean_up(directory: RunDirectory, before: frozenset[Path]) -> None:
    """What the parent does after this process, for when it is gone."""
    for folder in (scratch_folder(directory), Path(os.environ["TMPDIR"])):
        shutil.rmtree(folder, ignore_errors=True)
    lifetime.remove_leftovers(SEGMENT_PATTERNS, before, ending=[os.getpid()])


def _tell(guard: Guard, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Last words of the driver: vLLM raises whatever its libraries do, so this is where they all arrive."""
    if isinstance(error, MtpprofError):
        guard.report(f"{kind.__name__}: {error}")
    else:
        traceback.print_exception(kind, error, trace)
        guard.report(f"RunError: {guard.describe(error)}")
    _exit(1)


def _exit(code: int) -> None:
    """End at once: vLLM leaves threads that can delay a normal exit, and all results are on disk by now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class VllmHost:
    """`Host` over engines of vLLM: this process alone runs the loop, the ranks follow it."""

    is_writer = True

    def __init__(self, run: RunRecord, directory: RunDirectory, guard: Guard) -> None:
        self._run = run
        self._directory = directory
        self._guard = guard
        self._key: EngineKey | None = None
        self._llm: Any = None
        self._numbers = itertools.count(1)
        self._segments = lifetime.segments(SEGMENT_PATTERNS)
        self._inherited = dict(os.environ)
        self._scratch = scratch_folder(directory)

    def open(self, run: RunRecord, case: CaseRecord) -> ArmSwitcher:
        """The case on an engine; cases that differ in concurrency only share one."""
        return ArmSwitcher(self, run, case)

    def agree(self, value: Any) -> Any:
        """There is no other."""
        return value

    def alive(self, doing: str | None = None) -> None:
        """Feed the guard."""
        self._guard.feed(doing)

    def session(self, case: CaseRecord, enabled: frozenset[str]) -> EngineSession:
        """A session for an arm, on the running engine if it can serve the arm, else on a new one."""
        key = engine_key(self._run, case, enabled)
        if key != self._key:
            self.shut_down()
            self._start(case, enabled)
            self._key = key
        folder = self._directory.arm(case.id, arm_name(case, enabled))
        self._guard.logs = [folder / f"rank{rank}.log" for rank in range(case.tp)]
        return EngineSession(
            self._llm,
            self._run,
            case,
            trace_folder=self._scratch / "traces",
            arm_folder=folder,
            alive=self.alive,
            number=next(self._numbers),
        )

    def _start(self, case: CaseRecord, enabled: frozenset[str]) -> None:
        run = self._run
        with self._guard.patience(f"{case.id}: writing the model", START_PATIENCE * run.timeout_s):
            model = self._model_folder(case)
        handshake_of(run, case, enabled).write(os.environ)
        self._set_environment(case, enabled)
        alike = [
            each for each in run.cases if engine_key(run, each, enabled) == engine_key(run, case, enabled)
        ]
        options = arguments.engine_arguments(
            run, alike, model=model, traces=str(self._scratch / "traces"), enabled=enabled
        )
        with self._guard.patience(f"{case.id}: starting vLLM", START_PATIENCE * run.timeout_s):
            self._llm = self._construct(options)
            self._guard.watch(self._workers())
        self._directory.append_event("workers_ready", ranks=case.tp, transport="vllm")

    def _set_environment(self, case: CaseRecord, enabled: frozenset[str]) -> None:
        """Variables of the switches, for the processes of the next engine; what another engine had set is taken back."""
        for switch in SWITCHES.values():
            for variable in switch.environment(True):
                os.environ.pop(variable, None)
                if variable in self._inherited:
                    os.environ[variable] = self._inherited[variable]
        for name in case.switched:
            os.environ.update(SWITCHES[name].environment(name in enabled))

    def _construct(self, options: dict[str, Any]) -> Any:
        from vllm import LLM
        from vllm.config import ProfilerConfig

        options, left_out = arguments.without_unknown(options, {"profiler_config": ProfilerConfig})
        for name in left_out:
            sys.stdout.write(f"mtpprof: this vLLM has no {name}; left out\n")
        llm = LLM(**options)
        bound = getattr(llm.llm_engine.vllm_config.profiler_config, "max_iterations", None)
        if bound != options["profiler_config"]["max_iterations"]:
            raise RunError(
                f"vLLM {patches.vllm_version()} did not take the bound on profiled steps (it has {bound!r}); profiling would be "
                f"unbounded, so nothing was run."
            )
        return llm

    def _model_folder(self, case: CaseRecord) -> str:
        """The user's checkpoint where there is one, else one written from the model's dimensions."""
        given = checkpoint.given_model(self._run, case)
        if given is not None:
            return given
        folder = self._scratch / "model"
        shutil.rmtree(folder, ignore_errors=True)
        written = checkpoint.checkpoint_of(sizes.spec_of(case), device=self._run.device)
        checkpoint.write_checkpoint(written, folder, seed=self._run.seed)
        return str(folder)

    def _workers(self) -> list[Any]:
        executor = getattr(self._llm.llm_engine, "model_executor", None)
        return [handle.proc for handle in getattr(executor, "workers", None) or []]

    def shut_down(self) -> None:
        """End the engine and its workers."""
        if self._llm is None:
            return
        with self._guard.patience("stopping vLLM", self._run.timeout_s):
            self._guard.watch([])
            self._llm.llm_engine.engine_core.shutdown()
            self._llm, self._key = None, None
            gc.collect()
            lifetime.remove_leftovers(SEGMENT_PATTERNS, self._segments)


class ArmSwitcher:
    """`Session` of a case: each window on the engine that serves its arm."""

    def __init__(self, host: VllmHost, run: RunRecord, case: CaseRecord) -> None:
        self._host = host
        self._case = case

    def time_window(self, enabled: frozenset[str], *, warmup: int, steps: int) -> Any:
        """See `Session`."""
        return self._host.session(self._case, enabled).time_window(enabled, warmup=warmup, steps=steps)

    def profile_window(
        self, enabled: frozenset[str], *, warmup: int, steps: int, folder: Path
    ) -> list[list[int]]:
        """See `Session`."""
        session = self._host.session(self._case, enabled)
        return session.profile_window(enabled, warmup=warmup, steps=steps, folder=folder)

    def close(self) -> None:
        """See `Session`."""


START_PATIENCE = 5
"""A start loads weights and may compile: it gets so many times the --timeout of a step."""


def handshake_of(run: RunRecord, case: CaseRecord, enabled: frozenset[str]) -> Handshake:
    """What the plugin is told of a case and of the arm that its engine starts with."""
    spec = sizes.spec_of(case)
    order: dict[str, list[tuple[str, str]]] = {TARGET: [], draft_phase(0): []}
    if not is_live(run):
        for entry in expected_collectives(spec, sizes.workload_of(case), enabled):
            order.get(entry.phase, []).append((entry.kind, entry.site))
    return Handshake(
        family=spec.family,
        blocks=spec.blocks,
        draft_blocks=spec.mtp.blocks if spec.mtp else "",
        device=run.device,
        tp=case.tp,
        target_order=order[TARGET],
        draft_order=order[draft_phase(0)],
    )


def arm_name(case: CaseRecord, enabled: frozenset[str]) -> str:
    """Name of the first arm with this setting."""
    return next(arm.name for arm in case.arms if frozenset(arm.enabled) == enabled)


def is_live(run: RunRecord) -> bool:
    """Whether arms are switched in a running engine: nothing is compiled or captured."""
    passed = arguments.parse_arguments(run.engine_arguments)
    return bool(passed.get("enforce_eager", run.device == "cpu"))


def engine_key(run: RunRecord, case: CaseRecord, enabled: frozenset[str]) -> EngineKey:
    """What cases and arms must share to be served by one engine."""
    fixed = [name for name in enabled if not is_live(run) or SWITCHES[name].live is None]
    return (repr(case.model), case.tp, case.draft_tokens, case.dtype, case.prompt_len, tuple(sorted(fixed)))


if __name__ == "__main__":
    main()
    _exit(0)
