"""The multi-token-prediction module (DeepSeek-V3, arXiv 2412.19437, section 2.2): one draft layer, run once per draft token.

It takes the hidden state of a position and the token that follows, and predicts the token after that one. Embedding and output
head are the target's. `eh_proj`, which joins the two, is replicated (DeepSeek) or column-parallel with a gathered output
(Nemotron-3).

A trained draft module agrees with its target often; a random one never would, and speculative decoding could not be shown to
accept anything. So `eh_proj` passes the embedding half on (identity plus noise), while blocks are small beside the residual
stream: both models then see much the same input of their output head, and agree sometimes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof.errors import UsageError
from mtpprof.models.ledger import DRAFT_LM_HEAD, EH_PROJ, EMBED, MTP_PREFIX
from mtpprof.models.reference.block import Cache, Context, Rows
from mtpprof.models.reference.layers import Norm, VocabParallelEmbedding, VocabParallelHead, argmax
from mtpprof.models.reference.stack import Stack
from mtpprof.models.spec import MtpSpec

NOISE_GAIN = 0.05
"""Size of what `eh_proj` adds to the embedding that it passes on."""

RECURRENT_BLOCKS = "KM"


class DraftModule:
    """Draft layer over the target's embedding and head.

    Raises:
        UsageError: the spec's draft blocks keep a recurrent state. Draft passes run ahead of what is accepted, which
            position caches take without rollback and recurrent states would not.
    """

    def __init__(
        self, context: Context, mtp: MtpSpec, embedding: VocabParallelEmbedding, head: VocabParallelHead
    ) -> None:
        spec, weights = context.spec, context.weights
        if recurrent := set(mtp.blocks) & set(RECURRENT_BLOCKS):
            raise UsageError(
                f"{spec.name}: the draft module has recurrent blocks ({''.join(sorted(recurrent))}), which the reference "
                f"engine cannot draft with; run it with --draft-tokens 0."
            )
        self.comm, self.switches = context.comm, context.switches
        self.embedding, self.head = embedding, head
        self.gathered = mtp.gathered_eh_proj
        hidden = spec.hidden_size
        self.embedding_norm = Norm(weights, f"{MTP_PREFIX}enorm", hidden, spec.norm_eps)
        self.hidden_norm = Norm(weights, f"{MTP_PREFIX}hnorm", hidden, spec.norm_eps)
        self.eh_proj = weights.linear(
            EH_PROJ, hidden, 2 * hidden, gain=NOISE_GAIN, split=0 if self.gathered else None
        )
        own = weights.share(hidden) if self.gathered else slice(0, hidden)
        self.eh_proj[:, own].diagonal().add_(1.0)
        self.stack = Stack(context, mtp.blocks, MTP_PREFIX)

    def new_caches(self, sequences: int, capacity: int) -> list[Cache]:
        """One cache per block."""
        return self.stack.new_caches(sequences, capacity)

    def __call__(self, following: Tensor, hidden: Tensor, rows: Rows, caches: list[Cache]) -> Tensor:
        """Hidden states from which `next_tokens` predicts, after the final norm: `[rows, hidden]`.

        Args:
            following: the token after each row's position, `[rows]` in any shape.
            hidden: the target's (or the last pass's) hidden state at each row's position, `[rows, hidden]`.
            rows: which rows these are.
            caches: from `new_caches`.
        """
        embedded = self.embedding(following, self.comm, site=f"{MTP_PREFIX}{EMBED}")
        joined = torch.cat([self.embedding_norm(embedded), self.hidden_norm(hidden)], -1)
        x = F.linear(joined, self.eh_proj)
        if self.gathered:
            x = self.comm.all_gather(x, site=EH_PROJ, dim=-1)
        return self.stack(x, rows, caches, fuse_last=self.switches.allreduce_norm_fusion)

    def next_tokens(self, hidden: Tensor) -> Tensor:
        """Draft token of each row: `[rows, hidden]` to `[rows]`, int64; the same by both ways."""
        if self.switches.local_argmax:
            return self.head.local_argmax(hidden, self.comm, site=DRAFT_LM_HEAD)
        logits = self.head.logits(hidden, self.comm, site=DRAFT_LM_HEAD)
        return argmax(logits, self.comm, site=DRAFT_LM_HEAD)
