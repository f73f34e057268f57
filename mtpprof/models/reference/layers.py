"""Layers that several blocks share: vocabulary-parallel embedding and head, rotary embedding, residual norm, activations.

Tensors are `[rows, width]`; a row is one position of one sequence. Weights are plain tensors `[outputs, inputs]`: there is no
training here, hence no `nn.Module`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof import ranges
from mtpprof.models.reference.collectives.comm import Communicator
from mtpprof.models.reference.norm import rms_norm
from mtpprof.models.reference.weights import Weights
from mtpprof.models.spec import Activation

EXACT_FP32_INTEGERS = 2**24
"""Integers below this are exact in fp32, in which `local_argmax` sends token ids."""


class Norm:
    """RMSNorm with its weight."""

    def __init__(self, weights: Weights, name: str, size: int, eps: float) -> None:
        self.weight = weights.norm(name, size)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., size]` to the same shape."""
        return rms_norm(x, self.weight, self.eps)

    def after_add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """`(norm(residual + x), residual + x)`, the sum in the model's dtype."""
        residual = residual + x
        return rms_norm(residual, self.weight, self.eps), residual


class VocabParallelEmbedding:
    """Token embedding `[vocab / n, hidden]`: each rank looks up its own tokens, an all-reduce adds the rest."""

    def __init__(self, weights: Weights, vocab_size: int, hidden_size: int) -> None:
        self.weight = weights.normal("embed", (vocab_size, hidden_size), std=1.0, split=0)
        self.start = weights.share(vocab_size).start

    def __call__(self, tokens: Tensor, comm: Communicator, *, site: str) -> Tensor:
        """Token ids of any shape, int64, to `[tokens, hidden]`."""
        local = tokens.reshape(-1) - self.start
        if comm.size == 1:
            return F.embedding(local, self.weight)
        elsewhere = (local < 0) | (local >= self.weight.shape[0])
        found = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return comm.all_reduce(found.masked_fill_(elsewhere[:, None], 0.0), site=site)


class VocabParallelHead:
    """Output projection `[vocab / n, hidden]` and the two ways to the most likely token.

    Ties go to the lowest token id in both: `argmax` takes the first of equal values, and shards are in rank order.
    """

    def __init__(self, weights: Weights, vocab_size: int, hidden_size: int, scale: float) -> None:
        self.weight = weights.linear("lm_head", vocab_size, hidden_size, split=0)
        self.start = weights.share(vocab_size).start
        self.scale = scale

    def shard_logits(self, hidden: Tensor) -> Tensor:
        """`[rows, hidden]` to this rank's logits `[rows, vocab / n]`."""
        logits = F.linear(hidden, self.weight)
        return logits if self.scale == 1.0 else logits * self.scale

    def logits(self, hidden: Tensor, comm: Communicator, *, site: str) -> Tensor:
        """Logits over the whole vocabulary `[rows, vocab]`, by an all-gather and its layout copy."""
        return comm.all_gather(self.shard_logits(hidden), site=site, dim=-1)

    def local_argmax(self, hidden: Tensor, comm: Communicator, *, site: str) -> Tensor:
        """Most likely token of each row `[rows]`, int64, by an all-gather of (value, token id) pairs `[rows, 2]` in fp32.

        fp32 holds every bf16 and fp16 logit exactly. In fp64, maxima of two ranks closer than fp32 resolves count as a tie.
        """
        logits = self.shard_logits(hidden)
        index = argmax(logits, comm, site=site)[:, None]
        pair = torch.cat([logits.gather(1, index).float(), (index + self.start).float()], dim=-1)
        pairs = comm.all_gather(pair, site=site, dim=-1).view(-1, comm.size, 2)
        winner = pairs[..., 0].argmax(dim=-1, keepdim=True)
        return pairs[..., 1].gather(1, winner)[:, 0].long()


def argmax(logits: Tensor, comm: Communicator, *, site: str) -> Tensor:
    """Most likely token of each row, `[rows, width]` to `[rows]`, int64, annotated: it is a cost of its own."""
    with comm.annotate(ranges.argmax_name(site, *logits.shape)):
        if logits.device.type != "cpu":
            return logits.argmax(dim=-1)
        # NumPy's is vectorised: 12 µs for a row of 129280 in fp32, where torch takes 230 µs (and 270 µs in bf16).
        wide = logits.float() if logits.element_size() < 4 else logits
        return torch.from_numpy(wide.numpy().argmax(axis=-1))


def rotation(positions: Tensor, size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary embedding: positions `[...]` to two `[..., size / 2]`."""
    frequencies = theta ** (-torch.arange(0, size, 2, device=positions.device, dtype=dtype) / size)
    angles = positions[..., None].to(dtype) * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `x` `[..., size]`, whose halves are the pairs; `cos` and `sin` broadcast to `[..., size / 2]`."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


ACTIVATION_SIZE = {Activation.SILU_GATED: 0.6, Activation.RELU2: 1.22}
"""Root mean square of each activation of standard normal inputs; down projections are scaled by its inverse."""


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Activation of an MLP: gated ones halve the last dimension (`[gate, up]`), the others keep it."""
    if activation is Activation.SILU_GATED:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
    return F.relu(x).square()
