"""Collectives that a step does not need: more of them, or larger ones, than the model's ledger with every exact optimization on.

The ledger is a function of the model's dimensions and the batch, so one capture suffices: no second run, no timing. Sites and
phases are left out of the comparison, since an engine's own trace does not name them; kind, shape and dtype decide. What is
missing against the ledger is reported as well: a reduction that is skipped and needed gives wrong results, silently.

A ledger of another model has something to say of every collective, all of it wrong. So a capture is held against a model only
where its messages have that model's hidden width (`misfit`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, combinations
from math import prod

from mtpprof.analyzers.ledger.mismatches import shape_text
from mtpprof.analyzers.measures.batches import Batch, Form, Stratum
from mtpprof.analyzers.traces.table import MISSING
from mtpprof.errors import UsageError
from mtpprof.models.ledger import LM_HEAD, LedgerEntry, Workload, base_ledger, site_patterns
from mtpprof.models.optimizations.catalogue import CATALOGUE, apply_optimizations
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import DTYPE_BYTES, Kind, payload_bytes
from mtpprof.rundir.records import Record

REDUNDANT = "redundant"
OVERSIZED = "oversized"
MISSING_CALL = "missing"

Size = tuple[str, str, str]
"""kind, shape, dtype"""


class Excess(Record, frozen=True, kw_only=True):
    """Collectives of one size in the steps of one batch that the ledger does not have, or has more of."""

    what: str
    """`redundant`: no counterpart needed; `oversized`: a smaller one would do; `missing`: expected and not seen."""
    batch: str
    kind: str
    shape: list[int]
    dtype: str
    calls: float
    """Per step and rank."""
    payload_bytes: int | None
    """Of these calls, per step; for an oversized one what it carries, not the difference; None: shape or dtype is not known."""
    time_ns: float | None
    """Time in them per step and rank, waiting included; None: they were not seen."""
    sites: list[str]
    """Where the ledger has calls of this size, as patterns; empty: nowhere."""
    avoided_by: str | None
    """The optimization that takes them away; None: none of the catalogue."""

    @property
    def sentence(self) -> str:
        """`3 redundant all-reduces of [8, 128] bf16 per step, one per latent MoE layer`."""
        name = self.kind.replace("_", "-")
        number = f"{self.calls:g}"
        size = f"{self.shape} {self.dtype}" if self.shape else "unknown size"
        text = f"{number} {self.what} {name}{'' if self.calls == 1 else 's'} of {size} per step"
        place = _PLACES.get(self.sites[0].rpartition(".moe.")[2]) if len(self.sites) == 1 else None
        return f"{text}, {place}" if place else text


_PLACES = {"latent": "one per latent MoE layer", "shared": "one per MoE layer", "final": "one per MoE layer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCheck:
    """What a capture shows against the ledger of its model."""

    excess: list[Excess]
    enabled: dict[str, list[str]]
    """By batch, the optimizations whose ledger equals what was seen, call for call; a batch that equals none is not in it."""
    skipped: list[str]
    """Batches that were not checked, with the reason."""


def check_ledger(strata: Iterable[Stratum], spec: ModelSpec, tp: int, draft_tokens: int) -> LedgerCheck:
    """Hold every stratum of a capture against the model's ledger.

    Args:
        strata: Steps by batch; a batch without rows needs `draft_tokens` and sequences from elsewhere and is skipped.
        spec: Dimensions of the model that ran.
        tp: Ranks of the group.
        draft_tokens: Draft tokens per step; 0: none.
    """
    found = LedgerCheck(excess=[], enabled={}, skipped=[])
    for stratum in strata:
        try:
            workload, base = _ledger_of(stratum, spec, tp, draft_tokens)
        except UsageError as error:
            found.skipped.append(f"{stratum.batch.text}: {error}")
            continue
        _check(stratum, spec, workload, base, found)
    return found


def check_workload(stratum: Stratum, spec: ModelSpec, workload: Workload) -> LedgerCheck:
    """Hold the steps of a run whose workload is known against its ledger.

    Raises:
        UsageError: the model cannot be run so.
    """
    found = LedgerCheck(excess=[], enabled={}, skipped=[])
    _check(stratum, spec, workload, base_ledger(spec, workload), found)
    return found


def misfit(strata: Iterable[Stratum], spec: ModelSpec) -> str:
    """Why messages cannot be those of `spec`, as half a sentence; empty: nothing speaks against it.

    The width that most collectives have is the hidden one: the embedding, every attention block and every MLP issue it.
    """
    widths = _widths(strata)
    common = [width for width, calls in widths.items() if calls == max(widths.values())]
    if not common or spec.hidden_size in common:
        return ""
    return f"messages are {common[0]} wide, the hidden width of {spec.name} is {spec.hidden_size}"


def unproved(strata: Iterable[Stratum], spec: ModelSpec) -> str:
    """Why messages do not show that they are those of `spec`, as half a sentence; empty: all reductions are as wide as its own."""
    seen = _widths(strata, Kind.ALL_REDUCE)
    own = {spec.hidden_size} | ({spec.moe.latent_size} if spec.moe and spec.moe.latent_size else set())
    if strange := sorted(set(seen) - own):
        return f"all-reduces are {strange[0]} wide, and those of {spec.name} {' or '.join(map(str, sorted(own)))}"
    return "" if seen[spec.hidden_size] else "the widths of its all-reduces are not known"


def _widths(strata: Iterable[Stratum], kind: Kind | None = None) -> Counter[int]:
    """Calls by the width of their message, where that is known."""
    found: Counter[int] = Counter()
    for stratum in strata:
        for form, total in stratum.forms.items():
            if form.shape and kind in (None, form.kind):
                found[int(form.shape.rpartition("x")[2])] += total.calls
    return found


def _check(
    stratum: Stratum, spec: ModelSpec, workload: Workload, base: tuple[LedgerEntry, ...], found: LedgerCheck
) -> None:
    observed = _observed(stratum)
    subsets: dict[frozenset[str], Counter[Size]] = {
        subset: _sizes(apply_optimizations(base, spec, workload, subset))
        for subset in _subsets(spec, workload)
    }
    equal = [subset for subset, sizes in subsets.items() if sizes == observed]
    if equal:
        smallest = min(equal, key=len)
        found.enabled[stratum.batch.text] = sorted(smallest)
    best = min(subsets, key=lambda subset: (subsets[subset].total(), -len(subset)))
    excess = list(_excess(stratum, observed, subsets[best], base, _saviours(base, spec, workload)))
    if not equal and not excess:  # what has no size may be what is expected, and may be something else
        found.skipped.append(f"{stratum.batch.text}: the sizes of some of its collectives are not known.")
    found.excess.extend(excess)


def _ledger_of(
    stratum: Stratum, spec: ModelSpec, tp: int, draft_tokens: int
) -> tuple[Workload, tuple[LedgerEntry, ...]]:
    batch = stratum.batch
    if batch.rows == MISSING or batch.sequences == MISSING:
        raise UsageError("the trace does not tell the rows and sequences of its steps.")
    if not any(form.shape for form in stratum.forms):
        raise UsageError("the trace does not tell the sizes of its collectives.")
    dtype = _dtype(stratum)
    if draft_tokens:
        if batch.rows != batch.sequences * (draft_tokens + 1):
            raise UsageError(
                f"{batch.rows} rows of {batch.sequences} sequences are no step of {draft_tokens} draft tokens."
            )
        workload = Workload(concurrency=batch.sequences, draft_tokens=draft_tokens, tp=tp, dtype=dtype)
        return workload, base_ledger(spec, workload)
    workload = Workload(concurrency=batch.rows, draft_tokens=0, tp=tp, dtype=dtype)
    return workload, tuple(_last_rows_only(base_ledger(spec, workload), batch))


def _last_rows_only(ledger: Iterable[LedgerEntry], batch: Batch) -> Iterator[LedgerEntry]:
    """Logits are computed of each sequence's last row only, whatever rows a prefill has."""
    for entry in ledger:
        yield replace(entry, shape=(batch.sequences, entry.shape[1])) if entry.site == LM_HEAD else entry


def _dtype(stratum: Stratum) -> str:
    counts: Counter[str] = Counter()
    for form, found in stratum.forms.items():
        if form.kind == Kind.ALL_REDUCE and form.dtype in DTYPE_BYTES:
            counts[form.dtype] += found.calls
    return counts.most_common(1)[0][0] if counts else "bf16"


def _observed(stratum: Stratum) -> dict[Size, Fraction]:
    counts: dict[Size, Fraction] = {}
    for form in stratum.forms:
        key = (form.kind, form.shape, form.dtype)
        counts[key] = counts.get(key, Fraction(0)) + stratum.rate(form)
    return counts


def _sizes(ledger: Iterable[LedgerEntry]) -> Counter[Size]:
    counts: Counter[Size] = Counter()
    for entry in ledger:
        counts[_size(entry)] += entry.count
    return counts


def _size(entry: LedgerEntry) -> Size:
    return entry.kind, shape_text(entry.shape), entry.dtype


def _subsets(spec: ModelSpec, workload: Workload) -> Iterator[frozenset[str]]:
    usable = [name for name, entry in CATALOGUE.items() if entry.eligible(spec, workload).ok]
    sizes = range(len(usable) + 1)
    yield from map(frozenset, chain.from_iterable(combinations(usable, size) for size in sizes))


def _saviours(base: tuple[LedgerEntry, ...], spec: ModelSpec, workload: Workload) -> dict[Size, str]:
    """For every size that some optimization takes away from the ledger, that optimization."""
    before = _sizes(base)
    found: dict[Size, str] = {}
    for subset in _subsets(spec, workload):
        if len(subset) == 1:
            (name,) = subset
            for size in before - _sizes(apply_optimizations(base, spec, workload, subset)):
                found.setdefault(size, name)
    return found


def _excess(
    stratum: Stratum,
    observed: dict[Size, Fraction],
    expected: Counter[Size],
    base: tuple[LedgerEntry, ...],
    saviours: dict[Size, str],
) -> Iterator[Excess]:
    over = {size: count - expected[size] for size, count in observed.items() if count > expected[size]}
    under = {size: expected[size] - observed.get(size, Fraction(0)) for size in expected}
    under = {size: count for size, count in under.items() if count > 0}
    oversized: dict[Size, Fraction] = {}
    for size in sorted(over, key=_bytes):
        over[size] -= _taken(under, over[size], [other for other in under if _may_be(size, other)])
        oversized[size] = _taken(under, over[size], [other for other in under if _is_larger(size, other)])
    for size, count in over.items():
        large = oversized.get(size, Fraction(0))
        for what, number in ((OVERSIZED, large), (REDUNDANT, count - large)):
            if number:
                yield _entry(what, stratum, size, number, base, saviours.get(size))
    for size, count in under.items():
        if count:
            yield _entry(MISSING_CALL, stratum, size, count, base, None)


def _bytes(size: Size) -> int:
    """Bytes of one rank's input; 0: not known."""
    _, shape, dtype = size
    return prod(_dims(shape)) * DTYPE_BYTES.get(dtype, 0) if shape else 0


def _may_be(seen: Size, expected: Size) -> bool:
    """Whether a call whose size is not known, or not whole, can be one that is expected."""
    return all(ours in ("", theirs) for ours, theirs in zip(seen, expected, strict=True))


def _is_larger(seen: Size, expected: Size) -> bool:
    return seen[0] == expected[0] and 0 < _bytes(expected) < _bytes(seen)


def _taken(under: dict[Size, Fraction], most: Fraction, sizes: Iterable[Size]) -> Fraction:
    """How many of the calls that lack have one of `sizes`, at most `most`; they are taken off."""
    taken = Fraction(0)
    for size in sizes:
        used = min(most - taken, under[size])
        under[size] -= used
        taken += used
    return taken


def _dims(shape: str) -> list[int]:
    return [int(part) for part in shape.split("x")] if shape else []


def _entry(
    what: str,
    stratum: Stratum,
    size: Size,
    count: Fraction,
    base: tuple[LedgerEntry, ...],
    saviour: str | None,
) -> Excess:
    kind, shape, dtype = size
    dims = _dims(shape)
    entries = [entry for entry in base if _size(entry) == size]
    group = base[0].group_size if base else 1
    return Excess(
        what=what,
        batch=stratum.batch.text,
        kind=kind,
        shape=dims,
        dtype=dtype,
        calls=float(count),
        payload_bytes=round(count * payload_bytes(Kind(kind), tuple(dims), dtype, group))
        if dims and dtype in DTYPE_BYTES
        else None,
        time_ns=None if what == MISSING_CALL else _time_of(stratum, size, count),
        sites=site_patterns(entry.site for entry in entries),
        avoided_by=saviour,
    )


def _time_of(stratum: Stratum, size: Size, count: Fraction) -> float | None:
    forms: list[Form] = [form for form in stratum.forms if (form.kind, form.shape, form.dtype) == size]
    calls = sum(stratum.forms[form].calls for form in forms)
    if not calls:
        return None
    return float(count * Fraction(sum(stratum.forms[form].time_ns for form in forms), calls))
