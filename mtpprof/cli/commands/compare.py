"""`mtpprof compare A B`: what one side saves against the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtpprof.cli.render.format_names import ReportFormat


def compare(
    base: Annotated[
        str,
        typer.Argument(metavar="A", help="Run, RUN:ARM, RUN:CASE/ARM, or a folder of traces: the baseline."),
    ],
    arm: Annotated[str, typer.Argument(metavar="B", help="The same, for what is held against it.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="Preset or config.json of traces without a run record: redundant collectives are found by its ledger."
        ),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rules of your own for names (TOML), as for analyze.")
    ] = None,
    style: Annotated[
        ReportFormat,
        typer.Option("--format", help="How to write the result; html is one self-contained page."),
    ] = ReportFormat.TABLE,
) -> None:
    """Compare two arms, two runs or two captures: engaged, calls, bytes, time, above noise, same output.

    Steps are compared with steps of the same phase and batch only; where batches differ, numbers of calls are compared and nothing else.

    Examples:

        mtpprof compare runs/mine:baseline runs/mine:all-on

        mtpprof compare runs/before runs/after

        mtpprof compare traces/before traces/after --model ./config.json
    """
    from mtpprof.analyzers.calls.rules import load_rules
    from mtpprof.analyzers.compare.targets import compare_targets, parse_target
    from mtpprof.cli.render.formats import COMPARISONS
    from mtpprof.models.hf import resolve_model
    from mtpprof.models.spec import Scale

    spec = resolve_model(model, scale=Scale.FULL) if model else None
    known = load_rules(rules) if rules else ()
    answer = compare_targets(parse_target(base), parse_target(arm), spec, known)
    COMPARISONS[style](answer)
