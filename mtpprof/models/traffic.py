"""Payload bytes, wire bytes and bus-bandwidth factors of collectives. No torch here.

*Payload* is the size S as nccl-tests defines it (PERFORMANCE.md): all-reduce the tensor, all-gather the full output,
reduce-scatter the full input. *Wire bytes* are what one rank sends, which depends on the algorithm that ran; the same payload
costs 2(n-1)/n·S in a ring and (n-1)·S in a one-shot kernel. So wire bytes are never given without their algorithm, and an
algorithm that is not known gives None, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
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


class Algorithm(StrEnum):
    """How a collective moved its bytes."""

    RING = "ring"
    TREE = "tree"
    """NCCL's double binary tree, at sizes where its bandwidth term is the ring's."""
    ONE_SHOT = "one_shot"
    """Every rank reads every other rank's whole tensor."""
    TWO_SHOT = "two_shot"
    """Reduce-scatter, then all-gather, by direct reads or writes."""
    MNNVL_ONE_SHOT = "mnnvl_one_shot"
    """One multicast store; the switch replicates it."""
    MNNVL_TWO_SHOT = "mnnvl_two_shot"
    NVLS = "nvls"
    """Reduction and multicast inside the NVLink switch (multimem)."""
    DIRECT = "direct"
    """Every rank exchanges its shard with every other rank directly."""
    MULTICAST = "multicast"
    """Every rank stores its shard once; the switch replicates it."""
    QUICKREDUCE_FP = "quickreduce_fp"
    QUICKREDUCE_Q8 = "quickreduce_q8"
    QUICKREDUCE_Q6 = "quickreduce_q6"
    QUICKREDUCE_Q4 = "quickreduce_q4"
    LOGICAL = "logical"
    """CPU shared memory and gloo: memory copies, not a wire; the ring's figure, which says what a network would carry."""
    UNKNOWN = "unknown"


DTYPE_BYTES = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "fp64": 8,
    "int32": 4,
    "int64": 8,
    "fp8": 1,
    "int8": 1,
    "uint8": 1,
}

_Factor = Callable[[int], Fraction]


def _shards(n: int) -> Fraction:
    return Fraction(n - 1, n)


def _two_passes(n: int) -> Fraction:
    return 2 * _shards(n)


def _coded(ratio: Fraction) -> _Factor:
    return lambda n: ratio * _two_passes(n)


_SENT_PER_PAYLOAD: dict[tuple[Kind, Algorithm], _Factor] = {
    (Kind.ALL_REDUCE, Algorithm.RING): _two_passes,
    (Kind.ALL_REDUCE, Algorithm.TREE): _two_passes,
    (Kind.ALL_REDUCE, Algorithm.TWO_SHOT): _two_passes,
    (Kind.ALL_REDUCE, Algorithm.LOGICAL): _two_passes,
    (Kind.ALL_REDUCE, Algorithm.ONE_SHOT): lambda n: Fraction(n - 1),
    (Kind.ALL_REDUCE, Algorithm.MNNVL_ONE_SHOT): lambda n: Fraction(1),
    (Kind.ALL_REDUCE, Algorithm.MNNVL_TWO_SHOT): lambda n: _shards(n) + Fraction(1, n),
    (Kind.ALL_REDUCE, Algorithm.NVLS): lambda n: 1 + Fraction(1, n),
    # Bytes of one coded tile over its 4096 bytes of fp16 (kRankTileStride in quick_reduce_impl.cuh): values and scales.
    (Kind.ALL_REDUCE, Algorithm.QUICKREDUCE_FP): _coded(Fraction(1)),
    (Kind.ALL_REDUCE, Algorithm.QUICKREDUCE_Q8): _coded(Fraction(2176, 4096)),
    (Kind.ALL_REDUCE, Algorithm.QUICKREDUCE_Q6): _coded(Fraction(1664, 4096)),
    (Kind.ALL_REDUCE, Algorithm.QUICKREDUCE_Q4): _coded(Fraction(1152, 4096)),
    (Kind.ALL_GATHER, Algorithm.RING): _shards,
    (Kind.ALL_GATHER, Algorithm.DIRECT): _shards,
    (Kind.ALL_GATHER, Algorithm.LOGICAL): _shards,
    (Kind.ALL_GATHER, Algorithm.MULTICAST): lambda n: Fraction(1, n),
    (Kind.ALL_GATHER, Algorithm.NVLS): lambda n: Fraction(1, n),
    (Kind.REDUCE_SCATTER, Algorithm.RING): _shards,
    (Kind.REDUCE_SCATTER, Algorithm.DIRECT): _shards,
    (Kind.REDUCE_SCATTER, Algorithm.LOGICAL): _shards,
    (Kind.ALL_TO_ALL, Algorithm.DIRECT): _shards,
    (Kind.ALL_TO_ALL, Algorithm.LOGICAL): _shards,
}
"""Bytes one rank sends per byte of payload, by group size. A pair that is not here is unknown."""

_BUS_PER_ALGORITHM: dict[Kind, _Factor] = {
    Kind.ALL_REDUCE: _two_passes,
    Kind.ALL_GATHER: _shards,
    Kind.REDUCE_SCATTER: _shards,
    Kind.ALL_TO_ALL: _shards,
    Kind.GATHER: _shards,
    Kind.SCATTER: _shards,
    Kind.BROADCAST: lambda n: Fraction(1),
    Kind.REDUCE: lambda n: Fraction(1),
    Kind.SEND_RECV: lambda n: Fraction(1),
}


def payload_bytes(kind: Kind, input_shape: tuple[int, ...], dtype: str, group_size: int) -> int:
    """Payload of one call, from the shape of one rank's input tensor."""
    size = prod(input_shape) * DTYPE_BYTES[dtype]
    return size * group_size if kind in (Kind.ALL_GATHER, Kind.GATHER) else size


def wire_bytes(kind: Kind, algorithm: Algorithm, payload_bytes: int, group_size: int) -> int | None:
    """Bytes that one rank sends in one call; a fraction of a byte is rounded half up.

    Args:
        kind: What the collective does.
        algorithm: What ran; `Algorithm.LOGICAL` where no wire was involved.
        payload_bytes: Payload of the call in the sense of nccl-tests.
        group_size: Ranks of the group.

    Returns:
        None where kind and algorithm together do not determine it, or the sizes make no sense. 0 in a group of one.
    """
    factor = _SENT_PER_PAYLOAD.get((kind, algorithm))
    if factor is None or group_size < 1 or payload_bytes < 0:
        return None
    if group_size == 1:
        return 0
    sent = factor(group_size) * payload_bytes
    return (2 * sent.numerator + sent.denominator) // (2 * sent.denominator)


def busbw_factor(kind: Kind, group_size: int) -> float | None:
    """What nccl-tests multiplies payload / time with to get the bus bandwidth; None where it defines none."""
    factor = _BUS_PER_ALGORITHM.get(kind)
    return None if factor is None or group_size < 1 else float(factor(group_size))
