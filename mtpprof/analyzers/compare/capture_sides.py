"""Captures that no run of ours made, each as a side, however many there are below some paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtpprof.analyzers.calls.attribution import ReadOptions
from mtpprof.analyzers.compare.side import Side, side_of, traces_of
from mtpprof.analyzers.traces.discover import examine_traces
from mtpprof.analyzers.traces.verdicts import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSides:
    """Captures, read and examined."""

    sides: tuple[Side, ...]
    """In the order in which the user named them."""
    problems: tuple[Problem, ...]
    """Also of captures that give no side."""


def capture_sides(paths: Sequence[Path], options: ReadOptions) -> CaptureSides:
    """Read every capture below `paths`; of those that share a label, the later ones get a number.

    Raises:
        InputError: a path does not exist, or nothing there is a trace.
        UsageError: ranks or a rank map that the traces do not have.
    """
    problems: list[Problem] = []
    sides: list[Side] = []
    for traces in examine_traces(paths, options.rank_map, options.load):
        problems += traces.all_problems()
        if not traces.tables:
            continue
        known = {side.label for side in sides}
        label = traces.label if traces.label not in known else f"{traces.label} ({len(sides) + 1})"
        sides.append(side_of(traces_of(traces, options), label, options.model))
    return CaptureSides(sides=tuple(sides), problems=tuple(problems))
