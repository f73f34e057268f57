"""The tensor-parallel reference model of a spec, with every optimization as a switch on the live model.

One model serves all arms of a case: switching changes what the next forward pass does, not weights or caches. Weights are
seeded (see `weights.py`) at a scale under which tokens vary: embeddings have standard deviation 1 and the blocks together add
`BRANCHES_GAIN` of that, whatever their number, so the next token depends on the last one and on everything before it.

CUDA: devices are passed through everywhere, but it was not run on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mtpprof.errors import UsageError
from mtpprof.models.ledger import EMBED, LM_HEAD
from mtpprof.models.reference.block import Cache, Context, Rows
from mtpprof.models.reference.collectives.comm import Communicator
from mtpprof.models.reference.layers import (
    EXACT_FP32_INTEGERS,
    VocabParallelEmbedding,
    VocabParallelHead,
    argmax,
)
from mtpprof.models.reference.mtp import DraftModule
from mtpprof.models.reference.stack import Stack
from mtpprof.models.reference.switches import COMMUTATIVE_REDUCE, LOCAL_ARGMAX, SWITCHES, Switches
from mtpprof.models.reference.weights import Weights
from mtpprof.models.spec import ModelSpec

BRANCHES_GAIN = 0.3
"""Size of what all blocks together add to the residual stream, relative to the embedding."""


class ReferenceModel:
    """One rank's share of the model `spec`.

    Raises:
        UsageError: the size of `comm` does not divide what it shards.
    """

    def __init__(
        self,
        spec: ModelSpec,
        comm: Communicator,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        spec.check_tp(comm.size)
        self.spec = spec
        self.comm = comm
        self.dtype = dtype
        self.device = torch.device(device)
        self.switches = Switches()
        weights = Weights(seed=seed, rank=comm.rank, size=comm.size, dtype=dtype, device=device)
        context = Context(
            spec=spec,
            comm=comm,
            weights=weights,
            switches=self.switches,
            branch_gain=BRANCHES_GAIN / len(spec.blocks) ** 0.5,
        )
        self.embedding = VocabParallelEmbedding(weights, spec.vocab_size, spec.hidden_size)
        self.head = VocabParallelHead(weights, spec.vocab_size, spec.hidden_size, spec.logit_scale)
        self.stack = Stack(context, spec.blocks)
        self.draft = DraftModule(context, spec.mtp, self.embedding, self.head) if spec.mtp else None

    def set_arm(self, enabled: frozenset[str], *, force: frozenset[str] = frozenset()) -> None:
        """Switch to the arm in which exactly the optimizations `enabled` are on, from the next forward pass.

        An optimization that has nothing to act on (no draft module, no latent MoE) changes nothing. One that would change
        the outputs is refused unless it is in `force`, which is there to show that it would.

        Raises:
            UsageError: an unknown name, or an optimization that would give wrong outputs on this model.
        """
        if unknown := enabled.difference(SWITCHES):
            raise UsageError(
                f"{self.spec.name}: the reference engine has no switch {', '.join(sorted(unknown))}; "
                f"it has {', '.join(SWITCHES)}."
            )
        for name in sorted(enabled - force):
            if reason := self._wrong_because(name):
                raise UsageError(
                    f"{self.spec.name}: {name} would give wrong outputs: {reason}; leave it off."
                )
        self.switches.enabled, self.switches.forced = enabled, enabled & force

    def _wrong_because(self, name: str) -> str | None:
        moe = self.spec.moe
        if name == COMMUTATIVE_REDUCE and moe is not None and moe.latent_size is not None:
            if moe.latent_quantization is not None:
                return f"its latent output projection is quantized ({moe.latent_quantization})"
            if moe.latent_norm:
                return "an RMSNorm in the latent output transform does not commute with the sum over ranks"
            if moe.latent_bias:
                return "the bias of the latent output projection would be added once per rank"
        if name == LOCAL_ARGMAX:
            if self.spec.logit_scale <= 0:
                return f"its logit scale {self.spec.logit_scale:g} is not positive"
            if self.spec.vocab_size > EXACT_FP32_INTEGERS:
                return f"token ids of a vocabulary of {self.spec.vocab_size} are not exact in fp32"
        return None

    def new_caches(self, sequences: int, capacity: int) -> list[Cache]:
        """Caches of the target model for `sequences` sequences of up to `capacity` positions."""
        return self.stack.new_caches(sequences, capacity)

    def __call__(self, tokens: Tensor, rows: Rows, caches: list[Cache]) -> Tensor:
        """Target forward pass: tokens `[sequences, per_sequence]` to hidden states after the final norm `[rows, hidden]`."""
        return self.stack(self.embedding(tokens, self.comm, site=EMBED), rows, caches)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the whole vocabulary, gathered in every arm: `[rows, hidden]` to `[rows, vocab]`."""
        return self.head.logits(hidden, self.comm, site=LM_HEAD)

    def greedy(self, logits: Tensor) -> Tensor:
        """Most likely token of each row: `[rows, vocab]` to `[rows]`, int64, the lowest id among equals."""
        return argmax(logits, self.comm, site=LM_HEAD)
