"""The hub of attribution: one row per collective call on a rank, as NumPy columns.

The decision: every view (`--by kind`, per step, census, ledger comparison, slowest) is a pure function over these
columns, and texts are codes into one vocabulary shared by all ranks, so that a call costs about 150 bytes and no
Python object. Missing values are -1, never 0; `how` says in words where the bytes of a call come from, or why they
are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I32, I64, Bools
from mtpprof.analyzers.numeric.distinct import distinct_rows
from mtpprof.analyzers.traces.table import MISSING
from mtpprof.models.traffic import Algorithm, Kind, wire_bytes


class Provenance(IntEnum):
    """Where the payload bytes of a call come from."""

    UNKNOWN = 0
    MEASURED = 1
    """They come with the call: arguments of the kernel, of its operation's communication record, or our own range."""
    DERIVED = 2
    """From the shapes of the operation around it, the same call seen elsewhere, its position in a graph, or a model's dimensions."""


class Vocabulary:
    """Texts of one analysis, each with a code; code 0 is the empty text, which means not known or none."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {"": 0}

    def code(self, text: str) -> int:
        """The code of `text`, a new one where it is new."""
        return self._codes.setdefault(str(text), len(self._codes))

    def codes(self, texts: Iterable[str]) -> I32:
        """The codes of many texts."""
        return np.fromiter((self.code(text) for text in texts), np.int32)

    def __len__(self) -> int:
        return len(self._codes)

    def since(self, count: int) -> list[str]:
        """All texts but the first `count`, in order of their codes."""
        return list(islice(self._codes, count, None))

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts, in order of their codes."""
        return tuple(self._codes)


TEXT_COLUMNS = (
    "kind",
    "implementation",
    "algorithm",
    "fused",
    "phase",
    "site",
    "shape",
    "dtype",
    "group",
    "how",
)
"""Columns that hold codes into `Calls.texts`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """Collective calls. All columns have one length; rows are ordered by table, then by start."""

    texts: tuple[str, ...]
    """What the codes of `TEXT_COLUMNS` mean."""
    table: I32
    """Index of the trace in its set."""
    row: I64
    """Row of the event table (of the first kernel, where a call is two)."""
    rank: I32
    """-1: the file does not say."""
    on_device: Bools
    """True: a kernel; False: an operation or range on the CPU."""
    kind: I32
    """A `Kind`."""
    implementation: I32
    algorithm: I32
    """An `Algorithm`."""
    fused: I32
    """What runs in the same kernel after the collective; empty: nothing."""
    phase: I32
    """`prefill`, `target`, `draft[k]`, `draft`, `sample`, `mixed` (prefill and decode rows in one batch); empty: not known."""
    site: I32
    """Module that issued the call; empty: not known."""
    shape: I32
    """One rank's input tensor, e.g. `16x7168`; empty: not known."""
    dtype: I32
    group: I32
    """Communicator: the ranks, e.g. `0,1,2,3`, or its name; empty: not known, taken for all ranks of the set."""
    group_size: I32
    """Ranks of the group; -1: not known."""
    payload_bytes: I64
    """Payload in the sense of nccl-tests; -1: not known."""
    provenance: NDArray[np.int8]
    """A `Provenance`."""
    how: I32
    """Where the payload comes from, or why it is not known."""
    ts_ns: I64
    """Start, in nanoseconds since the epoch where the file tells its base, else since the file's own zero."""
    dur_ns: I64
    exposed_ns: I64
    """Time at which nothing else of the rank ran: no other kernel, or (on the CPU) no operation of another thread."""
    launch_ns: I64
    """When the CPU launched the kernel, on the clock of `ts_ns`; -1: not known, or not on a device."""
    graph: I64
    """Correlation of the graph launch that replayed the call; -1: launched by itself, or on the CPU."""
    seq: I64
    """Number of the call on its group, equal on all ranks; -1: not recorded."""
    step: I32
    """Number of the step among those of its trace, from 0; -1: in no step."""
    match: I32
    """Equal for the calls of the ranks of one collective; -1: not matched."""
    wait_ns: I64
    """From this rank's arrival to the last rank's; -1: not known."""
    transfer_ns: I64
    """From the last rank's arrival to the end; -1: not known."""
    transient: Bools
    """An artefact of the start of profiling: counted, and left out of waits, bandwidths and per-step figures."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def end_ns(self) -> I64:
        """End of every call, on the clock of `ts_ns`."""
        return self.ts_ns + self.dur_ns

    def code(self, text: str) -> int:
        """Code of a text; -1, which no column holds, where no call has it."""
        try:
            return self.texts.index(text)
        except ValueError:
            return MISSING

    def has(self, column: str, text: str) -> Bools:
        """Which calls have `text` in a text column."""
        return np.asarray(getattr(self, column) == self.code(text))

    def text(self, column: str, index: int) -> str:
        """Text of one call in a text column."""
        return self.texts[int(getattr(self, column)[index])]

    def take(self, keep: NDArray[Any]) -> Calls:
        """The calls of a mask or of indices."""
        return replace(self, **{name: getattr(self, name)[keep] for name in COLUMNS})


COLUMNS = tuple(item.name for item in fields(Calls) if item.name != "texts")

_DTYPES: dict[str, type[Any]] = {
    **dict.fromkeys(COLUMNS, np.int32),
    **dict.fromkeys(
        (
            "row",
            "payload_bytes",
            "ts_ns",
            "dur_ns",
            "exposed_ns",
            "launch_ns",
            "graph",
            "seq",
            "wait_ns",
            "transfer_ns",
        ),
        np.int64,
    ),
    "provenance": np.int8,
    "on_device": np.bool_,
    "transient": np.bool_,
}
_ABSENT = {
    "group_size",
    "payload_bytes",
    "launch_ns",
    "graph",
    "seq",
    "step",
    "match",
    "wait_ns",
    "transfer_ns",
}


def new_columns(count: int) -> dict[str, NDArray[Any]]:
    """Columns of `count` calls about which nothing is known yet."""
    return {name: np.full(count, MISSING if name in _ABSENT else 0, _DTYPES[name]) for name in COLUMNS}


def join(parts: Sequence[dict[str, NDArray[Any]]], vocabulary: Vocabulary) -> Calls:
    """The calls of several tables, one after the other; all codes are of `vocabulary`."""
    parts = parts or [new_columns(0)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
    return Calls(texts=vocabulary.texts, **columns)


def wire_bytes_of(calls: Calls) -> I64:
    """Bytes that the rank of each call sends, by the algorithm that ran; -1: not known."""
    if not len(calls):
        return np.empty(0, np.int64)
    distinct = distinct_rows(calls.kind, calls.algorithm, calls.payload_bytes, calls.group_size)
    sent = []
    for kind, algorithm, payload, size in distinct.rows.tolist():
        unknown = MISSING in (payload, size) or not algorithm
        found = (
            None
            if unknown
            else wire_bytes(Kind(calls.texts[kind]), Algorithm(calls.texts[algorithm]), payload, size)
        )
        sent.append(MISSING if found is None else found)
    return np.array(sent, np.int64)[distinct.which]
