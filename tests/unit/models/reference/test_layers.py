from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtpprof.models.reference.collectives.comm import Communicator
from mtpprof.models.reference.layers import (
    Norm,
    VocabParallelEmbedding,
    VocabParallelHead,
    activate,
    argmax,
    rotate,
    rotation,
)
from mtpprof.models.reference.weights import Weights
from mtpprof.models.spec import Activation
from tests.unit.models.reference.cases import noise
from tests.unit.models.reference.thread_ranks import run_ranks, solo


def both_ways(logits: Tensor, ranks: int) -> list[tuple[list[int], list[int]]]:
    """Tokens chosen over gathered logits, and by local argmax, for a head whose logits are `logits` `[rows, vocab]`."""

    def choose(comm: Communicator) -> tuple[list[int], list[int]]:
        rows, vocab = logits.shape
        weights = Weights(seed=0, rank=comm.rank, size=comm.size, dtype=logits.dtype)
        head = VocabParallelHead(weights, vocab, rows, 1.0)
        head.weight = logits.T[weights.share(vocab)].contiguous()
        one_hot = torch.eye(rows, dtype=logits.dtype)
        gathered = argmax(head.logits(one_hot, comm, site="lm_head"), comm, site="lm_head")
        return gathered.tolist(), head.local_argmax(one_hot, comm, site="lm_head").tolist()

    return run_ranks(ranks, choose)


@pytest.mark.parametrize(
    ("tied", "lowest"), [((5, 2), 2), ((6, 1), 1), ((4, 7), 4), ((3, 4), 3), ((0, 1), 0)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equal_logits_on_two_ranks_give_the_lowest_index(
    tied: tuple[int, int], lowest: int, dtype: torch.dtype
) -> None:
    logits = torch.full((1, 8), -1.0, dtype=dtype)
    logits[0, list(tied)] = 3.140625
    for gathered, local in both_ways(logits, 2):
        assert gathered == [lowest]
        assert local == [lowest]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 4),
    shard=st.integers(1, 6),
    ranks=st.sampled_from([1, 2, 4]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
    data=st.data(),
)
def test_both_ways_choose_the_first_of_the_largest(
    rows: int, shard: int, ranks: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    vocab = shard * ranks
    few_values = st.integers(-2, 2).map(float)
    values = data.draw(st.lists(few_values, min_size=rows * vocab, max_size=rows * vocab))
    logits = torch.tensor(values, dtype=dtype).view(rows, vocab)
    expected = [row.index(max(row)) for row in logits.tolist()]
    for gathered, local in both_ways(logits, ranks):
        assert gathered == expected
        assert local == expected


def test_a_large_vocabulary_keeps_its_indices() -> None:
    vocab = 163840
    logits = torch.zeros(2, vocab, dtype=torch.bfloat16)
    logits[0, vocab - 1] = 1.0
    logits[1, 131071] = 1.0
    for gathered, local in both_ways(logits, 2):
        assert gathered == local == [vocab - 1, 131071]


def test_the_logit_scale_multiplies_logits() -> None:
    weights = Weights(seed=0)
    plain, scaled = (VocabParallelHead(weights, 16, 8, scale) for scale in (1.0, 0.25))
    hidden = noise(3, 8, dtype=torch.float32)
    assert torch.equal(scaled.shard_logits(hidden), plain.shard_logits(hidden) * 0.25)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_embedding_looks_up_every_token_on_every_rank(ranks: int) -> None:
    table = Weights(seed=0).normal("embed", (32, 4), std=1.0)
    tokens = torch.arange(32).view(4, 8)

    def look_up(comm: Communicator) -> Tensor:
        weights = Weights(seed=0, rank=comm.rank, size=comm.size)
        return VocabParallelEmbedding(weights, 32, 4)(tokens, comm, site="embed")

    for found in run_ranks(ranks, look_up):
        assert torch.equal(found, table)


def test_after_add_is_the_norm_of_the_sum() -> None:
    norm = Norm(Weights(seed=0, dtype=torch.float64), "n", 8, 1e-6)
    x, residual = noise(3, 8), noise(3, 8, seed=1)
    normed, total = norm.after_add(x, residual)
    assert torch.equal(total, residual + x)
    expected = torch.nn.functional.rms_norm(residual + x, (8,), norm.weight, 1e-6)
    torch.testing.assert_close(normed, expected)


def test_rotation_depends_on_distance_only() -> None:
    query, key = noise(8), noise(8, seed=1)

    def score(query_at: int, key_at: int) -> float:
        cos, sin = rotation(torch.tensor([query_at, key_at]), 8, 10000.0, torch.float64)
        turned = rotate(torch.stack([query, key]), cos, sin)
        return float(turned[0] @ turned[1])

    assert score(9, 4) == pytest.approx(score(105, 100))
    assert score(9, 4) != pytest.approx(score(9, 5))
    assert score(7, 7) == pytest.approx(float(query @ key))


def test_activations() -> None:
    x = noise(3, 8)
    gate, up = x[:, :4], x[:, 4:]
    torch.testing.assert_close(activate(x, Activation.SILU_GATED), gate * gate.sigmoid() * up)
    torch.testing.assert_close(activate(x, Activation.RELU2), x.clamp(min=0) ** 2)


def test_argmax_is_annotated() -> None:
    comm = solo()
    names: list[str] = []

    def annotate(name: str) -> torch.inference_mode:
        names.append(name)
        return torch.inference_mode()

    comm.annotate = annotate
    assert argmax(torch.tensor([[0.0, 2.0, 1.0]]), comm, site="lm_head").tolist() == [1]
    assert names == ["mtpprof::argmax site=lm_head rows=1 width=3"]
