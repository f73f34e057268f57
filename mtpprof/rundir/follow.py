"""Follows a run directory from outside: new events, the record as it changes, what the logs gained.

The decision: nothing but files is asked, so that it makes no difference who started the run, and a dashboard that was killed attaches
again to the same picture. Damage is an `Update.problem`, never an exception.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mtpprof.errors import InputError
from mtpprof.rundir.directory import EVENTS_FILE, LOGS, RUN_FILE, RunDirectory
from mtpprof.rundir.logs import says_something
from mtpprof.rundir.records import RunRecord

FIRST_LOG_BYTES = 32_768
"""How much of a log that was there before is shown."""
MAX_LOG_BYTES = 262_144
"""Read of one log in one look; a log that grows faster than this is shown with a gap."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What is new since the last look."""

    events: tuple[dict[str, Any], ...] = ()
    record: RunRecord | None = None
    """The record where it changed."""
    log_lines: tuple[str, ...] = ()
    problem: str | None = None
    """Why the run cannot be followed; None: it can."""
    unreadable: int = 0
    """Lines of the events that could not be read."""


class RunFollower:
    """Looks at a run directory again and again."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._events = EventFollower(directory)
        self._stamp: tuple[int, int] | None = None
        self._offsets: dict[Path, int] = {}
        self._partial: dict[Path, str] = {}
        self._problem: str | None = None
        self._running = False

    def poll(self) -> Update | None:
        """What is new; None: nothing."""
        record, problem = self._record()
        changed = problem is not None and problem != self._problem
        self._problem = problem
        before = self._events.unreadable
        update = Update(
            events=tuple(self._events.new()),
            record=record,
            log_lines=tuple(self._log_lines()),
            problem=problem if changed else None,
            unreadable=self._events.unreadable - before,
        )
        return update if update != Update() else None

    def _record(self) -> tuple[RunRecord | None, str | None]:
        try:
            state = (self._directory.root / RUN_FILE).stat()
        except OSError as error:
            return None, f"{self._directory.root / RUN_FILE}: {error.strerror}."
        stamp = (state.st_mtime_ns, state.st_ino)
        died = self._running and not self._directory.is_locked()  # killed: nobody is left to write that down
        if stamp == self._stamp and not died:
            return None, self._problem
        self._stamp = stamp
        try:
            record = self._directory.run()
            self._running = record.status == "running"
            return record, None
        except InputError as error:
            return None, str(error)

    def _log_lines(self) -> list[str]:
        lines: list[str] = []
        try:
            paths = sorted((self._directory.root / LOGS).glob("*.log"))
        except OSError:
            return lines
        for path in paths:
            lines += [f"{path.stem}: {line}" for line in self._new_lines(path)]
        return lines

    def _new_lines(self, path: Path) -> list[str]:
        try:
            with path.open("rb") as stream:
                size = stream.seek(0, 2)
                start = self._offsets.get(path, max(0, size - FIRST_LOG_BYTES))
                start = max(start if start <= size else 0, size - MAX_LOG_BYTES)
                stream.seek(start)
                data = stream.read(size - start)
        except OSError:
            return []
        self._offsets[path] = start + len(data)
        text = self._partial.get(path, "") + data.decode("utf-8", "replace")
        *whole, rest = text.replace("\r\n", "\n").split("\n")
        self._partial[path] = rest[-4096:]
        return [_ESCAPES.sub("", line) for line in whole if says_something(line)]


class EventFollower:
    """Reads the events of a run as they are appended, by this process or another."""

    def __init__(self, directory: RunDirectory, *, from_end: bool = False) -> None:
        self.unreadable = 0
        """Whole lines passed over up to now."""
        self._path = directory.root / EVENTS_FILE
        self._offset = self._path.stat().st_size if from_end and self._path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Whole events since the last call; a line still being written waits, what cannot be read is counted and passed over."""
        events: list[dict[str, Any]] = []
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                for line in stream:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    try:
                        events.append(msgspec.json.decode(line, type=dict[str, Any]))
                    except (msgspec.DecodeError, UnicodeDecodeError):
                        self.unreadable += 1
        except OSError:  # not there yet, or damaged: then as far as it could be read
            return events
        return events
