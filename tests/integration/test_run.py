"""`mtpprof run` on the reference engine: real ranks, real traces, real failures."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtpprof.models.optimizations.catalogue import expected_collectives
from mtpprof.profilers import sizes
from tests.integration.conftest import SMALL, Started, rank_pid, worker_pids

Start = Callable[..., Started]


def arm(report: dict[str, Any], name: str, case: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in report["cases"][case]["arms"] if entry["name"] == name)
    return found


def difference(report: dict[str, Any], name: str, case: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = next(
        entry for entry in report["cases"][case]["differences"] if entry["arm"] == name
    )
    return found


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_both_default_models_in_every_arm(start: Start, tp: int) -> None:
    run = start("--tp", str(tp), "--format", "json", "--steps", "2", "--rounds", "2", *SMALL)
    code, out, err = run.finish(200)
    assert code == 0, err
    report = json.loads(out)
    record = run.directory.run()
    assert record.status == "complete"
    for case, entry in zip(record.cases, report["cases"], strict=True):
        spec, workload = sizes.spec_of(case), sizes.workload_of(case)
        for seen in entry["arms"]:
            if seen["repeats"]:
                continue
            ledger = expected_collectives(spec, workload, frozenset(seen["enabled"]))
            assert seen["mismatches"] == []
            assert seen["totals"]["calls"] == sum(row.count for row in ledger)
            assert seen["totals"]["payload_bytes"] == sum(row.payload_bytes * row.count for row in ledger)
            assert seen["output"] is None or seen["output"]["tokens"] > 0
    if tp == 1:
        assert [arm["name"] for arm in report["cases"][0]["arms"]] == ["baseline", "baseline-repeat"]
        return
    assert difference(report, "local-argmax")["calls"] == 0
    assert difference(report, "local-argmax")["payload_bytes"] < 0
    assert difference(report, "allreduce-norm-fusion")["payload_bytes"] == 0
    fused = arm(report, "allreduce-norm-fusion")["engagement"]["allreduce-norm-fusion"]
    assert fused["verdict"] == "ENGAGED"
    latent_layers = sizes.spec_of(record.cases[1]).blocks.count("E")
    assert difference(report, "commutative-reduce", case=1)["calls"] == -latent_layers
    assert arm(report, "local-argmax")["output"]["same"]


def test_gloo_has_no_fused_kernel_and_the_arm_says_so(start: Start) -> None:
    run = start(
        *(
            "--tp",
            "2",
            "--model",
            "deepseek-v3.2",
            "--opt",
            "allreduce-norm-fusion=both",
            "--transport",
            "gloo",
        ),
        *("--steps", "1", "--rounds", "1", "--format", "json", *SMALL),
    )
    code, out, err = run.finish(120)
    assert code == 0, err
    engagement = arm(json.loads(out), "allreduce-norm-fusion")["engagement"]["allreduce-norm-fusion"]
    assert engagement["requested"]
    assert engagement["verdict"] == "NOT ENGAGED"
    assert engagement["engaged_calls"] == 0
    assert engagement["opportunities"] > 0


LONG = ("--tp", "2", "--model", "nemotron-3-super", "--steps", "40", "--rounds", "30", *SMALL)


def second_visit(event: dict[str, object]) -> bool:
    return event["event"] == "visit_finished"


def test_a_killed_rank_is_named_what_was_finished_stays_and_resume_does_the_rest(start: Start) -> None:
    options = ("--tp", "2", "--model", "nemotron-3-super", "--steps", "30", "--rounds", "3", *SMALL)
    run = start(*options)
    run.wait_for(second_visit)
    os.kill(rank_pid(run.directory, 1), signal.SIGKILL)
    code, _, err = run.finish(15)
    assert code == 4
    assert "rank 1 was killed by SIGKILL" in err
    assert "--resume" in err
    assert "Traceback" not in err
    record = run.directory.run()
    assert record.status == "failed"
    finished = {
        name: timing
        for name in ("baseline", "baseline-repeat", "commutative-reduce")
        if (timing := run.directory.timing(record.cases[0].id, name))
    }
    assert finished

    resumed = start("--resume", str(run.directory.root), "--format", "json", out=run.directory.root)
    code, out, err = resumed.finish(120)
    assert code == 0, err
    assert run.directory.run().status == "complete"
    for name, timing in finished.items():
        after = run.directory.timing(record.cases[0].id, name)
        assert after is not None
        assert len(after.rounds) == 3
        assert all(entry in after.rounds for entry in timing.rounds)
    assert json.loads(out)["cases"][0]["arms"][0]["missing"] is None


def test_a_stopped_rank_is_named_by_the_others(start: Start) -> None:
    run = start(*LONG, "--timeout", "3")
    run.wait_for(second_visit)
    pid = rank_pid(run.directory, 1)
    os.kill(pid, signal.SIGSTOP)
    code, _, err = run.finish(25)
    assert code == 4
    assert "rank 1 did not arrive" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_an_interrupt_ends_everything_and_keeps_what_was_finished(
    start: Start, number: int, code: int
) -> None:
    run = start(*LONG)
    run.wait_for(second_visit)
    run.process.send_signal(number)
    ended, _, err = run.finish(15)
    assert ended == code
    assert "interrupted" in err
    assert "--resume" in err
    assert "Traceback" not in err
    assert run.directory.run().status == "interrupted"


def test_a_killed_parent_takes_its_workers_along(start: Start) -> None:
    run = start(*LONG)
    run.wait_for(second_visit)
    run.process.kill()
    run.process.wait()
    for _ in range(100):  # the kernel ends the chain of them one after the other
        if not worker_pids(run.directory):
            break
        time.sleep(0.05)
    assert worker_pids(run.directory) == []


def test_an_interrupt_while_workers_start(start: Start) -> None:
    run = start(*LONG)
    assert run.process.stderr is not None
    assert "engine reference" in run.process.stderr.readline()
    run.process.send_signal(signal.SIGINT)
    code, _, err = run.finish(15)
    assert code == 130
    assert "Traceback" not in err


def test_a_file_as_output_directory_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = start(*LONG, out=tmp_path / "file" / "run").finish(15)
    assert code == 5
    assert "cannot write there" in err
    assert "--out" in err


def test_an_output_directory_that_holds_a_run_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    code, _, err = start(*LONG).finish(15)
    assert code == 2
    assert "holds a run already" in err


def test_a_disk_that_fills_up_is_named(tmp_path: Path) -> None:
    """Files may not grow beyond a limit, as on a full disk; the smallest file that matters is over it."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    words = [sys.executable, "-m", "mtpprof", "run", *LONG, "--out", str(tmp_path / "run")]
    words[words.index("30")] = "1"
    answer = subprocess.run(
        words, capture_output=True, text=True, timeout=120, preexec_fn=limit, check=False, cwd=tmp_path
    )
    assert answer.returncode == 4
    assert "File too large" in answer.stderr or "no space left" in answer.stderr
    assert "rank" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_taken_port_is_named(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = start(*LONG, "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}").finish(15)
    assert code == 5
    assert f"port {port}" in err


def test_two_hosts_meet_at_an_endpoint(start: Start, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    options = (
        *("--tp", "2", "--model", "nemotron-3-super", "--steps", "2", "--rounds", "1", *SMALL),
        *("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--format", "json"),
    )
    first = start(*options, "--node-rank", "0")
    second = start(*options, "--node-rank", "1")
    code, out, err = first.finish(120)
    assert code == 0, err
    assert second.finish(60)[0] == 0
    report = json.loads(out)
    assert all(entry["as_expected"] for entry in report["cases"][0]["arms"] if not entry["repeats"])
