"""What mtpprof knows beyond the events: collectives with bytes and waits, steps, phases, and counters, as tracks of a
rank.

The decision: a collective is one slice named after what it does, so that Perfetto's own sums by name are sums by
kind; everything else is an argument, and an argument that is not known is absent, never 0. Wait and transfer are its
children. Figures are those of the call columns, untouched: SQL sums over these slices are `mtpprof analyze`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.known import RANGES
from mtpprof.analyzers.calls.links import Launches, Nest
from mtpprof.analyzers.calls.steps import phase_of_name
from mtpprof.analyzers.calls.table import Calls, Provenance, wire_bytes_of
from mtpprof.analyzers.numeric.arrays import I64, Bools
from mtpprof.analyzers.perfetto import lanes
from mtpprof.analyzers.perfetto.model import Argument, Flow, Layout, Process, Slices, Values, joined
from mtpprof.analyzers.perfetto.timeline import Arm
from mtpprof.analyzers.traces.table import MISSING, Category, EventTable

COLLECTIVE = "mtpprof.collective"
WAIT = "mtpprof.wait"
TRANSFER = "mtpprof.transfer"
STEP = "mtpprof.step"
PHASE = "mtpprof.phase"
ABOUT = "mtpprof.about"
"""Categories of what this module adds."""

_TEXTS = ("kind", "implementation", "algorithm", "fused", "phase", "site", "shape", "dtype", "group", "how")


def present(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    """The arguments that any slice has."""
    return tuple(argument for argument in arguments if argument.present().any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of one arm in the export."""

    layout: Layout
    process: Process
    arm: Arm
    table: int
    """Index in the arm."""
    window_ns: tuple[int, int]
    """What is shown of it, on the arm's own clock; the end is not included."""

    def shown(self, own_ns: I64) -> Bools:
        """Which times on the arm's own clock are shown."""
        return np.asarray((own_ns >= self.window_ns[0]) & (own_ns < self.window_ns[1]))


def add_about(rank: Rank, span_ns: tuple[int, int]) -> None:
    """One slice over the whole rank that says where it comes from and how its clock was aligned."""
    arm, layout = rank.arm, rank.layout
    table, alignment = arm.traces.tables[rank.table], arm.alignments[rank.table]
    texts = {
        "arm": arm.name,
        "path": table.meta.path,
        "clock": alignment.method,
        "problems": " ".join(problem.sentence for problem in table.problems),
        "withheld": " ".join(f"{item.answer}: {item.reason}" for item in arm.found.withheld),
    }
    numbers = {
        "rank": table.meta.rank,
        "clock_offset_ns": alignment.offset_ns,
        "clock_residual_ns": alignment.residual_ns,
    }
    arguments = [
        Argument(key=key, kind=Values.TEXT, column=layout.constant(text, 1)) for key, text in texts.items()
    ]
    arguments += [
        Argument(key=key, kind=Values.NUMBER, column=np.array([value], np.float64))
        for key, value in numbers.items()
        if value is not None
    ]
    slices = Slices(
        ts_ns=np.array([span_ns[0]]),
        dur_ns=np.array([span_ns[1] - span_ns[0]]),
        name=layout.constant(rank.process.name, 1),
        category=layout.constant(ABOUT, 1),
        arguments=present(arguments),
    )
    layout.slices(layout.track(rank.process, "about this trace"), slices)


def add_steps(rank: Rank) -> None:
    """The steps that start in what is shown."""
    steps, layout = rank.arm.found.steps, rank.layout
    rows = steps_of(rank)
    if not len(rows):
        return
    texts = layout.texts.codes(steps.texts)
    numbers = {
        "step": steps.number,
        "rows": steps.rows,
        "sequences": steps.sequences,
        "draft_tokens": steps.draft_tokens,
    }
    words = {"label": steps.label, "told_from": steps.source, "phase": steps.phase}
    arguments = [
        Argument(key=key, kind=Values.INTEGER, column=column[rows]) for key, column in numbers.items()
    ]
    arguments += [
        Argument(key=key, kind=Values.TEXT, column=texts[column[rows]]) for key, column in words.items()
    ]
    slices = Slices(
        ts_ns=rank.arm.placed(rank.arm.own(steps.table[rows], steps.start_ns[rows])),
        dur_ns=(steps.end_ns - steps.start_ns)[rows],
        name=layout.texts.codes(f"step {number}" for number in steps.number[rows].tolist()),
        category=layout.constant(STEP, len(rows)),
        arguments=present(arguments),
    )
    layout.lanes(rank.process, "steps", slices, lanes.following(slices.ts_ns, slices.dur_ns))


def steps_of(rank: Rank) -> I64:
    """Rows of the steps that start in what is shown."""
    steps = rank.arm.found.steps
    rows = np.flatnonzero(steps.table == rank.table)
    return rows[rank.shown(rank.arm.own(steps.table[rows], steps.start_ns[rows]))]


def add_phases(rank: Rank) -> None:
    """Phases: the phase ranges, on a device from the first kernel launched in each to the end of the last."""
    table, layout = rank.arm.traces.tables[rank.table], rank.layout
    name, start, end = _phase_spans(table)
    shown = rank.shown(start + rank.arm.shift_ns[rank.table])
    name, start, end = name[shown], start[shown], end[shown]
    if not len(name):
        return
    phases = layout.texts.codes(phase_of_name(text) for text in table.names)
    slices = Slices(
        ts_ns=rank.arm.moved(rank.table, start),
        dur_ns=end - start,
        name=phases[name],
        category=layout.constant(PHASE, len(name)),
    )
    layout.lanes(rank.process, "phases", slices, lanes.nested(slices.ts_ns, slices.dur_ns))


def _phase_spans(table: EventTable) -> tuple[NDArray[np.int32], I64, I64]:
    """Code of the name, start and end of every phase, on the clock of the table."""
    rows = table.rows(*RANGES)
    phases = [code for code in np.unique(table.name[rows]).tolist() if phase_of_name(table.names[code])]
    nest = Nest.of(table, rows[np.isin(table.name[rows], phases)])
    kernels = table.rows(Category.KERNEL)
    if not len(kernels):
        return table.name[nest.rows], nest.start, nest.end
    launch = Launches.of(table).row_of(table.correlation[kernels])
    kernels, launch = kernels[launch != MISSING], launch[launch != MISSING]
    inside = nest.innermost(table.track[launch], table.ts_ns[launch])
    kernels, inside = kernels[inside != MISSING], inside[inside != MISSING]
    first = np.full(len(nest.rows), np.iinfo(np.int64).max)
    last = np.full(len(nest.rows), MISSING, np.int64)
    np.minimum.at(first, inside, table.ts_ns[kernels])
    np.maximum.at(last, inside, table.end_ns[kernels])
    worked = last != MISSING
    return table.name[nest.rows[worked]], first[worked], last[worked]


def add_collectives(rank: Rank, calls: Calls, flow: Flow | None) -> None:
    """The collectives of a rank on the communication track, each with what it waited and transferred.

    Args:
        rank: Whose calls they are.
        calls: The calls to be shown.
        flow: Arrows to the same collectives of the other ranks.
    """
    layout = rank.layout
    parents = collective_slices(layout, rank.arm, calls, COLLECTIVE, flow)
    waits, transfers = _parts(layout, calls, parents)
    for number, rows in enumerate(lanes.following(parents.ts_ns, parents.dur_ns)):
        track = layout.lane(rank.process, "communication", number)
        layout.slices(track, _family(parents, waits, transfers, rows))


def collective_slices(
    layout: Layout, arm: Arm, calls: Calls, category: str, flow: Flow | None = None
) -> Slices:
    """Calls as slices, with all that is known of them."""
    texts = layout.texts.codes(calls.texts)
    provenance = layout.texts.codes(item.name.lower() for item in Provenance)
    inside = calls.step != MISSING
    step = np.full(len(calls), MISSING, np.int64)
    step[inside] = arm.found.steps.number[arm.found.steps.rows_of(calls.table[inside], calls.step[inside])]
    numbers: dict[str, NDArray[Any]] = {
        "rank": calls.rank,
        "step": step,
        "payload_bytes": calls.payload_bytes,
        "wire_bytes": wire_bytes_of(calls),
        "wait_ns": calls.wait_ns,
        "transfer_ns": calls.transfer_ns,
        "exposed_ns": calls.exposed_ns,
        "group_size": calls.group_size,
        "seq": calls.seq,
        "match": calls.match,
        "transient": np.where(calls.transient, 1, MISSING),
    }
    arguments = [Argument(key="arm", kind=Values.TEXT, column=layout.constant(arm.name, len(calls)))]
    arguments += [Argument(key=name, kind=Values.TEXT, column=texts[getattr(calls, name)]) for name in _TEXTS]
    arguments.append(Argument(key="bytes", kind=Values.TEXT, column=provenance[calls.provenance]))
    arguments += [Argument(key=key, kind=Values.INTEGER, column=column) for key, column in numbers.items()]
    return Slices(
        ts_ns=arm.placed(arm.own(calls.table, calls.ts_ns)),
        dur_ns=calls.dur_ns,
        name=_names(layout, calls),
        category=layout.constant(category, len(calls)),
        arguments=present(arguments),
        flow=flow,
    )


def _names(layout: Layout, calls: Calls) -> NDArray[np.int32]:
    """`all_reduce`, or `all_reduce + residual_rmsnorm` where it is fused."""
    pairs, which = np.unique(np.stack([calls.kind, calls.fused]), axis=1, return_inverse=True)
    words = [[calls.texts[code] for code in pair if calls.texts[code]] for pair in pairs.T.tolist()]
    return layout.texts.codes(" + ".join(pair) for pair in words)[which.reshape(-1)]


def _parts(layout: Layout, calls: Calls, parents: Slices) -> tuple[Slices, Slices]:
    """Wait and transfer of the calls, of equal length with them: where there is none, of length -1."""
    known = calls.wait_ns != MISSING
    wait = Slices(
        ts_ns=parents.ts_ns,
        dur_ns=np.where(known, calls.wait_ns, MISSING),
        name=layout.constant("wait", len(calls)),
        category=layout.constant(WAIT, len(calls)),
    )
    transfer = Slices(
        ts_ns=parents.ts_ns + np.where(known, calls.wait_ns, 0),
        dur_ns=np.where(known, calls.transfer_ns, MISSING),
        name=layout.constant("transfer", len(calls)),
        category=layout.constant(TRANSFER, len(calls)),
    )
    return wait, transfer


def _family(parents: Slices, waits: Slices, transfers: Slices, rows: I64) -> Slices:
    """The calls `rows` of one lane with their parts, in the order of the track: what starts together, the longest and the parent first."""
    parts = [part.take(rows[part.dur_ns[rows] > 0]) for part in (waits, transfers)]
    family = joined([parents.take(rows), *parts])
    return family.take(np.lexsort((-family.dur_ns, family.ts_ns)))
