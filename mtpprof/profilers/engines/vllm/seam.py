"""The one place in vLLM that every platform's collectives pass, wrapped so that each names itself while a window is recorded.

`GroupCoordinator._all_reduce_out_place` and its siblings lie inside the opaque custom operators of CUDA and are called directly on
the CPU. FlashInfer's fused all-reduce bypasses them and is wrapped by itself. Which backend carries a call out is read off the
predicates that vLLM's own dispatch asks, in its order.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from mtpprof.models.optimizations.base import FUSED_RESIDUAL_RMSNORM
from mtpprof.models.traffic import Kind
from mtpprof.profilers.engines.vllm.sites import FUSED_HELPER, MOE_FUNCTIONS, Place
from mtpprof.profilers.engines.vllm.tracker import Call, Tracker

WRAPPED = "_mtpprof_original"
MAX_FRAMES = 24

METHODS = {
    "_all_reduce_out_place": Kind.ALL_REDUCE,
    "_all_gather_out_place": Kind.ALL_GATHER,
    "_reduce_scatter_out_place": Kind.REDUCE_SCATTER,
    "all_gatherv": Kind.ALL_GATHER,
    "reduce_scatterv": Kind.REDUCE_SCATTER,
    "gather": Kind.GATHER,
    "broadcast": Kind.BROADCAST,
}
"""Methods of `GroupCoordinator` that carry out one collective on a tensor, their first argument."""

ALL_REDUCE_BACKENDS: tuple[tuple[str, str, str], ...] = (
    ("qr_comm", "should_quick_allreduce", "quickreduce"),
    ("fi_pcie_ipc_ar_comm", "should_use", "flashinfer_pcie_ipc"),
    ("fi_ar_comm", "should_use_fi_ar", "flashinfer"),
    ("aiter_ar_comm", "should_custom_ar", "aiter_custom"),
    ("ca_comm", "should_custom_ar", "vllm_custom"),
    ("symm_mem_comm", "should_use_symm_mem", "torch_symm_mem"),
)
"""Sub-communicators in the order in which `CudaCommunicator.all_reduce` asks them: attribute, predicate, name of the backend."""


def install(coordinator: type, tracker: Tracker) -> None:
    """Wrap the collectives of `GroupCoordinator`; a second call changes nothing."""
    for name, kind in METHODS.items():
        original = getattr(coordinator, name, None)
        if original is None or hasattr(original, WRAPPED):
            continue
        setattr(coordinator, name, _wrapped(original, kind, tracker))


def _wrapped(original: Callable[..., Any], kind: Kind, tracker: Tracker) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracker.listening or self.world_size == 1 or not hasattr(tensor, "dtype"):
            return original(self, tensor, *args, **kwargs)
        told = Call(
            kind=kind,
            shape=tuple(tensor.shape),
            dtype=dtype_name(tensor.dtype),
            payload_bytes=payload_of(kind, tensor, self.world_size),
            group=str(self.unique_name).partition(":")[0],
            group_size=self.world_size,
            implementation=implementation(self, kind, tensor),
            place=caller(sys._getframe(1)),
        )
        with tracker.collective(told):
            return original(self, tensor, *args, **kwargs)

    setattr(call, WRAPPED, original)
    return call


FUSED_PATTERNS = {
    1: FUSED_RESIDUAL_RMSNORM,
    2: f"{FUSED_RESIDUAL_RMSNORM}_fp8",
    3: f"{FUSED_RESIDUAL_RMSNORM}_fp4",
    4: f"{FUSED_RESIDUAL_RMSNORM}_out_fp8",
    5: f"{FUSED_RESIDUAL_RMSNORM}_out_fp4",
}
"""FlashInfer's `AllReduceFusionPattern`; 0 is a plain all-reduce, which comes through the coordinator."""


def wrap_fused(original: Callable[..., Any], tracker: Tracker, group_size: int) -> Callable[..., Any]:
    """FlashInfer's `allreduce_fusion`, which vLLM's helper and its compiler's pass call with keywords, naming itself."""
    if hasattr(original, WRAPPED):
        return original

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensor, fused = kwargs.get("input"), FUSED_PATTERNS.get(int(kwargs.get("pattern", 0)))
        if not tracker.listening or tensor is None or fused is None:
            return original(*args, **kwargs)
        told = Call(
            kind=Kind.ALL_REDUCE,
            shape=tuple(tensor.shape),
            dtype=dtype_name(tensor.dtype),
            payload_bytes=payload_of(Kind.ALL_REDUCE, tensor, group_size),
            group="tp",
            group_size=group_size,
            implementation="flashinfer",
            place=Place(function=FUSED_HELPER),
            fused=fused,
        )
        with tracker.collective(told):
            return original(*args, **kwargs)

    setattr(call, WRAPPED, original)
    return call


def payload_of(kind: Kind, tensor: Any, group_size: int) -> int:
    """Payload of a call on this rank's `tensor`, in the sense of nccl-tests."""
    size = int(tensor.numel()) * int(tensor.element_size())
    return size * group_size if kind in (Kind.ALL_GATHER, Kind.GATHER) else size


_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def dtype_name(dtype: Any) -> str:
    """A torch dtype as the ledger spells it."""
    name = str(dtype).rpartition(".")[2]
    return _DTYPES.get(name, name)


def implementation(coordinator: Any, kind: Kind, tensor: Any) -> str:
    """Name of the backend that will carry out a call."""
    communicator = coordinator.device_communicator
    module = getattr(communicator, "dist_module", None)
    if module is not None:
        return "vllm_cpu_shm" if type(module).__name__ == "_CPUSHMDistributed" else "gloo"
    if kind is Kind.ALL_REDUCE:
        for attribute, predicate, name in ALL_REDUCE_BACKENDS:
            backend = getattr(communicator, attribute, None)
            if backend is None or getattr(backend, "disabled", False) or not hasattr(backend, predicate):
                continue
            if getattr(backend, predicate)(tensor):
                return name
    pynccl = getattr(communicator, "pynccl_comm", None)
    return "torch_distributed" if pynccl is None or pynccl.disabled else "pynccl"


def caller(frame: FrameType | None) -> Place:
    """The nearest module around a call that vLLM has a name for."""
    function = ""
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        name = frame.f_code.co_name
        if name == FUSED_HELPER:
            return Place(function=name)
        if name in MOE_FUNCTIONS:
            function = name
        owner = frame.f_locals.get("self")
        if owner is not None:
            prefix = getattr(owner, "layer_name", None) or getattr(owner, "prefix", None)
            kind = type(owner).__name__
            if isinstance(prefix, str) or kind in ("VocabParallelEmbedding", "LogitsProcessor"):
                return Place(owner=kind, prefix=prefix if isinstance(prefix, str) else "", function=function)
        function = function or ("" if name in ("all_reduce", "all_gather", "reduce_scatter") else name)
        frame = frame.f_back
    return Place(function=function)
