"""`mtpprof doctor`: what this machine offers, and what it means."""

from __future__ import annotations

from typing import Annotated

import typer

from mtpprof.cli.output import Format, Table, write_json, write_tables
from mtpprof.errors import ExitCode


def doctor(
    style: Annotated[Format, typer.Option("--format", help="How to write the result.")] = Format.TABLE,
) -> None:
    """Look at Python, torch, CPUs, GPUs and their links, NCCL, vLLM, nsys, shared memory, disk and ports.

    Exit code 5 when something that `mtpprof run` needs is missing.

    Examples:

        mtpprof doctor

        mtpprof doctor --format json
    """
    import msgspec

    from mtpprof.profilers.environment import examine

    findings = examine()
    if style is Format.JSON:
        write_json([msgspec.to_builtins(finding) for finding in findings])
    else:
        columns = ("item", "state", "found", "what it means")
        rows = [(finding.item, finding.state, finding.found, finding.meaning) for finding in findings]
        write_tables([Table(title="This machine", columns=columns, rows=rows)], style)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(ExitCode.ENVIRONMENT)
