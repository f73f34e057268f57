"""A run, from request to finished run directory: choose the engine, write the plan down, supervise, mark how it ended."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from mtpprof import __version__
from mtpprof.errors import (
    InputError,
    InterruptedRunError,
    MissingEnvironmentError,
    MtpprofError,
    RunError,
    UsageError,
)
from mtpprof.models.reference.collectives import shm_limits
from mtpprof.profilers import machine
from mtpprof.profilers.engines.base import Engine
from mtpprof.profilers.engines.reference import ReferenceEngine
from mtpprof.profilers.engines.vllm import patches
from mtpprof.profilers.engines.vllm.engine import VllmEngine
from mtpprof.profilers.experiment import remaining
from mtpprof.profilers.plan import Case, PlanOptions, make_cases
from mtpprof.profilers.process import Nodes
from mtpprof.profilers.recording import NSYS, choose_recording, keep_reports, recorded
from mtpprof.profilers.supervise import OnEvent, orderly_signals, supervise
from mtpprof.rundir.directory import RUN_FILE, SCHEMA_VERSION, RunDirectory
from mtpprof.rundir.records import MAX_COUNT, ArmRecord, CaseRecord, RunRecord

DEFAULT_ROOT = Path("runs")
ENGINES: dict[str, Callable[[], Engine]] = {"reference": ReferenceEngine, "vllm": VllmEngine}
"""Registry of engines: a new one is a row here."""

Transport = Literal["auto", "shm", "gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything a user can ask of `run`."""

    plan: PlanOptions
    engine: str = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    transport: Transport = "auto"
    steps: int = 8
    warmup: int = 2
    profile_steps: int = 3
    acceptance_length: float | None = None
    """Target of the seeded synthetic acceptance; None: greedy acceptance of what the model says."""
    timeout_s: float = 120.0
    out: Path | None = None
    name: str | None = None
    nodes: Nodes = field(default_factory=Nodes)
    engine_arguments: tuple[str, ...] = ()
    """`KEY=VALUE` passed through to vLLM."""
    capture: str | None = None
    """Names of what records, with commas between; None: torch, and NVTX where it can be."""
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Which engine on which device, and why."""

    engine: str
    device: str
    reason: str


def choose_engine(engine: str, device: str, tp: int, nodes: Nodes) -> Choice:
    """Resolve `--engine auto` and `--device auto`.

    Raises:
        UsageError: no such engine.
        MissingEnvironmentError: CUDA is asked for and there are too few devices.
    """
    if engine not in ("auto", *ENGINES):
        raise UsageError(f"--engine {engine}: no such engine; choose from auto, {', '.join(ENGINES)}.")
    gpus = machine.gpu_names() if device != "cpu" else []
    needed = -(-tp // nodes.count)
    if device == "cuda" and len(gpus) < needed:
        raise MissingEnvironmentError(
            f"--device cuda: --tp {tp} needs {needed} GPUs on this host and {len(gpus)} are visible; use --device cpu."
        )
    on_cuda = device != "cpu" and len(gpus) >= needed
    where = "cuda" if on_cuda else "cpu"
    if device == "cpu":
        why = "the CPU was asked for"
    elif on_cuda:
        why = f"{len(gpus)} CUDA devices for {needed} ranks on this host"
    elif gpus:
        why = f"only {len(gpus)} CUDA devices for {needed} ranks on this host"
    else:
        why = "no CUDA device is visible"
    if engine != "auto":
        return Choice(engine, where, f"asked for; {why}")
    if patches.vllm_version() is None:
        return Choice("reference", where, f"vLLM is not installed; {why}")
    if on_cuda:
        return Choice("vllm", where, f"vLLM {patches.vllm_version()} is installed; {why}")
    return Choice("reference", where, f"vLLM is used on CUDA unless asked for; {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for, checked and resolved."""

    choice: Choice
    engine: Engine
    transport: str
    cases: tuple[Case, ...]


def check_request(options: RunOptions) -> Request:
    """Check what can be checked without touching the disk, and lay out what will be done.

    Raises:
        MtpprofError: the request cannot be carried out.
    """
    for name, value, least in (
        ("--steps", options.steps, 1),
        ("--warmup", options.warmup, 0),
        ("--profile-steps", options.profile_steps, 1),
        ("--timeout", options.timeout_s, 1),
    ):
        if not least <= value <= MAX_COUNT:
            raise UsageError(f"{name} {value}: must be a number from {least} to {MAX_COUNT}.")
    _check_nodes(options.nodes)
    choice = choose_engine(options.engine, options.device, options.plan.tp, options.nodes)
    if options.engine_arguments and choice.engine != "vllm":
        raise UsageError(
            f"--vllm-arg {options.engine_arguments[0]}: the engine is {choice.engine}; add --engine vllm."
        )
    engine = ENGINES[choice.engine]()
    refused = engine.refusals(choice.device)
    cases = make_cases(replace(options.plan, on_cuda=choice.device == "cuda", refused=refused))
    _check_acceptance(options.acceptance_length, cases)
    return Request(
        choice=choice,
        engine=engine,
        transport=_transport(options.transport, choice, options.nodes),
        cases=cases,
    )


def start_run(options: RunOptions) -> tuple[RunRecord, RunDirectory]:
    """Check the request and write the plan down; nothing has started when this returns.

    Raises:
        MtpprofError: the request cannot be carried out.
    """
    request = check_request(options)
    recording = choose_recording(options.capture)
    choice, engine, cases = request.choice, request.engine, request.cases
    created = datetime.now(UTC)
    name = options.name or "-".join(dict.fromkeys(case.spec.name for case in cases))
    run = RunRecord(
        schema_version=SCHEMA_VERSION,
        id=secrets.token_hex(4),
        name=name,
        mtpprof_version=__version__,
        created_utc=created.isoformat(timespec="seconds"),
        argv=list(options.argv),
        status="running",
        engine=choice.engine,
        engine_reason=choice.reason,
        device=choice.device,
        transport=request.transport,
        seed=options.plan.seed,
        steps=options.steps,
        warmup=options.warmup,
        rounds=options.plan.rounds,
        profile_steps=options.profile_steps,
        timeout_s=options.timeout_s,
        acceptance_length=options.acceptance_length,
        machine=machine.describe_machine(),
        versions=machine.package_versions(),
        cases=[_case_record(case) for case in cases],
        engine_arguments=list(options.engine_arguments),
        capture=list(recording.capture),
        capture_note=recording.without or None,
    )
    directory = RunDirectory(_reserve_folder(options, created, name).absolute())
    try:
        engine.preflight(run, directory, options.nodes)
    except MtpprofError:
        with contextlib.suppress(OSError):  # folders that are not empty stay
            directory.root.rmdir()
            if options.out is None:
                directory.root.parent.rmdir()
        raise
    found = msgspec.structs.replace(
        run, deviations=engine.deviations(run), unavailable=engine.unavailable(run)
    )
    return found, directory


def resume_run(folder: Path, nodes: Nodes) -> tuple[RunRecord, RunDirectory]:
    """Take up a run that did not finish.

    Raises:
        InputError: not a run directory.
        MtpprofError: the machine no longer has what it needs.
    """
    _check_nodes(nodes)
    directory = RunDirectory(folder.absolute())
    run = msgspec.structs.replace(directory.run(), status="running", error=None, id=secrets.token_hex(4))
    if run.engine not in ENGINES:
        raise InputError(f"{folder}: made by the engine {run.engine!r}, which this mtpprof does not have.")
    ENGINES[run.engine]().preflight(run, directory, nodes)
    return run, directory


def carry_out(run: RunRecord, directory: RunDirectory, nodes: Nodes, on_event: OnEvent) -> RunRecord:
    """Run what is left of `run` to its end and mark how it ended.

    Returns:
        The record as written last, with its final status.

    Raises:
        MtpprofError: why it did not finish; what had finished is in the directory, and the record says so.
    """
    with orderly_signals(), _held(directory, nodes):
        try:
            _carry_out_the_rest(run, directory, nodes, on_event)
        except KeyboardInterrupt:
            error: MtpprofError = InterruptedRunError("interrupted")
        except MtpprofError as reason:
            error = reason
        except OSError as reason:
            error = _unwritable(directory, reason)
        else:
            run = msgspec.structs.replace(run, status="complete")
            if nodes.rank == 0:
                directory.write_run(run)
            return run
        status: Literal["interrupted", "failed"] = (
            "interrupted" if isinstance(error, InterruptedRunError) else "failed"
        )
        if nodes.rank == 0:
            _mark(directory, msgspec.structs.replace(run, status=status, error=str(error)))
        raise error


def _carry_out_the_rest(run: RunRecord, directory: RunDirectory, nodes: Nodes, on_event: OnEvent) -> None:
    if nodes.rank == 0:
        directory.write_run(run)
    else:
        _wait_for_plan(directory, run.timeout_s)
    left = [(case.id, remaining(case, directory)) for case in run.cases]
    if any(part.count for _, part in left):
        engine = ENGINES[run.engine]()
        command = recorded(engine.command(run, directory, nodes), run, directory, nodes)
        supervise(command, run, directory, on_event)
        if NSYS in run.capture:
            windows = [(case, arm) for case, part in left for arm in part.profiles]
            keep_reports(run, directory, nodes, windows)
    missing = sum(remaining(case, directory).count for case in run.cases)
    if missing and nodes.rank == 0:
        raise RunError(
            f"{directory.root}: the engine ended without {missing} of its windows; go on with --resume."
        )


def _held(directory: RunDirectory, nodes: Nodes) -> AbstractContextManager[None]:
    """The directory's lock, which the first host holds for all."""
    return directory.locked() if nodes.rank == 0 else nullcontext()


def _unwritable(directory: RunDirectory, error: OSError) -> MissingEnvironmentError:
    return MissingEnvironmentError(
        f"{directory.root}: cannot write there ({error.strerror}); choose another directory with --out."
    )


def _wait_for_plan(directory: RunDirectory, timeout_s: float) -> None:
    """On every host but the first: wait until the first one has written the plan into the shared directory."""
    deadline_s = time.monotonic() + timeout_s
    while not (directory.root / RUN_FILE).exists():
        if time.monotonic() > deadline_s:
            raise RunError(
                f"{directory.root}: no {RUN_FILE} from the host with --node-rank 0 within {timeout_s:g} s; "
                f"is the directory shared by all hosts?"
            )
        time.sleep(0.2)


def _mark(directory: RunDirectory, run: RunRecord) -> None:
    """Write the final status if the disk still takes it; the error that led here matters more than a second one."""
    try:
        directory.write_run(run)
    except OSError:
        return


def _check_nodes(nodes: Nodes) -> None:
    if nodes.count < 1:
        raise UsageError(f"--nnodes {nodes.count}: must be 1 or more.")
    if not 0 <= nodes.rank < nodes.count:
        raise UsageError(
            f"--node-rank {nodes.rank}: the hosts of --nnodes {nodes.count} are numbered from 0 to {nodes.count - 1}."
        )


def _transport(asked: Transport, choice: Choice, nodes: Nodes) -> str:
    if choice.engine == "vllm":
        if asked != "auto":
            raise UsageError(
                f"--transport {asked}: vLLM chooses by itself; leave it out or use --engine reference."
            )
        return "vllm"
    if asked != "auto":
        if (asked == "nccl") != (choice.device == "cuda"):
            raise UsageError(f"--transport {asked} does not work on --device {choice.device}.")
        return asked
    if choice.device == "cuda":
        return "nccl"
    return "shm" if nodes.count == 1 and shm_limits.available() else "gloo"


def _reserve_folder(options: RunOptions, created: datetime, name: str) -> Path:
    """The run's directory: the one asked for, or a new one under `runs/` that no other run has."""
    if options.nodes.count > 1 and options.out is None:
        raise UsageError("--nnodes: give --out, a directory that all hosts share, the same on every host.")
    if options.out is not None:
        _check_unused(options.out, options.nodes)
        return options.out
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "run"
    stem = f"{created:%Y%m%dT%H%M%SZ}-{safe}"
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        folder = DEFAULT_ROOT / f"{stem}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(RunDirectory(folder), error) from error
        return folder
    raise UsageError(
        f"{DEFAULT_ROOT}: too many runs of this name in one second; choose a directory with --out."
    )


def _check_unused(folder: Path, nodes: Nodes) -> None:
    if nodes.rank:
        return
    if (folder / RUN_FILE).exists():
        raise UsageError(f"--out {folder}: holds a run already; choose another, or go on with --resume.")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"--out {folder}: is not empty; choose a new directory.")


def _check_acceptance(length: float | None, cases: tuple[Case, ...]) -> None:
    if length is None:
        return
    longest = max(case.workload.draft_tokens for case in cases) + 1
    if not 1.0 <= length <= longest:  # nan is neither
        raise UsageError(
            f"--acceptance-length {length:g}: must lie between 1 and draft tokens + 1 ({longest})."
        )


def _case_record(case: Case) -> CaseRecord:
    workload = case.workload
    return CaseRecord(
        id=case.id,
        model=msgspec.to_builtins(case.spec),
        tp=workload.tp,
        concurrency=workload.concurrency,
        draft_tokens=workload.draft_tokens,
        dtype=workload.dtype,
        prompt_len=case.prompt_len,
        arms=[
            ArmRecord(name=arm.name, enabled=sorted(arm.enabled), repeats=arm.repeats) for arm in case.arms
        ],
        switched=list(case.switched),
        not_applicable=case.not_applicable,
        order=[list(names) for names in case.order],
    )
