"""The compiled all-reduces, with ranks that are processes: right, in step with one another, and told of where one does not come."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mtpprof.errors import MissingEnvironmentError
from mtpprof.models.reference.collectives import shm, shm_kernels, shm_library
from mtpprof.models.reference.collectives.shm_limits import available
from tests.unit.models.reference.collectives import rank_processes as ranks


def _why_not() -> str:
    if not available():
        return "shared memory needs Linux on x86-64 with /dev/shm"
    try:
        shm_library.kernel_library()
    except MissingEnvironmentError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "it can be built")

ULPS = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22, torch.float64: 2**-50}
"""Relative error of one rounding, and where the arithmetic itself is in the dtype of a few."""


@pytest.mark.parametrize("size", [2, 3, 4])
def test_both_forms_equal_a_computation_in_fp64_for_odd_sizes_and_all_dtypes(
    tmp_path: Path, size: int
) -> None:
    found = ranks.run(tmp_path, size, "sums")
    for index, (dtype, shape) in enumerate(product(ranks.DTYPES, ranks.SHAPES)):
        exact = torch.stack([ranks.inputs(rank, shape, dtype).double() for rank in range(size)])
        total = exact.sum(0)
        residual, weight = (
            ranks.inputs(-1, shape, dtype).double(),
            ranks.inputs(-2, shape[-1:], dtype).double(),
        )
        stream = total + residual
        scale = torch.rsqrt(stream.square().mean(-1, keepdim=True) + ranks.EPS)
        plain, fused = found[0][index]
        assert plain.dtype == fused.dtype == dtype
        one = ULPS[dtype]
        # The sum is rounded once, after it was added in fp32 or wider; the sum with the residual once more, and the result.
        sum_error = one * total.abs() + 2**-22 * exact.abs().sum(0) * (dtype != torch.float64)
        torch.testing.assert_close(plain.double(), total, rtol=0, atol=float(sum_error.max() * 1.01 + 1e-300))
        stream_error = sum_error.max() + one * stream.abs().max()
        bound = float(
            (stream_error * scale.max() + 4 * one * (stream * scale).abs().max()) * weight.abs().max()
        )
        torch.testing.assert_close(fused.double(), stream * scale * weight, rtol=0, atol=2 * bound)
        for other in found[1:]:
            assert torch.equal(other[index][0], plain)
            assert torch.equal(other[index][1], fused)


@pytest.mark.parametrize("size", [2, 4])
def test_no_call_sees_anything_of_another(tmp_path: Path, size: int) -> None:
    assert ranks.run(tmp_path, size, "turns") == [[]] * size


def test_a_rank_that_does_not_come_is_named_by_the_others(tmp_path: Path) -> None:
    first, missing, third = ranks.run(tmp_path, 3, "absent")
    assert missing is None
    for rank, text in ((0, first), (2, third)):
        assert (
            f"rank {ranks.ABSENT_RANK} did not arrive at collective 1 within 0.3 s (seen by rank {rank})"
            in text
        )


@pytest.fixture
def alone() -> shm.SharedMemoryBackend:
    path = shm.create_segment(f"mtpprof-test-alone-{id(object())}", 1, 1 << 12)
    kernels = shm_kernels.Kernels(shm_library.kernel_library())
    backend = shm.SharedMemoryBackend(path, 0, 1, 1 << 12, 5, kernels)
    path.unlink()
    return backend


@pytest.mark.parametrize("dtype", ranks.DTYPES)
@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.0, 65504.0, 65519.0, 65520.0, 1e-7, 6e-8, 2e-8, 3e38, torch.inf, torch.nan]
)
def test_special_values_round_as_torch_rounds_them(
    alone: shm.SharedMemoryBackend, dtype: torch.dtype, value: float
) -> None:
    tensor = torch.full((1, 5), value, dtype=torch.float64).to(dtype)
    torch.testing.assert_close(alone.all_reduce(tensor), tensor, rtol=0, atol=0, equal_nan=True)
    zero, one = torch.zeros(1, 5, dtype=dtype), torch.ones(5, dtype=dtype)
    normed = alone.all_reduce_residual_norm(zero, tensor, one, 1.0)
    wide = tensor.to(torch.float64 if dtype == torch.float64 else torch.float32)
    expected = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1.0)).to(dtype)
    torch.testing.assert_close(normed, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_precision_number_survives(alone: shm.SharedMemoryBackend, dtype: torch.dtype) -> None:
    for start in range(-(1 << 15), 1 << 15, 1 << 10):
        tensor = torch.arange(start, start + (1 << 10), dtype=torch.int16).view(dtype)[None]
        torch.testing.assert_close(alone.all_reduce(tensor), tensor, rtol=0, atol=0, equal_nan=True)


def test_each_form_is_an_operation_that_a_profiler_sees(alone: shm.SharedMemoryBackend) -> None:
    tensor = torch.ones(2, 8)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        alone.all_reduce(tensor)
        alone.all_reduce_residual_norm(tensor, tensor, tensor[0], 1e-6)
    names = [event.name for event in profiler.events()]
    assert [name for name in names if name.startswith("mtpprof_shm::")] == [
        "mtpprof_shm::all_reduce",
        "mtpprof_shm::all_reduce_residual_rmsnorm",
    ]
    assert not {"aten::rsqrt", "aten::add", "aten::sum"} & set(names)


def test_what_does_not_fit_together_is_refused(alone: shm.SharedMemoryBackend) -> None:
    tensor = torch.ones(2, 8)
    with pytest.raises(ValueError, match="weight"):
        alone.all_reduce_residual_norm(tensor, tensor, torch.ones(7), 1e-6)
    with pytest.raises(ValueError, match="bfloat16"):
        alone.all_reduce_residual_norm(tensor, tensor.bfloat16(), torch.ones(8), 1e-6)


def test_a_library_that_is_no_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("")
    with pytest.raises(MissingEnvironmentError, match=r"x\.so: cannot be loaded"):
        shm_kernels.Kernels(tmp_path / "x.so")


def test_processors_that_differ_do_not_share_a_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if sys.platform != "linux":
        pytest.skip("the features of a processor are read from /proc")
    first = shm_library.LIBRARY.key([shm_library._processor_features()])
    assert shm_library._processor_features().startswith(b"flags")
    assert shm_library.LIBRARY.key([b"flags: none"]) != first
