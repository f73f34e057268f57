"""Which files belong together: captures, replicas, copies and left-overs.

One directory is one run, except where directories hold different ranks of one run, and where a directory holds several
files of one rank whose names tell them apart, as data-parallel replicas and stages do. Of several captures of the same
ranks in a directory the newest counts, and the others are named as stale; files that were asked for by name are all taken.
Two files of one rank that cannot be told apart are named as duplicates, and nothing across ranks is then answered.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from os.path import commonpath, normpath
from pathlib import Path

from mtpprof.analyzers.traces.readers.base import Peek
from mtpprof.analyzers.traces.readers.metadata import stamp_ns
from mtpprof.analyzers.traces.verdicts import Problem, Verdict

_VARIANT = re.compile(r"(?<![a-z])(dp[-_]?\d+|extend|prefill|decode)(?![a-z0-9])", re.IGNORECASE)
"""Words of file names that tell replicas, and the stages that SGLang profiles into files of their own."""
_SAME_CAPTURE_NS = 1_000_000_000
_STALE_AFTER_NS = 600 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A file that is a trace by its first look."""

    path: Path
    peek: Peek
    named: bool
    """The user named the file itself, not a directory above it."""
    rank: int | None
    problems: tuple[Problem, ...] = ()

    @property
    def start_ns(self) -> int | None:
        """When its capture began or ended, near enough to tell captures apart."""
        return self.peek.start_ns or stamp_ns(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """The files of one run: at most one per known rank, in order of rank, unknown ones last."""

    label: str
    files: tuple[TraceFile, ...]
    problems: tuple[Problem, ...] = ()
    """Of files that were left out, and of the set as a whole."""


def runs_of(folder: Path, files: list[TraceFile], refused: tuple[Problem, ...]) -> list[FileSet]:
    """One directory's files as runs; replicas and stages apart where they hold the same ranks."""
    variants: dict[str, list[TraceFile]] = defaultdict(list)
    for file in files:
        variants["-".join(_VARIANT.findall(file.path.name)).lower()].append(file)
    ranks = [rank for part in variants.values() for rank in {file.rank for file in part} - {None}]
    if len(ranks) == len(set(ranks)):
        return _captures(folder, files, refused)
    first, *others = sorted(variants)
    sets = _captures(folder / first, variants[first], refused)
    return sets + [part for name in others for part in _captures(folder / name, variants[name], ())]


def _captures(folder: Path, files: list[TraceFile], refused: tuple[Problem, ...]) -> list[FileSet]:
    """One directory's files as runs: the newest capture, or all of them where the user named the files."""
    alone = [file for file in files if file.peek.several]
    unknown = [file for file in files if file.rank is None and not file.peek.several]
    captures: list[dict[int, TraceFile]] = [{}]
    problems = list(refused)
    for file in sorted(files, key=lambda file: (file.start_ns or 0, file.path)):
        if file.rank is None or file.peek.several:
            continue
        twin = captures[-1].get(file.rank)
        if twin is None:
            captures[-1][file.rank] = file
        elif _one_capture(twin, file):
            problems.append(_duplicate(file, twin))
        else:
            captures.append({file.rank: file})
    kept, stale = _newest(captures)
    problems += stale
    sets = [
        FileSet(label=str(folder), files=tuple(capture[rank] for rank in sorted(capture)))
        for capture in kept
        if capture
    ]
    if unknown:
        ranked = sets.pop().files if sets else ()
        sets.append(FileSet(label=str(folder), files=(*ranked, *unknown)))
    sets += [FileSet(label=str(file.path), files=(file,)) for file in alone]
    *others, last = sets or [FileSet(label=str(folder), files=())]
    return [*others, replace(last, problems=tuple(problems))]


def _one_capture(first: TraceFile, second: TraceFile) -> bool:
    """Whether two files of one rank cannot be told to be of different captures."""
    if first.start_ns is None or second.start_ns is None:
        return True
    return abs(first.start_ns - second.start_ns) < _SAME_CAPTURE_NS


def _duplicate(file: TraceFile, twin: TraceFile) -> Problem:
    if file.peek.trace_id is not None and file.peek.trace_id == twin.peek.trace_id:
        return file_problem(
            file.path, Verdict.COPY, f"is a copy of {twin.path.name} and is left out", file.rank
        )
    sentence = (
        f"says that it is rank {file.rank}, and so does {twin.path.name} of the same capture; it is left out"
    )
    return file_problem(file.path, Verdict.DUPLICATE_RANK, sentence, file.rank)


def _newest(captures: list[dict[int, TraceFile]]) -> tuple[list[dict[int, TraceFile]], list[Problem]]:
    """The captures that count, and the files that do not with the reason."""
    newest = captures[-1]
    if all(file.named for capture in captures for file in capture.values()):
        return captures, []
    stale = [file for capture in captures[:-1] for file in capture.values()]
    latest = max((file.start_ns or 0 for file in newest.values()), default=0)
    world = next((file.peek.world_size for file in reversed(newest.values()) if file.peek.world_size), None)
    for rank, file in list(newest.items()):
        late = file.start_ns is not None and latest - file.start_ns > _STALE_AFTER_NS
        other = world is not None and file.peek.world_size not in (None, world)
        if (late or other) and not file.named:
            stale.append(newest.pop(rank))
    problems = [
        file_problem(
            file.path,
            Verdict.STALE_FILE,
            "belongs to an earlier capture than the newest of its directory",
            file.rank,
        )
        for file in stale
    ]
    return [newest], problems


def merged(sets: list[FileSet]) -> list[FileSet]:
    """Directories that hold different ranks of one run become one set; those without a trace leave their problems."""
    filled = [part for part in sets if part.files]
    orphaned = tuple(problem for part in sets if not part.files for problem in part.problems)
    files = [file for part in filled for file in part.files]
    ranks = [file.rank for file in files]
    starts = [file.start_ns or 0 for file in files]
    fits = (
        len(filled) > 1
        and None not in ranks
        and len(set(ranks)) == len(ranks)
        and len({file.peek.world_size for file in files}) == 1
        and max(starts) - min(starts) < _STALE_AFTER_NS
    )
    if fits:
        problems = tuple(problem for part in filled for problem in part.problems)
        folder = _shared_folder(filled)
        files.sort(key=lambda file: file.rank or 0)
        filled = [FileSet(label=folder, files=tuple(files), problems=problems)]
    first, *others = filled or [FileSet(label=sets[0].label, files=())]
    return [replace(first, problems=(*first.problems, *orphaned)), *others]


def labelled(sets: list[FileSet]) -> tuple[FileSet, ...]:
    """Labels without the part that all of them share."""
    if len(sets) < 2:
        return tuple(sets)
    labels = [_absolute(part.label) for part in sets]
    shared = Path(commonpath(labels))
    return tuple(
        replace(part, label=str(label.relative_to(shared)) if label != shared else shared.name)
        for part, label in zip(sets, labels, strict=True)
    )


def _shared_folder(sets: list[FileSet]) -> str:
    """As they were written where all are alike; a relative and an absolute path share what they do from the root on."""
    labels = [part.label for part in sets]
    alike = len({Path(label).is_absolute() for label in labels}) == 1
    return commonpath(labels if alike else map(_absolute, labels))


def _absolute(label: str) -> Path:
    """Without dots, and with links as they are named."""
    return Path(normpath(Path(label).absolute()))


def file_problem(path: Path, verdict: Verdict, sentence: str, rank: int | None = None) -> Problem:
    """A verdict on one file; the sentence goes on after `it`."""
    return Problem(verdict=verdict, sentence=f"{path}: it {sentence}.", path=str(path), rank=rank)
