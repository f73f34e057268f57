"""Reading many trace files: through the cache, over the cores, and never for longer than a file deserves.

One process per file, because parsing holds the interpreter's lock, and processes of our own rather than a pool, because a
pool hangs when one of its workers is killed for memory. Where no process can be started the files are read one by one.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from mtpprof.analyzers.traces import cache
from mtpprof.analyzers.traces.formats import read_file
from mtpprof.analyzers.traces.readers.base import Limits, TraceFormatError
from mtpprof.analyzers.traces.readers.codecs import GZIP_MAGIC
from mtpprof.analyzers.traces.table import EventTable
from mtpprof.analyzers.traces.verdicts import Verdict

Loaded = tuple[EventTable, ...] | TraceFormatError

_TEXT_BYTES_PER_S = 100e6
_GZIP_RATIO = 15
_MIN_PARALLEL_S = 1.0
"""Starting the first process costs about 0.3 s."""
_TIMEOUT_FACTOR = 20.0
_MIN_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How files are read."""

    limits: Limits = field(default_factory=Limits)
    workers: int | None = None
    """Processes at a time; None: as many as there are cores for this process; 1: none beside this one."""
    use_cache: bool = True
    timeout_s: float | None = None
    """Longest time for one file; None: twenty times what its size should need, and two minutes at least."""


@dataclass(slots=True, kw_only=True)
class _Job:
    index: int
    process: BaseProcess
    connection: Connection
    deadline_s: float


def load_file(path: Path, options: LoadOptions | None = None) -> tuple[EventTable, ...]:
    """All tables of one file, from the cache where it has them.

    Raises:
        TraceFormatError: the file gives no table.
    """
    options = options or LoadOptions()
    entry = cache.key(path) if options.use_cache else None
    if entry is not None and (tables := cache.load(entry)) is not None:
        return tables
    try:
        tables = read_file(path, options.limits)
    except MemoryError as error:
        raise TraceFormatError(
            str(path), "needs more memory than there is", verdict=Verdict.TOO_LARGE
        ) from error
    # A file that was written meanwhile has another key now and must not be kept under the old one.
    if entry is not None and cache.key(path) == entry:
        cache.store(entry, tables)
    return tables


def load_files(paths: Sequence[Path], options: LoadOptions | None = None) -> list[Loaded]:
    """For every path its tables, or the error that stands for them; in the order of `paths`."""
    options = options or LoadOptions()
    results: dict[int, Loaded] = {}
    rest: list[int] = []
    for index, path in enumerate(paths):
        entry = cache.key(path) if options.use_cache else None
        tables = cache.load(entry) if entry is not None else None
        if tables is None:
            rest.append(index)
        else:
            results[index] = tables
    workers = min(options.workers or _cores(), len(rest))
    work_s = sum(_estimate_s(paths[index]) for index in rest)
    if workers > 1 and work_s > _MIN_PARALLEL_S and _processes_can_start():
        results |= _in_processes(paths, rest, workers, options)
    for index in rest:
        if index not in results:
            results[index] = _attempt(paths[index], options)
    return [results[index] for index in range(len(paths))]


def _attempt(path: Path, options: LoadOptions) -> Loaded:
    try:
        return load_file(path, options)
    except TraceFormatError as error:
        return error


def _in_processes(
    paths: Sequence[Path], wanted: Sequence[int], workers: int, options: LoadOptions
) -> dict[int, Loaded]:
    """Results of the files that a process could read; a file whose process failed to run at all is left out."""
    results: dict[int, Loaded] = {}
    # Largest first, so that the longest does not start last.
    queue = sorted(wanted, key=lambda index: _estimate_s(paths[index]))
    running: list[_Job] = []
    context = _context()
    try:
        while queue or running:
            while queue and len(running) < workers:
                index = queue.pop()
                try:
                    running.append(_start(context, index, paths[index], options))
                except OSError:
                    # No process to be had: what is running goes on, the rest is read here.
                    queue.clear()
            for job in _finished(running):
                running.remove(job)
                outcome = _outcome(job, paths[job.index])
                if outcome is not None:
                    results[job.index] = outcome
    finally:
        for job in running:
            _stop(job)
    return results


def _start(context: BaseContext, index: int, path: Path, options: LoadOptions) -> _Job:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(  # type: ignore[attr-defined]
        target=_work, args=(sender, path, options), daemon=True, name=f"mtpprof-read-{index}"
    )
    try:
        with _no_false_number():
            process.start()
    except OSError:
        receiver.close()
        raise
    finally:
        sender.close()
    allowed = options.timeout_s or max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * _estimate_s(path))
    return _Job(index=index, process=process, connection=receiver, deadline_s=time.monotonic() + allowed)


_STARTING = threading.Lock()


@contextmanager
def _no_false_number() -> Iterator[None]:
    """Keep -1 from being handed on as the file number of `sys.stderr`: multiprocessing does that, and what Textual puts there has -1."""
    with _STARTING:
        stream = sys.stderr
        try:
            false = stream.fileno() < 0
        except (AttributeError, OSError, ValueError):
            false = False
        if not false:
            yield
            return
        sys.stderr = None
        try:
            yield
        finally:
            sys.stderr = stream


def _work(sender: Connection, path: Path, options: LoadOptions) -> None:
    sender.send(_attempt(path, options))
    sender.close()


def _finished(running: list[_Job]) -> list[_Job]:
    """The jobs that have sent something, died, or used up their time; waits for the first."""
    if not running:
        return []
    patience_s = max(0.0, min(job.deadline_s for job in running) - time.monotonic())
    ready = set(wait([job.connection for job in running], timeout=patience_s))
    now = time.monotonic()
    return [job for job in running if job.connection in ready or job.deadline_s <= now]


def _outcome(job: _Job, path: Path) -> Loaded | None:
    """What a finished job gave; None: its process ended without a word, as it does where none can be started."""
    try:
        if job.connection.poll():
            result: Loaded = job.connection.recv()
            return result
        return TraceFormatError(
            str(path), "took longer to read than a file of its size should", verdict=Verdict.UNREADABLE
        )
    except (EOFError, OSError):
        job.process.join(timeout=5)
        if job.process.exitcode is not None and job.process.exitcode < 0:
            reason = f"the process that read it was killed by signal {-job.process.exitcode}, likely for lack of memory"
            return TraceFormatError(str(path), reason, verdict=Verdict.TOO_LARGE)
        return None
    finally:
        _stop(job)


def _stop(job: _Job) -> None:
    if job.process.is_alive():
        job.process.join(timeout=0.2)
    if job.process.is_alive():
        job.process.kill()
    job.process.join(timeout=5)
    job.connection.close()


def _context() -> BaseContext:
    """Never plain fork: the caller may have threads, and torch loaded."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        return context
    return multiprocessing.get_context("spawn")


def _processes_can_start() -> bool:
    """Whether a new interpreter can import this one's main module, as it must; not so for a script from stdin."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or file is None or Path(file).exists()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _estimate_s(path: Path) -> float:
    """About how long one core needs for a file."""
    with suppress(OSError), path.open("rb") as file:
        compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        return path.stat().st_size * (_GZIP_RATIO if compressed else 1) / _TEXT_BYTES_PER_S
    return 0.0
