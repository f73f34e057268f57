"""Checks before anything starts: each turns a failure in the middle of a run into one sentence at its start."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from pathlib import Path

from mtpprof.errors import MissingEnvironmentError, UsageError


def check_writable(folder: Path, needed_bytes: int) -> None:
    """The folder (or its nearest existing parent) takes files, and has room.

    Raises:
        MissingEnvironmentError: not writable, or too full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise MissingEnvironmentError(
            f"{folder}: cannot write there ({error.strerror}); choose another directory with --out."
        ) from error
    if free_bytes < needed_bytes:
        raise MissingEnvironmentError(
            f"{folder}: {free_bytes / 1e6:.0f} MB free, about {needed_bytes / 1e6:.0f} MB needed; "
            f"choose another directory with --out or profile fewer steps."
        )


def check_shared_memory(folder: Path, needed_bytes: int) -> None:
    """The shared-memory file system has room for the run's segment.

    Raises:
        MissingEnvironmentError: too small.
    """
    stats = os.statvfs(folder)
    free_bytes = stats.f_bavail * stats.f_frsize
    if free_bytes < needed_bytes:
        raise MissingEnvironmentError(
            f"{folder}: {free_bytes / 1e6:.1f} MB free, {needed_bytes / 1e6:.1f} MB needed for the largest collective; "
            f"enlarge it (in a container: --shm-size) or use --transport gloo."
        )


def check_shared_memory_room(needed_bytes: int, folder: Path = Path("/dev/shm")) -> None:
    """The shared-memory file system has room for an engine's own segments.

    Raises:
        MissingEnvironmentError: too small, or not there.
    """
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise MissingEnvironmentError(
            f"{folder}: {error.strerror}; the engine's ranks talk through it."
        ) from error
    if free_bytes < needed_bytes:
        raise MissingEnvironmentError(
            f"{folder}: {free_bytes / 1e6:.1f} MB free, {needed_bytes / 1e6:.1f} MB needed by the engine; enlarge it (in a "
            f"container: --shm-size)."
        )


def check_endpoint(endpoint: str, *, is_host: bool) -> None:
    """A rendezvous endpoint is `host:port`; on the host that serves it the port is free.

    Raises:
        UsageError: not `host:port`.
        MissingEnvironmentError: the port is taken.
    """
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"--rdzv-endpoint {endpoint!r}: give host:port, the same on every host, e.g. 10.0.0.1:29500."
        )
    if not is_host:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except OSError as error:
            raise MissingEnvironmentError(
                f"--rdzv-endpoint {endpoint}: port {port} on this host is taken ({error.strerror}); choose another."
            ) from error


def check_torch() -> None:
    """Torch is installed.

    Raises:
        MissingEnvironmentError: it is not.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingEnvironmentError("torch is not installed, and `run` needs it; `pip install torch`.")
