"""Decoding of NCCL's payloads: built to its published schema, and as a real NCCL wrote them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

from mtpprof.analyzers.traces.nvtx.nccl import Communicator, communicators, nccl_calls
from mtpprof.models.traffic import Kind
from mtpprof.nvtxformat import DefinitionKind, EventKind, PayloadType
from tests.unit.analyzers.traces.nvtx.written import (
    Written,
    WrittenEvent,
    definition,
    parse,
    pop,
    push,
    schema_definition,
    text_field,
)

DATA = Path(__file__).parents[4] / "data" / "nvtx"
STATIC = 1 << 24
INIT_RANK, ALL_GATHER, ALL_REDUCE, REDUCE, SEND, REDUCTION = (STATIC + n for n in (0, 4, 5, 8, 9, 24))
UINT64, INT, SIZE = 18, 5, 22
COMMUNICATOR = (0, UINT64, 0, 0, "NCCL communicator ID")
MESSAGE = (0, SIZE, 0, 8, "Message size [bytes]")


def definitions() -> list[bytes]:
    operations = struct.pack("<2Q", 4, 2)
    for value, name in ((0, "Sum"), (4, "Avg")):
        operations += struct.pack("<2Q", value, 0) + text_field(name)
    return [
        definition(DefinitionKind.DOMAIN, 1, 1, text_field("NCCL")),
        definition(DefinitionKind.ENUM, 1, REDUCTION, text_field("") + operations),
        schema_definition(
            1,
            INIT_RANK,
            [
                COMMUNICATOR,
                (0, INT, 0, 8, "No. of ranks"),
                (0, INT, 0, 12, "Rank"),
                (0, INT, 0, 16, "CUDA device"),
            ],
            static_bytes=24,
        ),
        schema_definition(1, ALL_GATHER, [COMMUNICATOR, MESSAGE], static_bytes=16),
        schema_definition(
            1,
            ALL_REDUCE,
            [COMMUNICATOR, MESSAGE, (0, REDUCTION, 0, 16, "Reduction operation")],
            static_bytes=24,
        ),
        schema_definition(
            1,
            REDUCE,
            [COMMUNICATOR, MESSAGE, (0, INT, 0, 16, "Root"), (0, REDUCTION, 0, 20, "Reduction operation")],
            static_bytes=24,
        ),
        schema_definition(1, SEND, [COMMUNICATOR, MESSAGE, (0, INT, 0, 16, "Peer rank")], static_bytes=24),
    ]


def call(ns: int, function: str, schema: int, payload: bytes) -> list[WrittenEvent]:
    opened = WrittenEvent(
        kind=EventKind.PUSH,
        ns=ns,
        domain=1,
        text=function,
        payload_type=PayloadType.EXTENDED,
        payloads=((schema, payload),),
    )
    return [opened, pop(ns + 5, domain=1)]


def created(ns: int, communicator: int, ranks: int, rank: int) -> list[WrittenEvent]:
    """NCCL knows the communicator only at the end, so the payload comes with the pop."""
    closed = WrittenEvent(
        kind=EventKind.POP,
        ns=ns + 5,
        domain=1,
        payload_type=PayloadType.EXTENDED,
        payloads=((INIT_RANK, struct.pack("<Q3i4x", communicator, ranks, rank, 0)),),
    )
    return [push(ns, "ncclCommInitRank", domain=1), closed]


def test_calls_have_kind_size_operation_and_communicator() -> None:
    capture = Written(
        definitions=definitions(),
        events=[
            *created(10, 0xABC, 4, 3),
            *call(20, "ncclAllReduce", ALL_REDUCE, struct.pack("<QQi4x", 0xABC, 1000, 4)),
            *call(30, "ncclAllGather", ALL_GATHER, struct.pack("<QQ", 0xABC, 100)),
            *call(40, "ncclReduce", REDUCE, struct.pack("<QQii", 0xABC, 8, 2, 0)),
            *call(50, "ncclSend", SEND, struct.pack("<QQi4x", 0xABC, 64, 1)),
            push(60, "ncclGroupStart", domain=1),
            pop(65, domain=1),
            push(70, "ncclAllReduce"),
            pop(75),
        ],
    ).capture()
    calls = nccl_calls(capture)
    assert [calls.kinds[f] for f in calls.function] == [
        Kind.ALL_REDUCE,
        Kind.ALL_GATHER,
        Kind.REDUCE,
        Kind.SEND_RECV,
    ]
    assert calls.message_bytes.tolist() == [1000, 100, 8, 64]
    assert calls.payload_bytes.tolist() == [1000, 400, 8, 64]
    assert [calls.operations[o] for o in calls.operation] == ["Avg", "", "Sum", ""]
    assert calls.peer.tolist() == [-1, -1, 2, 1]
    assert calls.rank.tolist() == [3] * 4
    assert communicators(capture) == {0xABC: Communicator(ranks=4, rank=3)}
    assert [capture.names[capture.name[row]] for row in calls.row] == [
        "ncclAllReduce",
        "ncclAllGather",
        "ncclReduce",
        "ncclSend",
    ]


def test_the_payload_of_a_gathering_call_is_unknown_without_its_communicator() -> None:
    capture = Written(
        definitions=definitions(),
        events=[
            *call(20, "ncclAllReduce", ALL_REDUCE, struct.pack("<QQi4x", 0xDEF, 1000, 0)),
            *call(30, "ncclAllGather", ALL_GATHER, struct.pack("<QQ", 0xDEF, 100)),
            *call(40, "ncclAllGather", ALL_GATHER, b"short"),
        ],
    ).capture()
    calls = nccl_calls(capture)
    assert calls.message_bytes.tolist() == [1000, 100, -1]
    assert calls.payload_bytes.tolist() == [1000, -1, -1]
    assert calls.ranks.tolist() == [-1, -1, -1]


def test_several_ranks_of_a_communicator_in_one_process_have_no_one_rank() -> None:
    events = [*created(10, 1, 2, 0), *created(20, 1, 2, 1), *created(30, 2, 8, 5)]
    capture = Written(definitions=definitions(), events=events).capture()
    assert communicators(capture) == {1: Communicator(ranks=2, rank=None), 2: Communicator(ranks=8, rank=5)}


def test_a_capture_without_nccl_has_no_calls() -> None:
    assert len(nccl_calls(Written(events=[push(1, "ncclAllReduce"), pop(2)]).capture())) == 0


def test_what_a_real_nccl_wrote() -> None:
    """NCCL 2.32.3 without a GPU: it emits its range, then refuses the missing communicator."""
    capture = parse(gzip.decompress((DATA / "nccl-2.32.3.nvtx.gz").read_bytes()))
    calls = nccl_calls(capture)
    assert [calls.functions[f] for f in calls.function] == [
        "ncclAllReduce",
        "ncclAllGather",
        "ncclReduceScatter",
        "ncclBroadcast",
        "ncclReduce",
        "ncclAlltoAll",
        "ncclGather",
        "ncclScatter",
        "ncclSend",
        "ncclRecv",
    ]
    assert calls.message_bytes.tolist() == [
        2 * 1024,
        4 * 256,
        4 * 10,
        4 * 7,
        8 * 5,
        4 * 3,
        4 * 4,
        4 * 6,
        12,
        16,
    ]
    assert calls.peer.tolist() == [-1, -1, -1, 2, 1, -1, 0, 3, 1, 1]
    assert calls.communicator.tolist() == [0] * 10
