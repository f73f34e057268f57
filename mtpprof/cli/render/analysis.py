"""The answer of `analyze` as tables of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mtpprof.analyzers.answers.analysis import CENSUS, Analysis, Clock, Straggler
from mtpprof.analyzers.answers.examination import ProblemFound
from mtpprof.analyzers.measures.slowest import Notable
from mtpprof.analyzers.measures.step_figures import Spread
from mtpprof.analyzers.measures.sums import Group, Value
from mtpprof.cli.render.output import Table
from mtpprof.cli.render.units import UNKNOWN, bytes_text, count_text, percent_text, time_text


def summary(found: Analysis) -> Table:
    """Files, ranks, verdicts, and what the time in collectives mostly was."""
    world = UNKNOWN if found.world_size is None else str(found.world_size)
    ranks = _ranges(found.ranks) if found.ranks else "unknown"
    rows = [
        ("traces", f"{len(found.paths)} of ranks {ranks}, world of {world}"),
        ("collective calls", _count(found)),
        ("time in collectives", _time(found)),
        ("waiting", _waiting(found)),
    ]
    rows += [
        (
            f"rank {item.rank} is last",
            f"in {item.last} of {item.of}, others waited {time_text(item.caused_ns)} for it",
        )
        for item in found.stragglers[:1]
    ]
    rows += _problem_rows(found.problems)
    rows += [("left out", text) for text in found.transients]
    rows += [("no answer: " + item.answer, item.reason) for item in found.withheld]
    rows += [("note", text) for text in found.notes]
    return Table(title=found.label, columns=("", ""), rows=rows)


def _problem_rows(problems: Iterable[ProblemFound]) -> Iterable[tuple[str, str]]:
    """One row a verdict: the first sentence, and which further ranks or files it holds for."""
    by_verdict: dict[str, list[ProblemFound]] = {}
    for problem in problems:
        if problem.level:
            by_verdict.setdefault(problem.verdict, []).append(problem)
    for verdict, alike in by_verdict.items():
        first, *others = alike
        more = ""
        if others:
            ranks = [problem.rank for problem in others if problem.rank is not None]
            where = f"ranks {_ranges(ranks)}" if len(ranks) == len(others) else f"{len(others)} more files"
            more = f" (The same of {where}.)"
        text = f"{first.sentence} {first.remedy[:1].upper()}{first.remedy[1:]}".strip()
        yield f"{first.severity}: {verdict}", f"{text}{more}"


def _count(found: Analysis) -> str:
    if found.no_answer:
        return f"{UNKNOWN}: {found.no_answer}"
    return f"{_least(found)}{found.collective_calls}, {found.fused_calls} of them fused with what follows"


def _least(found: Analysis) -> str:
    return "" if found.counts_are_exact else "at least "


def _time(found: Analysis) -> str:
    if not found.by_rank:
        nothing = "none" if found.counts_are_exact else f"at least {time_text(0)}"
        return UNKNOWN if found.no_answer else nothing
    busy = [group.busy_ns for group in found.by_rank]
    exposed = sum(group.exposed_ns for group in found.by_rank) / max(1, sum(busy))
    return f"{_least(found)}{time_text(min(busy))} to {time_text(max(busy))} a rank, {percent_text(exposed)} of it exposed"


def _waiting(found: Analysis) -> str:
    waits = found.waits
    if waits.share is None:
        return f"{waits.verdict}: {waits.reason}"
    shown = f"{waits.verdict}: {percent_text(waits.share)} of the time in {waits.calls} calls was waiting for the last rank"
    return f"{shown} ({waits.reason})" if waits.reason else shown


def groups_table(found: Analysis) -> Table:
    """Sums by the columns that were asked for."""
    return _sums_table(found, tuple(found.by), found.groups)


def _sums_table(found: Analysis, by: tuple[str, ...], groups: Iterable[Group]) -> Table:
    columns = (
        *by,
        "calls",
        "payload",
        "bytes from",
        "wire",
        "sum",
        "busy",
        "exposed",
        "wait",
        "transfer",
        "median",
        "busbw",
    )
    rows = [_group_row(group, by) for group in groups]
    return Table(
        title=f"{found.label}: collectives by {', '.join(by)}, all ranks together",
        columns=columns,
        rows=rows,
        right=frozenset(columns[len(by) :]) - {"bytes from"},
    )


def _group_row(group: Group, by: tuple[str, ...]) -> tuple[str, ...]:
    return (
        *(_key(name, group.key[name]) for name in by),
        str(group.calls),
        bytes_text(group.payload_bytes),
        _provenance(group),
        bytes_text(group.wire_bytes) if group.wire_known == group.calls else UNKNOWN,
        time_text(group.sum_ns),
        time_text(group.busy_ns),
        time_text(group.exposed_ns),
        time_text(group.wait_ns),
        time_text(group.transfer_ns),
        time_text(group.median_ns),
        UNKNOWN
        if group.busbw_gb_per_s is None
        else f"{'≥ ' if group.busbw_basis == 'duration' else ''}{group.busbw_gb_per_s:.3g} GB/s",
    )


def _key(name: str, value: Value) -> str:
    if value is None:
        return UNKNOWN
    return (
        bytes_text(float(value))
        if name in ("size", "size_class") and not isinstance(value, str)
        else str(value)
    )


def _provenance(group: Group) -> str:
    derived = group.bytes_known - group.bytes_measured
    parts = [
        (group.bytes_measured, "measured"),
        (derived, "derived"),
        (group.calls - group.bytes_known, "unknown"),
    ]
    known = [(count, word) for count, word in parts if count]
    return known[0][1] if len(known) == 1 else ", ".join(f"{count} {word}" for count, word in known)


def steps_table(found: Analysis) -> Table:
    """Per step: how long, and what each form of collective amounts to; medians and quartiles over steps and ranks."""
    columns = (
        "steps",
        "count",
        "step time",
        "collective",
        "calls",
        "payload",
        "per step",
        "exposed",
        "each call",
    )
    rows = [
        (
            str(time.batch),
            str(time.steps),
            _spread(time.dur_ns),
            "all",
            _number(time.calls),
            "",
            _spread(time.collective_ns),
            "",
            "",
        )
        for time in found.step_times
    ]
    for figure in found.per_step:
        form = f"{figure.form['kind']} {figure.form['implementation']}"
        fused = f" + {figure.form['fused']}" if figure.form["fused"] else ""
        rows.append(
            (
                str(figure.batch),
                str(figure.steps),
                "",
                form + fused,
                _number(figure.calls),
                bytes_text(figure.payload_bytes),
                _spread(figure.sum_ns),
                _spread(figure.exposed_ns),
                _spread(figure.call_ns),
            )
        )
    return Table(
        title=f"{found.label}: per step and rank, median (quartiles)",
        columns=columns,
        rows=sorted(rows, key=lambda row: row[0]),
        right=frozenset(columns) - {"steps", "collective"},
    )


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return UNKNOWN
    return f"{time_text(spread.median)} ({time_text(spread.low)} - {time_text(spread.high)})"


def _number(spread: Spread) -> str:
    if spread.low == spread.high:
        return count_text(spread.median)
    return f"{count_text(spread.median)} ({count_text(spread.low)} - {count_text(spread.high)})"


def census_table(found: Analysis) -> Table:
    """Which implementation ran at which message size."""
    return _sums_table(found, CENSUS, found.census)


def slowest_table(found: Analysis) -> Table:
    """The longest calls."""
    return _notable(found, "slowest calls", found.slowest)


def skewed_table(found: Analysis) -> Table:
    """The longest waits."""
    return _notable(found, "most skewed collectives", found.most_skewed)


def _notable(found: Analysis, title: str, entries: Iterable[Notable]) -> Table:
    columns = (
        "rank",
        "collective",
        "by",
        "phase",
        "site",
        "shape",
        "step",
        "start",
        "time",
        "wait",
        "payload",
        "",
    )
    rows = [
        (
            _or_unknown(entry.rank),
            entry.kind,
            entry.implementation,
            entry.phase or UNKNOWN,
            entry.site or UNKNOWN,
            entry.shape or UNKNOWN,
            _or_unknown(entry.step),
            time_text(entry.start_ns),
            time_text(entry.dur_ns),
            time_text(entry.wait_ns),
            bytes_text(entry.payload_bytes),
            "start of profiling" if entry.transient else "",
        )
        for entry in entries
    ]
    return Table(title=f"{found.label}: {title}", columns=columns, rows=rows, right=frozenset(columns[7:11]))


def stragglers_table(label: str, stragglers: Iterable[Straggler]) -> Table:
    """Which rank came last how often."""
    columns = ("rank", "came last in", "of", "others waited")
    rows = [(str(item.rank), str(item.last), str(item.of), time_text(item.caused_ns)) for item in stragglers]
    return Table(title=f"{label}: stragglers", columns=columns, rows=rows, right=frozenset(columns[1:]))


def clocks_table(label: str, clocks: Iterable[Clock]) -> Table:
    """How clocks were brought together, and how well that worked."""
    columns = ("group", "rank", "reference", "offset", "residual", "matched", "method")
    rows = [
        (
            c.group,
            str(c.rank),
            str(c.reference),
            time_text(c.offset_ns),
            time_text(c.residual_ns),
            str(c.matched),
            c.method,
        )
        for c in clocks
    ]
    return Table(title=f"{label}: clocks", columns=columns, rows=rows, right=frozenset(columns[3:6]))


def suspects_table(found: Analysis) -> Table:
    """Names that look like communication and that no rule knows."""
    rows = [(item.name, str(item.count), time_text(item.dur_ns)) for item in found.suspects]
    return Table(
        title=f"{found.label}: not counted, but looks like communication (teach it with --rules)",
        columns=("name", "calls", "time"),
        rows=rows,
        right=frozenset({"calls", "time"}),
    )


VIEWS: dict[str, Callable[[Analysis], Table]] = {
    "summary": summary,
    "groups": groups_table,
    "steps": steps_table,
    "census": census_table,
    "slowest": slowest_table,
    "skewed": skewed_table,
    "stragglers": lambda found: stragglers_table(found.label, found.stragglers),
    "clocks": lambda found: clocks_table(found.label, found.clocks),
    "suspects": suspects_table,
}
"""Views by the name that `--show` takes: to add one is to add a row."""


def _or_unknown(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3, 6`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
