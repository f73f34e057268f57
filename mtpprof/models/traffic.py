"""Payload bytes, wire bytes and bus-bandwidth factors of collectives. No torch here.

*Payload* is the size S as nccl-tests defines it (PERFORMANCE.md): all-reduce the tensor, all-gather the full output,
reduce-scatter the full input. *Wire bytes* are what one rank sends, which depends on the algorithm that ran.
"""

from __future__ import annotations

from enum import StrEnum
from math import prod


class Kind(StrEnum):
    """What a collective does."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND_RECV = "send_recv"
    BARRIER = "barrier"
    UNKNOWN = "unknown"


DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "int32": 4, "int64": 8, "fp8": 1, "int8": 1, "uint8": 1}


def payload_bytes(kind: Kind, input_shape: tuple[int, ...], dtype: str, group_size: int) -> int:
    """Payload of one call, from the shape of one rank's input tensor."""
    size = prod(input_shape) * DTYPE_BYTES[dtype]
    return size * group_size if kind in (Kind.ALL_GATHER, Kind.GATHER) else size
