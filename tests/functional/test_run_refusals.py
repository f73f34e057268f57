"""What a machine may lack, made by mounting file systems that are too small, in a namespace of the test's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def in_namespace(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount file systems; the mounts end with it."""
    probe = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, check=False, timeout=10, cwd=cwd
    )
    if probe.returncode:
        pytest.skip("mount namespaces need root")
    return subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
    )


RUN = f"{sys.executable} -m mtpprof run --tp 2"


def test_shared_memory_that_is_too_small_is_refused_before_anything_starts(tmp_path: Path) -> None:
    answer = in_namespace(f"mount -t tmpfs -o size=64k none /dev/shm; {RUN} --out run", tmp_path)
    assert answer.returncode == 5, answer.stderr
    assert "/dev/shm" in answer.stderr
    assert "--transport gloo" in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def test_a_full_output_directory_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    answer = in_namespace(f"mount -t tmpfs -o size=256k none small; {RUN} --out small/run", tmp_path)
    assert answer.returncode == 5, answer.stderr
    assert "small/run" in answer.stderr
    assert "MB free" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_read_only_output_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fixed").mkdir()
    answer = in_namespace(f"mount -t tmpfs -o ro none fixed; {RUN} --out fixed/run", tmp_path)
    assert answer.returncode == 5, answer.stderr
    assert "Read-only file system" in answer.stderr
