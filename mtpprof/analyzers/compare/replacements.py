"""What came where collectives went: a kernel that replaces one of ours and that no rule knows would otherwise look like a saving.

The decision: names are not asked, numbers are. Where N collectives a step are on one side only, and a kernel (without a device: an
operation) of one name runs about N times a step on the other side only, that is said. It is a question and no verdict: what an
optimization brings along comes as often as what it takes away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mtpprof.analyzers.calls.attribution import Attribution
from mtpprof.analyzers.calls.classify import Classifier
from mtpprof.analyzers.calls.rules import Scope
from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.calls.unknown_names import short
from mtpprof.analyzers.compare.changes import Change
from mtpprof.analyzers.measures.step_parts import runs_on_device
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.traces.table import Category, EventTable, TraceSet

FEWEST = 2
"""Of fewer collectives a step, some other kernel comes as often by chance."""
ABOUT = 0.1
"""Part of the number by which the other may differ."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Others:
    """How often names that no rule knows ran in each step whose end is known. All arrays have one entry per step and name."""

    texts: tuple[str, ...]
    row: I64
    """Row in the steps of the analysis."""
    name: I64
    """Code into `texts`."""
    count: I64
    time_ns: I64
    counted: frozenset[int]
    """Rows of the steps that were looked at."""

    def of(self, rows: frozenset[int]) -> dict[str, tuple[float, float]]:
        """By name, how often and how long it ran per step and rank in these rows."""
        pairs = len(rows & self.counted)
        inside = np.isin(self.row, np.fromiter(rows, np.int64))
        count, time = Counter[int](), Counter[int]()
        for code, number, time_ns in zip(
            *(column[inside].tolist() for column in (self.name, self.count, self.time_ns)), strict=True
        ):
            count[code] += number
            time[code] += time_ns
        return {self.texts[code]: (number / pairs, time[code] / pairs) for code, number in count.items()}


def find_others(traces: TraceSet, found: Attribution, classifier: Classifier) -> Others:
    """Count everything beside the collectives, step by step.

    Args:
        traces: The event tables that `found` was made from.
        found: Its calls and steps.
        classifier: What it says of a name is known, and not counted here.
    """
    steps = found.steps
    usable = np.flatnonzero(steps.closed & (steps.end_ns > steps.start_ns))
    codes: dict[str, int] = {}
    parts = [np.zeros((4, 0), np.int64)]
    for index, table in enumerate(traces.tables):
        rows = _unknown(table, found.calls.take(found.calls.table == index), classifier)
        mine = usable[steps.table[usable] == index]
        mine = mine[np.argsort(steps.start_ns[mine], kind="stable")]
        if len(mine) and len(rows):
            parts.append(_counted(table, rows, mine, found, codes))
    row, name, count, total = np.concatenate(parts, axis=1)
    return Others(
        texts=tuple(codes),
        row=row,
        name=name,
        count=count,
        time_ns=total,
        counted=frozenset(usable.tolist()),
    )


def _unknown(table: EventTable, calls: Calls, classifier: Classifier) -> I64:
    """Rows of the kernels of a table (without a device: of its operations) that are no collective and that no rule knows."""
    on_device = runs_on_device(table, calls)
    scope, category = (Scope.KERNEL, Category.KERNEL) if on_device else (Scope.CPU_OP, Category.CPU_OP)
    rows = table.rows(category)
    rows = rows[~np.isin(rows, calls.row)]
    codes, which = np.unique(table.name[rows], return_inverse=True)
    keep = np.array([classifier.classify(table.names[code], scope) is None for code in codes.tolist()], bool)
    return rows[keep[which.reshape(-1)]] if len(rows) else rows


def _counted(table: EventTable, rows: I64, mine: I64, found: Attribution, codes: dict[str, int]) -> I64:
    """Step, name, number and time of `rows` within the steps `mine` of their table, a column a step and name."""
    start, end = found.steps.start_ns[mine], found.steps.end_ns[mine]
    time = table.ts_ns[rows] + (table.meta.base_time_ns or 0)
    place = np.searchsorted(start, time, side="right") - 1
    inside = (place >= 0) & (time < end[np.maximum(place, 0)])
    rows, place = rows[inside], place[inside]
    width = max(1, len(table.names))
    keys, which, count = np.unique(place * width + table.name[rows], return_inverse=True, return_counts=True)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, which.reshape(-1), table.dur_ns[rows])
    names = [codes.setdefault(table.names[code], len(codes)) for code in (keys % width).tolist()]
    return np.stack([mine[keys // width], np.array(names, np.int64), count.astype(np.int64), total])


def came_instead(
    changes: Sequence[Change],
    base: dict[str, tuple[float, float]],
    arm: dict[str, tuple[float, float]],
    labels: tuple[str, str],
) -> Iterator[str]:
    """Sentences on names that are on one side only, about as often as collectives are on the other only.

    Args:
        changes: Between the steps of the two sides.
        base: What else ran in a step of the first, as `Others.of` says.
        arm: The same of the second.
        labels: What the sides are called.
    """
    gone = [change for change in changes if change.after is None]
    come = [change for change in changes if change.before is None]
    for lost, label, here, there in ((gone, labels[1], arm, base), (come, labels[0], base, arm)):
        new = {name: figures for name, figures in here.items() if name not in there}
        for name, number, kind in _about(lost, new):
            yield (
                f"{label}: {number:g} × {short(name)} a step stand where the other side has as many {kind.replace('_', '-')}s: "
                f"if it is communication, nothing was saved; teach it with --rules."
            )


def _about(lost: Sequence[Change], new: dict[str, tuple[float, float]]) -> Iterator[tuple[str, float, str]]:
    """Of each number of collectives, the name that comes as often and takes longest."""
    sums: dict[str, float] = {}
    for change in lost:
        sums[change.kind] = sums.get(change.kind, 0) + change.calls
    said = set[str]()
    for kind, number in sorted({*sums.items(), *((change.kind, change.calls) for change in lost)}, key=_most):
        alike = [name for name, (rate, _) in new.items() if abs(rate - number) <= ABOUT * number]
        name = max(alike, key=lambda name: new[name][1], default=None)
        if number >= FEWEST and name is not None and name not in said:
            said.add(name)
            yield name, new[name][0], kind


def _most(item: tuple[str, float]) -> tuple[float, str]:
    return -item[1], item[0]
