"""`mtpprof doctor`: what this machine offers, or what is wrong with traces, and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpprof.cli.options import MaxGb, RankMap, Rules, reading
from mtpprof.cli.render.output import Format, Table, write_json, write_tables
from mtpprof.errors import ExitCode

if TYPE_CHECKING:
    from mtpprof.analyzers.calls.attribution import ReadOptions


def doctor(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH...]", help="Traces to examine, files or directories; none: examine this machine."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="vllm", help="Examine what mtpprof reaches into of the installed vLLM."),
    ] = None,
    rules: Rules = None,
    rank_map: RankMap = None,
    max_gb: MaxGb = None,
    style: Annotated[Format, typer.Option("--format", help="How to write the result.")] = Format.TABLE,
) -> None:
    """Look at this machine (Python, torch, CPUs, GPUs and links, NCCL, vLLM, nsys, shared memory, disk, ports), or at traces.

    Exit code 5 when the machine lacks something that `mtpprof run` needs, 3 when a trace gives no answer.

    Examples:

        mtpprof doctor

        mtpprof doctor --engine vllm

        mtpprof doctor traces/

        mtpprof doctor rank0.json.gz --format json
    """
    if engine is not None:
        _examine_engine(engine, style)
    elif paths:
        _examine_traces(paths, reading(rules=rules, rank_map=rank_map, max_gb=max_gb), style)
    else:
        _examine_machine(style)


def _examine_machine(style: Format) -> None:
    import msgspec

    from mtpprof.profilers.machine_report import examine

    findings = examine()
    if style is Format.JSON:
        write_json([msgspec.to_builtins(finding) for finding in findings])
    else:
        columns = ("item", "state", "found", "what it means")
        rows = [(finding.item, finding.state, finding.found, finding.meaning) for finding in findings]
        write_tables([Table(title="This machine", columns=columns, rows=rows)], style)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(ExitCode.ENVIRONMENT)


def _examine_engine(engine: str, style: Format) -> None:
    from mtpprof.errors import MissingEnvironmentError, UsageError
    from mtpprof.profilers.engines.vllm import patches

    if engine != "vllm":
        raise UsageError(f"--engine {engine}: only vllm has parts to examine.")
    version, platform = patches.vllm_version(), "cpu" if patches.is_cpu_build() else "cuda"
    if version is None:
        raise MissingEnvironmentError(
            "--engine vllm: vLLM is not installed; `make install-vllm` installs it for the CPU, pip install 'mtpprof[vllm]' for CUDA."
        )
    probed = patches.probe_installed(platform)
    if style is Format.JSON:
        write_json({"version": version, "platform": platform, "patch_points": patches.as_values(probed)})
    else:
        columns = ("state", "name in vLLM", "needed by", "what for", "seen in")
        rows = [
            (
                "found" if item.found else "missing",
                item.point.text.removeprefix("vllm."),
                item.point.needed_by,
                item.point.purpose,
                ", ".join(item.point.seen_in),
            )
            for item in probed
        ]
        note = f"Runs were made with {', '.join(patches.RUN_WITH)}."
        write_tables(
            [Table(title=f"vLLM {version} ({platform})", columns=columns, rows=rows, note=note)], style
        )
    if any(not item.found and item.point.needed_by == patches.ANNOTATIONS for item in probed):
        raise typer.Exit(ExitCode.ENVIRONMENT)


def _examine_traces(paths: list[Path], options: ReadOptions, style: Format) -> None:
    from mtpprof.analyzers.answers.examination import examination_of
    from mtpprof.analyzers.calls.attribution import analyze
    from mtpprof.analyzers.traces.discover import examine_traces
    from mtpprof.analyzers.traces.verdicts import Severity
    from mtpprof.cli.render.verdicts import verdicts_table

    found = [
        examination_of(traces, analyze(traces, options).no_answer)
        for traces in examine_traces(paths, options.rank_map, options.load)
    ]
    if style is Format.JSON:
        write_json(found)
    else:
        write_tables([verdicts_table(one) for one in found], style)
    worst = max((verdict.level for one in found for verdict in one.verdicts), default=0)
    if worst >= Severity.ERROR or any(one.no_answer for one in found):
        raise typer.Exit(ExitCode.BAD_INPUT)
