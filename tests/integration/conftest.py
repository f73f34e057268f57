"""Running `mtpprof` as a user does, in real processes, and looking for what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mtpprof.models.reference.collectives.shm_limits import SHM_DIR
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.follow import EventFollower

SMALL = ("--vocab", "1024", "--concurrency", "1", "--warmup", "1", "--profile-steps", "1")
"""A run that is quick: the structure of the default one, a small vocabulary and few steps."""


@dataclass
class Started:
    """A run in progress, started in a process of its own."""

    process: subprocess.Popen[str]
    directory: RunDirectory

    def wait_for(
        self, wanted: Callable[[dict[str, object]], bool], timeout_s: float = 90
    ) -> dict[str, object]:
        """The first event that fits; the run must not end before."""
        follower = EventFollower(self.directory)
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for event in follower.new():
                if wanted(event):
                    return event
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended early: {self.process.communicate()}")
            time.sleep(0.02)
        raise AssertionError("the event did not come")

    def finish(self, timeout_s: float = 60) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err


def worker_pids(directory: RunDirectory) -> list[int]:
    """Processes that have the run directory on their command line or as their log."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            target = (entry / "fd" / "1").readlink()
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if target.is_relative_to(directory.root / "logs") or str(directory.root).encode() in line:
            found.append(int(entry.name))
    return found


def rank_pid(directory: RunDirectory, rank: int) -> int:
    """The process of one rank: the one that prints into its log."""
    for pid in worker_pids(directory):
        try:
            if Path(f"/proc/{pid}/fd/1").readlink() == directory.log(rank):
                return pid
        except OSError:
            continue
    raise AssertionError(f"rank {rank} has no process")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start `mtpprof run`; afterwards no process and no shared memory may be left."""
    segments = {path.name for path in SHM_DIR.iterdir() if path.name.startswith("mtpprof-")}
    started: list[Started] = []

    def launch(*options: str, out: Path | None = None) -> Started:
        folder = out or tmp_path / "run"
        words = [sys.executable, "-m", "mtpprof", "run", *options]
        if "--resume" not in options:
            words += ["--out", str(folder)]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        started.append(Started(process, RunDirectory(folder)))
        return started[-1]

    yield launch
    for run in started:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            run.process.wait(30)
        assert worker_pids(run.directory) == []
    left = {path.name for path in SHM_DIR.iterdir() if path.name.startswith("mtpprof-")}
    assert left <= segments
