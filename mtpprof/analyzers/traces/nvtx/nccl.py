"""What NCCL says of itself in NVTX: every call with its message size, reduction and communicator.

These are the bytes that the torch profiler cannot see, where NCCL is called by something other than torch. Names of fields
are those of NCCL's src/include/nvtx_payload_schemas.h. NCCL's *message size* is count × element size as the caller passed
them, which is one rank's share for gathering and scattering calls; the payload in the sense of nccl-tests is that times
the number of ranks, which is known when the communicator's creation was captured too, and unknown otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.numeric.arrays import I64
from mtpprof.analyzers.traces.nvtx.capture import NvtxCapture
from mtpprof.analyzers.traces.nvtx.payload import PayloadColumns, gather
from mtpprof.models.traffic import Kind

DOMAIN = "NCCL"
MESSAGE_BYTES = "Message size [bytes]"
COMMUNICATOR = "NCCL communicator ID"
RANK = "Rank"
RANKS = "No. of ranks"
DEVICES = "No. of devices"
OPERATION = "Reduction operation"
PEER_FIELDS = ("Root", "Peer rank")
UNKNOWN = -1
NUMBER_MAX = 1 << 47
"""Times any number of ranks it still fits."""

CALLS: dict[str, tuple[Kind, bool]] = {
    "ncclAllReduce": (Kind.ALL_REDUCE, False),
    "ncclAllGather": (Kind.ALL_GATHER, True),
    "ncclReduceScatter": (Kind.REDUCE_SCATTER, True),
    "ncclAlltoAll": (Kind.ALL_TO_ALL, True),
    "ncclBroadcast": (Kind.BROADCAST, False),
    "ncclBcast": (Kind.BROADCAST, False),
    "ncclReduce": (Kind.REDUCE, False),
    "ncclGather": (Kind.GATHER, True),
    "ncclScatter": (Kind.SCATTER, True),
    "ncclSend": (Kind.SEND_RECV, False),
    "ncclRecv": (Kind.SEND_RECV, False),
}
"""Kind of each function, and whether its message size is to be multiplied by the ranks for the payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """A communicator that this process created while it was captured."""

    ranks: int
    rank: int | None
    """None: several ranks of it live in this process, or NCCL did not say."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclCalls:
    """One row per call. -1: unknown, or not applicable."""

    row: I64
    """Row of the capture."""
    function: NDArray[np.int32]
    """Code into `functions`."""
    functions: tuple[str, ...]
    kinds: tuple[Kind, ...]
    """Kind of each of `functions`."""
    message_bytes: I64
    """As NCCL says it."""
    payload_bytes: I64
    """In the sense of nccl-tests."""
    communicator: NDArray[np.uint64]
    """0: NCCL was given none."""
    ranks: I64
    rank: I64
    operation: NDArray[np.int32]
    """Code into `operations`."""
    operations: tuple[str, ...]
    """`Sum`, `Max`, …; the first is the empty text: none, or not named."""
    peer: I64
    """Root or peer rank."""

    def __len__(self) -> int:
        return len(self.row)


def communicators(capture: NvtxCapture) -> dict[int, Communicator]:
    """Communicators created in this capture, by NCCL's id of them. NCCL gives their payload at the start or the end."""
    found: dict[int, set[tuple[int, int]]] = {}
    for columns in _nccl_columns(capture, capture.payload_at) + _nccl_columns(
        capture, capture.end_payload_at
    ):
        names = columns.values.dtype.names or ()
        size = RANKS if RANKS in names else DEVICES
        if COMMUNICATOR not in names or size not in names:
            continue
        rank = _numbers(columns.values[RANK]) if RANK in names else np.full(len(columns.values), UNKNOWN)
        keys = columns.values[COMMUNICATOR].astype(np.uint64)
        for key, ranks, own in zip(
            keys.tolist(), _numbers(columns.values[size]).tolist(), rank.tolist(), strict=True
        ):
            found.setdefault(key, set()).add((ranks, own))
    return {key: _communicator(seen) for key, seen in found.items() if key and len({r for r, _ in seen}) == 1}


def nccl_calls(capture: NvtxCapture) -> NcclCalls:
    """Every collective and point-to-point call of NCCL in the capture, in order of time."""
    functions = tuple(name for name in CALLS if name in capture.names)
    code_of_name = np.full(len(capture.names), UNKNOWN, np.int32)
    for code, name in enumerate(functions):
        code_of_name[capture.names.index(name)] = code
    nccl = np.array([text == DOMAIN for text in capture.domains])
    row = np.flatnonzero(nccl[capture.domain] & (code_of_name[capture.name] >= 0))
    fields = _Fields(len(capture))
    for columns in _nccl_columns(capture, capture.payload_at):
        fields.take(capture, columns)
    function = code_of_name[capture.name[row]]
    known = communicators(capture)
    communicator = fields.communicator[row]
    distinct, which = np.unique(communicator, return_inverse=True)
    of_distinct = [known.get(key) for key in distinct.tolist()]
    ranks = np.array([c.ranks if c else UNKNOWN for c in of_distinct], np.int64)[which]
    rank = np.array([c.rank if c and c.rank is not None else UNKNOWN for c in of_distinct], np.int64)[which]
    message = fields.message_bytes[row]
    shared = np.array([CALLS[name][1] for name in functions], np.bool_)[function]
    payload = np.where(shared, np.where(ranks > 0, message * ranks, UNKNOWN), message)
    return NcclCalls(
        row=row,
        function=function,
        functions=functions,
        kinds=tuple(CALLS[name][0] for name in functions),
        message_bytes=message,
        payload_bytes=np.where(message < 0, UNKNOWN, payload),
        communicator=communicator,
        ranks=ranks,
        rank=rank,
        operation=fields.operation[row],
        operations=tuple(fields.operations),
        peer=fields.peer[row],
    )


class _Fields:
    """The fields of all rows of a capture, filled layout by layout."""

    def __init__(self, count: int) -> None:
        self.message_bytes = np.full(count, UNKNOWN, np.int64)
        self.communicator = np.zeros(count, np.uint64)
        self.peer = np.full(count, UNKNOWN, np.int64)
        self.operation = np.zeros(count, np.int32)
        self.operations: dict[str, int] = {"": 0}

    def take(self, capture: NvtxCapture, columns: PayloadColumns) -> None:
        values, rows = columns.values, columns.rows
        names = values.dtype.names or ()
        if MESSAGE_BYTES in names:
            self.message_bytes[rows] = _numbers(values[MESSAGE_BYTES])
        if COMMUNICATOR in names:
            self.communicator[rows] = values[COMMUNICATOR].astype(np.uint64)
        for name in PEER_FIELDS:
            if name in names:
                self.peer[rows] = _numbers(values[name])
        operation = capture.schemas.enumeration_of(columns.domain, columns.schema_id, OPERATION)
        if operation is not None and OPERATION in names:
            distinct, which = np.unique(values[OPERATION], return_inverse=True)
            codes = [
                self.operations.setdefault(operation.text(value), len(self.operations))
                for value in distinct.tolist()
            ]
            self.operation[rows] = np.array(codes, np.int32)[which]


def _nccl_columns(capture: NvtxCapture, at: I64) -> list[PayloadColumns]:
    if DOMAIN not in capture.domains:
        return []
    nccl = capture.domain == capture.domains.index(DOMAIN)
    return gather(
        capture.blobs, np.where(nccl, at, UNKNOWN), capture.domain.astype(np.int32), capture.schemas
    )


def _numbers(values: NDArray[Any]) -> I64:
    """Sizes and ranks as integers; unknown where they are none that NCCL could mean."""
    plausible = (values >= 0) & (values <= NUMBER_MAX)
    return np.where(plausible, values, 0).astype(np.int64) - ~plausible


def _communicator(seen: set[tuple[int, int]]) -> Communicator:
    """From every (number of ranks, own rank) said of one id."""
    own = {rank for _, rank in seen if rank != UNKNOWN}
    return Communicator(ranks=next(iter(seen))[0], rank=own.pop() if len(own) == 1 else None)
