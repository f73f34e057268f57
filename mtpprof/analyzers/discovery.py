"""From files and directories to the traces of runs, sorted into ranks.

What a file says of itself comes first, what its name says second, and a guess never: everything that cannot be told is
named as a problem, and the user's rank map overrules all of it. The cheap look at each file (`Reader.peek`) is enough for
this; files are read in full only by `open_traces`.

One directory is one run, except where directories hold different ranks of one run. Of several captures of the same ranks
in a directory the newest counts, and the others are named as stale; files that were asked for by name are all taken.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from os.path import commonpath
from pathlib import Path

from mtpprof.analyzers.doctor import diagnose, diagnose_set
from mtpprof.analyzers.loading import LoadOptions, load_files
from mtpprof.analyzers.readers import READERS, Limits, Peek, TraceFormatError, reader_for
from mtpprof.analyzers.readers.metadata import stamp_ns
from mtpprof.analyzers.table import EventTable, TraceSet
from mtpprof.analyzers.verdicts import Problem, Verdict
from mtpprof.errors import InputError, UsageError

RankMap = Mapping[str, int]
"""File name, path or glob → rank."""

_RANK_PATTERNS = (
    re.compile(r"(?<![a-z])rank[-_.]?(\d+)", re.IGNORECASE),
    re.compile(r"(?<![a-z])tp[-_]?(\d+)(?!\d)", re.IGNORECASE),
)
"""What a name says of the rank, the most explicit first; read in the file's name, then in its directory's."""
_CAPTURE = re.compile(r"graph_capture|capture_traces")
_FRONT_END = re.compile(r"async_llm|api_server|frontend")
_SAME_CAPTURE_NS = 1_000_000_000
_STALE_AFTER_NS = 600 * 10**9
_RUN_FILES = frozenset({"run.json", "report.json", "timing.json", "outputs.json"})
"""Files of mtpprof's own run directories that are no traces."""
_QUIET = frozenset({Verdict.NOT_A_TRACE})


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


def discover(
    paths: Sequence[Path], rank_map: RankMap | None = None, limits: Limits | None = None
) -> tuple[FileSet, ...]:
    """Find the traces below `paths` and sort them into runs and ranks, without reading them.

    Args:
        paths: Files and directories.
        rank_map: Overrules what files say: file name, path or glob → rank.
        limits: How much a file may ask of a reader.

    Raises:
        InputError: a path does not exist, or nothing below the paths looks like a trace.
        UsageError: an entry of the rank map matches no file.
    """
    limits = limits or Limits()
    found = list(_candidates(paths))
    rank_map = rank_map or {}
    _check_map(rank_map, [path for path, _ in found])
    groups: dict[Path, list[TraceFile]] = defaultdict(list)
    refused: dict[Path, list[Problem]] = defaultdict(list)
    for path, named in found:
        try:
            peek = reader_for(path, limits).peek(path, limits)
        except TraceFormatError as error:
            if named or error.verdict not in _QUIET or "trace" in path.name:
                refused[path.parent].append(error.problem())
            continue
        kind = None if named else _no_rank_at_all(path)
        if kind is not None:
            refused[path.parent].append(kind)
            continue
        groups[path.parent].append(_ranked(path, peek, named, rank_map))
    if not groups and not refused:
        listed = ", ".join(str(path) for path in paths)
        raise InputError(
            f"{listed}: no trace found there; give torch profiler JSON or Nsight Systems SQLite files."
        )
    sets = [
        part
        for folder in sorted(groups.keys() | refused.keys())
        for part in _captures(folder, groups.get(folder, []), tuple(refused.get(folder, ())))
    ]
    return _labelled(_merged(sets))


def open_traces(
    paths: Sequence[Path], rank_map: RankMap | None = None, options: LoadOptions | None = None
) -> tuple[TraceSet, ...]:
    """Find, read and examine traces: one set per run.

    Raises:
        InputError: a path does not exist, or no file gives a table (the reason of each is named).
        UsageError: an entry of the rank map matches no file.
    """
    opened = examine_traces(paths, rank_map, options)
    if not any(traces.tables for traces in opened):
        reasons = [problem.sentence for traces in opened for problem in traces.problems]
        raise InputError("no trace could be read: " + " ".join(reasons))
    return opened


def examine_traces(
    paths: Sequence[Path], rank_map: RankMap | None = None, options: LoadOptions | None = None
) -> tuple[TraceSet, ...]:
    """Find, read and examine traces; what cannot be read is among the problems of its set.

    Raises:
        InputError: a path does not exist, or nothing there is a trace.
        UsageError: an entry of the rank map matches no file.
    """
    options = options or LoadOptions()
    sets = discover(paths, rank_map, options.limits)
    files = [file for part in sets for file in part.files]
    loaded = dict(
        zip([file.path for file in files], load_files([file.path for file in files], options), strict=True)
    )
    opened = []
    for part in sets:
        problems = list(part.problems)
        tables: list[EventTable] = []
        for file in part.files:
            result = loaded[file.path]
            if isinstance(result, TraceFormatError):
                problems.append(result.problem())
            else:
                tables += _assigned(file, result)
        opened.append(_trace_set(part.label, tables, problems))
    return tuple(opened)


def parse_rank_map(entries: Iterable[str]) -> dict[str, int]:
    """Read `FILE=RANK` words of a command line.

    Raises:
        UsageError: a word is not of that form.
    """
    found = {}
    for entry in entries:
        name, separator, rank = entry.rpartition("=")
        if not separator or not name or not rank.isdecimal():
            raise UsageError(
                f"--rank-map {entry}: give FILE=RANK, with a file name, path or glob and a number."
            )
        found[name] = int(rank)
    return found


def _candidates(paths: Sequence[Path]) -> Iterable[tuple[Path, bool]]:
    """Files to look at, each once, and whether the user named it."""
    suffixes = tuple(suffix for reader in READERS for suffix in reader.suffixes)
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or directory; check the path.")
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in below:
            if path.is_dir() and not (file.name.endswith(suffixes) and _searched(file, path)):
                continue
            where = file.resolve()
            if where not in seen:
                seen.add(where)
                yield file, not path.is_dir()


def _searched(file: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return not hidden and file.name not in _RUN_FILES and file.is_file()


def _check_map(rank_map: RankMap, files: Sequence[Path]) -> None:
    for pattern in rank_map:
        if not any(_matches(file, pattern) for file in files):
            raise UsageError(
                f"--rank-map {pattern}={rank_map[pattern]}: matches none of the files; check the name."
            )


def _matches(file: Path, pattern: str) -> bool:
    return (
        pattern in (file.name, str(file))
        or fnmatchcase(file.name, pattern)
        or fnmatchcase(str(file), pattern)
    )


def _no_rank_at_all(path: Path) -> Problem | None:
    """The reason for which a file below a directory is no rank of it."""
    name = f"{path.parent.name}/{path.name}"
    if _CAPTURE.search(name):
        return _problem(
            path, Verdict.CAPTURE_TRACE, "shows the capture of CUDA graphs, not their use, and is left out"
        )
    if _FRONT_END.search(path.name):
        return _problem(
            path, Verdict.FRONT_END_TRACE, "shows the front end's process, which is no rank, and is left out"
        )
    return None


def _ranked(path: Path, peek: Peek, named: bool, rank_map: RankMap) -> TraceFile:
    mapped = next((rank for pattern, rank in rank_map.items() if _matches(path, pattern)), None)
    by_name = _rank_by_name(path)
    rank, problems = mapped, []
    if mapped is not None and peek.several:
        raise UsageError(
            f"--rank-map {path}={mapped}: the file holds several ranks; they are numbered by device."
        )
    if mapped is None:
        rank = peek.rank if peek.rank is not None else by_name
        if rank is None and not peek.several:
            problems.append(_problem(path, Verdict.UNKNOWN_RANK, "says nowhere which rank it is"))
        elif peek.rank is None and by_name is not None:
            sentence = f"does not say its rank; its name is taken to say rank {by_name}"
            problems.append(_problem(path, Verdict.ASSUMED_RANK, sentence, by_name))
        elif by_name is not None and by_name != peek.rank and _RANK_PATTERNS[0].search(path.name):
            sentence = f"says that it is rank {peek.rank}, its name says rank {by_name}; the file is believed"
            problems.append(_problem(path, Verdict.CONFLICTING_RANK, sentence, peek.rank))
    return TraceFile(path=path, peek=peek, named=named, rank=rank, problems=tuple(problems))


def _rank_by_name(path: Path) -> int | None:
    for text in (path.name, path.parent.name):
        for pattern in _RANK_PATTERNS:
            found = {int(digits) for digits in pattern.findall(text)}
            if len(found) == 1:
                return found.pop()
    return None


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
        return _problem(file.path, Verdict.COPY, f"is a copy of {twin.path.name} and is left out", file.rank)
    sentence = (
        f"says that it is rank {file.rank}, and so does {twin.path.name} of the same capture; it is left out"
    )
    return _problem(file.path, Verdict.DUPLICATE_RANK, sentence, file.rank)


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
        _problem(
            file.path,
            Verdict.STALE_FILE,
            "belongs to an earlier capture than the newest of its directory",
            file.rank,
        )
        for file in stale
    ]
    return [newest], problems


def _merged(sets: list[FileSet]) -> list[FileSet]:
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
        folder = commonpath([part.label for part in filled])
        files.sort(key=lambda file: file.rank or 0)
        filled = [FileSet(label=folder, files=tuple(files), problems=problems)]
    first, *others = filled or [FileSet(label=sets[0].label, files=())]
    return [replace(first, problems=(*first.problems, *orphaned)), *others]


def _labelled(sets: list[FileSet]) -> tuple[FileSet, ...]:
    """Labels without the part that all of them share."""
    if len(sets) < 2:
        return tuple(sets)
    shared = commonpath([part.label for part in sets])
    return tuple(
        replace(
            part,
            label=str(Path(part.label).relative_to(shared)) if part.label != shared else Path(shared).name,
        )
        for part in sets
    )


def _assigned(file: TraceFile, tables: tuple[EventTable, ...]) -> list[EventTable]:
    """The tables of a file with the rank that was found for it."""
    if len(tables) > 1:
        return list(tables)
    return [table.with_rank(file.rank).with_problems(*file.problems) for table in tables]


def _trace_set(label: str, tables: list[EventTable], problems: list[Problem]) -> TraceSet:
    kept: dict[int, EventTable] = {}
    unknown = []
    for table in tables:
        examined = table.with_problems(*diagnose(table))
        rank = table.meta.rank
        if rank is None:
            unknown.append(examined)
        elif rank in kept:
            sentence = (
                f"gives rank {rank}, which {Path(kept[rank].meta.path).name} gives too, and is left out"
            )
            problems.append(_problem(Path(table.meta.path), Verdict.DUPLICATE_RANK, sentence, rank))
        else:
            kept[rank] = examined
    ordered = (*(kept[rank] for rank in sorted(kept)), *unknown)
    sizes = {table.meta.world_size for table in ordered} - {None}
    traces = TraceSet(
        label=label,
        tables=ordered,
        world_size=sizes.pop() if len(sizes) == 1 else None,
        problems=tuple(problems),
    )
    return replace(traces, problems=(*traces.problems, *diagnose_set(traces)))


def _problem(path: Path, verdict: Verdict, sentence: str, rank: int | None = None) -> Problem:
    return Problem(verdict=verdict, sentence=f"{path}: it {sentence}.", path=str(path), rank=rank)
