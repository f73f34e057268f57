"""Greedy decoding of a fixed batch, with or without speculation by the draft module.

Every decode step has the same shape, hence the same collectives: one verification of `sequences · (draft_tokens + 1)` rows (the
last token and the drafts), sampling, one draft pass over the same rows and `draft_tokens - 1` passes over one row a sequence.
Positions that turn out rejected are not removed from the step: their cache entries are overwritten by the next one.

All ranks choose the same tokens from the same gathered logits, and draw synthetic acceptance from equal seeds, so nothing but
the model's own collectives passes between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtpprof.errors import UsageError
from mtpprof.models.ledger import PREFILL, TARGET, draft_phase
from mtpprof.models.reference.block import Rows
from mtpprof.models.reference.model import ReferenceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one decode step gave."""

    tokens: list[list[int]]
    """New tokens of each sequence: accepted drafts and one token of the target's own."""
    accepted: list[int]
    """Accepted drafts of each sequence, 0 to `draft_tokens`."""


@torch.inference_mode()
def prompt_logprobs(model: ReferenceModel, prompts: Tensor) -> list[list[float]]:
    """Log-probability of every token of the prompts but the first, in one pass over whole prompts.

    The input is the same whatever an arm's tokens are, so the numbers of two arms can be held against each other.

    Args:
        model: Under the arm that is set; the draft module has no part in it.
        prompts: `[sequences, length]`.

    Returns:
        `[sequence][position]`, `length - 1` values each.
    """
    sequences, length = prompts.shape
    positions = torch.arange(length, device=model.device).expand(sequences, -1)
    rows = Rows(positions, key_length=length, keep_states=False)
    columns = []
    with model.comm.phase(PREFILL):
        hidden = model(prompts, rows, model.new_caches(sequences, length)).view(sequences, length, -1)
        for position in range(
            length - 1
        ):  # one row a sequence at a time: the gathers are no larger than those of a run
            logits = model.logits(hidden[:, position]).float()
            columns.append(logits.log_softmax(-1).gather(1, prompts[:, position + 1, None])[:, 0])
    return torch.stack(columns, 1).tolist() if columns else [[] for _ in range(sequences)]


class DecodeSession:
    """A batch of sequences being decoded.

    Args:
        model: the target and its draft module.
        prompts: `[sequences, prompt_len]`, int64.
        draft_tokens: drafts per step, k; 0: plain decoding.
        max_steps: steps that may follow a prefill; sizes the caches.
        acceptance_length: mean number of tokens per step, 1 to k + 1, to draw acceptance at random (as vLLM's synthetic
            rejection sampling does) instead of comparing drafts with the target; None: compare.
        seed: of the random acceptance.

    Raises:
        UsageError: drafts without a draft module, or an acceptance length that k drafts cannot have.
    """

    def __init__(
        self,
        model: ReferenceModel,
        prompts: Tensor,
        *,
        draft_tokens: int,
        max_steps: int,
        acceptance_length: float | None = None,
        seed: int = 0,
    ) -> None:
        name = model.spec.name
        if draft_tokens and model.draft is None:
            raise UsageError(f"{name}: it has no draft module (MTP); use --draft-tokens 0.")
        self.model = model
        self.prompts = prompts.to(model.device)
        self.draft_tokens = draft_tokens
        self.max_steps = max_steps
        self._acceptance_rate = (
            None
            if acceptance_length is None
            else acceptance_rate(acceptance_length, draft_tokens, f"{name}: --acceptance-length")
        )
        self._seed = seed
        sequences, prompt_len = prompts.shape
        capacity = prompt_len + max_steps * (draft_tokens + 1) + draft_tokens
        self._caches = model.new_caches(sequences, capacity)
        self._draft = model.draft if draft_tokens else None
        self._draft_caches = self._draft.new_caches(sequences, capacity) if self._draft else []
        self._sequences = torch.arange(sequences, device=model.device)
        self._offsets = torch.arange(draft_tokens + 1, device=model.device)
        self._steps_left = 0

    @torch.inference_mode()
    def prefill(self) -> list[int]:
        """Forget everything, run the prompts and return the first token of each sequence.

        The draft module runs over the same rows to fill its caches, without a head: the first step's drafts are the first
        token repeated, a guess that costs no collective. From the first step on, drafts are its own.
        """
        for cache in (*self._caches, *self._draft_caches):
            cache.reset()
        sequences, prompt_len = self.prompts.shape
        positions = torch.arange(prompt_len, device=self.model.device).expand(sequences, -1)
        rows = Rows(positions, key_length=prompt_len, keep_states=False)
        with self.model.comm.phase(PREFILL):
            hidden = self.model(self.prompts, rows, self._caches)
            last_hidden = hidden.view(sequences, prompt_len, -1)[:, -1]
            self._last = self.model.greedy(self.model.logits(last_hidden))
            if self._draft:
                following = torch.cat([self.prompts[:, 1:], self._last[:, None]], 1)
                self._draft(following, hidden, rows, self._draft_caches)
        self._commit(torch.full_like(self._last, prompt_len - 1))
        self._drafts = self._last[:, None].expand(-1, self.draft_tokens)
        self._lengths = torch.full_like(self._last, prompt_len)
        self._longest = prompt_len
        self._steps_left = self.max_steps
        self._random = torch.Generator().manual_seed(self._seed)
        return self._last.tolist()

    @torch.inference_mode()
    def step(self) -> StepResult:
        """One decode step of the whole batch.

        Raises:
            ValueError: not prefilled, or `max_steps` steps were taken since.
        """
        if not self._steps_left:
            raise ValueError(f"no step left: prefill() allows {self.max_steps} steps")
        self._steps_left -= 1
        comm = self.model.comm
        tokens = torch.cat([self._last[:, None], self._drafts], 1)
        positions = self._lengths[:, None] + self._offsets
        rows = Rows(positions, key_length=self._longest + self.draft_tokens + 1)
        with comm.phase(TARGET):
            hidden = self.model(tokens, rows, self._caches)
            logits = self.model.logits(hidden)
        with comm.phase("sample"):
            accepted, new_tokens = self._sample(self.model.greedy(logits).view_as(tokens))
            self._commit(accepted)
        if self._draft:
            self._drafts = self._propose(new_tokens, hidden, rows, accepted)
        self._last = new_tokens.gather(1, accepted[:, None])[:, 0]
        self._lengths = self._lengths + accepted + 1
        counts = accepted.tolist()
        self._longest += max(counts) + 1
        result = [row[: count + 1] for row, count in zip(new_tokens.tolist(), counts, strict=True)]
        return StepResult(tokens=result, accepted=counts)

    def _sample(self, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Accepted drafts of each sequence `[sequences]` and its new tokens `[sequences, k + 1]`.

        `choice` is the target's token after each row. Entry `accepted` of the new tokens is the target's own token; what
        comes after it is padding.
        """
        if self._acceptance_rate is None:
            kept = self._drafts == choice[:, :-1]
        else:
            draw = torch.rand(self._drafts.shape, generator=self._random)
            kept = (draw < self._acceptance_rate).to(choice.device)
        accepted = kept.long().cumprod(1).sum(1)
        own = choice.gather(1, accepted[:, None])
        drafts = torch.cat([self._drafts, own], 1)
        return accepted, torch.where(self._offsets < accepted[:, None], drafts, own)

    def _propose(self, following: Tensor, hidden: Tensor, rows: Rows, accepted: Tensor) -> Tensor:
        """Next drafts `[sequences, k]`: the draft module over all rows of the step, then from the last accepted row on."""
        assert self._draft is not None
        comm, draft = self.model.comm, self._draft
        with comm.phase(draft_phase(0)):
            everywhere = draft(following, hidden, rows, self._draft_caches)
            hidden = everywhere.view(*following.shape, -1)[self._sequences, accepted]
            token = draft.next_tokens(hidden)
        drafts = [token]
        position, length = self._lengths + accepted, self._longest + self.draft_tokens + 1
        for index in range(1, self.draft_tokens):
            with comm.phase(draft_phase(index)):
                row = Rows((position + index)[:, None], key_length=length + index)
                hidden = draft(token, hidden, row, self._draft_caches)
                token = draft.next_tokens(hidden)
            drafts.append(token)
        return torch.stack(drafts, 1)

    def _commit(self, index: Tensor) -> None:
        for cache in self._caches:
            cache.commit(index)


def acceptance_rate(length: float, draft_tokens: int, what: str = "acceptance length") -> float:
    """The chance p of accepting a draft after its predecessors that gives a mean of `length` tokens per step.

    Solves `1 + p + p² + … + p^k = length` by bisection.

    Raises:
        UsageError: k drafts cannot give that length; the text starts with `what`.
    """
    if not 1.0 <= length <= draft_tokens + 1:
        raise UsageError(
            f"{what} {length:g} is impossible with {draft_tokens} draft tokens; choose 1 to {draft_tokens + 1}."
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**power for power in range(draft_tokens + 1)) < length:
            low = middle
        else:
            high = middle
    return high
