"""Pieces of an HTML page: tables and charts without a script, a request or a library.

The decision: charts are rows of positioned boxes and thin SVG lines, text is HTML beside them. So text keeps its size on a telephone,
everything can be selected and read aloud, and the page is one file that works from a mail attachment or a CI artefact. Its own content
security policy forbids scripts and network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources

from mtpprof.analyzers.compare.waterfall import REST, Waterfall, drawn
from mtpprof.analyzers.measures.step_parts import MEANING, PARTS
from mtpprof.cli.render.escapes import printable
from mtpprof.cli.render.output import Table
from mtpprof.cli.render.units import signed, time_text

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
MAX_MARKS = 3000
"""Steps drawn of one arm; of more, every second, third, … is."""
OUTLIERS = 0.99
"""Share of the steps that a distribution's axis spans; the slowest are drawn at its end."""


def page(title: str, body: Iterable[str]) -> str:
    """The whole document."""
    css = resources.files("mtpprof.cli.render").joinpath("page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{text(title)}</title>",
            f"<style>\n{css}</style></head>",
            "<body>",
            f"<h1>{text(title)}</h1>",
            *body,
            "</body></html>",
            "",
        ]
    )


def text(value: object) -> str:
    """Any text, harmless in HTML."""
    return escape(printable(str(value)))


def note(sentence: str) -> str:
    """A paragraph that stands out."""
    return f'<p class="note">{text(sentence)}</p>'


def note_list(heading: str, items: Iterable[str]) -> str:
    """A list under its heading that stands out."""
    points = "".join(f"<li>{text(item)}</li>" for item in items)
    return f'<div class="note">{text(heading)}<ul>{points}</ul></div>'


def html_table(table: Table) -> str:
    """A table with its title and note; it scrolls sideways where it is wider than the page."""
    right = [column in table.right for column in table.columns]
    head = "".join(_cell("th", column, side) for column, side in zip(table.columns, right, strict=True))
    rows = "".join(
        "<tr>" + "".join(_cell("td", cell, side) for cell, side in zip(row, right, strict=True)) + "</tr>"
        for row in table.rows
    )
    parts = [f"<h3>{text(table.title)}</h3>"] if table.title else []
    if table.rows:
        parts.append(
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        )
    parts += [f'<p class="soft">{text(line)}</p>' for line in table.note.splitlines()]
    return "\n".join(parts)


def _cell(tag: str, content: str, right: bool) -> str:
    style = ' class="r"' if right else ""
    scope = ' scope="col"' if tag == "th" else ""
    return f"<{tag}{style}{scope}>{text(content)}</{tag}>"


def waterfall_figure(fall: Waterfall, title: str) -> str:
    """From the step before to the step after: a bar a part, saved to one side and cost to the other."""
    rows = drawn(fall)
    totals = [fall.start_ns, fall.end_ns, *(row.before_ns for row in rows), *(row.after_ns for row in rows)]
    low, high = min(totals), max(totals)
    margin = max(1, (high - low) // 12)
    low, high = max(0, low - margin), high + margin
    lines = [
        _bar_row(
            f"{fall.unit} before", time_text(fall.start_ns), "total", 0, _share(fall.start_ns, low, high)
        )
    ]
    for row in rows:
        if not row.delta_ns and row.name != REST:
            continue
        style = "saved" if row.delta_ns < 0 else "cost"
        left, right = sorted((_share(row.before_ns, low, high), _share(row.after_ns, low, high)))
        lines.append(
            _bar_row(
                row.name,
                signed(time_text(row.delta_ns)),
                style,
                left,
                right - left,
                MEANING.get(row.name, ""),
            )
        )
    lines.append(
        _bar_row(f"{fall.unit} after", time_text(fall.end_ns), "total", 0, _share(fall.end_ns, low, high))
    )
    axis = f'<div class="axis"><span>axis from {text(time_text(low))}</span><span>to {text(time_text(high))}</span></div>'
    return _figure("waterfall", title, [*lines, axis])


def _share(value: int, low: int, high: int) -> float:
    return 100 * (value - low) / (high - low)


def _bar_row(label: str, value: str, style: str, left: float, width: float, meaning: str = "") -> str:
    hint = f' title="{text(meaning)}"' if meaning else ""
    return (
        f'<div class="row {style}"{hint}><span class="label">{text(label)}</span>'
        f'<span class="bar"><i style="left:{left:.3f}%;width:{width:.3f}%"></i></span>'
        f'<span class="value">{text(value)}</span></div>'
    )


def parts_figure(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Stacked bars of the parts of a step, one a row, on one scale."""
    longest = max((sum(parts.values()) for _, parts in rows), default=0) or 1
    lines = []
    for label, parts in rows:
        blocks = "".join(
            f'<b class="p{index}" style="width:{100 * parts[name] / longest:.3f}%" title="{text(name)} {text(time_text(parts[name]))}"></b>'
            for index, name in enumerate(PARTS)
            if parts.get(name)
        )
        lines.append(
            f'<div class="row"><span class="label">{text(label)}</span><span class="bar stack">{blocks}</span>'
            f'<span class="value">{text(time_text(sum(parts.values())))}</span></div>'
        )
    shown = [(index, name) for index, name in enumerate(PARTS) if any(parts.get(name) for _, parts in rows)]
    legend = "".join(
        f'<span title="{text(MEANING[name])}"><i class="p{index}"></i>{text(name)}</span>'
        for index, name in shown
    )
    return _figure("ranks", title, [f'<div class="legend">{legend}</div>', *lines])


def distribution_figure(title: str, rows: Sequence[tuple[str, Sequence[Sequence[int]]]]) -> str:
    """Every step of every round as a thin line, every round's median as a thick one, on one axis.

    Args:
        title: Caption.
        rows: Label, and step times in ns by round.
    """
    steps = sorted(step for _, rounds in rows for window in rounds for step in window)
    if not steps:
        return ""
    low, high = steps[0], max(steps[min(len(steps) - 1, int(OUTLIERS * len(steps)))], steps[0] + 1)
    lines = []
    for label, rounds in rows:
        drawn_steps = [step for window in rounds for step in window]
        marks = [_mark(step, low, high, "") for step in drawn_steps[:: 1 + len(drawn_steps) // MAX_MARKS]]
        medians = [sorted(window)[len(window) // 2] for window in rounds if window]
        marks += [_mark(step, low, high, ' class="median"') for step in medians]
        value = time_text(sum(medians) / len(medians)) if medians else ""
        lines.append(
            f'<div class="row"><span class="label">{text(label)}</span>'
            f'<svg viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="step times of {text(label)}">'
            f'{"".join(marks)}</svg><span class="value">{text(value)}</span></div>'
        )
    axis = (
        f'<div class="axis"><span>{text(time_text(low))}</span><span>{text(time_text(high))}; '
        "slower steps at the edge; thick: a round's median</span></div>"
    )
    return _figure("distribution", title, [*lines, axis])


def _mark(step: int, low: int, high: int, style: str) -> str:
    place = 1000 * (min(step, high) - low) / (high - low)
    return f'<line{style} x1="{place:.1f}" x2="{place:.1f}" y1="0" y2="10"/>'


def _figure(kind: str, title: str, content: Iterable[str]) -> str:
    return "\n".join(
        [f'<figure class="{kind}"><figcaption>{text(title)}</figcaption>', *content, "</figure>"]
    )
