from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpprof.models.reference.weights import Weights


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
    data=st.data(),
)
def test_shards_join_to_the_whole_tensor(shape: tuple[int, ...], data: st.DataObject) -> None:
    split = data.draw(st.integers(0, len(shape) - 1))
    ranks = data.draw(st.integers(1, min(12, shape[split])))
    whole = Weights(seed=3).normal("w", shape, std=1.0, split=split)
    shards = [
        Weights(seed=3, rank=rank, size=ranks).normal("w", shape, std=1.0, split=split)
        for rank in range(ranks)
    ]
    assert torch.equal(torch.cat(shards, split), whole)
    assert whole.shape == shape


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 50), data=st.data())
def test_any_part_is_that_part_of_the_whole(length: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    weights = Weights(seed=3, rank=1, size=4)
    whole = Weights(seed=3).normal("w", (length, 2), std=1.0, split=0)
    part = weights.normal("w", (length, 2), std=1.0, split=0, part=slice(start, stop))
    assert torch.equal(part, whole[start:stop])


def test_all_dtypes_share_the_fp32_values() -> None:
    fp32 = Weights(seed=1).linear("w", 64, 32)
    assert torch.equal(Weights(seed=1, dtype=torch.float64).linear("w", 64, 32), fp32.double())
    assert torch.equal(Weights(seed=1, dtype=torch.bfloat16).linear("w", 64, 32), fp32.bfloat16())


@pytest.mark.parametrize(
    ("seed", "name", "shape"), [(2, "w", (64, 32)), (1, "v", (64, 32)), (1, "w", (32, 64))]
)
def test_seed_name_and_shape_each_make_another_tensor(seed: int, name: str, shape: tuple[int, int]) -> None:
    one = Weights(seed=1).normal("w", (64, 32), std=1.0).flatten()
    other = Weights(seed=seed).normal(name, shape, std=1.0).flatten()
    assert not torch.isclose(one, other).all()


def test_no_two_blocks_are_alike() -> None:
    rows = Weights(seed=1).normal("w", (64, 32), std=1.0)
    assert len({tuple(row.tolist()) for row in rows}) == 64


def test_sizes_are_as_asked() -> None:
    weights = Weights(seed=1)
    values = weights.normal("w", (400, 300), std=3.0, mean=-1.0)
    assert values.mean().item() == pytest.approx(-1.0, abs=0.1)
    assert values.std().item() == pytest.approx(3.0, rel=0.02)
    projected = torch.nn.functional.linear(torch.randn(64, 300), weights.linear("p", 400, 300, gain=0.5))
    assert projected.std().item() == pytest.approx(0.5, rel=0.1)
    assert weights.norm("n", 400).mean().item() == pytest.approx(1.0, abs=0.02)
