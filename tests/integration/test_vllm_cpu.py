"""Real vLLM on the CPU: real ranks, real MTP, real Nemotron-H. Needs the environment that `make install-vllm` makes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from mtpprof.errors import ExitCode
from mtpprof.profilers.engines.vllm.scratch import SCRATCH, SEGMENT_PATTERNS
from mtpprof.profilers.lifetime import remove_leftovers, segments
from mtpprof.rundir.directory import RunDirectory
from tests.integration.real_vllm import PYTHON, ROOT, needs_vllm

SMALL = (
    "--vocab",
    "32768",
    "--concurrency",
    "4",
    "--rounds",
    "1",
    "--steps",
    "4",
    "--warmup",
    "1",
    "--profile-steps",
    "2",
)
BROKEN = '''\
"""One all-reduce of the optimized arm is left out: the sum of the first MoE layer."""
import os

if "MTPPROF_VLLM" in os.environ:
    from dataclasses import replace

    from mtpprof.profilers.engines.vllm import switches

    def broken(worker, on):
        switches.set_commutative_reduce(worker, on)
        for name, module in switches.runner_of(worker).get_model().named_modules():
            if hasattr(module, "moe_config") and ".layers.1." in f".{name}.":
                module.moe_config.skip_final_all_reduce = on

    name = switches.COMMUTATIVE_REDUCE
    switches.SWITCHES[name] = replace(switches.SWITCHES[name], live=broken)
'''
INERT = """\
import sys
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.plugins import load_general_plugins

before = dict(vars(GroupCoordinator))
load_general_plugins()
assert dict(vars(GroupCoordinator)) == before
ours = [name for name in sys.modules if name.startswith("mtpprof.profilers.engines.vllm.")]
assert ours == ["mtpprof.profilers.engines.vllm.plugin"], ours
from vllm.model_executor.models.deepseek_mtp import DeepSeekMTP
assert not hasattr(DeepSeekMTP, "get_top_tokens")
from vllm.v1.worker.gpu_worker import Worker
assert Worker.load_model.__module__ == Worker.__module__
print("inert")
"""

pytestmark = [
    needs_vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@dataclass
class Started:
    """A run in progress or ended."""

    process: subprocess.Popen[str]
    directory: RunDirectory

    def end(self) -> tuple[int, str]:
        """Exit code, and the last line of stderr."""
        _, err = self.process.communicate(timeout=850)
        return self.process.returncode, err.strip().splitlines()[-1]

    def report(self) -> dict[str, Any]:
        """report.json."""
        found: dict[str, Any] = json.loads((self.directory.root / "report.json").read_bytes())
        return found


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch compiles once for all tests."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def start(tmp_path: Path, compiled: Path) -> Iterator[Callable[..., Started]]:
    """Start `mtpprof run --engine vllm`; afterwards no process, no segment and no temporary file may be left."""
    before = segments(SEGMENT_PATTERNS)
    temporary = Path(tempfile.mkdtemp(prefix="t"))
    directory = RunDirectory(tmp_path / "run")

    def launch(*options: str, path: Path = ROOT) -> Started:
        environment = os.environ | {"PYTHONPATH": f"{path}:{ROOT}", "TMPDIR": str(temporary)}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(compiled)
        words = [str(PYTHON), "-m", "mtpprof", "run", "--engine", "vllm", "--tp", "2", "--format", "json"]
        words += [*SMALL, *options, "--out", str(directory.root)]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
        )
        return Started(process, directory)

    yield launch
    assert workers_of(tmp_path) == []
    # Of segments that nobody uses: another vLLM may run beside this test.
    assert remove_leftovers(SEGMENT_PATTERNS, before) == []
    temporary.rmdir()
    assert not (directory.root / SCRATCH).exists()


def workers_of(folder: Path, pattern: str = "*") -> list[int]:
    """Processes that print into files of a run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if fnmatch(str((entry / "fd" / "1").readlink()), f"{folder}/{pattern}"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_every_arm_of_a_deepseek_and_a_nemotron_model_equals_its_ledger(
    start: Callable[..., Started],
) -> None:
    run = start("--model", "deepseek-v3.2", "--model", "nemotron-3-super", "--draft-tokens", "2")
    code, last = run.end()
    assert code == ExitCode.OK, last
    deepseek, nemotron = run.report()["cases"]
    for case in (deepseek, nemotron):
        for arm in case["arms"]:
            assert arm["as_expected"] is (None if arm["name"] == "baseline-repeat" else True), arm[
                "mismatches"
            ]
            assert arm["output"] is None or arm["output"]["same"], arm["output"]
    arms = {arm["name"]: arm for arm in deepseek["arms"]}
    fusion = arms["allreduce-norm-fusion"]["engagement"]["allreduce-norm-fusion"]
    assert (fusion["requested"], fusion["verdict"]) == (True, "NOT ENGAGED")
    for name in ("calls", "payload_bytes"):
        assert arms["allreduce-norm-fusion"]["totals"][name] == arms["baseline"]["totals"][name]
    assert arms["local-argmax"]["engagement"]["local-argmax"]["verdict"] == "ENGAGED"
    arms = {arm["name"]: arm for arm in nemotron["arms"]}
    assert arms["all-on"]["engagement"]["commutative-reduce"]["verdict"] == "ENGAGED"
    assert arms["all-on"]["engagement"]["local-argmax"]["verdict"] == "ENGAGED"
    assert any("sparse attention" in text for text in run.directory.run().deviations)
    metrics = run.directory.timing(deepseek["id"], "baseline")
    assert metrics is not None
    assert all(
        window.metrics and window.metrics.drafts == 4 * window.metrics.steps for window in metrics.rounds
    )


def test_a_sum_left_out_is_caught_by_ledger_and_output(start: Callable[..., Started], tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BROKEN)
    run = start("--model", "nemotron-3-super", "--draft-tokens", "0", path=site)
    code, last = run.end()
    assert code == ExitCode.CHECK_FAILED, last
    (case,) = run.report()["cases"]
    arms = {arm["name"]: arm for arm in case["arms"]}
    assert arms["baseline"]["as_expected"] is True
    assert arms["baseline-repeat"]["output"]["distance"] == 0.0
    assert arms["commutative-reduce"]["as_expected"] is False
    assert arms["commutative-reduce"]["output"]["within_rounding"] is False
    assert not arms["commutative-reduce"]["output"]["same"]


def test_a_rank_killed_in_a_step_is_named_and_nothing_is_left(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    run = start("--model", "nemotron-3-super", "--draft-tokens", "0", "--vocab", "1024", "--steps", "5000")
    deadline_s = time.monotonic() + 600
    while not (victims := workers_of(tmp_path, "run/*/*/rank1.log")):
        assert run.process.poll() is None, run.end()
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    time.sleep(1.0)
    os.kill(victims[0], signal.SIGKILL)
    killed_s = time.monotonic()
    code, last = run.end()
    assert code == ExitCode.RUN_FAILED
    assert "rank 1: vLLM's worker was killed by SIGKILL" in last
    # Detection and what follows it, on a machine whose cores are shared.
    assert time.monotonic() - killed_s < 60
    assert run.directory.run().status == "failed"


def test_the_plugin_does_nothing_in_a_vllm_that_mtpprof_did_not_start(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("MTPPROF_VLLM", None)
    done = subprocess.run(
        [str(PYTHON), "-c", INERT], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300
    )
    assert done.stdout.strip().endswith("inert"), done.stderr
