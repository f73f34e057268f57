"""Choice and wiring of the fused forms on CUDA, held with stand-ins: no GPU is needed and none is used."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from mtpprof.models.reference.collectives import distributed
from mtpprof.models.reference.norm import rms_norm
from mtpprof.models.traffic import Kind

SIZE = 4
WIDTH = 8


class Workspace:
    """What FlashInfer hands out; remembers whether it was destroyed."""

    def __init__(self) -> None:
        self.destroyed = False

    def is_buffer_size_sufficient(self, *, num_tokens: int, **_: Any) -> bool:
        return num_tokens <= 4

    def destroy(self) -> None:
        self.destroyed = True


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A `flashinfer.comm` whose ranks all hold the same tensor, and a group of four ranks that agree."""
    made = Workspace()

    def allreduce_fusion(
        *,
        input: Tensor,
        pattern: int,
        residual_in: Tensor,
        residual_out: Tensor,
        norm_out: Tensor,
        rms_gamma: Tensor,
        rms_eps: float,
        **_: Any,
    ) -> None:
        assert pattern == 1
        residual_out.copy_(input * SIZE + residual_in)
        norm_out.copy_(rms_norm(residual_out, rms_gamma, rms_eps))

    comm, mnnvl = ModuleType("flashinfer.comm"), ModuleType("flashinfer.comm.mnnvl")
    vars(comm).update(
        allreduce_fusion=allreduce_fusion,
        create_allreduce_fusion_workspace=lambda **_: made,
        AllReduceFusionPattern=SimpleNamespace(kARResidualRMSNorm=1),
    )
    vars(mnnvl).update(TorchDistBackend=lambda group: group)
    package = ModuleType("flashinfer")
    vars(package).update(comm=comm)
    for name, module in (
        ("flashinfer", package),
        ("flashinfer.comm", comm),
        ("flashinfer.comm.mnnvl", mnnvl),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    group_of(monkeypatch, agree=True)
    return made


def group_of(monkeypatch: pytest.MonkeyPatch, *, agree: bool) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: SIZE)
    monkeypatch.setattr(torch, "tensor", lambda value, device: torch.full((), value, dtype=torch.int32))

    def all_reduce(flag: Tensor, **_: Any) -> None:
        if not agree:
            flag.zero_()

    monkeypatch.setattr(dist, "all_reduce", all_reduce)


def backend() -> distributed.NcclBackend:
    group: Any = SimpleNamespace(group_name="0")
    return distributed.NcclBackend(group, max_rows=16, hidden_size=WIDTH, dtype=torch.bfloat16)


def test_flashinfer_is_taken_and_gives_the_norm(workspace: Workspace) -> None:
    nccl = backend()
    mine = torch.randn(2, WIDTH).bfloat16()
    residual, weight = torch.randn(2, WIDTH).bfloat16(), torch.ones(WIDTH).bfloat16()
    assert nccl.implementation(Kind.ALL_REDUCE, mine) == "nccl"
    assert nccl.fused_norm_implementation(mine) == "flashinfer_fused"
    normed = nccl.all_reduce_residual_norm(mine, residual, weight, 1e-6)
    torch.testing.assert_close(normed, rms_norm(mine * SIZE + residual, weight, 1e-6))
    nccl.close()
    assert workspace.destroyed


@pytest.mark.parametrize("shape", [(8, WIDTH), (17, WIDTH), (2, WIDTH + 1), (2, 2, WIDTH)])
def test_what_the_kernel_does_not_take_falls_back(workspace: Workspace, shape: tuple[int, ...]) -> None:
    assert backend().fused_norm_implementation(torch.zeros(shape, dtype=torch.bfloat16)) is None


def test_no_rank_fuses_unless_all_can(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    group_of(monkeypatch, agree=False)
    assert backend().fused_norm_implementation(torch.zeros(2, WIDTH, dtype=torch.bfloat16)) is None
    assert workspace.destroyed


def test_gloo_has_no_fused_form(monkeypatch: pytest.MonkeyPatch) -> None:
    group_of(monkeypatch, agree=True)
    group: Any = object()
    gloo = distributed.GlooBackend(group)
    assert gloo.fused_norm_implementation(torch.zeros(1, WIDTH)) is None
    with pytest.raises(RuntimeError, match="no fused"):
        gloo.all_reduce_residual_norm(torch.zeros(1), torch.zeros(1), torch.zeros(1), 1e-6)
