"""Payload of a call, from what the trace says of it: communication records, or dimensions of operations.

Payload is the size S of nccl-tests (`models.traffic`): all-reduce the tensor, all-gather the full output,
reduce-scatter the full input. A record without sizes (coalesced collectives have none) gives no payload: unknown,
never 0.

Element types as producers spell them, brought to the names that `models.traffic` knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from mtpprof.models.traffic import DTYPE_BYTES, Kind

_LIMIT_BYTES = 1 << 60
"""A larger payload is damage in the file, not a tensor."""
_GATHERS = (Kind.ALL_GATHER, Kind.GATHER)
_SCATTERS = (Kind.REDUCE_SCATTER, Kind.SCATTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What is known of a call's tensors; None and empty mean not known."""

    payload_bytes: int | None
    shape: tuple[int, ...] | None = None
    """One rank's input tensor."""
    dtype: str = ""
    group_size: int | None = None
    why_not: str = ""
    """Reason where the payload is not known."""


def from_record(
    kind: Kind, in_elems: int, out_elems: int, dtype_word: str, group_size: int | None
) -> Payload:
    """From a communication record (`In msg nelems`, `Out msg nelems`, `dtype`); -1: not given."""
    dtype = dtype_of_word(dtype_word)
    if max(in_elems, out_elems) <= 0:
        return Payload(
            payload_bytes=None, dtype=dtype, group_size=group_size, why_not="the record gives no size"
        )
    if not dtype:
        return Payload(
            payload_bytes=None,
            group_size=group_size,
            why_not=f"dtype {dtype_word or 'not given'} has no known size",
        )
    if kind in _GATHERS:
        elements = out_elems if out_elems > 0 else in_elems * (group_size or 0)
    elif kind in _SCATTERS:
        elements = in_elems if in_elems > 0 else out_elems * (group_size or 0)
    else:
        elements = in_elems if in_elems > 0 else out_elems
    if elements <= 0:
        return Payload(
            payload_bytes=None, dtype=dtype, why_not="the record gives one side only and no group size"
        )
    return _checked(elements * DTYPE_BYTES[dtype], None, dtype, group_size)


def from_dims(
    kind: Kind, dims: tuple[Any, ...] | None, types: tuple[Any, ...] | None, group_size: int | None
) -> Payload:
    """From the input dimensions and types of the operation around a call.

    Operations name their tensors in different orders (`_C::shm_all_gather`: input, output; `c10d::_allgather_base_`: output, input),
    so the full tensor of a gather or scatter is told from the shard by its size.
    """
    if dims is None:
        return Payload(payload_bytes=None, why_not="shapes were not recorded")
    tensors = _tensors(dims, types or ())
    if not tensors:
        return Payload(payload_bytes=None, why_not="the operation around it has no tensor")
    dtype = next((dtype for _, dtype in tensors if dtype), "")
    shapes = [shape for shape, _ in tensors]
    if kind not in _GATHERS + _SCATTERS:
        return _sized(shapes[0], 1, dtype, group_size)
    large, small = max(shapes, key=prod), min(shapes, key=prod)
    if prod(small) and prod(large) % prod(small) == 0 and prod(large) > prod(small):
        group_size = prod(large) // prod(small)
    if kind in _SCATTERS:
        return _sized(large, 1, dtype, group_size)
    if group_size is None:
        return Payload(
            payload_bytes=None, shape=small, dtype=dtype, why_not="the size of the group is not known"
        )
    return _sized(small, group_size, dtype, group_size)


def _sized(shape: tuple[int, ...], times: int, dtype: str, group_size: int | None) -> Payload:
    if not dtype:
        return Payload(
            payload_bytes=None, shape=shape, group_size=group_size, why_not="the dtype was not recorded"
        )
    return _checked(prod(shape) * times * DTYPE_BYTES[dtype], shape, dtype, group_size)


def _checked(size_bytes: int, shape: tuple[int, ...] | None, dtype: str, group_size: int | None) -> Payload:
    if not 0 <= size_bytes <= _LIMIT_BYTES:
        return Payload(payload_bytes=None, why_not="the recorded sizes make no sense")
    return Payload(payload_bytes=size_bytes, shape=shape, dtype=dtype, group_size=group_size)


def _tensors(dims: tuple[Any, ...], types: tuple[Any, ...]) -> list[tuple[tuple[int, ...], str]]:
    """Shapes of the tensor arguments with their dtypes; lists of tensors are taken apart."""
    found: list[tuple[tuple[int, ...], str]] = []
    for index, entry in enumerate(dims):
        word = types[index] if index < len(types) and isinstance(types[index], str) else ""
        if not isinstance(entry, tuple) or not entry:
            continue
        if all(isinstance(size, int) for size in entry):
            found.append((entry, dtype_of_word(word)))
        elif all(isinstance(item, tuple) for item in entry):
            found += [(item, "") for item in entry if item and all(isinstance(size, int) for size in item)]
    return found


DTYPE_WORDS = {
    "bfloat16": "bf16",
    "half": "fp16",
    "float16": "fp16",
    "float": "fp32",
    "float32": "fp32",
    "double": "fp64",
    "float64": "fp64",
    "int": "int32",
    "int32": "int32",
    "long": "int64",
    "long int": "int64",
    "int64": "int64",
    "char": "int8",
    "int8": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "uint8": "uint8",
    "unsigned char": "uint8",
    "bool": "uint8",
    "float8_e4m3fn": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2": "fp8",
    "float8_e5m2fnuz": "fp8",
}
"""Spellings without a namespace, in lower case: `dtype` of a communication record and `Input type` of an operation."""


def dtype_of_word(word: str) -> str:
    """The dtype behind e.g. `BFloat16`, `c10::Half`, `long int`; empty: not one that has a known size."""
    return DTYPE_WORDS.get(word.rsplit("::", 1)[-1].lower(), "")
