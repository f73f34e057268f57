"""Observed collectives against the expected ones, call for call.

What a trace shows of one step of one rank is a multiset of (kind, phase, site, shape, dtype). It equals the ledger's, or the difference
is named. Whether a call was fused is not part of this comparison: a fusion changes neither count nor bytes, and whether it happened is
what engagement asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mtpprof.analyzers.calls.table import Calls
from mtpprof.analyzers.numeric.distinct import distinct_rows
from mtpprof.models.ledger import LedgerEntry
from mtpprof.models.traffic import Kind

Key = tuple[str, str, str, str, str]
"""kind, phase, site, shape, dtype"""

KEY_COLUMNS = ("kind", "phase", "site", "shape", "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A collective that was seen more or less often than expected, in the same way on these ranks and steps."""

    kind: str
    phase: str
    site: str
    shape: str
    dtype: str
    expected: int
    observed: int
    ranks: tuple[int, ...]
    steps: tuple[int, ...]


def shape_text(shape: Iterable[int]) -> str:
    """A shape as `Calls` spells it."""
    return "x".join(map(str, shape))


def expected_counts(ledger: Iterable[LedgerEntry], *, sites: bool = True) -> Counter[Key]:
    """The ledger of one step as a multiset."""
    counts: Counter[Key] = Counter()
    for entry in ledger:
        site = entry.site if sites else ""
        counts[(entry.kind, entry.phase, site, shape_text(entry.shape), entry.dtype)] += entry.count
    return counts


def observed_counts(calls: Calls, *, sites: bool = True) -> dict[tuple[int, int], Counter[Key]]:
    """What was seen, as a multiset per (rank, step); calls outside any step are left out."""
    inside = calls.take(calls.step >= 0)
    columns = [getattr(inside, name) for name in KEY_COLUMNS]
    if not sites:
        columns[2] = np.zeros_like(columns[2])
    found = distinct_rows(inside.rank, inside.step, *columns)
    result: dict[tuple[int, int], Counter[Key]] = {}
    for (rank, step, *codes), count in zip(found.rows.tolist(), found.counts.tolist(), strict=True):
        kind, phase, site, shape, dtype = (inside.texts[code] for code in codes)
        result.setdefault((rank, step), Counter())[(kind, phase, site, shape, dtype)] += count
    return result


def compare(observed: Mapping[tuple[int, int], Counter[Key]], expected: Counter[Key]) -> list[Mismatch]:
    """Every difference between what each rank did in each step and the ledger, like ones together."""
    where: dict[tuple[Key, int], list[tuple[int, int]]] = {}
    for place, counts in observed.items():
        for key in sorted(counts.keys() | expected.keys()):
            if counts[key] != expected[key]:
                where.setdefault((key, counts[key]), []).append(place)
    return [
        Mismatch(
            kind=key[0],
            phase=key[1],
            site=key[2],
            shape=key[3],
            dtype=key[4],
            expected=expected[key],
            observed=count,
            ranks=tuple(sorted({rank for rank, _ in places})),
            steps=tuple(sorted({step for _, step in places})),
        )
        for (key, count), places in where.items()
    ]


def observed_entries(calls: Calls) -> tuple[LedgerEntry, ...]:
    """All calls that are in steps, as ledger entries with their number: what engagement is proved from."""
    inside = calls.take(calls.step >= 0)
    names = (*KEY_COLUMNS, "fused", "implementation", "group_size")
    found = distinct_rows(*(getattr(inside, name) for name in names))
    entries = []
    for (kind, phase, site, shape, dtype, fused, carrier, size), count in zip(
        found.rows.tolist(), found.counts.tolist(), strict=True
    ):
        text = inside.texts
        entries.append(
            LedgerEntry(
                kind=Kind(text[kind]),
                site=text[site],
                phase=text[phase],
                shape=tuple(int(part) for part in text[shape].split("x") if part),
                dtype=text[dtype],
                group_size=size,
                count=count,
                fused=text[fused],
                implementation=text[carrier],
            )
        )
    return tuple(entries)
