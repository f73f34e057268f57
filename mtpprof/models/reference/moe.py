"""Mixture of experts, block `E`: DeepSeek-V3's routing, a shared expert, and optionally experts in a latent width.

Routing is that of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2): sigmoid scores, selection by score plus correction bias within
the best groups, weights from the plain scores. Each expert's intermediate dimension is divided over the ranks.

All experts compute all rows, side by side in two matrix products, and unselected ones are weighted with zero. For the few rows of
a decode step that beats gathering each expert's rows (bf16, 4 rows, 2 of 8 experts, one CPU core: 0.07 ms against 2.5 ms, since
expert by expert every product has another shape), needs no count on the host, and has the same collectives and the same result.

The latent form (Nemotron-3, Kimi-K3) wraps the routed experts in replicated projections hidden → latent → hidden. The way out is
applied after an all-reduce of the latent, or, where it commutes with a sum and the switch is on, to the partial sums, so that
one all-reduce does for routed and shared experts together (vLLM PR 52301).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mtpprof.models.ledger import MOE_FINAL, MOE_LATENT, MOE_SHARED
from mtpprof.models.reference.block import Block, Cache, Context, Rows
from mtpprof.models.reference.layers import ACTIVATION_SIZE, Norm, activate
from mtpprof.models.reference.mlp import FeedForward
from mtpprof.models.reference.weights import Weights
from mtpprof.models.spec import Activation, MoeSpec

ROWS_AT_ONCE = 1024
"""Rows for which the experts' intermediate values exist at one time; bounds the memory of a prefill."""


def route(logits: Tensor, bias: Tensor, moe: MoeSpec) -> Tensor:
    """How much each expert's output counts in each row: logits `[rows, experts]` to weights of that shape, mostly zero."""
    scores = logits.sigmoid()
    choice = scores + bias
    if moe.expert_groups > 1:
        groups = choice.view(-1, moe.expert_groups, moe.experts // moe.expert_groups)
        strength = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        best = strength.topk(moe.top_k_groups, dim=-1).indices
        kept = torch.zeros_like(strength, dtype=torch.bool).scatter_(-1, best, True)
        choice = groups.masked_fill(~kept[..., None], -torch.inf).flatten(1)
    chosen = choice.topk(moe.top_k, dim=-1).indices
    weights = scores.gather(-1, chosen)
    weights = weights / weights.sum(-1, keepdim=True) * moe.routed_scaling
    return torch.zeros_like(scores).scatter_(-1, chosen, weights)


class Experts:
    """The routed experts, each `[width] → intermediate / n → [width]`, without the all-reduce."""

    def __init__(self, weights: Weights, path: str, moe: MoeSpec, width: int, gain: float) -> None:
        names = ("gate", "up") if moe.activation is Activation.SILU_GATED else ("up",)
        size = moe.intermediate_size
        self.experts = moe.experts
        self.activation = moe.activation
        self.up = torch.cat(
            [
                weights.normal(
                    f"{path}.{name}", (moe.experts, size, width), std=width**-0.5, split=1
                ).flatten(0, 1)
                for name in names
            ]
        )
        # The routed scaling is undone here: published ones are 1 to 5, and random experts would drown the residual stream.
        gain /= ACTIVATION_SIZE[moe.activation] * moe.routed_scaling
        self.down = weights.normal(
            f"{path}.down", (width, moe.experts, size), std=gain * size**-0.5, split=2
        ).flatten(1)

    def __call__(self, x: Tensor, weights: Tensor) -> Tensor:
        """This rank's summand: `[rows, width]` with routing weights `[rows, experts]` to `[rows, width]`."""
        if x.shape[0] <= ROWS_AT_ONCE:
            return self._compute(x, weights)
        parts = zip(torch.split(x, ROWS_AT_ONCE), torch.split(weights, ROWS_AT_ONCE), strict=True)
        return torch.cat([self._compute(*part) for part in parts])

    def _compute(self, x: Tensor, weights: Tensor) -> Tensor:
        inner = activate(F.linear(x, self.up), self.activation).view(x.shape[0], self.experts, -1)
        inner = inner * weights[..., None].to(inner.dtype)
        return F.linear(inner.flatten(1), self.down)


class MoeBlock(Block[Cache]):
    """Block `E`."""

    def __init__(self, context: Context, path: str) -> None:
        super().__init__(context)
        spec, weights = context.spec, context.weights
        assert spec.moe is not None, "a model with block E has MoE dimensions"
        moe: MoeSpec = spec.moe
        self.moe = moe
        self.site = f"{path}.{MOE_FINAL}"
        self.latent_site, self.shared_site = f"{path}.{MOE_LATENT}", f"{path}.{MOE_SHARED}"
        self.commutes = spec.latent_sum_commutes(path)
        path = f"{path}.moe"

        hidden, gain = spec.hidden_size, context.branch_gain
        wide = weights.wide_dtype
        self.gate = weights.normal(f"{path}.gate", (moe.experts, hidden), std=hidden**-0.5, dtype=wide)
        self.gate_bias = weights.normal(f"{path}.gate.bias", (moe.experts,), std=0.1, dtype=wide)
        if moe.latent_size is None:
            self.experts = Experts(weights, f"{path}.experts", moe, hidden, gain)
        else:
            self.experts = Experts(weights, f"{path}.experts", moe, moe.latent_size, 1.0)
            self.latent_in = weights.linear(f"{path}.fc1_latent", moe.latent_size, hidden)
            self.latent_out = weights.linear(f"{path}.fc2_latent", hidden, moe.latent_size, gain=gain)
            self.latent_bias = (
                weights.normal(f"{path}.fc2_latent.bias", (hidden,), std=gain) if moe.latent_bias else None
            )
            self.latent_norm = (
                Norm(weights, f"{path}.latent_norm", moe.latent_size, spec.norm_eps)
                if moe.latent_norm
                else None
            )
        self.shared = (
            FeedForward(weights, f"{path}.shared", hidden, moe.shared_intermediate_size, moe.activation, gain)
            if moe.shared_intermediate_size
            else None
        )

    def new_cache(self, sequences: int, capacity: int) -> Cache:
        """Remembers nothing."""
        return Cache()

    @property
    def ends_in_one_sum(self) -> bool:
        """Not where the latent is reduced before its way out."""
        return self.moe.latent_size is None or self.switches.commutative_reduce(commutes=self.commutes)

    def partial(self, x: Tensor, rows: Rows, cache: Cache) -> Tensor:
        """See `Block`; for a latent MoE this assumes that the way out commutes with the sum over the ranks."""
        routed = self._routed(x)
        if self.moe.latent_size is not None:
            routed = self._way_out(routed)
        return routed if self.shared is None else routed + self.shared(x)

    def __call__(self, x: Tensor, rows: Rows, cache: Cache) -> Tensor:
        """See `Block`."""
        if self.ends_in_one_sum:
            return super().__call__(x, rows, cache)
        output = self._way_out(self.comm.all_reduce(self._routed(x), site=self.latent_site))
        if self.shared is None:
            return output
        return output + self.comm.all_reduce(self.shared(x), site=self.shared_site)

    def _routed(self, x: Tensor) -> Tensor:
        """This rank's summand of the routed experts' output, `[rows, latent]` in the latent form."""
        weights = route(F.linear(x.to(self.gate.dtype), self.gate), self.gate_bias, self.moe)
        return self.experts(x if self.moe.latent_size is None else F.linear(x, self.latent_in), weights)

    def _way_out(self, latent: Tensor) -> Tensor:
        if self.latent_norm is not None:
            latent = self.latent_norm(latent)
        return F.linear(latent, self.latent_out, self.latent_bias)
