"""The catalogue of communication optimizations: the registry of the files of this folder. No torch here.

Each file is one frozen `Optimization`: who may use it and why not, what it makes of the ledger, how a trace proves that it ran (by
site, and by what changed between two captures), which kernels come or go with it, and how each engine switches it. Everything else
in mtpprof (arms, eligibility tables, the comparison with the ledger, predictions, the verdict "engaged") reads these entries. To add
one: its file, its name in `CATALOGUE`, and its row in each engine that can switch it.

Engagement is read off observed collectives, never off the flag: a switch that was set and changed nothing must show.
"""

from __future__ import annotations

from difflib import get_close_matches

from mtpprof.errors import UsageError
from mtpprof.models.ledger import Workload, base_ledger, prefill_ledger
from mtpprof.models.optimizations.allreduce_norm_fusion import ALLREDUCE_NORM_FUSION
from mtpprof.models.optimizations.base import Eligibility, Ledger, Optimization
from mtpprof.models.optimizations.commutative_reduce import COMMUTATIVE_REDUCE
from mtpprof.models.optimizations.local_argmax import LOCAL_ARGMAX
from mtpprof.models.optimizations.vllm_only import VLLM_ONLY
from mtpprof.models.spec import ModelSpec

CATALOGUE: dict[str, Optimization] = {
    entry.id: entry for entry in (ALLREDUCE_NORM_FUSION, LOCAL_ARGMAX, COMMUTATIVE_REDUCE)
}
"""The optimizations that are compared by default, by id, in the order in which they are shown and applied."""

OPT_IN: dict[str, Optimization] = {entry.id: entry for entry in VLLM_ONLY}
"""Those that are compared only where they are asked for; else the engine's own default holds."""


def all_optimizations() -> dict[str, Optimization]:
    """Both, by id."""
    return CATALOGUE | OPT_IN


def find_optimization(name: str) -> Optimization:
    """The catalogue's entry of this id.

    Raises:
        UsageError: there is none; the sentence lists the known ones.
    """
    known = all_optimizations()
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"optimization {name!r} is not known; {hint}Known: {', '.join(known)}.")


def eligible_optimizations(spec: ModelSpec, workload: Workload) -> dict[str, Eligibility]:
    """Eligibility for every optimization of the catalogue, by id."""
    return {name: entry.eligible(spec, workload) for name, entry in CATALOGUE.items()}


def apply_optimizations(
    entries: Ledger, spec: ModelSpec, workload: Workload, enabled: frozenset[str]
) -> Ledger:
    """The ledger `entries` with the enabled optimizations on, applied in the catalogue's order.

    Raises:
        UsageError: an enabled optimization is unknown or not eligible; names it and the reason.
    """
    for name in sorted(enabled):
        eligibility = find_optimization(name).eligible(spec, workload)
        if not eligibility.ok:
            raise UsageError(f"{name} cannot be used: {eligibility.reason}; leave it out.")
    for name, optimization in all_optimizations().items():
        if name in enabled:
            entries = optimization.rewrite(entries, spec, workload)
    return entries


def expected_collectives(spec: ModelSpec, workload: Workload, enabled: frozenset[str]) -> Ledger:
    """Expected collectives of one decode step with the enabled optimizations on, in the order in which they run.

    Raises:
        UsageError: as `base_ledger` and `apply_optimizations`.
    """
    return apply_optimizations(base_ledger(spec, workload), spec, workload, enabled)


def expected_prefill_collectives(
    spec: ModelSpec, workload: Workload, enabled: frozenset[str], prompt_len: int
) -> Ledger:
    """Expected collectives of one prefill with the enabled optimizations on.

    Raises:
        UsageError: as `prefill_ledger` and `apply_optimizations`.
    """
    return apply_optimizations(prefill_ledger(spec, workload, prompt_len), spec, workload, enabled)
