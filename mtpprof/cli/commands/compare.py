"""`mtpprof compare A B`: what one side saves against the other."""

from __future__ import annotations

from typing import Annotated

import typer

from mtpprof.cli.options import MaxGb, Model, RankMap, Ranks, Rules, Steps, WindowOfTime, reading
from mtpprof.cli.render.format_names import ReportFormat


def compare(
    base: Annotated[
        str,
        typer.Argument(metavar="A", help="Run, RUN:ARM, RUN:CASE/ARM, or a folder of traces: the baseline."),
    ],
    arm: Annotated[str, typer.Argument(metavar="B", help="The same, for what is compared with it.")],
    ranks: Ranks = None,
    window: WindowOfTime = None,
    steps: Steps = None,
    rules: Rules = None,
    model: Model = None,
    rank_map: RankMap = None,
    max_gb: MaxGb = None,
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
    from mtpprof.analyzers.compare.targets import compare_targets, parse_target
    from mtpprof.cli.render.formats import COMPARISONS

    options = reading(
        rules=rules,
        model=model,
        ranks=ranks,
        window=window,
        steps=steps,
        rank_map=rank_map,
        max_gb=max_gb,
    )
    COMPARISONS[style](compare_targets(parse_target(base), parse_target(arm), options))
