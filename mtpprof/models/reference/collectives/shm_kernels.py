"""The compiled all-reduces over shared memory, as operations of torch: `mtpprof_shm::all_reduce` and the one fused with the norm.

The decision: torch calls them through its dispatcher, so a profiler records each under its own name with the shapes of its inputs, and
a trace shows which of them ran, whatever our ranges say. The C source is compiled once, for this processor (`shm_library`).
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mtpprof.errors import MissingEnvironmentError, RunError
from mtpprof.models.reference.collectives.shm_limits import FLAG_BYTES

NAMESPACE = "mtpprof_shm"
PATIENCE_NS = 50_000_000
"""How long C waits before it lets Python answer signals."""

_ALL_ARRIVED = -1
_DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2, torch.float64: 3}


class Call(NamedTuple):
    """Where one collective takes place in the segment."""

    flags: int
    """Address."""
    slots: int
    """Address of the set of slots of this call."""
    slot_bytes: int
    rank: int
    ranks: int
    sequence: int
    timeout_s: float


class _Struct(ctypes.Structure):
    """`struct call` of the source."""

    _fields_ = (
        ("flags", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("flag_bytes", ctypes.c_int64),
        ("slot_bytes", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("ranks", ctypes.c_int64),
        ("sequence", ctypes.c_int64),
        ("dtype", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("input", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("eps", ctypes.c_double),
    )


class Kernels:
    """The loaded library.

    Raises:
        MissingEnvironmentError: it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise MissingEnvironmentError(
                f"{path}: cannot be loaded ({error}); remove it and run again."
            ) from error
        _define()
        self._plain, self._fused = library.mtpprof_all_reduce, library.mtpprof_all_reduce_residual_rmsnorm
        for function in (self._plain, self._fused):
            function.argtypes = (ctypes.POINTER(_Struct), ctypes.c_int64, ctypes.c_int64)
            function.restype = ctypes.c_int64
        library.mtpprof_max_ranks.restype = ctypes.c_int64
        self.max_ranks = int(library.mtpprof_max_ranks())

    def take(self, tensor: Tensor) -> bool:
        """Whether there is a kernel for this tensor: rows of a floating-point type."""
        return tensor.dtype in _DTYPES and tensor.dim() >= 1 and tensor.numel() > 0

    def all_reduce(self, call: Call, tensor: Tensor) -> Tensor:
        """Sum of `tensor` over the ranks, rounded once."""
        output: Tensor = torch.ops.mtpprof_shm.all_reduce.default(tensor, _hand_over(self, call))
        return output

    def all_reduce_residual_rmsnorm(
        self, call: Call, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> Tensor:
        """`rmsnorm(residual + sum of tensor over the ranks) * weight` over the last dimension."""
        output: Tensor = torch.ops.mtpprof_shm.all_reduce_residual_rmsnorm.default(
            tensor, residual, weight, eps, _hand_over(self, call)
        )
        return output

    def run_plain(self, call: Call, tensor: Tensor) -> Tensor:
        """What the operation does."""
        output = torch.empty_like(tensor)
        self._carry_out(self._plain, call, self._struct(call, tensor, output))
        return output

    def run_fused(self, call: Call, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """What the fused operation does."""
        output, residual, weight = torch.empty_like(tensor), residual.contiguous(), weight.contiguous()
        if residual.shape != tensor.shape or weight.shape != tensor.shape[-1:]:
            raise ValueError(f"residual {residual.shape} and weight {weight.shape} for {tensor.shape}")
        if not tensor.dtype == residual.dtype == weight.dtype:
            raise ValueError(f"residual {residual.dtype} and weight {weight.dtype} for {tensor.dtype}")
        struct = self._struct(call, tensor, output)
        struct.residual, struct.weight, struct.eps = residual.data_ptr(), weight.data_ptr(), eps
        scratch = ctypes.create_string_buffer(8 * struct.width)
        struct.scratch = ctypes.addressof(scratch)
        self._carry_out(self._fused, call, struct)
        return output

    def _struct(self, call: Call, tensor: Tensor, output: Tensor) -> _Struct:
        width = tensor.shape[-1]
        return _Struct(
            flags=call.flags,
            slots=call.slots,
            flag_bytes=FLAG_BYTES,
            slot_bytes=call.slot_bytes,
            rank=call.rank,
            ranks=call.ranks,
            sequence=call.sequence,
            dtype=_DTYPES[tensor.dtype],
            rows=tensor.numel() // width,
            width=width,
            input=tensor.data_ptr(),
            output=output.data_ptr(),
        )

    def _carry_out(self, function: Callable[..., int], call: Call, struct: _Struct) -> None:
        missing = function(struct, PATIENCE_NS, 0)
        if missing == _ALL_ARRIVED:
            return
        deadline_s = time.monotonic() + call.timeout_s - PATIENCE_NS / 1e9
        while (missing := function(struct, PATIENCE_NS, 1)) != _ALL_ARRIVED:
            if time.monotonic() > deadline_s:
                raise absent(missing, call.sequence, call.timeout_s, call.rank)


_tickets = itertools.count()
_pending: dict[int, tuple[Kernels, Call]] = {}
"""What operations need beside tensors, by the number that they are given: torch's dispatcher passes no other objects."""


def _hand_over(kernels: Kernels, call: Call) -> int:
    ticket = next(_tickets)
    _pending[ticket] = kernels, call
    return ticket


def _all_reduce(tensor: Tensor, ticket: int) -> Tensor:
    kernels, call = _pending.pop(ticket)
    return kernels.run_plain(call, tensor)


def _all_reduce_residual_rmsnorm(
    tensor: Tensor, residual: Tensor, weight: Tensor, eps: float, ticket: int
) -> Tensor:
    kernels, call = _pending.pop(ticket)
    return kernels.run_fused(call, tensor, residual, weight, eps)


@cache
def _define() -> Any:
    """The operations, defined once; they stay for as long as what this returns."""
    library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
    library.define("all_reduce(Tensor input, int ticket) -> Tensor")
    library.impl("all_reduce", _all_reduce, "CPU")
    library.define(
        "all_reduce_residual_rmsnorm(Tensor input, Tensor residual, Tensor weight, float eps, int ticket) -> Tensor"
    )
    library.impl("all_reduce_residual_rmsnorm", _all_reduce_residual_rmsnorm, "CPU")
    return library


def absent(peer: int, sequence: int, timeout_s: float, seen_by: int) -> RunError:
    """The error of a rank that did not come."""
    return RunError(
        f"rank {peer} did not arrive at collective {sequence} within {timeout_s:g} s "
        f"(seen by rank {seen_by}); see its log, or raise --timeout."
    )
