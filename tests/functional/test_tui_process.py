"""The dashboard in a real terminal (tmux), on real runs: launched, watched, left, attached again, killed, exported."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mtpprof.rundir.directory import RunDirectory

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
QUICK = "--vocab 1024 --rounds 2 --steps 3 --warmup 1 --profile-steps 2"
LONG = "--vocab 1024 --rounds 200 --steps 3 --warmup 1 --profile-steps 1"


class Terminal:
    """One window of a tmux server of its own."""

    def __init__(self, server: str, folder: Path, environment: dict[str, str]) -> None:
        self._server, self._folder = server, folder
        self._environment = environment
        self._count = 0

    def tmux(self, *words: str) -> str:
        """Output of a tmux command."""
        command = ["tmux", "-L", self._server, "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout

    def open(self, *words: str, size: tuple[int, int] = (120, 40)) -> str:
        """Start mtpprof in a session; its name."""
        self._count += 1
        name = f"s{self._count}"
        settings = " ".join(f"{key}={shlex.quote(value)}" for key, value in self._environment.items())
        line = f"cd {self._folder}; env -u COLUMNS -u LINES {settings} {sys.executable} -m mtpprof {shlex.join(words)}; echo LEFT $?; cat"
        self.tmux("new-session", "-d", "-s", name, "-x", str(size[0]), "-y", str(size[1]), line)
        return name

    def keys(self, name: str, *keys: str) -> None:
        """Press keys one by one, as a person does."""
        for key in keys:
            self.tmux("send-keys", "-t", name, key)
            time.sleep(0.3)  # keys that come faster than the focus moves go to the field before

    def type(self, name: str, text: str) -> None:
        """Type a text."""
        self.tmux("send-keys", "-t", name, "-l", "--", text)
        time.sleep(0.3)

    def screen(self, name: str) -> str:
        """What the session shows."""
        return self.tmux("capture-pane", "-p", "-t", name)

    def wait_for(self, name: str, wanted: str | Callable[[str], bool], timeout_s: float = 90) -> str:
        """The screen as soon as it shows what is wanted."""
        deadline_s = time.monotonic() + timeout_s
        shown = ""
        while time.monotonic() < deadline_s:
            shown = self.screen(name)
            if wanted in shown if isinstance(wanted, str) else wanted(shown):
                return shown
            time.sleep(0.1)
        raise AssertionError(f"{wanted} did not come; the screen is:\n{shown}")

    def pid(self, name: str) -> int:
        """The dashboard's process."""
        shell = self.tmux("list-panes", "-t", name, "-F", "#{pane_pid}").strip()
        found = subprocess.run(["pgrep", "-P", shell], capture_output=True, text=True, timeout=10, check=True)
        return int(found.stdout.split()[0])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A tmux server that is gone afterwards."""
    environment = {"OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8", "TERM": "screen-256color"}
    found = Terminal(f"mtpprof-{uuid.uuid4().hex[:8]}", tmp_path, environment)
    yield found
    found.tmux("kill-server")


def only_run(folder: Path) -> RunDirectory:
    """The run that was started in a folder."""
    (run,) = (path for path in (folder / "runs").iterdir() if path.is_dir())
    return RunDirectory(run)


def run_processes(directory: RunDirectory) -> list[int]:
    """Processes that have the run directory on their command line, dashboards aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory.root).encode() in line and b"dashboard" not in line and b"tmux" not in line:
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Wait for something to become true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.slow
def test_launched_watched_read_exported_and_left(terminal: Terminal, tmp_path: Path) -> None:
    name = terminal.open("dashboard")
    terminal.wait_for(name, "60 windows")
    terminal.keys(name, "Tab")
    terminal.type(name, "deepseek-v3.2")
    terminal.keys(name, "Tab", "BSpace", "2", "Tab", "1", "Tab", "Tab")
    terminal.type(name, QUICK)
    shown = terminal.wait_for(name, "not eligible")
    assert "$ mtpprof run --tp 2 --model deepseek-v3.2 --concurrency 1 --vocab 1024" in shown
    terminal.keys(name, "F5")
    terminal.wait_for(name, "[2 Live]")
    terminal.wait_for(name, lambda shown: "left" in shown and "✓" in shown)
    terminal.wait_for(name, "ranks ready")
    terminal.wait_for(name, "complete", 120)
    terminal.keys(name, "3")
    terminal.wait_for(name, "6 Same output?  same")
    terminal.keys(name, "Down", "Enter", "Down", "Enter")
    shown = terminal.wait_for(name, "[4 Collectives]")
    terminal.wait_for(name, "all_gather")
    assert only_run(tmp_path).run().status == "complete"
    terminal.keys(name, "e")
    terminal.wait_for(name, "Written:")
    (exported,) = only_run(tmp_path).root.glob("*.pftrace")
    assert exported.stat().st_size > 1000
    terminal.keys(name, "q")
    terminal.wait_for(name, "LEFT 0", 10)


@pytest.mark.slow
def test_left_running_attached_twice_and_killed(terminal: Terminal, tmp_path: Path) -> None:
    words = ["run", "--tp", "2", "--model", "nemotron-3-super", "--concurrency", "1", *LONG.split()]
    first = terminal.open(*words, "--dashboard")
    terminal.wait_for(first, "✓")
    directory = only_run(tmp_path)
    terminal.keys(first, "q")
    terminal.wait_for(first, "A run is in progress")
    terminal.keys(first, "l")
    terminal.wait_for(first, "LEFT 0", 10)
    assert run_processes(directory)

    second = terminal.open("dashboard", str(directory.root))
    third = terminal.open("dashboard", str(directory.root), size=(80, 24))
    for name in (second, third):
        shown = terminal.wait_for(name, "✓")
        assert "[2 Live]" in shown
    os.kill(terminal.pid(second), signal.SIGKILL)
    terminal.wait_for(second, "LEFT 137", 10)
    assert run_processes(directory)
    again = terminal.open("dashboard", str(directory.root))
    terminal.wait_for(again, "✓")
    terminal.keys(again, "x")
    terminal.wait_for(again, "was not started here")
    terminal.keys(again, "s")
    wait_until(lambda: not run_processes(directory))
    terminal.wait_for(third, "interrupted")
    terminal.keys(again, "q")  # not started here: nothing is asked
    terminal.wait_for(again, "LEFT 0", 10)
    assert directory.run().status == "interrupted"


@pytest.mark.slow
def test_a_run_is_stopped_on_leaving(terminal: Terminal, tmp_path: Path) -> None:
    words = ["run", "--tp", "2", "--model", "nemotron-3-super", "--concurrency", "1", *LONG.split()]
    name = terminal.open(*words, "--dashboard", size=(80, 24))
    terminal.wait_for(name, "✓")
    terminal.keys(name, "C-c")
    terminal.wait_for(name, "A run is in progress")
    terminal.keys(name, "s")
    terminal.wait_for(name, "LEFT 0", 10)
    directory = only_run(tmp_path)
    wait_until(lambda: directory.run().status == "interrupted")
    wait_until(lambda: not run_processes(directory))


def test_ascii_under_a_c_locale(tmp_path: Path) -> None:
    terminal = Terminal(
        f"mtpprof-{uuid.uuid4().hex[:8]}", tmp_path, {"LC_ALL": "C", "TERM": "screen-256color"}
    )
    try:
        name = terminal.open("dashboard")
        shown = terminal.wait_for(name, "60 windows")
        assert shown.isascii()
        terminal.keys(name, "q")
        terminal.wait_for(name, "LEFT 0", 10)
    finally:
        terminal.tmux("kill-server")


def test_without_a_terminal_it_says_so_and_prints_the_report(tmp_path: Path) -> None:
    from tests.runs import Recipe, write_run

    directory = write_run(tmp_path / "run", Recipe(models=("nemotron-3-super",), rounds=2))
    for words, shown in (
        (["dashboard", str(directory.root)], "commutative-reduce"),
        (["dashboard", str(directory.arm(directory.run().cases[0].id, "baseline"))], "all_reduce"),
        (["dashboard"], ""),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "mtpprof", *words],
            input="q",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert "no terminal to draw the dashboard on" in done.stderr
        assert shown in done.stdout
        assert "\x1b" not in done.stdout


def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mtpprof", "dashboard", str(tmp_path / "nosuch")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "nosuch" in done.stderr
    assert "Traceback" not in done.stderr
