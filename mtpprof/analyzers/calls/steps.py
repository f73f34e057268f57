"""Engine steps of a trace, and which step each call belongs to.

The decision: a call belongs to the step in which the CPU *launched* it, since a GPU runs behind; only kernels whose
launch is not in the file are placed by their own time. A step's length is measured where the work runs: on a device
from its first kernel to the first of the next step, on the CPU by the annotations. vLLM's and SGLang's annotations
cover neither draft passes nor sampling, so their steps last from start to start.

How engines name their steps, and what a name tells of the batch. `STEP_NAMES` is the registry: to add an engine is to add a row.

Sources: mtpprof's own ranges; vLLM's `execute_*` annotation (`vllm/v1/worker/gpu_worker.py`, plain and detailed
form); SGLang's `step[...]` (`python/sglang/srt/model_executor/model_runner.py`); `ProfilerStep#` of torch's profiler
schedule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof import ranges
from mtpprof.analyzers.calls.known import RANGES, Columns
from mtpprof.analyzers.calls.links import Launches, Nest
from mtpprof.analyzers.calls.table import Vocabulary
from mtpprof.analyzers.numeric.arrays import I32, I64, Bools
from mtpprof.analyzers.traces.table import MISSING, Category, EventTable

GRAPH_STEPS = "graph launches"
MIN_CALLS_PER_GRAPH = 4
"""A graph with fewer collectives is a piece of a model (piecewise capture), not a step."""
_FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Steps as columns of one length, ordered by table and start."""

    texts: tuple[str, ...]
    table: I32
    rank: I32
    number: I32
    """As the trace counts them, else in order from 0."""
    label: I32
    """Name of the annotation, a code into `texts`."""
    source: I32
    """What the steps were told from, a code into `texts`."""
    phase: I32
    """Phase of the forward pass: `prefill`, `target`, `mixed`; empty: not told."""
    rows: I32
    """Rows (tokens) of the forward pass; -1: not told."""
    sequences: I32
    draft_tokens: I32
    """Draft tokens verified per sequence; -1: not told."""
    start_ns: I64
    end_ns: I64
    closed: Bools
    """False: the last step of the window, whose end the trace does not show."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def text(self, column: str, index: int) -> str:
        """Text of one step in a text column."""
        return self.texts[int(getattr(self, column)[index])]

    def take(self, keep: Bools, table: I32, step: I32) -> tuple[Steps, I32]:
        """Some of the steps, and steps given by table and number in it as numbers among those that are left; -1: gone."""
        row = self.rows_of(table, step)
        left = replace(self, **{name: getattr(self, name)[keep] for name in STEP_COLUMNS})
        place = np.cumsum(keep) - 1 - np.searchsorted(left.table, self.table)
        known = row != MISSING
        known[known] = keep[row[known]]
        renumbered = np.full(len(step), MISSING, np.int32)
        renumbered[known] = place[row[known]]
        return left, renumbered

    def rows_of(self, table: I32, step: I32) -> I64:
        """Row of steps given by table and number in it; -1 stays -1."""
        first = np.searchsorted(self.table, table)
        return np.where(step != MISSING, first + step, MISSING).astype(np.int64)


STEP_COLUMNS = tuple(item.name for item in fields(Steps) if item.name != "texts")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marks:
    """The steps of one table as the CPU saw them."""

    names: tuple[StepName, ...]
    labels: tuple[str, ...]
    title: str
    start: I64
    """On the CPU, when the step began."""
    inside_end: I64
    """End of the annotation itself."""
    end: I64
    """End of the step."""
    closed: Bools
    track: int
    """Thread of the annotations; -1: there are none."""

    def step_at(self, time: I64) -> I64:
        """Step in which the CPU was at each time, or -1."""
        if not len(self.start):
            return np.full(len(time), MISSING, np.int64)
        index = np.searchsorted(self.start, time, side="right") - 1
        place = np.maximum(index, 0)
        limit = np.where(self.closed, self.end, _FOREVER)[place]
        return np.where((index >= 0) & (time <= limit), index, MISSING)


def find_marks(table: EventTable, columns: Columns) -> Marks:
    """The steps of `table`, by the first kind of annotation of which it has any, else by its graph launches."""
    rows = table.rows(*RANGES)
    codes, which = np.unique(table.name[rows], return_inverse=True)
    for kind in STEP_NAMES:
        parsed = [kind.parse(table.names[code]) for code in codes.tolist()]
        known = np.array([item is not None and not item.empty for item in parsed], np.bool_)
        if known.any():
            mine = rows[np.array([item is not None for item in parsed], np.bool_)[which]]
            return _from_annotations(table, kind, mine, dict(zip(codes.tolist(), parsed, strict=True)))
    return _from_graphs(table, columns)


def _from_annotations(
    table: EventTable, kind: StepNames, rows: I64, parsed: dict[int, StepName | None]
) -> Marks:
    nest = Nest.of(table, rows)
    rows = np.sort(nest.rows[nest.outermost])
    track, count = np.unique(table.track[rows], return_counts=True)
    main = int(track[np.argmax(count)])
    rows = rows[table.track[rows] == main]
    names = [parsed[code] for code in table.name[rows].tolist()]
    start, inside = table.ts_ns[rows], table.end_ns[rows]
    following = np.append(start[1:], max(int(inside[-1]), _last_end(table, main)))
    end = inside if kind.whole else following
    closed = np.full(len(rows), True)
    closed[-1] = kind.whole
    kept = np.array([item is not None and not item.empty for item in names], np.bool_)
    return Marks(
        names=tuple(item for item in names if item is not None and not item.empty),
        labels=tuple(table.names[code] for code in table.name[rows[kept]].tolist()),
        title=kind.title,
        start=start[kept],
        inside_end=inside[kept],
        end=end[kept],
        closed=closed[kept],
        track=main,
    )


def _last_end(table: EventTable, track: int) -> int:
    """End of the last event of a thread."""
    mine = table.track == track
    return int(table.end_ns[mine].max()) if mine.any() else 0


def _from_graphs(table: EventTable, columns: Columns) -> Marks:
    graph, count = np.unique(columns["graph"][columns["graph"] != MISSING], return_counts=True)
    launch = Launches.of(table).row_of(graph)
    launch = np.sort(launch[(launch != MISSING) & (count >= MIN_CALLS_PER_GRAPH)])
    start = table.ts_ns[launch]
    last = int(table.end_ns[launch[-1]]) if len(launch) else 0
    return Marks(
        names=(StepName(),) * len(launch),
        labels=tuple(table.names[code] for code in table.name[launch].tolist()),
        title=GRAPH_STEPS,
        start=start,
        inside_end=table.end_ns[launch],
        end=np.append(start[1:], last)[: len(launch)],
        closed=np.arange(len(launch)) < len(launch) - 1,
        track=MISSING,
    )


def call_times(columns: Columns) -> I64:
    """When the CPU issued each call: the launch of a kernel, the start of anything else; -1: not in the file."""
    return np.where(columns["on_device"], columns["launch_ns"], columns["ts_ns"]).astype(np.int64)


def place_calls(table: EventTable, columns: Columns, marks: Marks) -> tuple[I64, I64, I64]:
    """Assigns calls to steps and measures the steps where the work runs.

    Returns:
        Step of each call in `marks`, or -1; start and end of each step.
    """
    issued = call_times(columns)
    step = np.where(issued != MISSING, marks.step_at(issued), MISSING)
    if not columns["on_device"].any() or not len(marks.start):
        return step, marks.start, marks.end
    start, end = _device_windows(table, marks)
    late = issued == MISSING
    index = np.searchsorted(start, columns["ts_ns"][late], side="right") - 1
    inside = (index >= 0) & (columns["ts_ns"][late] <= end[np.maximum(index, 0)])
    step[late] = np.where(inside, index, MISSING)
    return step, start, end


def _device_windows(table: EventTable, marks: Marks) -> tuple[I64, I64]:
    """Start and end of each step by the kernels launched in it; a step without any keeps its times on the CPU."""
    kernels = table.rows(Category.KERNEL)
    launch = Launches.of(table).row_of(table.correlation[kernels])
    kernels, launch = kernels[launch != MISSING], launch[launch != MISSING]
    step = marks.step_at(table.ts_ns[launch])
    kernels, step = kernels[step != MISSING], step[step != MISSING]
    first = np.full(len(marks.start), _FOREVER, np.int64)
    last = np.full(len(marks.start), MISSING, np.int64)
    np.minimum.at(first, step, table.ts_ns[kernels])
    np.maximum.at(last, step, table.end_ns[kernels])
    worked = last != MISSING
    start = np.maximum.accumulate(np.where(worked, first, marks.start))
    end = np.append(start[1:], 0)
    end = np.where(
        marks.closed & (np.arange(len(start)) < len(start) - 1), end, np.where(worked, last, marks.end)
    )
    return start, np.maximum(end, start)


def step_columns(
    table: EventTable, marks: Marks, start: I64, end: I64, vocabulary: Vocabulary
) -> dict[str, NDArray[Any]]:
    """The steps of one table as columns of `Steps`; `table` index is left 0."""
    count, names = len(marks.start), marks.names
    told = np.array([item.number for item in names], np.int32)
    number = told if count and (told >= 0).all() else np.arange(count, dtype=np.int32)
    closed = marks.closed.copy()
    if count and table.count(Category.KERNEL):
        closed[-1] = False
    return {
        "table": np.zeros(count, np.int32),
        "rank": np.full(count, MISSING if table.meta.rank is None else table.meta.rank, np.int32),
        "number": number,
        "label": vocabulary.codes(marks.labels),
        "source": np.full(count, vocabulary.code(marks.title), np.int32),
        "phase": vocabulary.codes(item.phase for item in names),
        "rows": np.array([item.rows for item in names], np.int32),
        "sequences": np.array([item.sequences for item in names], np.int32),
        "draft_tokens": np.array([item.draft_tokens for item in names], np.int32),
        "start_ns": start,
        "end_ns": end,
        "closed": closed,
    }


def join_steps(parts: list[dict[str, NDArray[Any]]], vocabulary: Vocabulary) -> Steps:
    """The steps of several tables, one after the other."""
    parts = parts or [dict.fromkeys(STEP_COLUMNS, np.empty(0, np.int32))]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in STEP_COLUMNS}
    return Steps(texts=vocabulary.texts, **columns)


PREFILL = "prefill"
TARGET = "target"
MIXED = "mixed"
"""Prefill and decode rows in one batch."""
DRAFT = "draft"
SAMPLE = "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepName:
    """What the name of a step tells; -1 and empty: it does not."""

    number: int = -1
    phase: str = ""
    """Phase of what runs inside the annotation."""
    rows: int = -1
    """Rows (tokens) of the forward pass."""
    sequences: int = -1
    draft_tokens: int = -1
    """Draft tokens verified per decoding sequence."""
    empty: bool = False
    """A step without work: it ends the one before it and is none itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNames:
    """One engine's way of naming steps."""

    title: str
    parse: Callable[[str], StepName | None]
    whole: bool
    """The annotation spans the step; False: a step lasts from the start of one to the start of the next."""


def _own(name: str) -> StepName | None:
    parts = ranges.split(name)
    if parts is None or parts[0] != ranges.STEP:
        return None
    index = parts[1].get("index", "")
    return StepName(number=int(index) if index.isdecimal() and len(index) < 10 else -1)


_VLLM = re.compile(
    r"^execute_(?:\d+_)?context_(\d{1,9})\((?:sq)?(\d{1,9})(?!\d)[^)]*\)"
    r"_generation_(\d{1,9})\((?:sq)?(\d{1,9})(?!\d)[^)]*\)"
)


def _vllm(name: str) -> StepName | None:
    match = _VLLM.match(name)
    if match is None:
        return None
    contexts, context_rows, generations, generation_rows = map(int, match.groups())
    phase = MIXED if contexts and generations else PREFILL if contexts else TARGET
    whole = generations > 0 and generation_rows % generations == 0
    return StepName(
        phase=phase,
        rows=context_rows + generation_rows,
        sequences=contexts + generations,
        draft_tokens=generation_rows // generations - 1 if whole else -1,
        empty=not contexts + generations,
    )


_SGLANG = re.compile(r"^step\[(\w+)\b([^\]]*)\]")
_SGLANG_WORD = re.compile(r"\b(bs|toks)=(\d{1,9})\b")
_SGLANG_PHASES = {
    "EXTEND": PREFILL,
    "SPLIT_PREFILL": PREFILL,
    "DLLM_EXTEND": PREFILL,
    "MIXED": MIXED,
    "DECODE": TARGET,
    "TARGET_VERIFY": TARGET,
    "DRAFT_EXTEND": DRAFT,
    "DRAFT_EXTEND_V2": DRAFT,
}


def _sglang(name: str) -> StepName | None:
    match = _SGLANG.match(name)
    if match is None:
        return None
    mode, words = match[1], dict(_SGLANG_WORD.findall(match[2]))
    sequences = int(words.get("bs", -1))
    rows = int(words.get("toks", sequences if mode == "DECODE" else -1))
    return StepName(
        phase=_SGLANG_PHASES.get(mode, ""),
        rows=rows,
        sequences=sequences,
        empty=mode == "IDLE" or sequences == 0,
    )


_PROFILER = re.compile(r"^ProfilerStep#(\d{1,9})$")


def _profiler(name: str) -> StepName | None:
    match = _PROFILER.match(name)
    return StepName(number=int(match[1])) if match else None


STEP_NAMES: tuple[StepNames, ...] = (
    StepNames(title="mtpprof::step ranges", parse=_own, whole=True),
    StepNames(title="vLLM execute_* annotations, start to start", parse=_vllm, whole=False),
    StepNames(title="SGLang step[...] annotations, start to start", parse=_sglang, whole=False),
    StepNames(title="ProfilerStep# annotations", parse=_profiler, whole=True),
)
"""Asked in this order: the first kind of which a trace has any is what its steps are."""

PHASE_NAMES = {
    "draft": DRAFT,
    "draft_extend": DRAFT,
    "EAGLE_VERIFY": SAMPLE,
    "gpu_model_runner: draft": DRAFT,
    "gpu_model_runner: sample": SAMPLE,
}
"""Annotations of engines that span a phase: SGLang's speculative worker, vLLM with VLLM_CUSTOM_SCOPES_FOR_PROFILING."""


def phase_of_name(name: str) -> str:
    """Phase that an annotation spans; empty: none."""
    parts = ranges.split(name)
    if parts is not None:
        return parts[1].get("name", "") if parts[0] == ranges.PHASE else ""
    return PHASE_NAMES.get(name, "")
