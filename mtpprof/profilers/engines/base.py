"""What an engine is, seen from the parent: it checks that a plan can run here and says which command runs it."""

from __future__ import annotations

from typing import Protocol

from mtpprof.profilers.process import Command, Nodes
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.records import RunRecord


class Engine(Protocol):
    """One way to run a model under every arm."""

    name: str

    def refusals(self, device: str) -> dict[str, str]:
        """Optimizations that this engine cannot switch on a device, each with the reason. Looks at what is installed, imports none."""

    def deviations(self, run: RunRecord) -> list[str]:
        """In what the engine runs something else than was asked for, one sentence each; empty: nothing."""

    def unavailable(self, run: RunRecord) -> dict[str, str]:
        """Optimizations of the run that will fall back on this machine, each with the reason: their arms run, and do not engage."""

    def preflight(self, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> None:
        """Check what the run needs of this machine, before anything starts.

        Raises:
            MtpprofError: what is missing and what to do.
        """

    def command(self, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> Command:
        """The child process that carries out the run."""
