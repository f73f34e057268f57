"""Whether the ranks of a run did the same in the same step.

The decision: ranks of one tensor-parallel group issue the same collectives by definition, so calls and bytes of a step are one number.
Where a rank shows another batch, other calls or other bytes than the others, a mean over them would be a figure that no rank ever
had. Steps of a batch are answered for together, so those of such a batch have no figures, with the rank named: to leave out the odd
steps alone would be to choose which of them count.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from mtpprof.analyzers.calls import Calls
from mtpprof.analyzers.distinct import distinct_rows
from mtpprof.analyzers.steps import Steps
from mtpprof.analyzers.strata import Batch
from mtpprof.analyzers.table import MISSING


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Steps in which not all ranks did the same."""

    rows: frozenset[int]
    """Rows in `Steps`, of all ranks."""
    reason: str
    """Who differs from whom, and by what; empty: nobody."""


class _Done(NamedTuple):
    """What one rank did in one step."""

    batch: Batch
    calls: frozenset[tuple[str, str, int, int]]
    """Kind, algorithm, payload (-1: not known) and number."""

    @property
    def traffic(self) -> str:
        sizes = [payload * count for _, _, payload, count in self.calls]
        known = all(payload != MISSING for _, _, payload, _ in self.calls)
        payload = f"{sum(sizes):,} B of payload" if known else "payload not known"
        return f"{sum(count for *_, count in self.calls)} calls, {payload}"

    def beside(self, other: _Done) -> str:
        """What this one did, as far as it differs from the other."""
        return self.traffic if self.batch == other.batch else f"{self.batch.text}: {self.traffic}"


def find_disagreement(calls: Calls, steps: Steps) -> Disagreement:
    """The steps, told apart by their numbers, in which a rank did something else than most."""
    done = _done(calls, steps)
    by_number: dict[int, list[int]] = {}
    for row, number in enumerate(steps.number.tolist()):
        by_number.setdefault(number, []).append(row)
    apart = [rows for rows in by_number.values() if len({done[row] for row in rows}) > 1]
    if not apart:
        return Disagreement(frozenset(), "")
    first = apart[0]
    usual = Counter(done[row] for row in first).most_common(1)[0][0]
    like = next(row for row in first if done[row] == usual)
    odd = [row for row in first if done[row] != usual]
    names = ", ".join(str(steps.rank[row]) for row in odd)
    reason = (
        f"rank {names} did not do what rank {steps.rank[like]} did in {len(apart)} of {len(by_number)} steps "
        f"(step {steps.number[like]}: {done[odd[0]].beside(usual)} against {usual.beside(done[odd[0]])})"
    )
    return Disagreement(frozenset(row for rows in apart for row in rows), reason)


def _done(calls: Calls, steps: Steps) -> list[_Done]:
    """For every row of `steps`, what its rank did in it."""
    row = steps.rows_of(calls.table, calls.step)
    inside = calls.take(row != MISSING)
    found = distinct_rows(row[row != MISSING], inside.kind, inside.algorithm, inside.payload_bytes)
    seen: dict[int, set[tuple[str, str, int, int]]] = {}
    for (place, kind, algorithm, payload), count in zip(
        found.rows.tolist(), found.counts.tolist(), strict=True
    ):
        seen.setdefault(place, set()).add((inside.texts[kind], inside.texts[algorithm], payload, count))
    return [
        _Done(
            Batch(steps.text("phase", place), int(steps.rows[place]), int(steps.sequences[place])),
            frozenset(seen.get(place, ())),
        )
        for place in range(len(steps))
    ]
