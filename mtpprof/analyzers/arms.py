"""The collective calls of one arm of a run, read from its ranks' traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mtpprof.analyzers.attribution import analyze
from mtpprof.analyzers.calls import Calls
from mtpprof.analyzers.discovery import open_traces
from mtpprof.analyzers.table import MISSING
from mtpprof.errors import InputError
from mtpprof.rundir import ArmRecord, CaseRecord, RunDirectory


def read_calls(directory: RunDirectory, case: CaseRecord, arm: ArmRecord) -> tuple[Calls | None, str]:
    """Calls of all ranks, with `step` as the number that the run gave it (-1: outside the counted steps).

    Returns:
        The calls, or None and the reason.
    """
    paths = [directory.trace(case.id, arm.name, rank) for rank in range(case.tp)]
    absent = [str(rank) for rank, path in enumerate(paths) if not path.is_file()]
    if absent:
        return None, f"no trace of rank {', '.join(absent)}"
    try:
        (traces,) = open_traces(paths)
    except (InputError, ValueError) as error:
        return None, str(error)
    found = analyze(traces)
    numbers = np.append(found.steps.number, MISSING)  # so that a call outside of all steps stays outside
    return replace(found.calls, step=numbers[found.steps.rows_of(found.calls.table, found.calls.step)]), ""
