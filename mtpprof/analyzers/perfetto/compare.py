"""What the second arm saved against the first, on a track of its own: collectives removed, added, fused or replaced, step by step.

The decision: what counts as which change is decided by the same rounds of matching as in `mtpprof compare` (`changes.ROUNDS`), applied
to the single calls of a pair of steps in their order, so that every change stands at its place in time. Bytes and time of each stand
beside it; a figure that is not known in both arms is absent.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.table import Calls, wire_bytes_of
from mtpprof.analyzers.compare.changes import ROUNDS
from mtpprof.analyzers.measures.batches import Batch, Form
from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.perfetto import lanes
from mtpprof.analyzers.perfetto.communication import Rank, collective_slices, present
from mtpprof.analyzers.perfetto.model import Argument, Slices, Values, joined
from mtpprof.analyzers.perfetto.timeline import StepPair
from mtpprof.analyzers.traces.table import MISSING

SAVED = "mtpprof.saved"
SAVED_PER_STEP = "mtpprof.saved_per_step"

_SILENT = frozenset({None, "moved"})
"""Rounds whose matches save nothing: the same call, perhaps elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One collective that differs between the arms, by its index in each; None: not there."""

    what: str
    first: int | None
    second: int | None
    comparable: bool = True
    """False: the steps have different batches, so that bytes and times say nothing of each other."""


def changes(first: Calls, second: Calls, *, same_batch: bool = True) -> Iterator[Change]:
    """The changes from the calls of one step (or window) in the first arm to those in the second.

    Args:
        first: Calls of the first arm.
        second: Calls of the second arm.
        same_batch: False: sizes differ because the batches do, and tell no calls apart.
    """
    ours, theirs = (_forms(*sides, same_batch) for sides in ((first, second), (second, first)))
    for step in ROUNDS:
        waiting: dict[tuple[str, ...], deque[int]] = defaultdict(deque)
        for index, form in ours.items():
            if not step.needs or getattr(form, step.needs):
                waiting[_key(form, step.columns)].append(index)
        for index, form in list(theirs.items()):
            candidates = waiting.get(_key(form, step.columns))
            if not candidates:
                continue
            before, after = ours.pop(candidates[0]), theirs.pop(index)
            partner = candidates.popleft()
            if step.what not in _SILENT:
                unfused = step.what == "fused" and before.fused and not after.fused
                what = "unfused" if unfused else str(step.what)
                yield Change(what=what, first=partner, second=index, comparable=same_batch)
    for index in ours:
        yield Change(what="removed", first=index, second=None, comparable=same_batch)
    for index in theirs:
        yield Change(what="added", first=None, second=index, comparable=same_batch)


def _forms(calls: Calls, others: Calls, same_batch: bool) -> dict[int, Form]:
    """Form of each call; without sizes where one of the calls of that kind and phase has none, or batches differ."""
    sizeless = {
        (form.kind, form.phase)
        for side in (calls, others)
        for form in _all_forms(side)
        if not (same_batch and form.shape and form.dtype)
    }
    return {
        index: form._replace(shape="", dtype="") if (form.kind, form.phase) in sizeless else form
        for index, form in enumerate(_all_forms(calls))
    }


def _all_forms(calls: Calls) -> Iterator[Form]:
    columns = [getattr(calls, name).tolist() for name in Form._fields]
    for codes in zip(*columns, strict=True):
        yield Form(*(calls.texts[code] for code in codes))


def _key(form: Form, columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(getattr(form, name) for name in columns)


def add_saved(first: Rank, second: Rank, calls: tuple[Calls, Calls], pairs: Sequence[StepPair]) -> None:
    """The `saved` tracks of a rank, in the process of the second arm.

    Args:
        first: The rank in the arm that is compared with.
        second: The rank in the arm whose saving is shown.
        calls: Calls of the rank in each arm, as shown.
        pairs: Corresponding steps; none: the arms are compared as a whole.
    """
    stretches = list(_stretches(first, second, calls, pairs))
    _add_per_step(first, second, calls, stretches)
    found: list[Change] = []
    for item in stretches:
        found += (
            replace(
                change,
                first=None if change.first is None else int(item.ours[change.first]),
                second=None if change.second is None else int(item.theirs[change.second]),
            )
            for change in changes(
                calls[0].take(item.ours), calls[1].take(item.theirs), same_batch=item.same_batch
            )
        )
    if found:
        slices = _markers(first, second, calls, found)
        second.layout.lanes(second.process, "saved", slices, lanes.following(slices.ts_ns, slices.dur_ns))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stretch:
    """A pair of steps, or the whole where there are none: indices of the calls in it."""

    pair: tuple[int, int] | None
    """Rows of the steps of each arm."""
    ours: I64
    theirs: I64
    batches: tuple[Batch, ...] = ()

    @property
    def same_batch(self) -> bool:
        """Whether bytes and times of the two compare."""
        return len(set(self.batches)) < 2


def _stretches(
    first: Rank, second: Rank, calls: tuple[Calls, Calls], pairs: Sequence[StepPair]
) -> Iterator[_Stretch]:
    """The pairs of steps that both arms show of this rank."""
    if not pairs:
        yield _Stretch(pair=None, ours=np.arange(len(calls[0])), theirs=np.arange(len(calls[1])))
        return
    for pair in pairs:
        if pair.first is None or pair.second is None:
            continue
        ours, theirs = _row_of(first, pair.first), _row_of(second, pair.second)
        if ours is None or theirs is None:
            continue
        yield _Stretch(
            pair=(ours, theirs),
            ours=np.flatnonzero(calls[0].step == pair.first),
            theirs=np.flatnonzero(calls[1].step == pair.second),
            batches=(_batch(first, ours), _batch(second, theirs)),
        )


def _row_of(rank: Rank, position: int) -> int | None:
    """Row of a step of the rank, where it has one and it is shown."""
    steps = rank.arm.found.steps
    rows = np.flatnonzero(steps.table == rank.table)[position : position + 1]
    shown = rank.shown(rank.arm.own(steps.table[rows], steps.start_ns[rows]))
    return int(rows[0]) if len(rows) and shown.all() else None


def _batch(rank: Rank, row: int) -> Batch:
    steps = rank.arm.found.steps
    return Batch(
        phase=steps.text("phase", row), rows=int(steps.rows[row]), sequences=int(steps.sequences[row])
    )


def _markers(first: Rank, second: Rank, calls: tuple[Calls, Calls], found: Sequence[Change]) -> Slices:
    """A slice a change: at the place of the call that the second arm has, or that it no longer has."""
    layout = second.layout
    gone = [change for change in found if change.second is None]
    there = [change for change in found if change.second is not None]
    parts = []
    for rank, own, rows, part in (
        (first, calls[0], [change.first for change in gone], gone),
        (second, calls[1], [change.second for change in there], there),
    ):
        if not part:
            continue
        slices = collective_slices(layout, rank.arm, own.take(np.array(rows, np.int64)), SAVED)
        words = [change.what for change in part]
        texts = layout.texts.texts
        names = [texts[code] for code in slices.name.tolist()]
        parts.append(
            Slices(
                ts_ns=slices.ts_ns,
                dur_ns=slices.dur_ns,
                name=layout.texts.codes(f"{word} {name}" for word, name in zip(words, names, strict=True)),
                category=slices.category,
                arguments=(
                    Argument(key="change", kind=Values.TEXT, column=layout.texts.codes(words)),
                    *_savings(calls, part),
                    *slices.arguments,
                ),
            )
        )
    return joined(parts)


def _savings(calls: tuple[Calls, Calls], found: Sequence[Change]) -> Iterator[Argument]:
    """What each change saves in time and bytes; negative: costs. A call that is not there takes nothing."""
    rows = (
        np.array([MISSING if change.first is None else change.first for change in found]),
        np.array([MISSING if change.second is None else change.second for change in found]),
    )
    comparable = np.array([change.comparable for change in found])
    columns = {
        "saved_ns": (calls[0].dur_ns, calls[1].dur_ns),
        "saved_payload_bytes": (calls[0].payload_bytes, calls[1].payload_bytes),
        "saved_wire_bytes": (wire_bytes_of(calls[0]), wire_bytes_of(calls[1])),
    }
    for key, sides in columns.items():
        before, after = (_figures(column, chosen) for column, chosen in zip(sides, rows, strict=True))
        saved = np.where(comparable, before - after, np.nan)
        if not np.isnan(saved).all():
            yield Argument(key=key, kind=Values.NUMBER, column=saved)
    durations = [_figures(side.dur_ns, chosen) for side, chosen in zip(calls, rows, strict=True)]
    for key, column, chosen in zip(("before_ns", "after_ns"), durations, rows, strict=True):
        yield Argument(key=key, kind=Values.NUMBER, column=np.where(chosen == MISSING, np.nan, column))


def _figures(column: I64, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Figures of calls: 0 where there is no call, NaN where there is one whose figure is not known."""
    if not len(column):
        return np.zeros(len(rows))
    values = np.where(column == MISSING, np.nan, column)[rows]
    return np.where(rows == MISSING, 0.0, values)


def _add_per_step(
    first: Rank, second: Rank, calls: tuple[Calls, Calls], stretches: Sequence[_Stretch]
) -> None:
    """One slice a step that sums up the difference."""
    sums = [_step_sum(first, second, calls, item, item.pair) for item in stretches if item.pair is not None]
    if not sums:
        return
    layout = second.layout
    start = np.array([item.ts_ns for item in sums])
    length = np.array([item.dur_ns for item in sums])
    # A step may end after the next has started on another rank; what is shown of it ends there.
    length[:-1] = np.minimum(length[:-1], np.diff(start))
    slices = Slices(
        ts_ns=start,
        dur_ns=length,
        name=layout.texts.codes(item.sentence() for item in sums),
        category=layout.constant(SAVED_PER_STEP, len(sums)),
        arguments=present(
            Argument(
                key=f"saved_{key}",
                kind=Values.NUMBER,
                column=np.array([getattr(item, key) for item in sums], np.float64),
            )
            for key in ("calls", "payload_bytes", "collective_ns", "step_ns")
        ),
    )
    layout.slices(layout.track(second.process, "saved per step"), slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepSum:
    """What the second arm saves in one step; negative: costs; NaN: not known."""

    ts_ns: int
    dur_ns: int
    batches: tuple[Batch, ...]
    calls: int
    payload_bytes: float
    collective_ns: float
    step_ns: float

    def sentence(self) -> str:
        """For the picture."""
        words = [f"{-self.calls:+d} calls"]
        if not np.isnan(self.payload_bytes):
            words.append(_scaled(-self.payload_bytes, _BYTES))
        if len(set(self.batches)) > 1:
            words.append("batches differ: " + " against ".join(batch.text for batch in self.batches))
        else:
            words.append(f"{_scaled(-self.collective_ns, _TIMES)} in collectives")
            words.append(f"{_scaled(-self.step_ns, _TIMES)} step")
        return ", ".join(words)


_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1))
_TIMES = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1))


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """With its sign, in the largest unit that leaves a digit before the point."""
    unit, scale = next(((unit, scale) for unit, scale in units if abs(value) >= scale), units[-1])
    return f"{value / scale + 0.0:+.3g} {unit}"  # adding zero makes -0.0 positive


def _step_sum(
    first: Rank, second: Rank, calls: tuple[Calls, Calls], item: _Stretch, pair: tuple[int, int]
) -> _StepSum:
    starts, lengths = [], []
    for rank, row in zip((first, second), pair, strict=True):
        steps = rank.arm.found.steps
        own = rank.arm.own(steps.table[[row]], steps.start_ns[[row]])
        starts.append(int(rank.arm.placed(own)[0]))
        lengths.append(int(steps.end_ns[row] - steps.start_ns[row]))
    mine = [calls[0].take(item.ours), calls[1].take(item.theirs)]
    payload = [float(_figures(part.payload_bytes, np.arange(len(part))).sum()) for part in mine]
    time = [float(part.dur_ns.sum()) for part in mine]
    known = 1.0 if item.same_batch else np.nan
    return _StepSum(
        ts_ns=min(starts),
        dur_ns=max(lengths),
        batches=item.batches,
        calls=len(mine[0]) - len(mine[1]),
        payload_bytes=known * (payload[0] - payload[1]),
        collective_ns=known * (time[0] - time[1]),
        step_ns=known * (lengths[0] - lengths[1]),
    )
