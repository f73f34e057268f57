"""Files and comparisons made from within: each is a command of mtpprof, run in a process of its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtpprof.cli.tui.sources import Reading, RunCommand, last_sentence
from mtpprof.errors import ExitCode, InputError, RunError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is to be exported."""

    run: Path | None
    """None: traces without a run."""
    traces: tuple[Path, ...]
    case: str | None
    a: str | None
    b: str | None


def export_perfetto(command: RunCommand, chosen: Chosen, reading: Reading) -> str:
    """Write both sides into one trace for Perfetto.

    Returns:
        What was done, as a sentence.

    Raises:
        InputError: the command's own sentence.
    """
    if chosen.run is not None:
        target = chosen.run / f"{_safe(chosen.case)}-{_safe(chosen.a)}-{_safe(chosen.b)}.pftrace"
        words = ["export", str(chosen.run), *reading.words_for_run, "-o", str(target)]
        if chosen.case:
            words += ["--case", chosen.case]
        if chosen.a and chosen.b:
            words += ["--compare", chosen.a, chosen.b]
        elif chosen.a:
            words += ["--arm", chosen.a]
    elif chosen.traces:
        target = Path("mtpprof.pftrace").absolute()
        words = ["export", *map(str, chosen.traces), *reading.words_for_traces, "-o", str(target)]
    else:
        raise UsageError("Nothing is open that could be exported.")
    _checked(command, words)
    return f"Written: {target}. Open it with: {shlex.join(['mtpprof', 'view', str(target)])}"


def export_report(command: RunCommand, run: Path | None, style: str, reading: Reading) -> str:
    """Write the report of a run beside it, as markdown or html.

    Returns:
        What was done, as a sentence.

    Raises:
        InputError: the command's own sentence.
        RunError: the file cannot be written.
    """
    if run is None:
        raise UsageError("A report is of a run; traces without one have none.")
    text = _checked(command, ["report", str(run), *reading.words_for_run, "--format", style])
    target = run / f"report.{style}"
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}).") from error
    return f"Written: {target}."


def compare_with(command: RunCommand, here: Path, other: str, options: Sequence[str] = ()) -> str:
    """The comparison of what is open with something else, as text.

    Raises:
        InputError: the command's own sentence.
    """
    return _checked(command, ["compare", other, str(here), *options])


def _checked(command: RunCommand, words: list[str]) -> str:
    done = command(words)
    if done.returncode not in (ExitCode.OK, ExitCode.CHECK_FAILED):
        raise InputError(
            last_sentence(done.stderr) or f"mtpprof {words[0]} failed (exit code {done.returncode})."
        )
    return done.stdout


def _safe(name: str | None) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name or "").strip("-.")[:60] or "traces"
