"""NVTX of real processes: a C program that calls NVTX in every way, and the Python package."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mtpprof.analyzers.traces.formats import read_file
from mtpprof.analyzers.traces.nvtx.attach import join
from mtpprof.analyzers.traces.nvtx.capture import (
    UNKNOWN_NS,
    NvtxCapture,
    RangeKind,
    load_capture,
    load_captures,
)
from mtpprof.analyzers.traces.nvtx.nccl import Communicator, communicators, nccl_calls
from mtpprof.analyzers.traces.nvtx.table import event_table
from mtpprof.analyzers.traces.verdicts import Verdict
from mtpprof.errors import MissingEnvironmentError
from mtpprof.profilers.nvtx import capture_environment, loaded_files, ranks_not_loaded
from mtpprof.profilers.nvtx.build import c_files, find_compiler, include_directory, injection_library

SOURCE = Path(__file__).with_name("nvtx_program.c")


@pytest.fixture(scope="module")
def tools() -> tuple[list[str], Path]:
    try:
        return find_compiler(), include_directory()
    except MissingEnvironmentError as error:
        pytest.skip(f"cannot build the NVTX injection here: {error}")


@pytest.fixture(scope="module")
def library(tools: tuple[list[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return injection_library(cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def program(tools: tuple[list[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler, include = tools
    built = tmp_path_factory.mktemp("program") / "nvtx_program"
    strict = ["-std=c11", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [*compiler, *strict, "-isystem", str(include), "-o", str(built), str(SOURCE), "-ldl"], check=True
    )
    return built


class Recorder:
    """Runs commands under the injection, each time into the same folder."""

    def __init__(self, library: Path, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, **capture_environment(directory, library=library, inherited={})}

    def run(self, *command: str | Path, **extra: str) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environment | extra,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=120,
        )
        return done.stdout

    def only(self) -> NvtxCapture:
        (path,) = loaded_files(self.directory)
        return load_capture(path)


@pytest.fixture
def record(library: Path, tmp_path: Path) -> Recorder:
    return Recorder(library, tmp_path)


def names(capture: NvtxCapture) -> list[str]:
    return [capture.names[code] for code in capture.name]


def domains(capture: NvtxCapture) -> list[str]:
    return [capture.domains[code] for code in capture.domain]


def verdicts(capture: NvtxCapture) -> set[Verdict]:
    return {problem.verdict for problem in capture.problems}


def test_every_call_of_the_c_api_is_recorded(record: Recorder, program: Path) -> None:
    record.run(program, "every-call")
    capture = record.only()
    rows = list(zip(domains(capture), names(capture), strict=True))
    categories = [capture.categories[code] for code in capture.category]
    assert rows[:4] == [("", "outer"), ("", "innér 😀"), ("", "a mark"), ("", "a wide mark")]
    assert capture.depth[:4].tolist() == [0, 1, 2, 2]
    assert [(d, c) for (d, n), c in zip(rows, categories, strict=True) if n == "categorized"] == [
        ("", "seven"),
        ("one", "seven of one"),
        ("one", "9"),
        ("", "9"),
        ("one", "9"),
    ]
    assert ("one", "registered") in rows
    assert ("zwölf", "wide registered") in rows
    payloads = [capture.payload(row) for row, name in enumerate(names(capture)) if name == "payload"]
    assert payloads == [2**64 - 1, -5, 2.5, 2**32 - 1, -6, 0.5, 0.5]
    free = capture.kind == RangeKind.START_END
    assert [name for name, is_free in zip(names(capture), free, strict=True) if is_free] == [
        "payload",
        "x",
        "y",
        "categorized",
    ]
    closed = np.array(names(capture)) != "never closed"
    assert np.all(capture.dur_ns[closed] >= 0)
    assert capture.dur_ns[~closed].tolist() == [UNKNOWN_NS]
    assert verdicts(capture) == {Verdict.OPEN_RANGES, Verdict.LONE_ENDS}
    assert "the only thread" in capture.threads.values()
    assert capture.closed


def test_times_are_real_time(record: Recorder, program: Path) -> None:
    before = time.time_ns()
    record.run(program, "every-call")
    after = time.time_ns()
    capture = record.only()
    assert before - 1_000_000 <= capture.ts_ns[0] <= capture.ts_ns[-1] <= after + 1_000_000


def test_threads_nest_each_on_its_own(record: Recorder, program: Path) -> None:
    record.run(program, "threads", "8")
    capture = record.only()
    assert Counter(names(capture)) == {"outer": 8000, "inner": 8000}
    assert len(set(capture.thread.tolist())) == 8
    inner = np.array(names(capture)) == "inner"
    assert np.array_equal(capture.depth, inner.astype(np.int32))
    assert capture.problems == ()
    for thread in np.unique(capture.thread):
        own = capture.thread == thread
        outer_end = (capture.ts_ns + capture.dur_ns)[own & ~inner]
        assert np.all((capture.ts_ns + capture.dur_ns)[own & inner] <= outer_end)


def test_crossing_ranges_keep_their_own_ends(record: Recorder, program: Path) -> None:
    record.run(program, "crossing")
    capture = record.only()
    end = dict(zip(names(capture), (capture.ts_ns + capture.dur_ns).tolist(), strict=True))
    assert end["first"] < end["third"] < end["second"]
    assert end["in a"] < end["in b"]
    assert np.all(capture.dur_ns > 0)
    assert capture.problems == ()


def test_a_million_pairs(record: Recorder, program: Path) -> None:
    record.run(program, "many", "500000")
    capture = record.only()
    assert len(capture) == 1_000_001
    assert Counter(capture.name.tolist()).most_common()[-1][1] == 500_000
    assert np.all(capture.dur_ns >= 0)
    assert capture.dropped_events == 0
    assert capture.problems == ()


def test_the_file_keeps_to_its_limit_and_counts_what_it_dropped(record: Recorder, program: Path) -> None:
    limit = 1 << 20
    record.run(program, "many", "50000", MTPPROF_NVTX_MAX_BYTES=str(limit))
    (path,) = loaded_files(record.directory)
    assert path.stat().st_size <= limit
    capture = load_capture(path)
    recorded = 2 * len(capture) - int(np.count_nonzero(capture.dur_ns == UNKNOWN_NS))
    assert recorded + capture.dropped_events == 2 * 100_001
    assert Verdict.DROPPED_EVENTS in verdicts(capture)


def test_growing_past_the_file_size_limit_does_not_kill_the_program(record: Recorder, program: Path) -> None:
    record.run("sh", "-c", f"ulimit -f 100; exec {program} many 20000")
    assert Verdict.DROPPED_EVENTS in verdicts(record.only())


def test_short_lived_threads_do_not_pile_up_memory(record: Recorder, program: Path) -> None:
    record.run(program, "short-lived-threads", "200")
    capture = record.only()
    assert len(set(capture.thread.tolist())) == len(capture) == 200
    assert capture.problems == ()


def test_a_killed_process_loses_nothing(record: Recorder, program: Path) -> None:
    process = subprocess.Popen(
        [program, "until-killed"], env=record.environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = 0
    while said < 50_000:
        said = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().splitlines()
    said = int(rest[-1]) if rest and rest[-1].isdigit() else said
    process.wait()
    capture = record.only()
    assert Counter(names(capture))["step"] >= said
    assert not capture.closed
    assert Verdict.NOT_CLOSED in verdicts(capture)
    last = names(capture).index("the last one")
    assert capture.dur_ns[last] == UNKNOWN_NS


def test_forked_children_write_files_of_their_own_with_inherited_names(
    record: Recorder, program: Path
) -> None:
    record.run(program, "forks")
    by_parent = {capture.parent_pid: capture for capture in load_captures(record.directory)}
    assert len(by_parent) == 3  # the silent child has none
    (parent,) = (c for c in by_parent.values() if c.parent_pid not in {d.pid for d in by_parent.values()})
    child = by_parent[parent.pid]
    grandchild = by_parent[child.pid]
    assert names(parent) == ["inherited", "parent's own"]
    assert names(child) == names(grandchild) == ["inherited", "child's own"]
    assert set(domains(parent) + domains(child) + domains(grandchild)) == {"family"}
    assert (parent.closed, child.closed, grandchild.closed) == (True, True, False)


def test_a_program_that_closes_all_descriptors_keeps_its_files(
    record: Recorder, program: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    record.run(program, "closed-descriptors", precious)
    assert precious.read_bytes() == b"precious"
    assert len(record.only()) == 5001


def test_events_in_signal_handlers_do_not_tear_others(record: Recorder, program: Path) -> None:
    record.run(program, "signal-handler")
    capture = record.only()
    counts = Counter(names(capture))
    assert counts["interrupted"] == 300_000
    assert set(counts) == {"begin", "interrupted", "in a handler"}
    assert np.all(capture.dur_ns >= 0)


def test_exec_makes_a_second_file_of_the_same_process(record: Recorder, program: Path) -> None:
    record.run(program, "exec")
    captures = load_captures(record.directory)
    assert {capture.pid for capture in captures} == {captures[0].pid}
    assert [names(capture) for capture in captures] == [["before exec"], ["short-lived"]]


def test_payloads_are_decoded_by_their_schemas(record: Recorder, program: Path) -> None:
    record.run(program, "payloads")
    capture = record.only()
    assert names(capture) == ["labelled", "labelled", "labelled", "several", "too large to keep"]
    first = capture.payload(0)
    assert isinstance(first, dict)
    assert str(first.pop("elsewhere")).startswith("0x")
    assert first == {
        "tiny": -3,
        "large": 2**64 - 1,
        "halves": [0.5, 1.5],
        "label": "labelled",
        "color": "green",
        "inner": {"small": 9, "number": 6.25},
        "string": "by handle",
    }
    second = capture.payload(1)
    assert isinstance(second, dict)
    assert second["color"] == "bold|italic"
    assert capture.end_payload(1) == capture.end_payload(2) == 2**64 - 1
    assert capture.payload(3) == ["found by its end", 2**64 - 1]
    assert capture.payload(4) == "1048576 bytes, not kept"


def test_nccl_calls_give_bytes_and_ranks(record: Recorder, program: Path) -> None:
    record.run(program, "nccl", "1000")
    capture = record.only()
    assert communicators(capture) == {0xABCDEF: Communicator(ranks=4, rank=3)}
    calls = nccl_calls(capture)
    reduced = np.array([calls.functions[f] == "ncclAllReduce" for f in calls.function])
    assert calls.payload_bytes[reduced].tolist() == list(range(1000, 2000))
    assert [calls.operations[o] for o in calls.operation[reduced][:5]] == [
        "Sum",
        "Product",
        "Max",
        "Min",
        "Avg",
    ]
    gathered = calls.payload_bytes[~reduced]
    assert gathered[1::2].tolist() == [4 * (10 + i) for i in range(1, 1000, 2)]
    assert set(gathered[0::2].tolist()) == {-1}


def test_threads_cancelled_at_any_moment_stop_nobody(record: Recorder, program: Path) -> None:
    record.run(program, "cancelled-threads", "200")
    capture = record.only()
    assert names(capture)[-1] == "afterwards"
    assert capture.closed


def test_a_fork_that_the_c_library_does_not_see_gives_a_file_of_its_own(
    record: Recorder, program: Path
) -> None:
    record.run(program, "raw-fork")
    found = [Counter(names(capture)) for capture in load_captures(record.directory)]
    assert sorted(found, key=len) == [{"child": 300}, {"before": 100, "parent": 200}]
    assert not any(capture.dropped_events for capture in load_captures(record.directory))


def test_vfork_leaves_the_parents_file_whole(record: Recorder, program: Path) -> None:
    record.run(program, "vfork")
    found = {tuple(names(capture)) for capture in load_captures(record.directory)}
    assert found == {("before", "after"), ("short-lived",)}


def test_a_moment_without_descriptors_loses_only_that_moment(record: Recorder, program: Path) -> None:
    record.run("sh", "-c", f"ulimit -n 256; exec {program} no-descriptors")
    capture = record.only()
    counts = Counter(names(capture))
    assert counts["later"] == 1000
    assert counts["last"] == 1
    assert 0 < counts["maybe lost"] < 20_000
    (said,) = [item.sentence for item in capture.problems if item.verdict is Verdict.DROPPED_EVENTS]
    assert "no free file descriptor" in said
    # Every event of the program is a row, ends one, or is counted; one pop ends the range that was opened unseen, which is no row.
    closed = int(np.count_nonzero(capture.dur_ns != UNKNOWN_NS))
    recorded = len(capture) + closed + 1
    assert recorded + capture.dropped_events == 2 * (20_000 + 1000 + 1 + 3)
    row = {name: index for index, name in enumerate(names(capture))}
    assert capture.dur_ns[row["closed while nothing is recorded"]] == UNKNOWN_NS
    assert capture.dur_ns[row["open all the time"]] > 0
    assert capture.depth[row["later"]] == 2  # below the one that was opened unseen
    assert capture.depth[row["last"]] == 1
    assert "opened while nothing is recorded" not in row


def test_a_file_that_could_not_be_made_at_first_is_made_later(record: Recorder, program: Path) -> None:
    record.run("sh", "-c", f"ulimit -n 256; exec {program} no-descriptors-at-first")
    child = next(capture for capture in load_captures(record.directory) if len(capture))
    assert names(child) == ["kept"]
    assert child.dropped_events == 2


def test_sizes_that_no_program_means_are_bounded(record: Recorder, program: Path) -> None:
    record.run(program, "wild-sizes")
    capture = record.only()
    assert names(capture)[-1] == "afterwards"
    assert len(capture) == 8 * 2 + 2 + 1
    assert capture.dropped_events == 0


def test_a_handler_that_jumps_out_does_not_silence_its_thread(record: Recorder, program: Path) -> None:
    record.run(program, "jumping-handler")
    capture = record.only()
    assert names(capture)[-1] == "afterwards"
    assert Counter(names(capture))["interrupted for good"] > 10_000


def test_names_that_change_while_they_are_copied_stay_within_their_length(
    record: Recorder, program: Path
) -> None:
    record.run(program, "changing-names")
    capture = record.only()
    assert len(capture) == 40_001
    assert capture.dropped_events == 0


def test_eighty_thousand_short_threads_fill_no_more_than_one_long_one(
    record: Recorder, program: Path
) -> None:
    record.run(program, "short-lived-threads", "80000")
    (path,) = loaded_files(record.directory)
    capture = load_capture(path)
    assert len(capture) == 80_000
    assert len(set(capture.thread.tolist())) > 20_000  # the kernel gives numbers again
    assert path.stat().st_size < 16 << 20
    assert capture.problems == ()


def test_the_program_gets_its_own_signal_when_a_file_grows_too_large(record: Recorder, program: Path) -> None:
    """The library takes back only the signal that its own writing caused."""
    record.run("sh", "-c", f"ulimit -f 40; exec {program} many 5000")
    (said,) = [item.sentence for item in record.only().problems if item.verdict is Verdict.DROPPED_EVENTS]
    assert "size limit" in said


def test_reading_needs_forty_bytes_a_range_and_a_bounded_batch(record: Recorder, program: Path) -> None:
    record.run(program, "many", "500000")
    (path,) = loaded_files(record.directory)
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from mtpprof.analyzers.traces.nvtx.capture import load_capture\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "capture = load_capture(Path(sys.argv[1]))\n"
        "columns = [getattr(capture, n) for n in ('ts_ns','dur_ns','kind','name','domain','category','thread','depth','payload_type')]\n"
        "print(len(capture), sum(c.nbytes for c in columns) // len(capture), len(capture.blobs))\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    first, peak = done.stdout.splitlines()
    assert first == "1000001 40 0"
    assert int(peak) < 1_000_001 * 2 * 64 + 192 * 2**20  # columns, their copies while sorting, one batch


PYTHON_PROGRAM = """
import multiprocessing, threading, nvtx, numpy as np

def worker():
    with nvtx.annotate("thread", domain="mtpprof"):
        pass

def child():
    payload = np.array((1, 2.5), [("a", "i4"), ("b", "f8")])
    with nvtx.annotate("child", domain="mtpprof", payload=payload):
        pass

if __name__ == "__main__":
    domain = nvtx.get_domain("mtpprof")
    with nvtx.annotate("outer", category="kind", payload=11):
        free = domain.start_range(domain.get_event_attributes(message="free", payload=1.5))
        with nvtx.annotate("inner"):
            nvtx.mark("mark")
        domain.end_range(free)
    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
"""


def test_the_python_package_is_recorded_with_its_children(record: Recorder, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PYTHON_PROGRAM)
    record.run(sys.executable, script, RANK="2")
    captures = load_captures(record.directory)
    assert {capture.rank for capture in captures} == {2}
    (parent,) = (c for c in captures if "outer" in c.names)
    assert Counter(names(parent)) == {"outer": 1, "inner": 1, "mark": 1, "free": 1, "thread": 1}
    row = names(parent).index("outer")
    assert (parent.payload(row), parent.categories[parent.category[row]]) == (11, "kind")
    children = [c for c in captures if "child" in names(c)]
    assert len(children) == 2
    assert all(domains(c) == ["mtpprof"] for c in children)
    assert [c.payload(0) for c in children] == [{"a": 1, "b": 2.5}] * 2


def test_a_process_without_the_library_is_reported(library: Path, tmp_path: Path, program: Path) -> None:
    for rank in (0, 1):
        environment = {**os.environ, **capture_environment(tmp_path, rank, library=library, inherited={})}
        if rank == 1:  # NVTX ignores this in silence
            environment["NVTX_INJECTION64_PATH"] = str(tmp_path / "missing.so")
        subprocess.run([program, "crossing"], env=environment, check=True)
    assert ranks_not_loaded(tmp_path, range(3)) == [1, 2]


def test_an_unwritable_folder_is_said_and_the_program_goes_on(record: Recorder, program: Path) -> None:
    done = subprocess.run(
        [program, "crossing"],
        env=record.environment | {"MTPPROF_NVTX_DIR": "/proc/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "NVTX is not recorded in process" in done.stderr
    assert "/proc/nowhere" in done.stderr


SANITIZED = (
    "every-call",
    "crossing",
    "forks",
    "payloads",
    "nccl 50",
    "threads 4",
    "signal-handler",
    "raw-fork",
    "short-lived-threads 300",
    "no-descriptors",
    "wild-sizes",
)


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def sanitized(
    request: pytest.FixtureRequest, tools: tuple[list[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Path]]:
    """The library and the program under a sanitizer."""
    compiler, include = tools
    folder = tmp_path_factory.mktemp("sanitized")
    common = ["-std=c11", "-O1", "-g", "-pthread", f"-fsanitize={request.param}", "-fno-sanitize-recover=all"]
    common += ["-isystem", str(include)]
    for arguments in (
        ["-fPIC", "-shared", "-fvisibility=hidden", "-o", str(folder / "library.so"), *map(str, c_files())],
        ["-o", str(folder / "program"), str(SOURCE), "-ldl"],
    ):
        done = subprocess.run([*compiler, *common, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{compiler[0]} has no -fsanitize={request.param} here: {done.stderr[:200]}")
    yield folder / "library.so", folder / "program"
    shutil.rmtree(folder)


@pytest.mark.parametrize("scenario", SANITIZED)
def test_sanitizers_find_nothing(sanitized: tuple[Path, Path], tmp_path: Path, scenario: str) -> None:
    library, program = sanitized
    environment = capture_environment(tmp_path, library=library, inherited={})
    done = subprocess.run(
        [program, *scenario.split()],
        # Leak detection fails in some sandboxes; memory of ours is mapped, not allocated.
        env={**os.environ, **environment, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert loaded_files(tmp_path)


@pytest.mark.parametrize("sanitizer", ["address,undefined"])
def test_arbitrary_calls_break_nothing(tools: tuple[list[str], Path], tmp_path: Path, sanitizer: str) -> None:
    compiler, include = tools
    common = ["-std=c11", "-O1", "-g", "-pthread", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    common += ["-isystem", str(include)]
    library, program = tmp_path / "library.so", tmp_path / "fuzz"
    for arguments in (
        ["-fPIC", "-shared", "-fvisibility=hidden", "-o", str(library), *map(str, c_files())],
        ["-o", str(program), str(SOURCE.with_name("nvtx_fuzz.c")), "-ldl"],
    ):
        built = subprocess.run([*compiler, *common, *arguments], capture_output=True, text=True, check=False)
        if built.returncode != 0:
            pytest.skip(f"{compiler[0]} has no -fsanitize={sanitizer} here: {built.stderr[:200]}")
    captures = tmp_path / "captures"
    captures.mkdir()
    environment = {"MTPPROF_NVTX_DIR": str(captures), "MTPPROF_NVTX_MAX_BYTES": str(64 << 20)}
    done = subprocess.run(
        [program, library, "400"],
        env={**os.environ, **environment, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = loaded_files(captures)
    capture = load_capture(path)
    assert len(capture) > 1000
    for row in range(0, len(capture), 97):
        capture.payload(row)


PROFILED = """
import sys, torch
from torch.profiler import ProfilerActivity, profile
from mtpprof import ranges
from mtpprof.profilers.annotate import annotate

with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for step in range(20):
        with annotate(ranges.step_name(step)):
            with annotate(ranges.phase_name("target")):
                torch.ones(64) + 1
            with annotate(ranges.phase_name("sample")):
                torch.ones(64).argmax()
profiler.export_chrome_trace(sys.argv[1])
"""


def test_our_own_ranges_are_in_nvtx_and_in_the_torch_trace_once_each(
    record: Recorder, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json.gz"
    record.run(sys.executable, "-c", PROFILED, trace, OMP_NUM_THREADS="1")
    joined = join(event_table(record.only()), read_file(trace)[0])
    assert len(joined) == 60
    assert (joined.only_nvtx, joined.only_trace) == (0, 0)
    assert joined.shift_ns is not None
    low, high = joined.shift_ns
    assert low <= high
    assert joined.residual_ns is not None
    assert joined.residual_ns < 1_000_000


TORCH = """
import sys, torch
try:
    torch.cuda.nvtx.range_push("pushed")
except RuntimeError:
    sys.exit(3)
torch.cuda.nvtx.mark("marked")
torch.cuda.nvtx.range_pop()
"""


def test_torchs_own_nvtx_functions_are_recorded_where_it_has_them(record: Recorder) -> None:
    done = subprocess.run([sys.executable, "-c", TORCH], env=record.environment, check=False)
    if done.returncode == 3:
        pytest.skip("this build of torch has no NVTX functions (CPU)")
    assert set(names(record.only())) == {"pushed", "marked"}
