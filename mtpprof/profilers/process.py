"""The child process of a run: how it is started, and what it offers to the experiment.

Parent side: `Command` on one of the `Nodes`. Child side: `Host` is the process (or the ranks together), `Session` one case in it.
Engines (`mtpprof.profilers.engines`) provide all of these; what uses them needs no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mtpprof.rundir.records import CaseRecord, EngineMetrics, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to start for a run: it becomes the leader of its own process group."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    shared_memory_prefix: str
    """Segments under /dev/shm that belong to this run, removed after it however it ended."""
    leftovers: tuple[str, ...] = ()
    """Patterns of segments that the processes may leave under names that do not tell the run: new ones that nobody uses are removed."""
    scratch: tuple[Path, ...] = ()
    """Folders that are removed after the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Place of this process in a run over several hosts."""

    count: int = 1
    rank: int = 0
    endpoint: str = ""
    """`host:port` where the hosts meet; empty: this host alone, on a free port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWindow:
    """What one timed window gave."""

    step_ns: list[list[int]]
    """`[rank][step]`."""
    tokens: list[list[int]]
    accepted: list[list[int]]
    metrics: EngineMetrics | None = None
    """What the engine's own counters say of the window."""
    probe: list[list[float]] = field(default_factory=list)
    """See `RoundOutputs.probe`."""


class Session(Protocol):
    """A case, loaded and ready; lives in the engine's child process(es)."""

    def time_window(self, enabled: frozenset[str], *, warmup: int, steps: int) -> TimedWindow:
        """Set the arm, start from the same prompts, warm up, and time `steps` steps without a profiler."""

    def profile_window(
        self, enabled: frozenset[str], *, warmup: int, steps: int, folder: Path
    ) -> list[list[int]]:
        """The same under the profiler; every rank writes its trace into `folder`. Returns step times `[rank][step]`."""

    def close(self) -> None:
        """Release the case."""


class Host(Protocol):
    """The processes that carry a run out together. Every rank runs the same loop; one of them writes."""

    is_writer: bool

    def open(self, run: RunRecord, case: CaseRecord) -> Session:
        """Load a case."""

    def agree(self, value: Any) -> Any:
        """The writer's value, on every rank."""

    def alive(self, doing: str) -> None:
        """Feed the watchdog: what this rank is about to do."""
