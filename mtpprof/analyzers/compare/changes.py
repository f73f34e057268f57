"""What an optimization did to the collectives of a step: removed, added, replaced, fused, or carried out by something else.

The decision: two multisets of collectives are matched in rounds, the strictest first (`ROUNDS` is the table), each round taking as
many calls off both sides as agree in its columns. What the last round leaves was removed or added. So nothing is counted twice, and
the numbers of all changes add up to the difference of the two sides, call for call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import msgspec

from mtpprof.analyzers.measures.batches import Form, Pairing, Stratum, Sum, added
from mtpprof.models.ledger import site_patterns
from mtpprof.rundir.records import Record

What = Literal[
    "removed",
    "added",
    "replaced",
    "fused",
    "unfused",
    "moved",
    "reimplemented",
    "not seen after",
    "not seen before",
]


@dataclass(frozen=True, slots=True)
class Round:
    """One round of matching: calls that agree in `columns` are the same call, changed in the way `what` says."""

    what: What | None
    """None: not changed; `fused` stands for either direction."""
    columns: tuple[str, ...]
    needs: str = ""
    """A column that must be known for the match to mean anything."""


_ALL = ("kind", "phase", "site", "shape", "dtype", "fused", "implementation")

ROUNDS = (
    Round(None, _ALL),
    Round("reimplemented", ("kind", "phase", "site", "shape", "dtype", "fused")),
    Round("fused", ("kind", "phase", "site", "shape", "dtype")),
    Round("moved", ("kind", "phase", "shape", "dtype", "fused"), needs="shape"),
    Round("fused", ("kind", "phase", "shape", "dtype"), needs="shape"),
    Round("replaced", ("kind", "phase", "site"), needs="site"),
    Round("replaced", ("kind", "phase")),
)
"""The rounds of matching, strictest first."""


class CallForm(Record, frozen=True, kw_only=True):
    """What a collective looks like, beside its kind and phase."""

    shape: list[int] | None
    """One rank's input; None: not known."""
    dtype: str
    """Empty: not known."""
    fused: str
    implementation: str

    @property
    def text(self) -> str:
        """`[8, 128] bf16 fused with residual_rmsnorm`, or who carries it out where the size is not known."""
        size = f"{self.shape} {self.dtype}".strip() if self.shape is not None else ""
        return " ".join(
            filter(None, (size or f"by {self.implementation}", self.fused and f"fused with {self.fused}"))
        )

    @staticmethod
    def of(form: Form | None) -> CallForm | None:
        """The record of a form."""
        if form is None:
            return None
        return CallForm(
            shape=[int(size) for size in form.shape.split("x")] if form.shape else None,
            dtype=form.dtype,
            fused=form.fused,
            implementation=form.implementation,
        )


class Change(Record, frozen=True, kw_only=True):
    """A difference between the collectives of two sides, per step and rank."""

    what: What
    kind: str
    phase: str
    calls: float
    """Calls concerned; always positive."""
    before: CallForm | None
    """Form on the first side; None: there was none."""
    after: CallForm | None
    sites: list[str]
    """Where, as patterns: `layers.*.moe.latent`; empty: the trace does not tell."""
    net_calls: float
    """Calls more (positive) or fewer than before."""
    payload_bytes: float | None
    """Difference of payload; None: not known, or not comparable."""
    wire_bytes: float | None
    time_ns: float | None
    """Difference of the summed time in these collectives (waiting included); None: not comparable."""


@dataclass(slots=True)
class _Match:
    what: What
    count: Fraction
    before: Form | None
    after: Form | None


def changes(pairing: Pairing) -> list[Change]:
    """How the steps of the second side differ from those of the first, largest change first."""
    sizeless = _sizeless(pairing)
    base, arm = (_without_sizes(side, sizeless) for side in (pairing.base, pairing.arm))
    left = {form: base.rate(form) for form in base.forms}
    right = {form: arm.rate(form) for form in arm.forms}
    matches: list[_Match] = []
    for step in ROUNDS:
        matches += _take(step, left, right)
    matches += [_Match("removed", count, form, None) for form, count in left.items() if count]
    matches += [_Match("added", count, None, form) for form, count in right.items() if count]
    found = _merged(matches, base, arm, comparable=pairing.same_batch)
    return sorted(found, key=lambda change: (-abs(change.net_calls), -change.calls, change.kind))


def in_doubt(found: Iterable[Change], *, base: bool, arm: bool) -> list[Change]:
    """The changes where not every collective of a side is known to be counted: what it lacks was not seen, which is no removal.

    Args:
        found: As `changes` says.
        base: Whether the first side may have more than was counted.
        arm: Whether the second may.
    """
    return [_doubted(change, base, arm) for change in found]


def _doubted(change: Change, base: bool, arm: bool) -> Change:
    what: What | None = None
    if change.what == "removed" and arm:
        what = "not seen after"
    elif change.what == "added" and base:
        what = "not seen before"
    if what is None:
        return change
    return msgspec.structs.replace(change, what=what, payload_bytes=None, wire_bytes=None, time_ns=None)


def _sizeless(pairing: Pairing) -> frozenset[tuple[str, str]]:
    """(kind, phase) whose calls are matched without sizes: all where batches differ, else those of which a size is not known."""
    forms = [form for side in (pairing.base, pairing.arm) for form in side.forms]
    return frozenset(
        (form.kind, form.phase)
        for form in forms
        if not pairing.same_batch or not form.shape or not form.dtype
    )


def _without_sizes(stratum: Stratum, sizeless: frozenset[tuple[str, str]]) -> Stratum:
    """The stratum with shape, dtype and site of the calls of some kinds and phases taken away.

    The site goes too: a trace that does not name sites has them by the order of its calls, which differs with the batch.
    """
    sums: dict[Form, list[Sum]] = {}
    for form, found in stratum.forms.items():
        if (form.kind, form.phase) in sizeless:
            form = form._replace(shape="", dtype="", site="")
        sums.setdefault(form, []).append(found)
    return replace(stratum, forms={form: added(parts) for form, parts in sums.items()})


def _take(step: Round, left: dict[Form, Fraction], right: dict[Form, Fraction]) -> Iterable[_Match]:
    """Matches of one round; what is matched is taken off both sides."""
    by_key: dict[tuple[str, ...], list[Form]] = {}
    for form, count in right.items():
        if count and (not step.needs or getattr(form, step.needs)):
            by_key.setdefault(_key(form, step.columns), []).append(form)
    for form in list(left):
        for other in by_key.get(_key(form, step.columns), ()):
            count = min(left[form], right[other])
            if not count:
                continue
            left[form] -= count
            right[other] -= count
            if step.what is not None:
                yield _Match(_direction(step.what, form, other), count, form, other)


def _key(form: Form, columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(getattr(form, name) for name in columns)


def _direction(what: What, before: Form, after: Form) -> What:
    return "unfused" if what == "fused" and before.fused and not after.fused else what


def _merged(matches: list[_Match], base: Stratum, arm: Stratum, *, comparable: bool) -> Iterable[Change]:
    """Like matches at different sites as one change."""
    groups: dict[tuple[str, Form | None, Form | None], list[_Match]] = {}
    for match in matches:
        key = (match.what, _siteless(match.before), _siteless(match.after))
        groups.setdefault(key, []).append(match)
    for (_, before, after), members in groups.items():
        form = before or after
        assert form is not None
        first = members[0]
        yield Change(
            what=first.what,
            kind=form.kind,
            phase=form.phase,
            calls=float(sum(member.count for member in members)),
            before=CallForm.of(before),
            after=CallForm.of(after),
            sites=site_patterns(
                form.site
                for member in members
                for form in (member.before, member.after)
                if form and form.site
            ),
            net_calls=float(sum(_net(member) for member in members)),
            payload_bytes=_difference(members, base, arm, "payload_bytes") if comparable else None,
            wire_bytes=_difference(members, base, arm, "wire_bytes") if comparable else None,
            time_ns=_difference(members, base, arm, "time_ns") if comparable else None,
        )


def _net(match: _Match) -> Fraction:
    return match.count * ((match.after is not None) - (match.before is not None))


def _difference(members: list[_Match], base: Stratum, arm: Stratum, name: str) -> float | None:
    total = Fraction(0)
    for match in members:
        for form, stratum, sign in ((match.before, base, -1), (match.after, arm, 1)):
            if form is None:
                continue
            found = stratum.forms[form]
            value: int | None = getattr(found, name)
            if value is None:
                return None
            total += sign * match.count * Fraction(value, found.calls)
    return float(total)


def _siteless(form: Form | None) -> Form | None:
    return form._replace(site="") if form is not None else None
