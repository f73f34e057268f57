"""The Typer application: one module a command, heavy imports inside the commands.

`mtpprof --help` imports neither torch, vllm, textual nor numpy; a test holds that.
"""

from __future__ import annotations

from typing import Annotated

import typer

from mtpprof import __version__
from mtpprof.cli.commands import (
    analyze,
    check,
    compare,
    dashboard,
    doctor,
    export,
    models,
    nvtx,
    optimizations,
    predict,
    report,
    run,
    view,
)

app = typer.Typer(
    name="mtpprof",
    help="What did each communication optimization of tensor-parallel LLM inference save?\n\n"
    "`mtpprof run --tp 4` launches models with each optimization on and off, traces every rank and reports calls, bytes and time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mtpprof {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks (anywhere on the line).")] = False,
) -> None:
    """Options before the command."""


for command in (
    run.run,
    report.report,
    dashboard.dashboard,
    compare.compare,
    check.check,
    predict.predict,
    analyze.analyze,
    export.export,
    view.view,
    models.models,
    optimizations.optimizations,
    doctor.doctor,
):
    app.command()(command)
app.command(context_settings=nvtx.CONTEXT_SETTINGS)(nvtx.nvtx)
