"""The vLLM engine around a stand-in for vLLM: the whole way from command to report, and every way in which vLLM has been seen to fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from mtpprof.errors import ExitCode
from mtpprof.models.reference.collectives.shm_limits import SHM_DIR
from mtpprof.profilers.engines.vllm.scratch import SCRATCH
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.follow import EventFollower
from tests.standin.vllm_standin import install

SMALL = (
    "--vocab",
    "512",
    "--concurrency",
    "2",
    "--rounds",
    "1",
    "--steps",
    "3",
    "--warmup",
    "1",
    "--profile-steps",
    "2",
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vLLM's workers and /dev/shm are Linux's")


@dataclass
class Ended:
    """How a run ended."""

    code: int
    out: str
    err: str
    seconds: float
    directory: RunDirectory


@pytest.fixture
def standin(tmp_path: Path) -> Path:
    return install(tmp_path / "site")


@pytest.fixture
def run(tmp_path: Path, standin: Path) -> Iterator[Callable[..., Ended]]:
    """Run `mtpprof run --engine vllm` over the stand-in; afterwards nothing of it may be left."""
    segments = set(SHM_DIR.glob("psm_standin*"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def launch(*options: str, fail: str = "", while_running: Callable[[Any], None] | None = None) -> Ended:
        directory = RunDirectory(tmp_path / "run")
        environment = os.environ | {
            "PYTHONPATH": str(standin),
            "STANDIN_FAIL": fail,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(temporary),
            # torch's cache of compiled kernels is meant to outlive a run; kept apart, it is no leftover of this one.
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled"),
        }
        words = [sys.executable, "-m", "mtpprof", "run", "--format", "json", *options]
        if "--resume" not in options:
            words += [
                "--engine",
                "vllm",
                "--tp",
                "2",
                "--model",
                "deepseek-v3.2",
                "--out",
                str(directory.root),
            ]
            words += [word for index, word in enumerate(SMALL) if SMALL[index - index % 2] not in options]
        start_s = time.monotonic()
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
        )
        if while_running is not None:
            while_running(process)
        out, err = process.communicate(timeout=120)
        return Ended(process.returncode, out, err, time.monotonic() - start_s, directory)

    yield launch
    assert processes_of(tmp_path) == []
    assert set(SHM_DIR.glob("psm_standin*")) <= segments
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "run" / SCRATCH).exists()


def processes_of(folder: Path) -> list[str]:
    """Processes that have files of the run open."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "fd" / "1").readlink().is_relative_to(folder):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def message(ended: Ended) -> str:
    """The sentence shown to the user."""
    return ended.err.strip().splitlines()[-1]


def test_a_run_is_as_the_ledger_expects(run: Callable[..., Ended]) -> None:
    ended = run()
    assert ended.code == ExitCode.OK, ended.err
    (case,) = json.loads(ended.out)["cases"]
    arms = {arm["name"]: arm for arm in case["arms"]}
    assert {arm["as_expected"] for name, arm in arms.items() if name != "baseline-repeat"} == {True}
    assert arms["local-argmax"]["engagement"]["local-argmax"]["verdict"] == "ENGAGED"
    fusion = arms["allreduce-norm-fusion"]["engagement"]["allreduce-norm-fusion"]
    assert (fusion["requested"], fusion["verdict"]) == (True, "NOT ENGAGED")
    assert arms["local-argmax"]["output"]["same"]


def test_logs_traces_and_deviations_are_in_the_run(run: Callable[..., Ended]) -> None:
    directory = run("--opt", "local-argmax=both").directory
    record = directory.run()
    assert any("sparse attention" in text for text in record.deviations)
    arm = directory.arm(record.cases[0].id, "local-argmax")
    assert {path.name for path in arm.glob("rank*")} >= {"rank0.log", "rank1.pt.trace.json.gz"}
    assert record.engine == record.transport == "vllm"


def test_arguments_reach_vllm(run: Callable[..., Ended]) -> None:
    ended = run("--opt", "local-argmax=on", "--vllm-arg", "max-model-len=777")
    assert '"max_model_len": "777"' in ended.directory.launcher_log.read_text()


def test_every_arm_has_an_engine_of_its_own_with_compilation(run: Callable[..., Ended]) -> None:
    ended = run("--opt", "local-argmax=both", "--vllm-arg", "enforce_eager=false")
    assert ended.code == ExitCode.OK, ended.err
    log = ended.directory.launcher_log.read_text()
    assert "'enabled': ['local-argmax']" in log
    assert "'enabled': []" in log


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        ("start-error", ["starting vLLM", "ValueError: no kernel for this head size"]),
        ("start-old", ["unexpected keyword argument 'kv_cache_memory_bytes'"]),
        ("start-port", ["Address already in use"]),
        ("step-error", ["round 0", "ValueError: no such block in the cache"]),
        ("step-kill", ["rank 1", "killed by SIGKILL"]),
        ("trace-missing", ["no trace of rank 1"]),
        ("trace-cut", ["the trace of rank 1", "cut off"]),
    ],
)
def test_a_failure_is_one_sentence(run: Callable[..., Ended], fail: str, words: list[str]) -> None:
    ended = run("--timeout", "8", "--opt", "local-argmax=on", fail=fail)
    assert ended.code == ExitCode.RUN_FAILED
    assert "Traceback" not in ended.err
    for word in words:
        assert word in message(ended), message(ended)
    assert ended.directory.run().status == "failed"


def test_a_start_has_five_times_the_patience_of_a_step(run: Callable[..., Ended]) -> None:
    ended = run("--timeout", "4", "--opt", "local-argmax=on", fail="start-hang")
    assert ended.code == ExitCode.RUN_FAILED
    assert "no progress for 20 s while" in message(ended)
    assert "starting vLLM; its log ends with: 'starting'" in message(ended)


@pytest.mark.parametrize(("fail", "doing"), [("step-hang", "round 0"), ("stop-hang", "stopping vLLM")])
def test_a_hang_is_ended_and_named(run: Callable[..., Ended], fail: str, doing: str) -> None:
    ended = run("--timeout", "8", "--opt", "local-argmax=on", fail=fail)
    assert ended.code == ExitCode.RUN_FAILED
    assert "no progress for 8 s" in message(ended)
    assert doing in message(ended)


def test_a_worker_that_dies_unseen_by_vllm_is_seen(run: Callable[..., Ended], tmp_path: Path) -> None:
    def kill_a_worker(process: Any) -> None:
        os.kill(wait_for_worker(tmp_path), signal.SIGKILL)

    ended = run(
        "--steps", "2000", "--opt", "local-argmax=on", fail="step-silent", while_running=kill_a_worker
    )
    assert ended.code == ExitCode.RUN_FAILED
    assert "killed by SIGKILL" in message(ended)


def wait_for_worker(folder: Path, timeout_s: float = 60.0) -> int:
    """A worker process of this run that prints into an arm's log: it is in a window."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if fnmatch((entry / "fd" / "1").readlink(), f"{folder}/*/rank*.log"):
                    return int(entry.name)
            except OSError:
                continue
        time.sleep(0.05)
    raise AssertionError("no worker appeared")


@pytest.mark.parametrize("victim", ["parent", "driver"])
def test_whoever_is_killed_takes_the_rest_along(
    run: Callable[..., Ended], tmp_path: Path, victim: str
) -> None:
    def kill(process: Any) -> None:
        wait_for_worker(tmp_path)
        os.kill(process.pid if victim == "parent" else child_of(process.pid), signal.SIGKILL)

    ended = run("--steps", "20000", "--opt", "local-argmax=on", fail="leftovers", while_running=kill)
    if victim == "driver":
        assert ended.code == ExitCode.RUN_FAILED
        assert "-9" in message(ended) or "SIGKILL" in message(ended)
    deadline_s = time.monotonic() + 15
    while processes_of(tmp_path) and time.monotonic() < deadline_s:
        time.sleep(0.1)


def child_of(pid: int) -> int:
    """The one child process of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_segments_that_vllm_leaves_are_removed(run: Callable[..., Ended]) -> None:
    ended = run("--opt", "local-argmax=on", fail="leftovers")
    assert ended.code == ExitCode.OK, ended.err


def test_interrupted_and_resumed(run: Callable[..., Ended], tmp_path: Path) -> None:
    def interrupt(process: Any) -> None:
        follower = EventFollower(RunDirectory(tmp_path / "run"))
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            if any(event["event"] == "visit_finished" for event in follower.new()):
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)

    ended = run("--steps", "200", while_running=interrupt)
    assert ended.code == ExitCode.INTERRUPTED
    assert ended.directory.run().status == "interrupted"
    kept = [
        arm
        for arm in ended.directory.run().cases[0].arms
        if ended.directory.timing(ended.directory.run().cases[0].id, arm.name)
    ]
    assert kept
    again = run("--resume", str(ended.directory.root))
    assert again.code == ExitCode.OK, again.err
    assert again.directory.run().status == "complete"


def test_a_version_without_a_patch_point_loses_that_switch_only(
    tmp_path: Path, run: Callable[..., Ended], standin: Path
) -> None:
    gone = "vllm.config.speculative.SpeculativeConfig.use_local_argmax_reduction"
    install(tmp_path / "older", without=gone)
    (standin / "vllm" / "config" / "speculative.py").write_text(
        (tmp_path / "older" / "vllm" / "config" / "speculative.py").read_text()
        if (tmp_path / "older" / "vllm" / "config" / "speculative.py").exists()
        else ""
    )
    ended = run()
    assert ended.code == ExitCode.OK, ended.err
    (case,) = json.loads(ended.out)["cases"]
    assert case["not_applicable"]["local-argmax"].startswith("UNSUPPORTED: vLLM 0.32.0 has no")
    assert {arm["name"] for arm in case["arms"]} >= {"baseline", "allreduce-norm-fusion"}
