"""What an engine is, on either side of the process boundary.

Parent side: `Engine` checks that a plan can run here and says which command runs it. Child side: `Session` is one case being run, and
`experiment.run_cases` is the loop over cases, rounds and arms that every engine shares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mtpprof.rundir.directory import RunDirectory
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


class Engine(Protocol):
    """One way to run a model under every arm."""

    name: str

    def refusals(self, device: str) -> dict[str, str]:
        """Optimizations that this engine cannot switch on a device, each with the reason. Looks at what is installed, imports none."""

    def deviations(self, run: RunRecord) -> list[str]:
        """In what the engine runs something else than was asked for, one sentence each; empty: nothing."""

    def preflight(self, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> None:
        """Check what the run needs of this machine, before anything starts.

        Raises:
            MtpprofError: what is missing and what to do.
        """

    def command(self, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> Command:
        """The child process that carries out the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
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

    def time_window(self, enabled: frozenset[str], *, warmup: int, steps: int) -> Window:
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
