"""Collectives through `torch.distributed`: gloo on CPU and across hosts, NCCL on CUDA.

On CUDA the all-reduce + residual + RMSNorm is FlashInfer's single kernel where it can be imported and takes the tensor; else torch's
symmetric memory (a one-shot all-reduce that reads the peers' buffers) followed by one fused norm; where neither applies there is none,
the caller falls back to separate kernels and the trace says so. All CUDA paths: not run on a GPU.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from mtpprof.models.traffic import Kind


class _GroupBackend:
    """What gloo and NCCL have in common: plain collectives of a process group, in the tensor's own dtype."""

    name: ClassVar[str]

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def implementation(self, kind: Kind, tensor: Tensor) -> str:
        """See `Backend`."""
        return self.name

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See `Backend`."""
        out = tensor.clone()
        dist.all_reduce(out, group=self.group)
        return out

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `Backend`."""
        out = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        dist.all_gather(list(out.unbind(0)), tensor, group=self.group)
        return list(out.unbind(0))


class GlooBackend(_GroupBackend):
    """`Backend` over a gloo process group; it has no fused form. The process group belongs to the caller."""

    name = "gloo"

    def fused_norm_implementation(self, tensor: Tensor) -> str | None:
        """See `Backend`: none."""
        return None

    def all_reduce_residual_norm(
        self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> Tensor:
        """Never called, since `fused_norm_implementation` offers none.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("gloo has no fused all-reduce")

    def close(self) -> None:
        """See `Backend`: nothing is held."""


class NcclBackend(_GroupBackend):
    """`Backend` over an NCCL process group, with a fused form where one applies. Not run on a GPU."""

    name = "nccl"

    def __init__(
        self, group: dist.ProcessGroup, *, max_rows: int, hidden_size: int, dtype: torch.dtype
    ) -> None:
        super().__init__(group)
        self._fusion = _common_fusion(group, max_rows, hidden_size, dtype)

    def fused_norm_implementation(self, tensor: Tensor) -> str | None:
        """See `Backend`."""
        if self._fusion is not None and self._fusion.accepts(tensor):
            return self._fusion.name
        return None

    def all_reduce_residual_norm(
        self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> Tensor:
        """See `Backend`."""
        assert self._fusion is not None, "fused_norm_implementation is asked first"
        return self._fusion(tensor, residual, weight, eps)

    def close(self) -> None:
        """See `Backend`."""
        if self._fusion is not None:
            self._fusion.close()
            self._fusion = None


class _Fusion(Protocol):
    """All-reduce + residual + RMSNorm on CUDA."""

    name: str

    def accepts(self, tensor: Tensor) -> bool: ...

    def __call__(self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def close(self) -> None: ...


def _common_fusion(
    group: dist.ProcessGroup, max_rows: int, hidden_size: int, dtype: torch.dtype
) -> _Fusion | None:
    """The first fusion that every rank could set up: ranks that chose differently would deadlock."""
    for create in (_FlashInferFusion.create, _SymmetricMemoryFusion.create):
        built = create(group, max_rows, hidden_size, dtype)
        everywhere = torch.tensor(int(built is not None), device="cuda")
        dist.all_reduce(everywhere, op=dist.ReduceOp.MIN, group=group)
        if built is not None and int(everywhere):
            return built
        if built is not None:
            built.close()
    return None


class _SymmetricMemoryFusion:
    """`symm_mem::one_shot_all_reduce` from a buffer that all ranks have mapped, then residual add and one fused norm kernel."""

    name = "symm_mem_oneshot+rms_norm"

    def __init__(self, buffer: Tensor, group_name: str) -> None:
        self._buffer = buffer
        self._group_name = group_name

    @classmethod
    def create(
        cls, group: dist.ProcessGroup, max_rows: int, hidden_size: int, dtype: torch.dtype
    ) -> _SymmetricMemoryFusion | None:
        try:
            import torch.distributed._symmetric_memory as symm_mem

            buffer = symm_mem.empty(max_rows, hidden_size, dtype=dtype, device=torch.device("cuda"))
            symm_mem.rendezvous(buffer, group.group_name)
        except (ImportError, RuntimeError):  # no peer access between the devices, or a torch without it
            return None
        return cls(buffer, group.group_name)

    def accepts(self, tensor: Tensor) -> bool:
        rows, width = self._buffer.shape
        return tensor.dim() == 2 and tensor.shape[0] <= rows and tensor.shape[1] == width

    def __call__(self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        mine = self._buffer[: tensor.shape[0]].copy_(tensor)
        new_residual = torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", self._group_name) + residual
        return torch.nn.functional.rms_norm(new_residual, weight.shape, weight, eps)

    def close(self) -> None:
        self._buffer = torch.empty(0)


class _FlashInferFusion:
    """FlashInfer's all-reduce + residual + RMSNorm (`flashinfer.comm.allreduce_fusion`) and its workspace."""

    name = "flashinfer_fused"

    def __init__(self, comm: Any, workspace: Any, max_rows: int, hidden_size: int, size: int) -> None:
        self._comm = comm
        self._workspace = workspace
        self._max_rows = max_rows
        self._hidden_size = hidden_size
        self._size = size

    @classmethod
    def create(
        cls, group: dist.ProcessGroup, max_rows: int, hidden_size: int, dtype: torch.dtype
    ) -> _FlashInferFusion | None:
        if dtype not in (torch.bfloat16, torch.float16):
            return None
        try:
            import flashinfer.comm as comm
            from flashinfer.comm.mnnvl import TorchDistBackend
        except ImportError:
            return None
        size = dist.get_world_size(group)
        try:
            workspace = comm.create_allreduce_fusion_workspace(
                backend="auto",
                world_size=size,
                rank=dist.get_rank(group),
                max_token_num=max_rows,
                hidden_dim=hidden_size,
                dtype=dtype,
                comm_backend=TorchDistBackend(group=group),
            )
        except (RuntimeError, ValueError):  # no NVLink peer access, unsupported device or TP size
            return None
        return cls(comm, workspace, max_rows, hidden_size, size)

    def accepts(self, tensor: Tensor) -> bool:
        if tensor.dim() != 2 or tensor.shape[0] > self._max_rows or tensor.shape[1] != self._hidden_size:
            return False
        enough = self._workspace.is_buffer_size_sufficient(
            tp_size=self._size, num_tokens=tensor.shape[0], hidden_dim=tensor.shape[1], dtype=tensor.dtype
        )
        return bool(enough)

    def __call__(self, tensor: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, new_residual = torch.empty_like(tensor), torch.empty_like(tensor)
        self._comm.allreduce_fusion(
            input=tensor,
            workspace=self._workspace,
            pattern=self._comm.AllReduceFusionPattern.kARResidualRMSNorm,
            residual_in=residual,
            residual_out=new_residual,
            norm_out=normed,
            rms_gamma=weight,
            rms_eps=eps,
            fp32_acc=True,
        )
        return normed

    def close(self) -> None:
        self._workspace.destroy()
