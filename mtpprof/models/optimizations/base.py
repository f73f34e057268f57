"""What an entry of the catalogue of optimizations is; the entries are in `optimizations` and `backends`. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mtpprof.models.ledger import LedgerEntry, Workload
from mtpprof.models.spec import ModelSpec

Ledger = tuple[LedgerEntry, ...]

FUSED_RESIDUAL_RMSNORM = "residual_rmsnorm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """Whether a model under a workload may use an optimization."""

    ok: bool
    reason: str = ""
    """Why not; where `ok`, a limitation worth knowing, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What observed collectives prove."""

    engaged_calls: int
    """Calls that have the form the optimization gives them."""
    opportunities: int
    """Calls that could have that form; 0: the trace can say nothing about it."""

    @property
    def engaged(self) -> bool:
        """Every call that could have the optimized form has it."""
        return self.opportunities > 0 and self.engaged_calls == self.opportunities

    @property
    def partial(self) -> bool:
        """Some calls have the optimized form and some do not, e.g. above a fused kernel's size limit."""
        return 0 < self.engaged_calls < self.opportunities


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimization:
    """One entry of the catalogue."""

    id: str
    title: str
    source: str
    summary: str
    changes: str
    """What it does to calls, bytes and kernels."""
    proof: str
    """How the trace shows that it engaged."""
    switches: Mapping[str, str]
    """How each engine switches it, by engine name."""
    eligible: Callable[[ModelSpec, Workload], Eligibility]
    rewrite: Callable[[Ledger, ModelSpec, Workload], Ledger]
    """What a ledger becomes with the optimization on."""
    evidence: Callable[[Ledger], Evidence]
    """What observed entries prove; asks nothing but the entries."""


def unless(*refusals: tuple[bool, str], note: str = "") -> Eligibility:
    """Ineligible for the first reason whose condition holds."""
    for refused, reason in refusals:
        if refused:
            return Eligibility(ok=False, reason=reason)
    return Eligibility(ok=True, reason=note)


def needs_ranks(workload: Workload) -> tuple[bool, str]:
    """A refusal of TP 1, for `unless`."""
    return workload.tp == 1, "TP 1 has no collectives to optimize"
