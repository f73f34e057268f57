"""A vLLM worker as mtpprof sees it: its hooks, and the commands it takes from the driver.

`set_up` runs in the worker right after its model is loaded. `WorkerCommands` is mixed into vLLM's worker class
(`worker_extension_cls`); its methods are called on every rank through `collective_rpc`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtpprof.profilers.annotate import annotate
from mtpprof.profilers.engines.vllm.handshake import read_handshake, setting_of
from mtpprof.profilers.engines.vllm.sites import SiteMap
from mtpprof.profilers.engines.vllm.switches import Applied, drafter_of, runner_of, unwrapped
from mtpprof.profilers.engines.vllm.tracker import Tracker

TRACKER = Tracker(annotate)
"""The tracker of this process: a worker of vLLM has its process to itself."""
APPLIED = Applied()


def set_up(worker: Any) -> None:
    """Hook a worker whose model is loaded, and set its switches as its engine's configuration says."""
    handshake = read_handshake(os.environ)
    if handshake is None:
        return
    TRACKER.sites = SiteMap(handshake)
    _hook(worker, "execute_model", before=lambda arguments: _step(arguments))
    target = unwrapped(runner_of(worker).get_model())
    _hook(target, "compute_logits", after=TRACKER.logits_done)
    drafter = drafter_of(worker)
    if drafter is not None and getattr(drafter, "model", None) is not None:
        for name in ("propose", "dummy_run", "capture"):
            if hasattr(drafter, name):
                _hook(drafter, name, before=lambda _: TRACKER.drafts_begin(), after=TRACKER.drafts_end)
        draft = unwrapped(drafter.model)
        _hook(draft, "forward", before=lambda _: TRACKER.draft_pass())
        for name in ("compute_logits", "get_top_tokens"):
            if hasattr(draft, name):
                _hook(draft, name, after=TRACKER.draft_head_done)
    setting = setting_of(worker.vllm_config.additional_config)
    APPLIED.switched = frozenset(setting.switched)
    APPLIED.set(worker, frozenset(setting.enabled))


def _hook(
    owner: Any,
    name: str,
    *,
    before: Callable[[tuple[Any, ...]], None] = lambda _: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Run something around a method of one object; its class stays as it is."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        before((*args, *kwargs.values()))
        try:
            return original(*args, **kwargs)
        finally:
            after()

    setattr(owner, name, call)


def _step(arguments: tuple[Any, ...]) -> None:
    scheduled = arguments[0]
    if scheduled.total_num_scheduled_tokens:
        TRACKER.step(prefill=bool(scheduled.scheduled_new_reqs))


class WorkerCommands:
    """Commands of the driver, answered by every rank."""

    def mtpprof_set_arm(self, enabled: list[str], log: str) -> list[str]:
        """Turn the live switches, and write what this rank prints from now on to `log` (with its rank); returns what is on.

        Raises:
            RunError: a switch cannot be set.
        """
        _print_to(Path(log.format(rank=getattr(self, "rank", 0))))
        APPLIED.set(self, frozenset(enabled))
        return sorted(APPLIED.enabled)

    def mtpprof_begin(self, steps: int, record: bool, skip: int) -> None:
        """Watch the coming steps; see `Tracker.begin`.

        Recorded windows come after vLLM has started its profiler, which on the CPU ends with a table of all operators: it takes many
        times as long as the trace and nobody reads it here.
        """
        profiler: Any = getattr(self, "profiler", None)
        if record and hasattr(profiler, "dump_cpu_time_total"):
            profiler.dump_cpu_time_total = False
        TRACKER.begin(steps, record=record, skip=skip)

    def mtpprof_end(self) -> list[int]:
        """Durations of the steps watched, ns."""
        return TRACKER.end()


def _print_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
