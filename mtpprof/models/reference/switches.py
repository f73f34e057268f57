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

    @property
    def allreduce_norm_fusion(self) -> bool:
        """The draft module's last all-reduce, residual add and final norm are asked for as one kernel."""
        return ALLREDUCE_NORM_FUSION in self.enabled

    @property
    def local_argmax(self) -> bool:
        """Draft tokens are chosen per vocabulary shard; only (value, index) pairs are gathered."""
        return LOCAL_ARGMAX in self.enabled

    @property
    def commutative_reduce(self) -> bool:
        """Latent MoE projects partial sums and reduces once."""
        return COMMUTATIVE_REDUCE in self.enabled
