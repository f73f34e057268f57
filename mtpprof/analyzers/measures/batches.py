"""Steps that may be compared: those of one phase and one batch.

The decision: two captures are never compared in their totals, since their step counts differ by chance. Each is split into strata
(phase, rows, sequences); what a stratum issues *per step* is compared with the same stratum of the other capture. Where a phase
occurs on both sides but never with the same batch, its steps are compared too, without sizes: how many collectives a step issues
does not depend on its batch, while bytes and times do.

Whether the ranks of a run did the same in the same step.

The decision: ranks of one tensor-parallel group issue the same collectives by definition, so calls and bytes of a step are one number.
Where a rank shows another batch, other calls or other bytes than the others, a mean over them would be a figure that no rank ever
had. Steps of a batch are answered for together, so those of such a batch have no figures, with the rank named: to leave out the odd
steps alone would be to choose which of them count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpprof.analyzers.calls.steps import Steps
from mtpprof.analyzers.calls.table import Calls, wire_bytes_of
from mtpprof.analyzers.numeric.distinct import distinct_rows
from mtpprof.analyzers.numeric.words import counted
from mtpprof.analyzers.traces.table import MISSING

DECODE_ORDER = ("target", "", "mixed", "prefill")
"""Phases by how much a comparison cares for them; others after these."""


class Form(NamedTuple):
    """What a collective is. Empty text: not known, or none."""

    kind: str
    phase: str
    site: str
    shape: str
    dtype: str
    fused: str
    implementation: str


class Batch(NamedTuple):
    """What steps have in common. -1: the trace does not tell."""

    phase: str
    rows: int
    sequences: int

    @property
    def text(self) -> str:
        """`target, 8 rows of 8 sequences`, or `steps` where the trace tells nothing."""
        size = counted(self.rows, "row") if self.rows != MISSING else ""
        if self.sequences != MISSING and size:
            size += f" of {counted(self.sequences, 'sequence')}"
        return ", ".join(filter(None, (self.phase or "steps", size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Totals of some calls."""

    calls: int
    payload_bytes: int | None
    """None: not known of every call."""
    wire_bytes: int | None
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """The steps of one batch of one capture."""

    batch: Batch
    steps: int
    """Steps as one rank counts them (the most of any rank)."""
    pairs: int
    """(rank, step) pairs: what rates are divided by."""
    forms: dict[Form, Sum]
    rows: frozenset[int]
    """Rows in the steps of the analysis."""
    uneven: bool
    """Whether the (rank, step) pairs differ in what they issue."""

    def rate(self, form: Form) -> Fraction:
        """Calls of a form per step and rank."""
        found = self.forms.get(form)
        return Fraction(found.calls, self.pairs) if found else Fraction(0)


def stratify(calls: Calls, steps: Steps) -> list[Stratum]:
    """The strata of a capture, decode first; calls outside any step and artefacts of the profiler's start are left out."""
    if not len(steps):
        return []
    distinct = distinct_rows(steps.phase, steps.rows, steps.sequences)
    row_of_call = steps.rows_of(calls.table, calls.step)
    found = []
    for index, (phase, rows, sequences) in enumerate(distinct.rows.tolist()):
        mine = np.flatnonzero(distinct.which == index)
        batch = Batch(steps.texts[phase], rows, sequences)
        inside = calls.take(np.isin(row_of_call, mine))
        found.append(_stratum(batch, inside, steps, mine))
    found.sort(key=lambda stratum: (_place(stratum.batch.phase), -stratum.pairs, stratum.batch))
    return found


def _place(phase: str) -> int:
    return DECODE_ORDER.index(phase) if phase in DECODE_ORDER else len(DECODE_ORDER)


def _stratum(batch: Batch, calls: Calls, steps: Steps, mine: NDArray[np.int64]) -> Stratum:
    per_table = Counter(steps.table[mine].tolist())
    forms = sums_by_form(calls)
    pairs = len(mine)
    return Stratum(
        batch=batch,
        steps=max(per_table.values()),
        pairs=pairs,
        forms=forms,
        rows=frozenset(mine.tolist()),
        uneven=any(found.calls % pairs for found in forms.values()),
    )


def sums_by_form(calls: Calls) -> dict[Form, Sum]:
    """Totals of every form of collective, in the order in which the forms first appear."""
    if not len(calls):
        return {}
    distinct = distinct_rows(*(getattr(calls, name) for name in Form._fields))
    wire = wire_bytes_of(calls)
    found = {}
    for index in np.argsort(distinct.first).tolist():
        mine = distinct.which == index
        form = Form(*(calls.texts[code] for code in distinct.rows[index].tolist()))
        found[form] = Sum(
            calls=int(mine.sum()),
            payload_bytes=_total(calls.payload_bytes[mine]),
            wire_bytes=_total(wire[mine]),
            time_ns=int(calls.dur_ns[mine].sum()),
        )
    return found


def _total(values: NDArray[np.int64]) -> int | None:
    return None if (values == MISSING).any() else int(values.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Two strata that are compared."""

    base: Stratum
    arm: Stratum
    alike: bool = True
    """False: something else than the batch decides message sizes and differs, the number of ranks for one."""

    @property
    def same_batch(self) -> bool:
        """Whether sizes and times compare, or only numbers of calls: a batch that is not told may be any."""
        return self.alike and self.base.batch == self.arm.batch and self.base.batch.rows != MISSING


def pair(
    base: Iterable[Stratum], arm: Iterable[Stratum], *, alike: bool = True
) -> tuple[list[Pairing], list[str]]:
    """Strata of two captures that can be compared, the same batches first, and sentences on those that cannot.

    Args:
        base: Of the first capture.
        arm: Of the second.
        alike: Whether the two are alike in all that decides message sizes beside the batch.
    """
    left = {stratum.batch: stratum for stratum in base}
    right = {stratum.batch: stratum for stratum in arm}
    both = [batch for batch in left if batch in right]
    pairs = [Pairing(base=left.pop(batch), arm=right.pop(batch), alike=alike) for batch in both]
    leftovers: list[str] = []
    for phase in dict.fromkeys(batch.phase for batch in (*left, *right)):
        ours = _merged([stratum for batch, stratum in left.items() if batch.phase == phase])
        theirs = _merged([stratum for batch, stratum in right.items() if batch.phase == phase])
        if ours and theirs:
            pairs.append(Pairing(base=ours, arm=theirs, alike=alike))
        else:
            leftovers += _alone(phase, ours or theirs, "the second" if ours else "the first")
    return pairs, leftovers


def _alone(phase: str, stratum: Stratum | None, missing: str) -> Iterator[str]:
    if stratum is not None:
        count = counted(stratum.steps, "step")
        yield f"{count} of phase {phase or 'unknown'}: {missing} capture has none, so they are not compared"


def _merged(strata: list[Stratum]) -> Stratum | None:
    """Strata of one phase with different batches, as one without sizes."""
    if not strata:
        return None
    if len(strata) == 1:
        return strata[0]
    sums: dict[Form, list[Sum]] = {}
    for stratum in strata:
        for form, found in stratum.forms.items():
            sums.setdefault(form, []).append(found)
    rows = sorted({stratum.batch.rows for stratum in strata})
    return Stratum(
        batch=Batch(strata[0].batch.phase, rows[0] if len(rows) == 1 else MISSING, MISSING),
        steps=sum(stratum.steps for stratum in strata),
        pairs=sum(stratum.pairs for stratum in strata),
        forms={form: added(parts) for form, parts in sums.items()},
        rows=frozenset().union(*(stratum.rows for stratum in strata)),
        uneven=True,
    )


def added(parts: list[Sum]) -> Sum:
    """Sums taken together; a figure that one of them lacks is not known."""
    payload = [part.payload_bytes for part in parts]
    wire = [part.wire_bytes for part in parts]
    return Sum(
        calls=sum(part.calls for part in parts),
        payload_bytes=None if None in payload else sum(value for value in payload if value is not None),
        wire_bytes=None if None in wire else sum(value for value in wire if value is not None),
        time_ns=sum(part.time_ns for part in parts),
    )


def by_phase_and_kind(stratum: Stratum) -> dict[tuple[str, str], Sum]:
    """Totals of a stratum by phase and kind, whatever their form."""
    parts: dict[tuple[str, str], list[Sum]] = {}
    for form, found in stratum.forms.items():
        parts.setdefault((form.phase, form.kind), []).append(found)
    return {place: added(sums) for place, sums in parts.items()}


def rate_of(total: int | None, stratum: Stratum) -> float | None:
    """A total of a stratum per step and rank; None: it is not known."""
    return None if total is None else total / stratum.pairs


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
