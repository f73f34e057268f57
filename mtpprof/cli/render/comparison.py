"""A comparison of two sides as tables of text."""

from __future__ import annotations

from collections.abc import Iterator

from mtpprof.analyzers.compare.difference import StratumDifference
from mtpprof.analyzers.compare.targets import Comparison, SideSummary
from mtpprof.cli.render.output import Table
from mtpprof.cli.render.savings import (
    change_row,
    engagement_notes,
    kernels_table,
    merged_drafts,
    savings_table,
    waterfall_tables,
)
from mtpprof.cli.render.units import bytes_text, count_text, signed


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Savings, engagement, changes batch by batch, waterfall."""
    difference = comparison.difference
    found = [
        savings_table("saved, per step and rank", [difference], _notes(comparison)),
        kernels_table([difference]),
        _engagement_table(comparison),
        _strata_table(comparison),
        _changes_table(comparison),
        *waterfall_tables("where the step time went", [difference]),
    ]
    return [table for table in found if table.rows or table.note]


def _notes(comparison: Comparison) -> Iterator[str]:
    difference = comparison.difference
    if comparison.capture_calls:
        rates = {stratum.arm.calls - stratum.base.calls for stratum in difference.strata}
        same = f"{signed(count_text(rates.pop()))} in each of" if len(rates) == 1 else "over"
        yield (
            f"Calls: {same} {comparison.capture_steps} steps, {signed(count_text(comparison.capture_calls))} per rank in all."
        )
    if difference.payload_bytes:
        yield f"Payload: {difference.payload_bytes:+,.0f} B per step and rank ({difference.strata[0].batch})."
    for stratum in difference.strata:
        yield from (f"{stratum.batch}: {note}." for note in stratum.notes)
    yield from engagement_notes(difference)
    if difference.output is not None and not difference.output.same:
        yield f"Tokens: {difference.output.sentence}."
    for side in (comparison.base, comparison.arm):
        yield from excess_notes(side)
    yield from difference.caveats


def excess_notes(side: SideSummary) -> Iterator[str]:
    """What a side issues and the model's ledger does not need, like batches together."""
    sentences: dict[str, list[str]] = {}
    for entry in side.excess:
        name = entry.kind.replace("_", "-")
        width = entry.shape[-1] if entry.shape else "?"
        place = entry.sentence.partition(" per step")[2]
        saviour = (
            f"; {entry.avoided_by} removes them" if entry.avoided_by and entry.what == "redundant" else ""
        )
        text = f"{entry.calls:g} {entry.what} {name}s of width {width} {entry.dtype} per step{place}{saviour}"
        sentences.setdefault(text, []).append(entry.batch)
    for text, batches in sentences.items():
        yield f"{side.name}: {text} ({'; '.join(batches)})."
    if side.note:
        yield f"{side.name}: {side.note}."
    equal = {", ".join(names) or "nothing" for names in side.ledger.values()}
    if len(equal) == 1:
        yield f"{side.name}: equals the model's ledger with {equal.pop()} switched on, call for call."


def _engagement_table(comparison: Comparison) -> Table:
    columns = ("optimization", "verdict", "because")
    rows = [(name, found.verdict, found.reason) for name, found in comparison.difference.engagement.items()]
    return Table(title=f"engaged in {comparison.arm.name}?", columns=columns, rows=rows)


def _strata_table(comparison: Comparison) -> Table:
    columns = ("batch", "steps", "calls", "payload", "wire")
    least = _least(comparison.base), _least(comparison.arm)
    rows = [row for stratum in comparison.difference.strata for row in _stratum_rows(stratum, least)]
    return Table(
        title="batch by batch, per step and rank",
        columns=columns,
        rows=rows,
        right=frozenset(columns[1:]),
    )


def _least(side: SideSummary) -> str:
    """What stands before a side's figures where they are lower bounds."""
    return "≥ " if side.suspects else ""


def _stratum_rows(stratum: StratumDifference, least: tuple[str, str]) -> Iterator[tuple[str, ...]]:
    yield (
        stratum.batch,
        f"{stratum.base_steps} → {stratum.arm_steps}",
        f"{least[0]}{count_text(stratum.base.calls)} → {least[1]}{count_text(stratum.arm.calls)}",
        _figure(stratum, "payload_bytes", least),
        _figure(stratum, "wire_bytes", least),
    )
    if stratum.arm_batch != stratum.batch:
        yield (f"  → {stratum.arm_batch}", "", "", "", "")


def _figure(stratum: StratumDifference, name: str, least: tuple[str, str]) -> str:
    """Before and after; where they round to the same, before and the difference."""
    before, after = getattr(stratum.base, name), getattr(stratum.arm, name)
    if (
        before is not None
        and after is not None
        and before != after
        and not any(least)
        and bytes_text(before) == bytes_text(after)
    ):
        return f"{bytes_text(before)} {signed(bytes_text(after - before))}"
    texts = (
        f"{bound}{bytes_text(value)}" if value is not None else bytes_text(value)
        for bound, value in zip(least, (before, after), strict=True)
    )
    return " → ".join(texts)


def _what(comparison: Comparison) -> str:
    """What is counted beside the collectives: kernels, or operations of the CPU."""
    found = comparison.difference.kernels
    return found.what if found is not None else "kernels"


def _changes_table(comparison: Comparison) -> Table:
    rows: list[tuple[str, ...]] = []
    for stratum in comparison.difference.strata:
        found = [change for change in merged_drafts(stratum.changes) if change.what != "moved"]
        rows.append((f"{stratum.batch}:", "nothing" if not found else "", "", ""))
        rows += [change_row(change) for change in found]
        rows += [
            (
                f"  {count_text(kernel.base)} → {count_text(kernel.arm)} {_what(comparison)}: {kernel.part}",
                "",
                "",
                "",
            )
            for kernel in stratum.kernels
        ]
    columns = ("calls", "what", "where", "payload")
    return Table(
        title="what changed, per step and rank",
        columns=columns,
        rows=rows,
        right=frozenset({"payload"}),
    )
