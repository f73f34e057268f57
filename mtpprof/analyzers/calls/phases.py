"""Phase of each call: prefill, target, draft pass, sampling, where the trace can tell.

Sources, the surest first: the call's own range; a phase range around its launch (ours, or an engine's); the
annotation of the step for what was launched inside it; for vLLM, what follows the annotation: with speculation the
draft passes, told apart by their repetition, without it the sampling.
"""

from __future__ import annotations

import numpy as np

from mtpprof.analyzers.calls.known import RANGES, Columns
from mtpprof.analyzers.calls.links import Launches, Nest
from mtpprof.analyzers.calls.steps import DRAFT, SAMPLE, Marks, call_times, phase_of_name
from mtpprof.analyzers.calls.table import Vocabulary
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.traces.table import MISSING, EventTable
from mtpprof.models.traffic import Kind


def tell_phases(table: EventTable, columns: Columns, marks: Marks, step: I64, vocabulary: Vocabulary) -> None:
    """Writes the phase of every call that does not have one yet."""
    _from_phase_ranges(table, columns, vocabulary)
    issued = call_times(columns)
    draft_tokens = max((name.draft_tokens for name in marks.names), default=MISSING)
    for index, name in enumerate(marks.names):
        mine = np.flatnonzero((step == index) & (columns["phase"] == 0))
        if not name.phase or not len(mine):
            continue
        inside = issued[mine] <= marks.inside_end[index]
        columns["phase"][mine[inside]] = vocabulary.code(name.phase)
        if draft_tokens != MISSING:
            after = mine[~inside]
            kinds = [vocabulary.texts[kind] for kind in columns["kind"][after]]
            texts = _after_the_target(kinds, draft_tokens)
            columns["phase"][after] = vocabulary.codes(texts)


def _from_phase_ranges(table: EventTable, columns: Columns, vocabulary: Vocabulary) -> None:
    rows = table.rows(*RANGES)
    codes = np.unique(table.name[rows])
    phases = {code: phase for code in codes.tolist() if (phase := phase_of_name(table.names[code]))}
    rows = rows[np.isin(table.name[rows], np.fromiter(phases, np.int64))]
    asked = np.flatnonzero(columns["phase"] == 0)
    if not len(rows) or not len(asked):
        return
    source = columns["row"][asked]
    on_device = columns["on_device"][asked]
    source = np.where(on_device, Launches.of(table).row_of(table.correlation[source]), source)
    asked, source = asked[source != MISSING], source[source != MISSING]
    nest = Nest.of(table, rows)
    around = nest.row_of(nest.innermost(table.track[source], table.ts_ns[source]))
    for index, row in zip(asked[around != MISSING].tolist(), around[around != MISSING].tolist(), strict=True):
        columns["phase"][index] = vocabulary.code(phases[int(table.name[row])])


def _after_the_target(kinds: list[str], draft_tokens: int) -> list[str]:
    """Phases of the calls that follow vLLM's annotation in one step, by their kinds.

    Every draft pass issues the same collectives, so what follows is `draft_tokens` repetitions of one sequence; the V2
    runner gathers the target's logits before them. Where it is neither, the calls are `draft` without a number.
    """
    if draft_tokens == 0:
        return [SAMPLE] * len(kinds)
    for before in (0, 1):
        period, rest = divmod(len(kinds) - before, draft_tokens)
        passes = kinds[before:]
        if set(kinds[:before]) <= {Kind.ALL_GATHER} and not rest and passes == passes[:period] * draft_tokens:
            return [SAMPLE] * before + [f"{DRAFT}[{index // period}]" for index in range(len(passes))]
    return [DRAFT] * len(kinds)
