"""`mtpprof run`: launch, capture, report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mtpprof.cli.render.format_names import ReportFormat
from mtpprof.cli.render.output import stderr_console
from mtpprof.models.spec import Scale

if TYPE_CHECKING:
    from mtpprof.profilers.run import RunOptions

WHAT = "What to run"
HOW = "How to measure"
WHERE = "Where"


def run(
    context: typer.Context,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Preset, model directory or config.json; repeatable. Default: deepseek-v3.2 and nemotron-3-super.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel size.", rich_help_panel=WHAT)] = 4,
    opt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=on|off|both",
            help="An optimization: compared (both), on or off in every arm; repeatable. Default: all that apply, both.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    arms: Annotated[
        str,
        typer.Option(
            metavar="one-at-a-time|factorial",
            help="How the compared optimizations are combined.",
            rich_help_panel=WHAT,
        ),
    ] = "factorial",
    concurrency: Annotated[
        list[int] | None,
        typer.Option(
            help="Sequences decoded together; repeatable. Default: 1 and 8 (GPU: 1 and 64).",
            rich_help_panel=WHAT,
        ),
    ] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option(
            help="Draft tokens per step. Default: 3 for DeepSeek-like MTP models, else 0.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    acceptance_length: Annotated[
        float | None,
        typer.Option(
            help="Seeded synthetic acceptance with this mean length, the same in all arms. Default: greedy acceptance.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    prompt_len: Annotated[int, typer.Option(help="Prompt tokens per sequence.", rich_help_panel=WHAT)] = 16,
    scale: Annotated[
        Scale | None,
        typer.Option(
            help="tiny: small widths; slice: full widths, few layers. Default: tiny, on GPUs slice.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Number of layers, in place of the scale's.", rich_help_panel=WHAT)
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(help="Vocabulary size, in place of the model's.", rich_help_panel=WHAT)
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="bf16|fp16|fp32|fp64", help="Dtype of weights and activations.", rich_help_panel=WHAT
        ),
    ] = "bf16",
    steps: Annotated[int, typer.Option(help="Timed steps per visit.", rich_help_panel=HOW)] = 8,
    warmup: Annotated[
        int, typer.Option(help="Steps before each timed or profiled window.", rich_help_panel=HOW)
    ] = 2,
    rounds: Annotated[int, typer.Option(help="Visits to each arm.", rich_help_panel=HOW)] = 3,
    profile_steps: Annotated[
        int, typer.Option(help="Steps in each arm's profiled window.", rich_help_panel=HOW)
    ] = 3,
    capture: Annotated[
        str | None,
        typer.Option(
            metavar="torch,nvtx|torch|nsys",
            help="What records the profiled windows. Default: torch,nvtx, or torch where no C compiler is.",
            rich_help_panel=HOW,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of weights, prompts and order of visits.", rich_help_panel=HOW)
    ] = 0,
    engine: Annotated[
        str, typer.Option(metavar="auto|reference|vllm", help="What runs the model.", rich_help_panel=WHERE)
    ] = "auto",
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="Where it runs.", rich_help_panel=WHERE)
    ] = "auto",
    vllm_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An argument for vLLM, e.g. enforce_eager=true or model=PATH; repeatable.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    transport: Annotated[
        str,
        typer.Option(
            metavar="auto|shm|gloo|nccl", help="What carries the collectives.", rich_help_panel=WHERE
        ),
    ] = "auto",
    nnodes: Annotated[
        int, typer.Option(help="Hosts; run the same command on each.", rich_help_panel=WHERE)
    ] = 1,
    node_rank: Annotated[int, typer.Option(help="Number of this host, from 0.", rich_help_panel=WHERE)] = 0,
    rdzv_endpoint: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where the hosts meet: the first host.", rich_help_panel=WHERE
        ),
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="A rank without progress for this long is ended.", rich_help_panel=WHERE
        ),
    ] = 120.0,
    out: Annotated[
        Path | None, typer.Option(help="Run directory. Default: runs/TIME-NAME.", rich_help_panel=WHERE)
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.", rich_help_panel=WHERE)] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Finish the run in this directory.", rich_help_panel=WHERE),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            metavar="PLAN.TOML",
            help="Options from a file; the command line goes first.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help="Watch it in the dashboard, which may be left and opened again."),
    ] = False,
    style: Annotated[
        ReportFormat, typer.Option("--format", help="How to write the report.")
    ] = ReportFormat.TABLE,
) -> None:
    """Run models with each optimization on and off, trace every rank, and report what each optimization removed.

    Exit code 1 when the collectives seen in a trace are not the expected ones.

    Examples:

        mtpprof run --tp 4

        mtpprof run --tp 4 --model nemotron-3-super --concurrency 1 --concurrency 16

        mtpprof run --tp 2 --model glm-5.2 --draft-tokens 5 --opt local-argmax=both --opt allreduce-norm-fusion=on

        mtpprof run --tp 2 --engine vllm --model nemotron-3-super

        mtpprof run --resume runs/20260101T120000Z-deepseek-v3.2

        mtpprof run --tp 16 --nnodes 2 --node-rank 0 --rdzv-endpoint 10.0.0.1:29500 --out /shared/run1
    """
    from mtpprof.cli.options import merge_plan_file
    from mtpprof.profilers.process import Nodes
    from mtpprof.profilers.run import resume_run, start_run

    values = merge_plan_file(context, config)
    nodes = Nodes(count=nnodes, rank=node_rank, endpoint=rdzv_endpoint)
    if resume is not None:
        _check_alone(context)
        record, directory = resume_run(resume, nodes)
    else:
        record, directory = start_run(run_options(values, nodes))
    console = stderr_console()
    if dashboard:
        from mtpprof.cli.tui.start import has_terminal, watch

        if has_terminal():
            watch(sys.argv[1:], directory.root, read_options)
            return
        console.print("mtpprof: no terminal to draw the dashboard on; the run goes on without.")
    console.print(
        f"mtpprof: engine {record.engine} on {record.device} ({record.engine_reason}), transport {record.transport}"
    )
    console.print(f"mtpprof: run directory {_short(directory.root)}")
    for sentence in [*record.deviations, *filter(None, [record.capture_note])]:
        console.print(f"mtpprof: {sentence}")
    _carry_out(record, directory, nodes)
    if node_rank == 0:
        from mtpprof.cli.commands.report import show_report

        show_report(directory, style)


WITH_RESUME = frozenset({"resume", "nnodes", "node_rank", "rdzv_endpoint", "style", "dashboard"})


def _check_alone(context: typer.Context) -> None:
    """A run is resumed as it was planned: options that would change it are refused, not ignored."""
    from mtpprof.errors import UsageError

    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in WITH_RESUME and source is not None and source.name != "DEFAULT":
            option = name.replace("_", "-")
            raise UsageError(f"--{option}: a run is resumed as it was planned; leave it out beside --resume.")


def run_options(values: dict[str, Any], nodes: Any) -> RunOptions:
    """Options of a run from the command's parameters by name.

    Raises:
        UsageError: a value that is not one of the choices.
    """
    from mtpprof.errors import UsageError
    from mtpprof.models.traffic import DTYPE_BYTES
    from mtpprof.profilers.plan import DEFAULT_MODELS, PlanOptions
    from mtpprof.profilers.run import RunOptions

    for key, choices in (
        ("arms", ("one-at-a-time", "factorial")),
        ("device", ("auto", "cpu", "cuda")),
        ("transport", ("auto", "shm", "gloo", "nccl")),
        ("dtype", tuple(name for name in ("bf16", "fp16", "fp32", "fp64") if name in DTYPE_BYTES)),
    ):
        if values[key] not in choices:
            raise UsageError(f"--{key} {values[key]}: choose from {', '.join(choices)}.")
    return RunOptions(
        plan=PlanOptions(
            models=tuple(values["model"] or DEFAULT_MODELS),
            tp=values["tp"],
            concurrency=tuple(values["concurrency"]) if values["concurrency"] else None,
            draft_tokens=values["draft_tokens"],
            prompt_len=values["prompt_len"],
            scale=Scale(values["scale"]) if values["scale"] else None,
            layers=values["layers"],
            vocab=values["vocab"],
            dtype=values["dtype"],
            settings=_settings(values["opt"] or ()),
            design=values["arms"],
            rounds=values["rounds"],
            seed=values["seed"],
        ),
        engine=values["engine"],
        device=values["device"],
        transport=values["transport"],
        steps=values["steps"],
        warmup=values["warmup"],
        profile_steps=values["profile_steps"],
        acceptance_length=values["acceptance_length"],
        timeout_s=values["timeout"],
        out=values["out"],
        name=values["name"],
        nodes=nodes,
        engine_arguments=tuple(values["vllm_arg"] or ()),
        capture=values["capture"],
        argv=tuple(sys.argv[1:]),
    )


def read_options(words: Sequence[str]) -> RunOptions:
    """Options of a command line that plans a run, as typed behind `mtpprof run`.

    Raises:
        UsageError: an option that `run` does not have, a value that it does not take, or none that plans a run.
        InputError: a plan file that cannot be read.
    """
    from mtpprof.cli.options import merge_plan_file
    from mtpprof.errors import UsageError
    from mtpprof.profilers.process import Nodes

    alone = typer.Typer(add_completion=False)
    alone.command()(run)
    command = typer.main.get_command(alone)
    if "--help" in words:
        raise UsageError("--help: prints and ends; leave it out.")
    try:
        context = cast("typer.Context", command.make_context("run", list(words)))
    except typer.exceptions.TyperException as error:
        text = error.format_message().removesuffix(".")
        raise UsageError(f"{text}; see mtpprof run --help.") from None
    values = merge_plan_file(context, context.params["config"])
    if values["resume"] is not None:
        raise UsageError("--resume: a run is resumed as it was planned, without any option beside it.")
    nodes = Nodes(count=values["nnodes"], rank=values["node_rank"], endpoint=values["rdzv_endpoint"])
    return run_options(values, nodes)


def _settings(words: Iterable[str]) -> dict[str, Any]:
    from mtpprof.errors import UsageError

    settings: dict[str, Any] = {}
    for word in words:
        name, _, setting = word.partition("=")
        if setting not in ("on", "off", "both"):
            raise UsageError(f"--opt {word}: write NAME=on, NAME=off or NAME=both.")
        if settings.setdefault(name, setting) != setting:
            raise UsageError(f"--opt {word}: {name}={settings[name]} was asked for too; give one of them.")
    return settings


def _carry_out(record: Any, directory: Any, nodes: Any) -> None:
    from mtpprof.cli.progress import RunProgress
    from mtpprof.errors import MtpprofError
    from mtpprof.profilers.experiment import remaining
    from mtpprof.profilers.run import carry_out

    windows = sum(remaining(case, directory).count for case in record.cases)
    progress = RunProgress(windows)
    try:
        with progress.live():
            carry_out(record, directory, nodes, progress.on_event)
    except MtpprofError:
        left = sum(remaining(case, directory).count for case in record.cases)
        if directory.root.exists() and nodes.rank == 0 and (directory.root / "run.json").exists():
            progress.say(
                f"mtpprof: {windows - left} of {windows} windows are finished and kept; "
                f"go on with: {shlex.join(['mtpprof', 'run', '--resume', _short(directory.root)])}"
            )
        raise


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
