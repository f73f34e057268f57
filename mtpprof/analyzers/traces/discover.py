"""From files and directories to the traces of runs, sorted into ranks.

What a file says of itself comes first, what its name says second, and a guess never: everything that cannot be told is
named as a problem, and the user's rank map overrules all of it. The cheap look at each file (`Reader.peek`) is enough for
this; files are read in full only by `open_traces`. Which files make a run is decided in `captures`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from mtpprof.analyzers.traces.captures import FileSet, TraceFile, file_problem, labelled, merged, runs_of
from mtpprof.analyzers.traces.checks import diagnose, diagnose_set
from mtpprof.analyzers.traces.formats import READERS, reader_for
from mtpprof.analyzers.traces.load import LoadOptions, load_files
from mtpprof.analyzers.traces.nvtx.attach import attach
from mtpprof.analyzers.traces.readers import foreign
from mtpprof.analyzers.traces.readers.base import Limits, Peek, TraceFormatError
from mtpprof.analyzers.traces.readers.codecs import plain_name
from mtpprof.analyzers.traces.table import EventTable, TraceSet
from mtpprof.analyzers.traces.verdicts import Problem, Verdict
from mtpprof.errors import InputError, UsageError
from mtpprof.files import identity, no_regular_file
from mtpprof.nvtxformat import FILE_SUFFIX
from mtpprof.rundir.directory import OUTPUTS_FILE, REPORT_FILE, RUN_FILE, TIMING_FILE

RankMap = Mapping[str, int]
"""File name, path or glob → rank."""

_RANK_PATTERNS = (
    re.compile(r"(?<![a-z])rank[-_.]?(\d+)", re.IGNORECASE),
    re.compile(r"(?<![a-z])tp[-_]?(\d+)(?!\d)", re.IGNORECASE),
)
"""What a name says of the rank, the most explicit first; read in the file's name, then in its directory's."""
_CAPTURE = re.compile(r"graph_capture|capture_traces")
_FRONT_END = re.compile(r"async_llm|api_server|frontend")
_RUN_FILES = frozenset({RUN_FILE, REPORT_FILE, TIMING_FILE, OUTPUTS_FILE})
"""Files of mtpprof's own run directories that are no traces."""
_QUIET = frozenset({Verdict.NOT_A_TRACE})
_PASSED_SHOWN = 3


def discover(
    paths: Sequence[Path], rank_map: RankMap | None = None, limits: Limits | None = None
) -> tuple[FileSet, ...]:
    """Find the traces below `paths` and sort them into runs and ranks, without reading them.

    Runs come in the order in which the user named them; below one folder, in the order of their names.

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
    passed: list[TraceFormatError] = []
    looked = list(_looked(found, limits, passed))
    captures = list(_captures_alone(paths, [path for path, _, _ in looked]))
    looked += _looked(captures, limits, passed)
    rank_map = rank_map or {}
    _check_map(rank_map, [path for path, _ in (*found, *captures)])
    groups: dict[Path, list[TraceFile]] = defaultdict(list)
    refused: dict[Path, list[Problem]] = defaultdict(list)
    for path, named, told in looked:
        if isinstance(told, Problem):
            refused[path.parent].append(told)
        else:
            groups[path.parent].append(_ranked(path, told, named, rank_map))
    if not groups and not refused:
        raise _nothing_found(paths, passed)
    sets = [
        part
        for folder in sorted(groups.keys() | refused.keys())
        for part in runs_of(folder, groups.get(folder, []), tuple(refused.get(folder, ())))
    ]
    return tuple(sorted(labelled(merged(sets)), key=lambda part: _place(part, paths)))


def _place(part: FileSet, paths: Sequence[Path]) -> int:
    """The first of the user's names that stands for a file of a run."""
    named = (i for i, path in enumerate(paths) if any(file.path.is_relative_to(path) for file in part.files))
    return next(named, len(paths))


def _nothing_found(paths: Sequence[Path], passed: Sequence[TraceFormatError]) -> InputError:
    """Names what was looked at, since among it may be the file that was meant."""
    listed = ", ".join(str(path) for path in paths)
    advice = "docs/analyze.md lists the formats that are read"
    found = [error.finding for error in passed]
    found += [
        f"{file}: is {other.what}: {other.advice}"
        for folder in paths
        for file in sorted(folder.rglob("*"))
        if (other := foreign.by_name(file.name)) is not None and _searched(file, folder)
    ]
    if not found:
        return InputError(f"{listed}: no trace found there; {advice}.")
    seen = "; ".join(found[:_PASSED_SHOWN])
    more = f"; and {len(found) - _PASSED_SHOWN:,} more files" if len(found) > _PASSED_SHOWN else ""
    return InputError(f"{listed}: no trace found there ({seen}{more}); {advice}.")


def _looked(
    found: Iterable[tuple[Path, bool]], limits: Limits, passed: list[TraceFormatError]
) -> Iterator[tuple[Path, bool, Peek | Problem]]:
    """The first look at files: what each says of itself, or why it is left out; what was never a trace goes to `passed`."""
    for path, named in found:
        try:
            peek = reader_for(path, limits).peek(path, limits)
        except TraceFormatError as error:
            if named or error.verdict not in _QUIET or "trace" in path.name or no_regular_file(path):
                yield path, named, error.problem()
            else:
                passed.append(error)
        else:
            yield path, named, (None if named else _no_rank_at_all(path)) or peek


def open_traces(
    paths: Sequence[Path], rank_map: RankMap | None = None, options: LoadOptions | None = None
) -> tuple[TraceSet, ...]:
    """Find, read and examine traces: one set per run that gives a table. Of other runs, the reasons are among the first one's problems.

    Raises:
        InputError: a path does not exist, or no file gives a table (the reason of each is named).
        UsageError: an entry of the rank map matches no file.
    """
    opened = examine_traces(paths, rank_map, options)
    read = [traces for traces in opened if traces.tables]
    if not read:
        reasons = [
            f"{problem.sentence.removesuffix('.')}; {problem.remedy}."
            for traces in opened
            for problem in traces.problems
        ]
        raise InputError("no trace could be read: " + " ".join(reasons))
    apart = [
        replace(problem, apart=True) for traces in opened if not traces.tables for problem in traces.problems
    ]
    first, *others = read
    return (replace(first, problems=(*first.problems, *apart)), *others)


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
        if not path.exists() and not path.is_symlink():
            raise InputError(f"{path}: no such file or directory; check the path.")
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in below:
            if path.is_dir() and not (plain_name(file.name).endswith(suffixes) and _searched(file, path)):
                continue
            where = identity(file)
            if where not in seen:
                seen.add(where)
                yield file, not path.is_dir()


def _captures_alone(paths: Sequence[Path], traces: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """NVTX captures of folders without a trace, as `_candidates` gives traces: beside one they are joined to it (`nvtxattach`).

    Those of a run belong to traces that it has yet to write.
    """
    known = [identity(trace) for trace in traces]
    seen: set[Path] = set()
    for folder in paths:
        where = identity(folder)
        if any(trace.is_relative_to(where) for trace in known):
            continue
        for file in sorted(folder.rglob(f"*{FILE_SUFFIX}")):
            if not _searched(file, folder) or _of_a_run(file, folder):
                continue
            if identity(file) not in seen:
                seen.add(identity(file))
                yield file, False


def _of_a_run(file: Path, root: Path) -> bool:
    """Whether a folder between the one that the user named and the file is a run's."""
    return any((root / parent / RUN_FILE).exists() for parent in file.relative_to(root).parents)


def _searched(file: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return not hidden and file.name not in _RUN_FILES and not file.is_dir()


def _check_map(rank_map: RankMap, files: Sequence[Path]) -> None:
    for pattern in rank_map:
        if not any(_matches(file, pattern) for file in files):
            raise UsageError(
                f"--rank-map {pattern}={rank_map[pattern]}: matches none of the files; check the name."
            )


def maps_below(pattern: str, path: Path) -> bool:
    """Whether an entry of a rank map is of a file at a path, or below it."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return any(_matches(file, pattern) for file in files)


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
        return file_problem(
            path, Verdict.CAPTURE_TRACE, "shows the capture of CUDA graphs, not their use, and is left out"
        )
    if _FRONT_END.search(path.name):
        return file_problem(
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
            problems.append(file_problem(path, Verdict.UNKNOWN_RANK, "says nowhere which rank it is"))
        elif peek.rank is None and by_name is not None:
            sentence = f"does not say its rank; its name is taken to say rank {by_name}"
            problems.append(file_problem(path, Verdict.ASSUMED_RANK, sentence, by_name))
        elif by_name is not None and by_name != peek.rank and _RANK_PATTERNS[0].search(path.name):
            sentence = f"says that it is rank {peek.rank}, its name says rank {by_name}; the file is believed"
            problems.append(file_problem(path, Verdict.CONFLICTING_RANK, sentence, peek.rank))
    return TraceFile(path=path, peek=peek, named=named, rank=rank, problems=tuple(problems))


def _rank_by_name(path: Path) -> int | None:
    for text in (path.name, path.parent.name):
        for pattern in _RANK_PATTERNS:
            found = {int(digits) for digits in pattern.findall(text)}
            if len(found) == 1:
                return found.pop()
    return None


def _assigned(file: TraceFile, tables: tuple[EventTable, ...]) -> list[EventTable]:
    """The tables of a file with the rank that was found for it."""
    if len(tables) > 1:
        return list(tables)
    return [attach(table.with_rank(file.rank).with_problems(*file.problems)) for table in tables]


def _trace_set(label: str, tables: list[EventTable], problems: list[Problem]) -> TraceSet:
    kept: dict[int, EventTable] = {}
    unknown = []
    for table in tables:
        rank = table.meta.rank
        found = (*table.problems, *diagnose(table))
        examined = replace(table, problems=tuple(replace(problem, rank=rank) for problem in found))
        if rank is None:
            unknown.append(examined)
        elif rank in kept:
            sentence = (
                f"gives rank {rank}, which {Path(kept[rank].meta.path).name} gives too, and is left out"
            )
            problems.append(file_problem(Path(table.meta.path), Verdict.DUPLICATE_RANK, sentence, rank))
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
