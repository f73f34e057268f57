"""The reference engine, seen from the parent: checks the machine and names the launcher's command. Imports no torch."""

from __future__ import annotations

import os
import sys

from mtpprof.errors import MissingEnvironmentError, UsageError
from mtpprof.models.optimizations.allreduce_norm_fusion import ALLREDUCE_NORM_FUSION
from mtpprof.models.optimizations.catalogue import all_optimizations
from mtpprof.models.reference.collectives import shm_library, shm_limits
from mtpprof.profilers import machine, preflight, sizes
from mtpprof.profilers.process import Command, Nodes
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.records import RunRecord


class ReferenceEngine:
    """`Engine` over mtpprof's own tensor-parallel models."""

    name = "reference"

    def refusals(self, device: str) -> dict[str, str]:
        """See `Engine`: what only other engines have a switch for."""
        return {
            name: f"only the {' and the '.join(entry.switches)} engine has it"
            for name, entry in all_optimizations().items()
            if self.name not in entry.switches
        }

    def deviations(self, run: RunRecord) -> list[str]:
        """See `Engine`."""
        return []

    def unavailable(self, run: RunRecord) -> dict[str, str]:
        """See `Engine`: the fused all-reduce needs a transport that has it, and on the CPU a compiler."""
        name = ALLREDUCE_NORM_FUSION.id
        if not any(name in arm.enabled for case in run.cases for arm in case.arms) or run.cases[0].tp == 1:
            return {}
        if run.transport == "gloo":
            return {name: "gloo has no fused all-reduce; use --transport shm"}
        if run.transport != "shm":
            return {}
        try:
            shm_library.kernel_library()
        except MissingEnvironmentError as error:
            return {name: str(error).rstrip(".")}
        return {}

    def preflight(self, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> None:
        """See `Engine`."""
        preflight.check_torch()
        tp = run.cases[0].tp
        if tp % nodes.count:
            raise UsageError(
                f"--tp {tp} cannot be spread evenly over --nnodes {nodes.count}; choose a multiple."
            )
        if nodes.count > 1 or nodes.endpoint:
            preflight.check_endpoint(nodes.endpoint, is_host=nodes.rank == 0)
        local = tp // nodes.count
        if run.device == "cuda" and len(machine.gpu_names()) < local:
            raise MissingEnvironmentError(
                f"--device cuda: {local} GPUs are needed on this host and {len(machine.gpu_names())} are visible; "
                f"use a smaller --tp or --device cpu."
            )
        preflight.check_writable(directory.root, sizes.run_directory_bytes(run))
        if run.transport == "shm" and tp > 1:
            if not shm_limits.available():
                raise MissingEnvironmentError(
                    "--transport shm needs Linux on x86-64 with /dev/shm; use --transport gloo."
                )
            needed = shm_limits.segment_bytes(tp, sizes.largest_tensor_bytes(run))
            preflight.check_shared_memory(shm_limits.SHM_DIR, needed)

    def command(self, run: RunRecord, directory: RunDirectory, nodes: Nodes) -> Command:
        """See `Engine`."""
        environment = dict(os.environ)
        # Workers share the cores; torch's own thread pools would multiply them.
        environment.setdefault("OMP_NUM_THREADS", "1")
        return Command(
            argv=(
                sys.executable,
                "-m",
                "mtpprof.profilers.engines.launcher",
                str(directory.root),
                str(nodes.count),
                str(nodes.rank),
                nodes.endpoint,
            ),
            environment=environment,
            shared_memory_prefix=sizes.segment_prefix(run) if run.transport == "shm" else "",
        )
