"""The run directory: the one place where the side that runs and the side that reads meet.

    <run>/run.json                            what was asked, versions, machine, plan, status
          events.jsonl                        progress, appended as it happens; whoever watches a run follows this file
          logs/rank<r>.log, launcher.log      what the workers and the launcher printed
          <case>/<arm>/timing.json            per round, per rank, per step, integer ns, no profiler
          <case>/<arm>/outputs.json           tokens and accepted counts, per round
          <case>/<arm>/rank<r>.pt.trace.json.gz
          <case>/<arm>/host<h>.nsys.sqlite    in their place, where Nsight Systems recorded
          nvtx/rank<r>.pid<p>.nvtx            NVTX of each process, from its first range to its end
          report.json                         the answer
          .lock                               held by the process that carries the run out, and says which one that is

Every JSON file carries `schema_version`, is written under a temporary name and then renamed, so that a reader sees a whole file
or none. Timing and outputs grow by one round at a time: a run that dies keeps every visit it had finished.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mtpprof.errors import InputError, UsageError
from mtpprof.files import trace_is_whole
from mtpprof.rundir.holder import Holder, this_process
from mtpprof.rundir.records import OutputsRecord, Record, RunRecord, TimingRecord

if sys.platform != "win32":  # which reads run directories, and makes none
    import fcntl

SCHEMA_VERSION = 1
RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
REPORT_FILE = "report.json"
TIMING_FILE = "timing.json"
OUTPUTS_FILE = "outputs.json"
LOGS = "logs"
NVTX_FOLDER = "nvtx"
WORKER_FAILED = "worker_failed"
"""Event of a rank that failed: rank, exit_code, signal, message."""
LOCK_FILE = ".lock"
PROCESS_GONE = "its process is gone; go on with --resume"
MAX_JSON_BYTES = 256 * 1024 * 1024
MAX_HOLDER_BYTES = 4096


class RecordError(InputError):
    """A file of a run directory that cannot be used."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        self.path = path
        self.finding = f"{path}: {reason}"
        """What is so, without what to do about it."""
        super().__init__(f"{self.finding}; {remedy}.")


RecordT = TypeVar("RecordT", bound=Record)


class RunDirectory:
    """Paths of a run, and reading and writing of its files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def arm(self, case: str, arm: str) -> Path:
        """Folder of one arm of one case."""
        return self.root / case / arm

    def trace(self, case: str, arm: str, rank: int) -> Path:
        """Torch-profiler trace of one rank."""
        return self.arm(case, arm) / f"rank{rank}.pt.trace.json.gz"

    @property
    def nvtx(self) -> Path:
        """Folder of the NVTX captures, one file per process."""
        return self.root / NVTX_FOLDER

    def nsys_database(self, case: str, arm: str, node: int) -> Path:
        """What Nsight Systems recorded of one arm on one host, where it ran in place of torch's profiler."""
        return self.arm(case, arm) / f"host{node}.nsys.sqlite"

    def captured(self, case: str, arm: str, ranks: int) -> list[Path]:
        """Files with what was recorded of an arm: databases of Nsight Systems where there are any, else every rank's trace."""
        databases = sorted(self.arm(case, arm).glob("host*.nsys.sqlite"))
        return databases or [self.trace(case, arm, rank) for rank in range(ranks)]

    def log(self, rank: int) -> Path:
        """What one rank printed."""
        return self.root / LOGS / f"rank{rank}.log"

    @property
    def launcher_log(self) -> Path:
        """What the launcher printed."""
        return self.root / LOGS / "launcher.log"

    def has_traces(self, case: str, arm: str, ranks: int) -> bool:
        """Whether what was recorded of an arm is there, of every rank, and whole: what is not is recorded again on `--resume`."""
        return all(path.is_file() and trace_is_whole(path) for path in self.captured(case, arm, ranks))

    def run(self) -> RunRecord:
        """The run's own record; a run whose process is gone without having said so is `interrupted`.

        Raises:
            InputError: missing, damaged, or written by a newer mtpprof.
        """
        run = self._read(self.root / RUN_FILE, RunRecord)
        if run.status == "running" and not self.is_locked():
            return msgspec.structs.replace(run, status="interrupted", error=PROCESS_GONE)
        return run

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory: one mtpprof at a time carries a run out, and the lock ends with its process, however that ends.

        Raises:
            UsageError: another process holds it.
            OSError: the directory is not writable.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if sys.platform != "win32":
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UsageError(
                        f"{self.root}: another mtpprof is running in it; wait for it, or choose another directory."
                    ) from None
            with contextlib.suppress(OSError):  # a full disk: the lock itself holds
                os.ftruncate(fd, 0)
                os.write(fd, msgspec.json.encode(this_process()))
            yield
        finally:
            os.close(fd)

    def holder(self) -> Holder | None:
        """Which process carries the run out; None: none does, or the lock does not say."""
        if not self.is_locked():
            return None
        try:
            with (self.root / LOCK_FILE).open("rb") as stream:
                return msgspec.json.decode(stream.read(MAX_HOLDER_BYTES), type=Holder)
        except (OSError, msgspec.MsgspecError):
            return None

    def is_locked(self) -> bool:
        """Whether some process is carrying the run out right now."""
        if sys.platform == "win32":
            return True  # cannot be told
        try:
            fd = os.open(self.root / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return True  # a file system without locks: cannot be told
        finally:
            os.close(fd)
        return False

    def timing(self, case: str, arm: str) -> TimingRecord | None:
        """Timed windows of an arm; None: it has none yet.

        Raises:
            RecordError: the file is damaged.
        """
        path = self.arm(case, arm) / TIMING_FILE
        return self._read(path, TimingRecord) if path.exists() else None

    def outputs(self, case: str, arm: str) -> OutputsRecord | None:
        """Outputs of an arm; None: it has none yet.

        Raises:
            RecordError: the file is damaged.
        """
        path = self.arm(case, arm) / OUTPUTS_FILE
        return self._read(path, OutputsRecord) if path.exists() else None

    def write(self, path: Path, record: Record | dict[str, Any]) -> None:
        """Write a record as JSON under a temporary name, then rename.

        Raises:
            OSError: the directory is not writable or full.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def write_run(self, record: RunRecord) -> None:
        """Write run.json."""
        self.write(self.root / RUN_FILE, record)

    def append_event(self, event: str, **fields: Any) -> None:
        """Append one line to events.jsonl; lines of several processes do not mix (one `write` with O_APPEND)."""
        line = msgspec.json.encode({"t_ns": time.time_ns(), "event": event, **fields}) + b"\n"
        fd = os.open(self.root / EVENTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def _read(self, path: Path, kind: type[RecordT]) -> RecordT:
        elsewhere = "give the directory of a run made by `mtpprof run`"
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise RecordError(path, "not a regular file", elsewhere)
            with path.open("rb") as stream:
                data = stream.read(MAX_JSON_BYTES + 1)
        except OSError as error:
            raise RecordError(path, error.strerror or "cannot be read", elsewhere) from error
        if len(data) > MAX_JSON_BYTES:
            raise RecordError(
                path, f"more than {MAX_JSON_BYTES} bytes", "a file of a run directory is smaller"
            )
        try:
            version = msgspec.json.decode(data, type=_Versioned).schema_version
            if version > SCHEMA_VERSION:
                newer = (
                    f"written in format {version} by a newer mtpprof (this one reads up to {SCHEMA_VERSION})"
                )
                raise RecordError(path, newer, "update mtpprof")
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise RecordError(path, f"the file is damaged ({error})", "run again") from error


class _Versioned(msgspec.Struct):
    schema_version: int
