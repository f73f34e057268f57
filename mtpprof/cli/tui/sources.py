"""What the dashboard is opened on: a run directory, or traces of anybody. Both give cases, arms, sides and differences.

Everything that reads or computes is a plain function that runs in the background; what it returns is immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from subprocess import CompletedProcess

import msgspec

from mtpprof.analyzers.answers.examination import ProblemFound, problem_found
from mtpprof.analyzers.answers.run_report import REPORT_SCHEMA_VERSION, Report
from mtpprof.analyzers.compare.capture_sides import capture_sides
from mtpprof.analyzers.compare.difference import Difference, compare_sides
from mtpprof.analyzers.compare.effects import Effect
from mtpprof.analyzers.compare.side import (
    ReadOptions,
    Side,
    find_arm,
    find_case,
    run_side,
    spec_of,
    workload_of,
)
from mtpprof.analyzers.live.quick_counts import PerStep, expected_per_step, windows_seen
from mtpprof.cli.render.escapes import printable
from mtpprof.errors import ExitCode, InputError, MtpprofError, RunError
from mtpprof.rundir.directory import REPORT_FILE, RUN_FILE, RunDirectory
from mtpprof.rundir.records import ArmRecord, CaseRecord, RunRecord

TRACES = "traces"
RunCommand = Callable[[Sequence[str]], "CompletedProcess[str]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How traces are read, here and by the commands that are started from here."""

    options: ReadOptions = field(default_factory=ReadOptions)
    words_for_run: tuple[str, ...] = ()
    """The options as words of a command line, those that also count for a run directory."""
    words_for_traces: tuple[str, ...] = ()
    """All of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """A case as the screens see it."""

    id: str
    title: str
    arms: tuple[str, ...]
    """Arms that may have traces, the baseline first."""
    not_applicable: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One side, read."""

    case: str
    arm: str
    side: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was saved, by case."""

    differences: dict[str, list[Difference]]
    effects: dict[str, list[Effect]]
    notes: list[str]
    report: Report | None
    """None: of traces without a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Calls and bytes of an arm per step, from what a run tells without its traces."""

    expected: PerStep | None
    """By the ledger; None: the run's record does not give the model."""
    seen: PerStep | None
    """In the profiled window; None: it has not ended, or was not recorded at the seam."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTraces:
    """Traces of anybody, read and examined."""

    sides: tuple[Side, ...]
    problems: tuple[ProblemFound, ...]


def is_run(path: Path) -> bool:
    """Whether a path is to be taken for a run directory, be it a broken one."""
    return (path / RUN_FILE).exists()


def run_cases(record: RunRecord) -> tuple[CaseView, ...]:
    """The cases of a run."""
    return tuple(
        CaseView(
            id=case.id,
            title=case_title(case),
            arms=tuple(arm.name for arm in case.arms if arm.repeats is None),
            not_applicable=case.not_applicable,
        )
        for case in record.cases
    )


def case_title(case: CaseRecord) -> str:
    """`deepseek-v3.2 (tiny) TP 4 c 1 k 3`: short enough for a heading."""
    name, scale = str(case.model.get("name", case.id)), str(case.model.get("scale", ""))
    drafts = f" k {case.draft_tokens}" if case.draft_tokens else ""
    return printable(f"{name} ({scale}) TP {case.tp} c {case.concurrency}{drafts} {case.dtype}")


def trace_cases(opened: OpenedTraces) -> tuple[CaseView, ...]:
    """The one case that traces without a run make: every capture is an arm of it."""
    arms = tuple(side.label for side in opened.sides)
    return (CaseView(id=TRACES, title=printable(" against ".join(arms[:2])), arms=arms, not_applicable={}),)


def arm_traffic(
    directory: RunDirectory, record: RunRecord, windows: Sequence[tuple[str, str, int, int]]
) -> dict[tuple[str, str], Traffic]:
    """Calls and bytes of every arm of a run, by case and arm, as far as it has got.

    Args:
        directory: The run.
        record: Its record.
        windows: Case, arm, start and end of the profiled windows that have ended.
    """
    seen = windows_seen(directory, windows)
    return {
        (case.id, arm.name): Traffic(
            expected=_expected(directory, case, arm), seen=seen.get((case.id, arm.name))
        )
        for case in record.cases
        for arm in case.arms
    }


def _expected(directory: RunDirectory, case: CaseRecord, arm: ArmRecord) -> PerStep | None:
    try:
        return expected_per_step(spec_of(directory, case), workload_of(case), frozenset(arm.enabled))
    except MtpprofError:  # a damaged record, or one of a newer mtpprof: what it names is not known here
        return None


def load_side(
    directory: RunDirectory, record: RunRecord, case_id: str, arm: str, options: ReadOptions
) -> Loaded:
    """Read and attribute the traces of one arm.

    Raises:
        InputError: a damaged file of the run directory.
        UsageError: no such case or arm.
    """
    case = find_case(record, case_id)
    side = run_side(directory, record, case, find_arm(case, arm), options=options)
    return Loaded(case=case_id, arm=arm, side=side)


def open_anything(paths: Sequence[Path], options: ReadOptions) -> OpenedTraces:
    """Read traces that no run of ours made.

    Raises:
        InputError: a path does not exist, or nothing there is a trace.
        UsageError: a rank map that the traces do not have.
    """
    found = capture_sides(paths, options)
    return OpenedTraces(
        sides=found.sides, problems=tuple(problem_found(problem) for problem in found.problems)
    )


def answer_of_traces(opened: OpenedTraces) -> Answer:
    """Every capture against the first one."""
    base, *others = opened.sides or (None,)
    found = [compare_sides(base, other) for other in others if base is not None and other is not None]
    return Answer(differences={TRACES: found}, effects={TRACES: []}, notes=[], report=None)


def answer_of_report(report: Report) -> Answer:
    """The same out of a run's report."""
    return Answer(
        differences={case.id: case.differences for case in report.cases},
        effects={case.id: case.effects for case in report.cases},
        notes=report.notes,
        report=report,
    )


def stored_answer(directory: RunDirectory, record: RunRecord) -> Answer | None:
    """The answer that the run directory holds already; None: it has none, or one that is older than what it is of."""
    path = directory.root / REPORT_FILE
    try:
        written_ns = path.stat().st_mtime_ns
        if (directory.root / RUN_FILE).stat().st_mtime_ns > written_ns:
            return None
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError):
        return None
    fits = report.schema_version == REPORT_SCHEMA_VERSION and report.run.get("id") == record.id
    return answer_of_report(report) if fits and report.run.get("status") == record.status else None


def computed_answer(directory: RunDirectory, command: RunCommand, reading: Reading) -> Answer:
    """The answer computed anew, in a process of its own, which also stores it in the run directory.

    Raises:
        InputError: the run cannot be analyzed; the sentence is the command's own.
        RunError: the command gave no answer that can be read.
    """
    done = command(["report", str(directory.root), *reading.words_for_run, "--format", "json"])
    answered = (ExitCode.OK, ExitCode.CHECK_FAILED, ExitCode.BAD_INPUT)  # the last: also with a damaged arm
    if done.returncode not in answered or not done.stdout.strip():
        raise InputError(
            last_sentence(done.stderr) or f"{directory.root}: no report (exit code {done.returncode})."
        )
    try:
        return answer_of_report(msgspec.json.decode(done.stdout, type=Report))
    except msgspec.MsgspecError as error:
        raise RunError(f"{directory.root}: the report cannot be read back ({error}).") from error


def last_sentence(stderr: str) -> str:
    """What a command of mtpprof said last, without its name; of a box that ends what was said, the sentence inside."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[-1][0] not in "╰└+":
        return lines[-1].removeprefix("mtpprof: ")
    inside = takewhile(lambda line: line[0] in "│|", reversed(lines[:-1]))
    return " ".join(reversed([line.strip("│| ") for line in inside]))
