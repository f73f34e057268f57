"""The switches of the live model: which optimizations its forward passes use from now on.

Blocks read them on every forward, as vLLM's do, so an arm is switched between two steps without touching weights or caches.
"""

from __future__ import annotations

from dataclasses import dataclass

ALLREDUCE_NORM_FUSION = "allreduce-norm-fusion"
LOCAL_ARGMAX = "local-argmax"
COMMUTATIVE_REDUCE = "commutative-reduce"
SWITCHES = (ALLREDUCE_NORM_FUSION, LOCAL_ARGMAX, COMMUTATIVE_REDUCE)


@dataclass(slots=True)
class Switches:
    """The optimizations that are on."""

    enabled: frozenset[str] = frozenset()
    forced: frozenset[str] = frozenset()
    """Those of `enabled` that act where they give wrong outputs, too."""

    @property
    def allreduce_norm_fusion(self) -> bool:
        """The draft module's last all-reduce, residual add and final norm are asked for as one kernel."""
        return ALLREDUCE_NORM_FUSION in self.enabled

    @property
    def local_argmax(self) -> bool:
        """Draft tokens are chosen per vocabulary shard; only (value, index) pairs are gathered."""
        return LOCAL_ARGMAX in self.enabled

    def commutative_reduce(self, *, commutes: bool) -> bool:
        """A latent MoE layer projects partial sums and reduces once; `commutes`: that gives the same output there."""
        return COMMUTATIVE_REDUCE in (self.enabled if commutes else self.forced)
