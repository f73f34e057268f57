"""Checks before anything starts."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mtpprof.errors import MissingEnvironmentError, UsageError
from mtpprof.profilers import preflight


def test_a_folder_is_made_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    preflight.check_writable(tmp_path / "a" / "b", 1000)
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingEnvironmentError, match=r"file/run: cannot write there .*--out"):
        preflight.check_writable(tmp_path / "file" / "run", 0)


def test_too_little_room_is_said_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(MissingEnvironmentError, match=r"MB free, about 1000000000000 MB needed"):
        preflight.check_writable(tmp_path, 10**18)


def test_shared_memory_must_hold_the_largest_collective(tmp_path: Path) -> None:
    preflight.check_shared_memory(tmp_path, 1000)
    with pytest.raises(MissingEnvironmentError, match="--transport gloo"):
        preflight.check_shared_memory(tmp_path, 10**18)


@pytest.mark.parametrize("endpoint", ["", "host", ":1", "host:", "host:x", "host:0", "host:70000"])
def test_an_endpoint_is_host_and_port(endpoint: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        preflight.check_endpoint(endpoint, is_host=False)


def test_a_taken_port_is_named_on_the_host_that_serves_it() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(MissingEnvironmentError, match="is taken"):
            preflight.check_endpoint(endpoint, is_host=True)
        preflight.check_endpoint(endpoint, is_host=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(MissingEnvironmentError, match="cannot write there"):
        preflight.check_writable(tmp_path / "run", 0)
