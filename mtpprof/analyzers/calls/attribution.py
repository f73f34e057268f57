"""Puts attribution together: traces in, calls with bytes, phases, steps, matches and waits out, and what cannot be said.

`analyze` is a pure function. Its result holds the columns (`Attribution.calls`, `.steps`), on which all views of
`grouping` and `stepviews` work, beside what was found about the set as a whole. An answer that the traces do not
support is in `withheld` with the reason; it is nowhere a zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from mtpprof.analyzers.calls.classify import with_user_rules
from mtpprof.analyzers.calls.derive_bytes import derive_by_position, derive_from_model
from mtpprof.analyzers.calls.find import find_calls
from mtpprof.analyzers.calls.known import tell_bytes
from mtpprof.analyzers.calls.match_ranks import Clock, GroupView, match_ranks
from mtpprof.analyzers.calls.no_answer import beside_steps, beside_time, in_error, nothing_counted
from mtpprof.analyzers.calls.phases import tell_phases
from mtpprof.analyzers.calls.rules import Rule
from mtpprof.analyzers.calls.steps import Steps, find_marks, join_steps, place_calls, step_columns
from mtpprof.analyzers.calls.table import Calls, Vocabulary, join
from mtpprof.analyzers.calls.unknown_names import Suspect, suspicion
from mtpprof.analyzers.calls.waits import (
    Straggler,
    WaitShare,
    WaitVerdict,
    mark_transients,
    stragglers,
    wait_share,
)
from mtpprof.analyzers.numeric.words import counted
from mtpprof.analyzers.traces.discover import RankMap
from mtpprof.analyzers.traces.load import LoadOptions
from mtpprof.analyzers.traces.nvtx_beside import NvtxBeside
from mtpprof.analyzers.traces.table import MISSING, EventTable, TraceSet
from mtpprof.analyzers.traces.verdicts import Answer, Problem, Verdict, withheld
from mtpprof.errors import UsageError
from mtpprof.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of the traces that is looked at; None: no bound."""

    start_ns: int | None = None
    """From the first event of the set."""
    end_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    """Numbers of steps as the trace counts them, both included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How traces are read and attributed: the same for every command and for the dashboard."""

    rules: tuple[Rule, ...] = ()
    """The user's own rules, asked before the built-in ones."""
    ranks: frozenset[int] | None = None
    """Ranks to show; None: all. The others still serve to match collectives."""
    window: Window = Window()
    model: ModelSpec | None = None
    """Dimensions from which payloads of calls without sizes are derived."""
    rank_map: RankMap = field(default_factory=dict)
    """Overrules what files say of their rank."""
    load: LoadOptions = field(default_factory=LoadOptions)
    """How much of a file is read, and with how many processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """An answer that is not given."""

    answer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What the traces of one run say of its communication."""

    label: str
    world_size: int | None
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    paths: tuple[str, ...]
    """By table index."""
    calls: Calls
    steps: Steps
    clocks: tuple[Clock, ...]
    groups: tuple[GroupView, ...]
    waits: WaitShare
    waits_by_kind: dict[str, WaitShare]
    stragglers: tuple[Straggler, ...]
    suspects: tuple[Suspect, ...]
    """Names that look like communication and that no rule knows, summed over the ranks."""
    problems: tuple[Problem, ...]
    withheld: tuple[Withheld, ...]
    transients: tuple[str, ...]
    notes: tuple[str, ...]
    nvtx: tuple[NvtxBeside, ...] = ()
    """The NVTX captures beside the traces, of those that have one."""
    no_answer: str = ""
    """Why the traces, or the part of them that was asked for, say nothing at all; empty: they say something."""
    outside_window: bool = False
    """There is no answer because the window that was asked for holds nothing of the traces."""

    @property
    def counts_are_exact(self) -> bool:
        """Whether every collective of the window was seen; otherwise their number is a lower bound."""
        return not self.suspects and not withheld(self.problems, Answer.COUNTS)


def analyze(traces: TraceSet, options: ReadOptions | None = None) -> Attribution:
    """Attribute the time and bytes of a run's traces to its collectives.

    Args:
        traces: The event tables of one run.
        options: Rules, window, ranks, model.

    Raises:
        UsageError: a rank is asked for that the set does not have.
    """
    options = options or ReadOptions()
    if options.ranks is not None and (absent := sorted(options.ranks - set(traces.ranks))):
        raise UsageError(f"{traces.label}: has no trace of ranks {absent}; it has {list(traces.ranks)}.")
    parts = _Parts.of(traces, options)
    problems = traces.all_problems()
    metas = [table.meta for table in traces.tables]
    forbidding = [
        item for item in withheld(problems, Answer.CROSS_RANK) if item.verdict is not Verdict.MISSING_RANKS
    ]
    matching = match_ranks(
        parts.calls, metas, traces.world_size, forbidden=" ".join(item.sentence for item in forbidding)
    )
    calls, transients = mark_transients(matching.calls)
    no_answer = in_error(traces) or nothing_counted(len(parts.calls), parts.uncounted, problems)
    outside = "" if no_answer else _outside(traces, parts.steps, options.window)
    no_answer = no_answer or outside
    suspects = _summed(parts.suspects)
    calls, steps, cut = _asked_for(calls, parts.steps, options, _origin(traces))
    residual = max((view.residual_ns for view in matching.groups if view.waits_known), default=0)
    reasons = [
        *matching.reasons,
        *(f"{view.group}: {view.reason}." for view in matching.groups if view.reason),
    ]
    waits = wait_share(calls, residual, " ".join(reasons))
    told = waits.verdict is not WaitVerdict.INCONCLUSIVE
    kinds = {calls.texts[code]: calls.take(calls.kind == code) for code in np.unique(calls.kind).tolist()}
    return Attribution(
        label=traces.label,
        world_size=traces.world_size,
        ranks=traces.ranks,
        missing_ranks=traces.missing_ranks,
        paths=tuple(meta.path for meta in metas),
        calls=calls,
        steps=steps,
        clocks=matching.clocks,
        groups=matching.groups,
        waits=waits,
        waits_by_kind={kind: wait_share(part, residual, " ".join(reasons)) for kind, part in kinds.items()},
        stragglers=stragglers(calls) if told else (),
        suspects=suspects,
        problems=problems,
        withheld=(
            *_withheld(calls, steps, reasons, problems),
            *_withheld_stragglers(waits),
            *_withheld_counts(no_answer, problems),
            *_withheld_by_suspects(suspects),
        ),
        transients=transients,
        notes=(*parts.notes, *cut),
        nvtx=tuple(table.nvtx for table in traces.tables if table.nvtx is not None),
        no_answer=no_answer,
        outside_window=bool(outside),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Parts:
    """Everything that is found in one trace at a time, put together."""

    calls: Calls
    steps: Steps
    suspects: tuple[Suspect, ...]
    notes: tuple[str, ...]
    uncounted: tuple[str, ...]
    """What was seen of collectives and is in no call, with the reason."""

    @staticmethod
    def of(traces: TraceSet, options: ReadOptions) -> _Parts:
        classifier, vocabulary = with_user_rules(options.rules), Vocabulary()
        call_parts, step_parts = [], []
        suspects: list[Suspect] = []
        notes: list[str] = []
        uncounted: list[str] = []
        for index, table in enumerate(traces.tables):
            found = find_calls(table, classifier, vocabulary)
            columns = found.columns
            if table.nvtx is not None:
                tell_bytes(columns, table.nvtx, vocabulary)
                notes += [f"{_name(table)}: {sentence}" for sentence in table.nvtx.sentences]
            marks = find_marks(table, columns)
            step, start, end = place_calls(table, columns, marks)
            tell_phases(table, columns, marks, step, vocabulary)
            derive_by_position(columns, step, marks.names, vocabulary)
            if options.model is not None:
                derive_from_model(columns, step, marks.names, vocabulary, options.model)
            base = table.meta.base_time_ns or 0
            columns["step"], columns["table"] = step.astype(np.int32), np.full(len(step), index, np.int32)
            columns["ts_ns"] = columns["ts_ns"] + base
            columns["launch_ns"] = np.where(
                columns["launch_ns"] == MISSING, MISSING, columns["launch_ns"] + base
            )
            steps = step_columns(table, marks, start + base, end + base, vocabulary)
            steps["table"] = np.full(len(start), index, np.int32)
            call_parts.append(columns)
            step_parts.append(steps)
            suspects += found.suspects
            uncounted += [f"{_name(table)}: {note}" for note in found.notes]
        return _Parts(
            calls=join(call_parts, vocabulary),
            steps=join_steps(step_parts, vocabulary),
            suspects=tuple(suspects),
            notes=(*notes, *uncounted),
            uncounted=tuple(uncounted),
        )


def _name(table: EventTable) -> str:
    return table.meta.path if table.meta.rank is None else f"rank {table.meta.rank}"


def _origin(traces: TraceSet) -> int:
    """Start of the first event of the set, on the clock of the calls."""
    starts = [int(table.ts_ns[0]) + (table.meta.base_time_ns or 0) for table in traces.tables if len(table)]
    return min(starts, default=0)


def _outside(traces: TraceSet, steps: Steps, window: Window) -> str:
    """Why a window holds nothing of the traces; empty: it holds something."""
    return beside_time(traces, _origin(traces), window.start_ns, window.end_ns) or beside_steps(
        traces.label, steps, window.first_step, window.last_step
    )


def _asked_for(
    calls: Calls, steps: Steps, options: ReadOptions, origin_ns: int
) -> tuple[Calls, Steps, tuple[str, ...]]:
    """The calls and the steps of the ranks and of the window that are asked for, and which steps the window cuts.

    A step that the window cuts is left out: its calls count in sums, but no figure per step is of half a step.
    """
    window, everything = options.window, np.ones(len(calls), np.bool_)
    mine, whole = everything, np.ones(len(steps), np.bool_)
    if options.ranks is not None:
        mine = mine & np.isin(calls.rank, list(options.ranks))
        whole &= np.isin(steps.rank, list(options.ranks))
    if window.first_step is not None or window.last_step is not None:
        whole &= steps.number >= (window.first_step or 0)
        if window.last_step is not None:
            whole &= steps.number <= window.last_step
        row = steps.rows_of(calls.table, calls.step)
        mine = mine & (row != MISSING) & (whole[row] if len(whole) else False)
    asked = whole.copy()
    if window.start_ns is not None:
        mine = mine & (calls.ts_ns >= origin_ns + window.start_ns)
        whole &= steps.start_ns >= origin_ns + window.start_ns
        asked &= steps.end_ns > origin_ns + window.start_ns
    if window.end_ns is not None:
        mine = mine & (calls.ts_ns < origin_ns + window.end_ns)
        whole &= steps.end_ns <= origin_ns + window.end_ns
        asked &= steps.start_ns < origin_ns + window.end_ns
    if mine.all() and whole.all():
        return calls, steps, ()
    cut = int((asked & ~whole).sum())
    note = f"the window cuts {counted(cut, 'step')}, counted on every rank: left out of figures per step"
    kept, renumbered = steps.take(whole, calls.table, calls.step)
    return replace(calls, step=renumbered).take(mine), kept, (note,) if cut else ()


def _summed(suspects: Iterable[Suspect]) -> tuple[Suspect, ...]:
    """Suspects of all ranks, one entry per name, the longest first."""
    by_name: dict[str, Suspect] = {}
    for item in suspects:
        known = by_name.get(item.name)
        by_name[item.name] = (
            item
            if known is None
            else replace(known, count=known.count + item.count, dur_ns=known.dur_ns + item.dur_ns)
        )
    return tuple(sorted(by_name.values(), key=lambda item: (-item.dur_ns, item.name)))


def _withheld_stragglers(waits: WaitShare) -> Iterable[Withheld]:
    """Who came last is an answer about waiting: where waiting is inconclusive, so is it."""
    if waits.verdict is WaitVerdict.INCONCLUSIVE and waits.calls:
        yield Withheld(answer="which rank is last", reason=waits.reason)


def _withheld_counts(no_answer: str, problems: Iterable[Problem]) -> Iterable[Withheld]:
    if no_answer and all(problem.sentence != no_answer for problem in withheld(problems, Answer.COUNTS)):
        yield Withheld(answer=str(Answer.COUNTS), reason=no_answer)


def _withheld_by_suspects(suspects: Iterable[Suspect]) -> Iterable[Withheld]:
    if doubt := suspicion(suspects):
        reason = f"{doubt}; not counted, so calls, bytes and times in collectives are lower bounds; teach it with --rules"
        yield Withheld(answer=str(Answer.COUNTS), reason=reason)


def _withheld(
    calls: Calls, steps: Steps, reasons: Iterable[str], problems: Iterable[Problem]
) -> Iterable[Withheld]:
    for reason in dict.fromkeys(reasons):
        yield Withheld(answer="wait and transfer", reason=reason)
    for problem in problems:
        if problem.apart:
            yield Withheld(answer="another run", reason=problem.sentence)
        for answer in sorted(problem.forbids - {Answer.CROSS_RANK}):
            yield Withheld(answer=str(answer), reason=problem.sentence)
    unknown = calls.payload_bytes == MISSING
    for code, count in zip(*np.unique(calls.how[unknown], return_counts=True), strict=True):
        yield Withheld(answer=f"bytes of {count} of {len(calls)} calls", reason=calls.texts[code])
    if len(calls) and not len(steps):
        yield Withheld(
            answer="figures per step", reason="no annotation or graph launch in the trace tells its steps"
        )
