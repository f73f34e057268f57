"""What an entry of the catalogue of optimizations is: one file of this folder each, in the registry `catalogue`. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from mtpprof.models.ledger import LedgerEntry, Workload
from mtpprof.models.spec import ModelSpec

Ledger = tuple[LedgerEntry, ...]

FUSED_RESIDUAL_RMSNORM = "residual_rmsnorm"
FUSED_UNKNOWN = "unknown"
"""Something may be fused into the call: the trace does not show which kernel ran, or cuts its name short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """Whether a model under a workload may use an optimization."""

    ok: bool
    reason: str = ""
    """Why not; where `ok`, a limitation worth knowing, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
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


class FormSeen(Protocol):
    """What a collective looks like in a trace; a field that the trace does not tell is empty, a shape then None."""

    @property
    def shape(self) -> Sequence[int] | None:
        """One rank's input."""

    @property
    def dtype(self) -> str:
        """Name as in `mtpprof.models.traffic.DTYPE_BYTES`."""

    @property
    def fused(self) -> str:
        """What runs in the same kernel after it."""


class ChangeSeen(Protocol):
    """Calls that differ between two captures, per step and rank."""

    @property
    def what(self) -> str:
        """How: `removed`, `added`, `replaced`, `fused` and others."""

    @property
    def kind(self) -> str:
        """A `mtpprof.models.traffic.Kind`."""

    @property
    def calls(self) -> float:
        """Calls concerned; always positive."""

    @property
    def net_calls(self) -> float:
        """Calls more (positive) or fewer than on the first side."""

    @property
    def before(self) -> FormSeen | None:
        """Form on the first side; None: there was none."""

    @property
    def after(self) -> FormSeen | None:
        """Form on the second side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsSeen:
    """Calls of one kind and width on one side, per step and rank."""

    kind: str
    width: int | None
    """Last dimension of one rank's input; None: not known."""
    calls: Fraction


ProofByChange = Callable[[Sequence[ChangeSeen], Sequence[CallsSeen]], Proof]
"""What two captures prove of the second one: the changes between them, and all calls of the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """What kernels beside the collectives do, per step and rank."""

    kernels: int
    moved_bytes: float
    """Read and written in device memory."""


Kernels = Callable[[Ledger, ModelSpec, Workload], Iterable[tuple[str, KernelWork]]]
"""Kernels that a ledger brings along and an optimization adds or removes: the term of a prediction that they count for, and their work."""


def no_kernels(entries: Ledger, spec: ModelSpec, workload: Workload) -> Iterable[tuple[str, KernelWork]]:
    """Of an optimization that leaves the kernels beside the collectives as they are."""
    return ()


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
    proof_by_site: Callable[[Ledger], Proof]
    """What observed collectives prove where the trace names their sites; asks nothing but the entries."""
    proof_by_change: ProofByChange | None = None
    """What two captures without sites prove; None: `proof_by_site` needs no sites, e.g. only who carries the calls."""
    kernels: Kernels = no_kernels


def unless(*refusals: tuple[bool, str], note: str = "") -> Eligibility:
    """Ineligible for the first reason whose condition holds."""
    for refused, reason in refusals:
        if refused:
            return Eligibility(ok=False, reason=reason)
    return Eligibility(ok=True, reason=note)


def needs_ranks(workload: Workload) -> tuple[bool, str]:
    """A refusal of TP 1, for `unless`."""
    return workload.tp == 1, "TP 1 has no collectives to optimize"


def needs_drafts(spec: ModelSpec, workload: Workload) -> tuple[tuple[bool, str], ...]:
    """Refusals of a model or workload without drafts, for `unless`."""
    return (
        (spec.mtp is None, f"{spec.title} has no multi-token-prediction module"),
        (workload.draft_tokens == 0, "no draft tokens are asked for"),
    )


def needs_no_sequence_parallel(spec: ModelSpec) -> tuple[bool, str]:
    """A refusal of sequence parallelism, for `unless`."""
    return (
        spec.sequence_parallel,
        "sequence parallelism has reduce-scatters and all-gathers in place of this all-reduce",
    )


def fused_among(entries: Iterable[LedgerEntry]) -> Proof:
    """Fused calls among those of which the trace shows whether they are."""
    told = [entry for entry in entries if entry.fused != FUSED_UNKNOWN]
    return Proof(engaged_calls=count(entry for entry in told if entry.fused), opportunities=count(told))


def count(entries: Iterable[LedgerEntry]) -> int:
    """Calls of all entries."""
    return sum(entry.count for entry in entries)
