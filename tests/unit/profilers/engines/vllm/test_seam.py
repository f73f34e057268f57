"""The wrap around vLLM's collectives, on classes of the same shape as vLLM's."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from mtpprof import ranges
from mtpprof.models.traffic import Kind
from mtpprof.profilers.engines.vllm import seam
from mtpprof.profilers.engines.vllm.handshake import Handshake
from mtpprof.profilers.engines.vllm.sites import Place, SiteMap
from mtpprof.profilers.engines.vllm.tracker import Tracker

from .test_tracker import Clock, Ranges


class _CPUSHMDistributed:
    """Named as vLLM's shared-memory backend."""


class Communicator:
    def __init__(self, module: Any = None) -> None:
        if module is not None:
            self.dist_module = module


def coordinator_class() -> type:
    """A new class each time: wrapping changes it."""

    class GroupCoordinator:
        unique_name = "tp:0"
        world_size = 2

        def __init__(self, communicator: Any = None) -> None:
            self.device_communicator = communicator or Communicator(_CPUSHMDistributed())

        def all_reduce(self, input_: Tensor) -> Tensor:
            return self._all_reduce_out_place(input_)

        def _all_reduce_out_place(self, input_: Tensor) -> Tensor:
            return input_ * 2

        def _all_gather_out_place(self, input_: Tensor, dim: int) -> Tensor:
            return torch.cat([input_, input_], dim)

    return GroupCoordinator


class RowParallelLinear:
    prefix = "model.layers.0.self_attn.o_proj"

    def forward(self, group: Any, tensor: Tensor) -> Tensor:
        return tensor_model_parallel_all_reduce(group, tensor)


class MoERunner:
    layer_name = "model.layers.1.mlp.experts"

    def forward(self, group: Any, tensor: Tensor) -> Tensor:
        return self._maybe_reduce_final_output(group, tensor)

    def _maybe_reduce_final_output(self, group: Any, tensor: Tensor) -> Tensor:
        return tensor_model_parallel_all_reduce(group, tensor)


class LogitsProcessor:
    def _gather_logits(self, group: Any, tensor: Tensor) -> Tensor:
        result: Tensor = group._all_gather_out_place(tensor, -1)
        return result


def tensor_model_parallel_all_reduce(group: Any, tensor: Tensor) -> Tensor:
    result: Tensor = group.all_reduce(tensor)
    return result


@pytest.fixture
def wrapped() -> tuple[type, Tracker, Ranges]:
    opened = Ranges()
    tracker = Tracker(opened.annotate, Clock())
    tracker.sites = SiteMap(Handshake(family="deepseek", blocks="ADAE", draft_blocks="AE"))
    kind = coordinator_class()
    seam.install(kind, tracker)
    return kind, tracker, opened


def recorded(opened: Ranges) -> list[ranges.CollectiveRange]:
    return [
        item
        for name in opened.log
        if name[0] == "+" and (item := ranges.parse_collective(name[1:])) is not None
    ]


def record(tracker: Tracker) -> None:
    tracker.begin(1, record=True, skip=0)
    tracker.step(prefill=False)


def test_calls_of_modules_are_told_with_site_shape_and_backend(
    wrapped: tuple[type, Tracker, Ranges],
) -> None:
    kind, tracker, opened = wrapped
    record(tracker)
    group, tensor = kind(), torch.ones(3, 8, dtype=torch.bfloat16)
    assert torch.equal(RowParallelLinear().forward(group, tensor), tensor * 2)
    MoERunner().forward(group, tensor)
    LogitsProcessor()._gather_logits(group, tensor.float())
    told = [(item.kind, item.site, item.shape, item.dtype, item.implementation) for item in recorded(opened)]
    assert told == [
        ("all_reduce", "layers.0.mla.o_proj", (3, 8), "bf16", "vllm_cpu_shm"),
        ("all_reduce", "layers.1.moe.final", (3, 8), "bf16", "vllm_cpu_shm"),
        ("all_gather", "lm_head", (3, 8), "fp32", "vllm_cpu_shm"),
    ]
    assert [item.payload_bytes for item in recorded(opened)] == [48, 48, 192]


def test_nothing_is_told_while_nothing_is_recorded(wrapped: tuple[type, Tracker, Ranges]) -> None:
    kind, tracker, opened = wrapped
    tracker.begin(1, record=False, skip=0)
    RowParallelLinear().forward(kind(), torch.ones(1, 8))
    assert opened.log == []


def test_a_group_of_one_has_no_collectives(wrapped: tuple[type, Tracker, Ranges]) -> None:
    kind, tracker, opened = wrapped
    record(tracker)
    group = kind()
    group.world_size = 1
    group.all_reduce(torch.ones(1, 8))
    assert recorded(opened) == []


def test_wrapping_twice_wraps_once(wrapped: tuple[type, Tracker, Ranges]) -> None:
    kind, tracker, _ = wrapped
    before = kind.__dict__["_all_reduce_out_place"]
    seam.install(kind, tracker)
    assert kind.__dict__["_all_reduce_out_place"] is before


def test_a_call_that_fails_still_ends_its_range() -> None:
    opened = Ranges()
    tracker = Tracker(opened.annotate, Clock())

    class GroupCoordinator:
        unique_name, world_size, device_communicator = "tp:0", 2, Communicator(object())

        def _all_reduce_out_place(self, input_: Tensor) -> Tensor:
            raise RuntimeError("peer is gone")

    seam.install(GroupCoordinator, tracker)
    record(tracker)
    with pytest.raises(RuntimeError, match="peer is gone"):
        GroupCoordinator()._all_reduce_out_place(torch.ones(1))


class Backend:
    """A sub-communicator that takes tensors up to a size."""

    def __init__(self, predicate: str, limit: int, *, disabled: bool = False) -> None:
        setattr(self, predicate, lambda tensor: tensor.numel() <= limit)
        self.disabled = disabled


def test_the_backend_is_the_first_that_vllms_dispatch_would_take() -> None:
    class Cuda:
        fi_ar_comm = Backend("should_use_fi_ar", 16)
        ca_comm = Backend("should_custom_ar", 64)
        symm_mem_comm = Backend("should_use_symm_mem", 1024, disabled=True)
        pynccl_comm = Backend("unused", 0)

    class Coordinator:
        device_communicator = Cuda()

    def of(size: int, kind: Kind = Kind.ALL_REDUCE) -> str:
        return seam.implementation(Coordinator(), kind, torch.ones(size))

    assert [of(size) for size in (16, 17, 65)] == ["flashinfer", "vllm_custom", "pynccl"]
    assert of(16, Kind.ALL_GATHER) == "pynccl"
    Cuda.pynccl_comm.disabled = True
    assert of(65) == "torch_distributed"


def test_gloo_is_the_cpus_backend_where_shared_memory_is_not() -> None:
    group = coordinator_class()(Communicator(torch.distributed))
    assert seam.implementation(group, Kind.ALL_REDUCE, torch.ones(1)) == "gloo"


def test_flashinfers_fused_call_says_what_it_is_fused_with() -> None:
    opened = Ranges()
    tracker = Tracker(opened.annotate, Clock())
    tracker.sites = SiteMap(Handshake(family="deepseek", blocks="ADAE", draft_blocks="AE"))
    seen = []
    fused = seam.wrap_fused(lambda **kwargs: seen.append(kwargs["pattern"]), tracker, 4)
    record(tracker)
    for pattern in (1, 0, 2):
        fused(input=torch.ones(2, 4), pattern=pattern)
    first, second = recorded(opened)
    assert (first.fused, first.group_size, first.site) == ("residual_rmsnorm", 4, "layers.0.mla.o_proj")
    assert (first.payload_bytes, second.fused) == (32, "residual_rmsnorm_fp8")
    assert seen == [1, 0, 2]
    assert seam.wrap_fused(fused, tracker, 4) is fused


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32"), (torch.int64, "int64")],
)
def test_dtypes_are_spelled_as_in_the_ledger(dtype: torch.dtype, name: str) -> None:
    assert seam.dtype_name(dtype) == name


def test_a_caller_outside_any_module_is_named_by_its_function() -> None:
    def lonely() -> Place:
        return seam.caller(sys._getframe(0))

    assert lonely() == Place(function="lonely")
