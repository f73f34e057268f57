"""From lists of decoded events to the columns of an event table.

One batch of Structs becomes one set of small arrays, and the Structs are dropped: memory follows the table, not the text.
All odd types (numbers as strings, values too large, missing times) are dealt with here, on whole columns, with a slow
way per column that is taken only where the fast one raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I32, I64, Bools
from mtpprof.analyzers.traces.readers.events import NO_ARGS, Args
from mtpprof.analyzers.traces.readers.salvage import AnyEvent
from mtpprof.analyzers.traces.table import COLLECTIVE_COLUMNS, EVENT_COLUMNS, MISSING, Category

CATEGORIES: dict[str, Category] = {
    "kernel": Category.KERNEL,
    "concurrent_kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "gpu_user_annotation": Category.GPU_USER_ANNOTATION,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "cuda_sync": Category.SYNC,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
}
"""The category of a Kineto `cat`, in lower case: the names since torch 1.12 and the older ones."""

WINDOW_SPAN = "Trace"
"""The `cat` of the profiler's own span."""

ON_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.SYNC, Category.GPU_USER_ANNOTATION)
_ON_CPU = (Category.CPU_OP, Category.USER_ANNOTATION, Category.OTHER)


def _having(*categories: Category) -> Bools:
    """A table of all categories: which of them are among `categories`."""
    return np.isin(np.arange(len(Category)), categories)


# Which categories carry which arguments: looked for only there, since most events of a trace with stacks carry none.
_DEVICE = _having(*ON_DEVICE)
_CORRELATION = _having(*ON_DEVICE, Category.RUNTIME, Category.OTHER)
_EXTERNAL_ID = _having(*ON_DEVICE, Category.RUNTIME, *_ON_CPU)
_SHAPES = _having(*_ON_CPU)
_COLLECTIVE = _having(Category.KERNEL, *_ON_CPU)

_MAX_US = 4e15
"""Beyond this (127 years) a time is no time, and sums of two would leave int64 nanoseconds."""
_MAX_NS = int(_MAX_US) * 1000
_MAX_DUR_NS = 10**18
"""Beyond this (31 years) a length is none: start, length and the file's base still add up within int64."""
FLOAT64_EXACT_BELOW_US = 1 << 43
"""Microseconds up to which a float64 tells nanoseconds apart."""

K = TypeVar("K", bound=Hashable)


class Interner(dict[K, int]):
    """Gives every distinct key the next code: `codes = [interner[key] for key in keys]`."""

    def __missing__(self, key: K) -> int:
        code = self[key] = len(self)
        return code


@dataclass(slots=True, kw_only=True)
class Oddities:
    """What was found wrong with values of events."""

    without_time: int = 0
    """Complete events without a usable start: no row."""
    without_duration: int = 0
    """Complete events without a usable length: row of length 0."""
    negative_durations: int = 0
    unpaired: int = 0
    """Begin events without an end, and the other way round."""
    largest_us: float = 0.0
    fractional: bool = False
    """A start or length has a fraction of a microsecond."""
    fractional_starts: bool = False


@dataclass(slots=True, kw_only=True)
class Columns:
    """Columns under construction, one list of arrays each; rows in the order of the file."""

    exact: bool
    """Batches carry times as text."""
    names: Interner[Any] = field(default_factory=Interner)
    codes_of_categories: Interner[Any] = field(default_factory=Interner)
    categories: list[Category] = field(default_factory=list)
    """By code of the category as written."""
    tracks: Interner[tuple[Any, Any]] = field(default_factory=Interner)
    shapes: Interner[bytes] = field(default_factory=Interner)
    strings: Interner[str] = field(default_factory=Interner)
    oddities: Oddities = field(default_factory=Oddities)
    rows: int = 0
    window_ns: list[int] = field(default_factory=list)
    """Starts and ends of the profiler's own spans."""
    parts: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: {name: [] for name in EVENT_COLUMNS})
    sparse: dict[str, list[NDArray[Any]]] = field(
        default_factory=lambda: {name: [] for name in COLLECTIVE_COLUMNS}
    )

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Append complete events as rows."""
        ts_ns, usable = self._starts(events)
        if not usable.all():
            events = [event for event, keep in zip(events, usable.tolist(), strict=True) if keep]
            ts_ns = ts_ns[usable]
        names, tracks = self.names, self.tracks
        dur_ns = self._durations(events)
        written = self._categories(events)
        self._note_spans(ts_ns, dur_ns, written)
        category = np.array(self.categories, np.int8)[written]
        args = [event.args or NO_ARGS for event in events]
        part: dict[str, Any] = {
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
            "name": [names[event.name] for event in events],
            "category": category,
            "track": [tracks[event.pid, event.tid] for event in events],
        }
        for having, fill in (
            (_DEVICE, _device_columns),
            (_CORRELATION, _correlations),
            (_EXTERNAL_ID, _external_ids),
            (_SHAPES, self._shape_columns),
        ):
            part |= _sparse(args, having[category], fill)
        for name, dtype in EVENT_COLUMNS.items():
            self.parts[name].append(np.asarray(part[name], dtype))
        self._add_collectives(args, np.flatnonzero(_COLLECTIVE[category]).tolist())
        self.rows += len(events)

    def _categories(self, events: Sequence[AnyEvent]) -> I32:
        """Codes of the categories as written; `categories` says what they mean."""
        codes = self.codes_of_categories
        written = np.array([codes[event.cat] for event in events], np.int32)
        while len(self.categories) < len(codes):
            self.categories.append(category_of(list(codes)[len(self.categories)]))
        return written

    def _note_spans(self, ts_ns: I64, dur_ns: I64, written: NDArray[Any]) -> None:
        spans = np.flatnonzero(written == self.codes_of_categories.get(WINDOW_SPAN, MISSING))
        self.window_ns += ts_ns[spans].tolist() + (ts_ns[spans] + dur_ns[spans]).tolist()

    def _shape_columns(self, args: Sequence[Args]) -> dict[str, Any]:
        shapes = self.shapes
        return {
            "dims": [shapes[bytes(arg.dims or arg.old_dims)] for arg in args],
            "types": [shapes[bytes(arg.types)] for arg in args],
        }

    def _add_collectives(self, args: Sequence[Args], rows: Sequence[int]) -> None:
        entries = [
            (row, arg) for row in rows if (arg := args[row]).collective is not None or arg.in_elems != MISSING
        ]
        if not entries:
            return
        found = [arg for _, arg in entries]
        part = {
            "row": np.array([self.rows + row for row, _ in entries]),
            "name": self._codes(arg.collective for arg in found),
            "in_elems": integers([arg.in_elems for arg in found], np.int64),
            "out_elems": integers([arg.out_elems for arg in found], np.int64),
            "dtype": self._codes(arg.dtype for arg in found),
            "group_size": integers([arg.group_size for arg in found], np.int32),
            "group": self._codes(arg.group for arg in found),
            "group_ranks": self._codes(arg.group_ranks for arg in found),
            "seq": integers([arg.seq for arg in found], np.int64),
        }
        for name, dtype in COLLECTIVE_COLUMNS.items():
            self.sparse[name].append(part[name].astype(dtype))

    def _codes(self, values: Iterable[Any]) -> NDArray[Any]:
        return np.array(
            [MISSING if value is None else self.strings[str(value)] for value in values], np.int32
        )

    def _starts(self, events: Sequence[AnyEvent]) -> tuple[I64, Bools]:
        ts_ns, usable, largest_us = self._times([event.ts for event in events])
        self.oddities.fractional_starts |= bool(np.any(ts_ns % 1000))
        self.oddities.without_time += len(events) - int(np.count_nonzero(usable))
        self.oddities.largest_us = max(self.oddities.largest_us, largest_us)
        return ts_ns, usable

    def _durations(self, events: Sequence[AnyEvent]) -> I64:
        dur_ns, usable, _ = self._times([event.dur for event in events])
        usable &= dur_ns <= _MAX_DUR_NS
        negative = usable & (dur_ns < 0)
        self.oddities.without_duration += len(events) - int(np.count_nonzero(usable))
        self.oddities.negative_durations += int(np.count_nonzero(negative))
        return np.where(usable & ~negative, dur_ns, 0)

    def _times(self, values: list[Any]) -> tuple[I64, Bools, float]:
        """Nanoseconds, which of them are usable, and the largest microseconds."""
        if not self.exact:
            try:
                return self._float_times(np.array(values, np.float64))
            except (TypeError, ValueError):
                pass
        exact = [exact_ns(value) for value in values]
        usable = np.array([value is not None for value in exact], np.bool_)
        ns = np.array([value or 0 for value in exact], np.int64)
        self.oddities.fractional |= bool(np.any(ns % 1000))
        return ns, usable, float(np.max(np.abs(ns), initial=0)) / 1000

    def _float_times(self, us: NDArray[np.float64]) -> tuple[I64, Bools, float]:
        usable = np.abs(us) < _MAX_US  # not so for NaN
        us = np.where(usable, us, 0.0)
        whole = np.floor(us)
        fraction = us - whole
        self.oddities.fractional |= bool(fraction.any())
        largest = float(np.max(np.abs(us), initial=0.0))
        # Apart, because microseconds since the epoch times 1000 no longer fit a float64.
        return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000.0).astype(np.int64), usable, largest


def category_of(cat: object) -> Category:
    """The category that a `cat` as written means."""
    return CATEGORIES.get(str(cat).lower(), Category.OTHER)


def _sparse(
    args: list[Args], having: Bools, fill: Callable[[Sequence[Args]], dict[str, Any]]
) -> dict[str, NDArray[Any]]:
    """Columns made from the arguments of the events that can have them; -1 for the others."""
    rows = np.flatnonzero(having)
    if len(rows) == len(args):
        return fill(args)
    columns = {}
    for name, values in fill([args[row] for row in rows.tolist()]).items():
        columns[name] = np.full(len(args), MISSING, np.int64)
        columns[name][rows] = values
    return columns


def _device_columns(args: Sequence[Args]) -> dict[str, Any]:
    return {
        "device": integers([arg.device for arg in args], np.int16),
        "stream": integers([arg.stream for arg in args], np.int32),
    }


def _correlations(args: Sequence[Args]) -> dict[str, Any]:
    return {"correlation": integers([arg.correlation for arg in args], np.int64)}


def _external_ids(args: Sequence[Args]) -> dict[str, Any]:
    ids = integers([arg.external_id for arg in args], np.int64)
    absent = np.flatnonzero(ids == MISSING)
    if len(absent):
        ids[absent] = integers([args[row].old_external_id for row in absent.tolist()], np.int64)
    return {"external_id": ids}


def integers(values: list[Any], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """A column of integers; -1 for what is no integer, or does not fit."""
    try:
        wide = np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        wide = np.fromiter((_integer(value) for value in values), np.int64, len(values))
    if dtype is np.int64:
        return wide
    limits = np.iinfo(dtype)
    return np.where((wide >= limits.min) & (wide <= limits.max), wide, MISSING).astype(dtype)


def _integer(value: object) -> int:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return MISSING
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else MISSING
    return value if isinstance(value, int) and abs(value) < 1 << 63 else MISSING


def exact_ns(value: object) -> int | None:
    """Nanoseconds of a time in microseconds, without rounding through float64; None: no usable time."""
    if isinstance(value, msgspec.Raw):
        value = bytes(value).decode("ascii", "replace")
    if isinstance(value, str):
        value = value.strip(' "')
        whole, _, fraction = value.partition(".")
        digits = whole.removeprefix("-")
        if (
            digits.isdecimal()
            and len(digits) < 17
            and len(fraction) <= 3
            and (fraction.isdecimal() or not fraction)
        ):
            ns = int(digits) * 1000 + int((fraction + "000")[:3])
            return _bounded(-ns if whole.startswith("-") else ns)
        try:
            number = Decimal(value)
        except InvalidOperation:
            return None
        if not number.is_finite() or number.adjusted() > 18:
            return None
        return _bounded(int((number * 1000).to_integral_value()))
    if (
        isinstance(value, int | float) and abs(value) < _MAX_US
    ):  # not so for NaN; a larger one may overflow below
        return _bounded(round(value * 1000))
    return None


def _bounded(ns: int) -> int | None:
    return ns if abs(ns) < _MAX_NS else None


def resolution_ns(columns: Columns) -> int:
    """How fine the times of the table are: 1 where they are exactly what the file says, to the nanosecond."""
    oddities = columns.oddities
    rounds = not columns.exact and oddities.largest_us >= FLOAT64_EXACT_BELOW_US
    if not columns.rows or (oddities.fractional and not rounds):
        return 1
    if not oddities.fractional_starts:
        return 1000
    return int(np.ceil(np.spacing(oddities.largest_us) * 1000))


def joined(parts: list[NDArray[Any]], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """One array out of the parts of a column, which are released."""
    column = np.concatenate(parts) if parts else np.empty(0, dtype)
    parts.clear()
    return column
