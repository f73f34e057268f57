from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtpprof.analyzers.traces import load as loading
from mtpprof.analyzers.traces.load import LoadOptions, load_file, load_files
from mtpprof.analyzers.traces.readers.base import TraceFormatError
from mtpprof.analyzers.traces.verdicts import Verdict
from tests.unit.analyzers.chrome import some_events, text, write

OPTIONS = LoadOptions(use_cache=False, workers=2)


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / f"{rank}.json", text(some_events(200 + 2 * rank))) for rank in range(3)]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes even for small files."""
    monkeypatch.setattr(loading, "_MIN_PARALLEL_S", 0.0)


def test_results_in_order_serial(traces: list[Path]) -> None:
    loaded = load_files(traces, LoadOptions(use_cache=False, workers=1))
    assert [len(tables[0]) for tables in loaded if not isinstance(tables, TraceFormatError)] == [
        200,
        202,
        204,
    ]


@pytest.mark.usefixtures("eager")
def test_results_in_order_parallel_with_errors_in_their_place(traces: list[Path], tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.json", "nothing of the kind")
    loaded = load_files([traces[0], bad, traces[2], tmp_path / "absent.json"], OPTIONS)
    assert not isinstance(loaded[0], TraceFormatError)
    assert not isinstance(loaded[2], TraceFormatError)
    assert (len(loaded[0][0]), len(loaded[2][0])) == (200, 204)
    assert isinstance(loaded[1], TraceFormatError)
    assert loaded[1].verdict is Verdict.NOT_A_TRACE
    assert str(bad) in str(loaded[1])
    assert isinstance(loaded[3], TraceFormatError)
    assert not multiprocessing.active_children()


def test_nothing_to_read() -> None:
    assert load_files([], OPTIONS) == []


def hang(sender: object, path: Path, options: LoadOptions) -> None:
    time.sleep(600)


def die(sender: object, path: Path, options: LoadOptions) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(sender: object, path: Path, options: LoadOptions) -> None:
    sys.exit(3)


@pytest.mark.usefixtures("eager")
def test_a_process_that_hangs_is_killed_and_the_file_named(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_work", hang)
    loaded = load_files(traces[:2], LoadOptions(use_cache=False, workers=2, timeout_s=0.5))
    for path, result in zip(traces, loaded, strict=False):
        assert isinstance(result, TraceFormatError)
        assert result.verdict is Verdict.UNREADABLE
        assert str(path) in str(result)
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("eager")
def test_a_process_that_is_killed_is_named(traces: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_work", die)
    (first, _) = load_files(traces[:2], OPTIONS)
    assert isinstance(first, TraceFormatError)
    assert "signal 9" in str(first)


@pytest.mark.usefixtures("eager")
def test_files_are_read_here_where_processes_cannot_run(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_work", leave)
    loaded = load_files(traces, OPTIONS)
    assert [len(tables[0]) for tables in loaded if not isinstance(tables, TraceFormatError)] == [
        200,
        202,
        204,
    ]


@pytest.mark.usefixtures("eager")
def test_files_are_read_here_where_processes_cannot_start(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(loading, "_start", refuse)
    loaded = load_files(traces, OPTIONS)
    assert [len(tables[0]) for tables in loaded if not isinstance(tables, TraceFormatError)] == [
        200,
        202,
        204,
    ]


def test_processes_start_where_stderr_has_no_file(traces: list[Path]) -> None:
    """As inside the dashboard; in a process of its own, since helpers of multiprocessing that run already are not started again."""
    program = """
import io, sys
from pathlib import Path

class Captured(io.StringIO):
    def fileno(self):
        return -1

if __name__ == "__main__":
    from mtpprof.analyzers.traces import load as loading
    loading._MIN_PARALLEL_S = 0.0
    sys.stderr = captured = Captured()
    options = loading.LoadOptions(use_cache=False, workers=2)
    print([len(tables[0]) for tables in loading.load_files([Path(word) for word in sys.argv[1:]], options)])
    assert sys.stderr is captured
"""
    script = traces[0].with_name("program.py")
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script), *map(str, traces)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "[200, 202, 204]\n", done.stderr


def test_lack_of_memory_is_a_named_refusal(traces: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(loading, "read_file", exhaust)
    with pytest.raises(TraceFormatError, match="memory") as caught:
        load_file(traces[0], OPTIONS)
    assert caught.value.verdict is Verdict.TOO_LARGE


def test_errors_travel_between_processes() -> None:
    import pickle

    error = TraceFormatError("a.json", "is empty", verdict=Verdict.EMPTY, offset=7)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.verdict, copy.offset) == (str(error), Verdict.EMPTY, 7)
