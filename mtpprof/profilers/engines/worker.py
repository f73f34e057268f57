"""One tensor-parallel rank of the reference engine.

Started by the launcher once for all cases of a run. Every rank runs the same loop (`experiment.run_cases`); rank 0 writes results and
progress, every rank writes its own traces and its own log.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from mtpprof.errors import MissingEnvironmentError
from mtpprof.models.reference.collectives import shm, shm_kernels, shm_library
from mtpprof.models.reference.collectives.comm import Backend, Communicator, no_annotation
from mtpprof.models.reference.collectives.distributed import GlooBackend, NcclBackend
from mtpprof.models.reference.model import ReferenceModel
from mtpprof.models.reference.speculative import DecodeSession, prompt_logprobs
from mtpprof.models.spec import ModelSpec
from mtpprof.profilers import sizes
from mtpprof.profilers.annotate import annotate
from mtpprof.profilers.capture import annotated_steps, capture_window
from mtpprof.profilers.experiment import run_cases
from mtpprof.profilers.lifetime import die_with_parent
from mtpprof.profilers.process import TimedWindow
from mtpprof.profilers.recording import recorded_by_nsys
from mtpprof.profilers.watchdog import Watchdog
from mtpprof.rundir.directory import WORKER_FAILED, RunDirectory
from mtpprof.rundir.records import CaseRecord, RunRecord

WATCHDOG_MARGIN_S = 5.0
"""A rank that waits for another reports that one before it is taken for hung itself."""
PROBED_PROMPTS, PROBED_TOKENS = 4, 9
"""Prompts, and tokens of each, whose log-probabilities are kept of each window, to hold arms against each other as numbers."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}


def main(root: str) -> None:
    """Entry point of a rank."""
    die_with_parent()
    directory = RunDirectory(Path(root))
    rank = int(os.environ["RANK"])
    _redirect_output(directory.log(rank))
    run = directory.run()
    watchdog = Watchdog(
        run.timeout_s + WATCHDOG_MARGIN_S,
        heartbeat=lambda doing: directory.append_event("rank", rank=rank, doing=doing),
    )
    try:
        with torch.inference_mode():
            host = ReferenceHost(run, directory, watchdog)
            run_cases(run, directory, host)
            host.close()
    except Exception as error:
        # Said at once: the launcher reports only when all ranks have ended, and one of them may hang.
        with contextlib.suppress(OSError):
            directory.append_event(
                WORKER_FAILED, rank=rank, exit_code=1, signal=None, message=f"{type(error).__name__}: {error}"
            )
        raise
    finally:
        watchdog.stop()


def _redirect_output(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


class ReferenceHost:
    """This rank's share of the run: process groups, transport and the loaded model."""

    def __init__(self, run: RunRecord, directory: RunDirectory, watchdog: Watchdog) -> None:
        self._run = run
        self._watchdog = watchdog
        self._directory = directory
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.is_writer = self.rank == 0
        self.device = self._claim_device()
        self._watchdog.feed("joining the group")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo",
            timeout=timedelta(seconds=run.timeout_s),
        )
        self.comm = Communicator(self._backend())
        self._model: tuple[object, ReferenceModel] | None = None
        if self.is_writer:
            directory.append_event("workers_ready", ranks=self.size, transport=run.transport)

    def _claim_device(self) -> torch.device:
        local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        if self._run.device == "cuda":
            torch.cuda.set_device(local_rank)
            return torch.device("cuda", local_rank)
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_size))
        return torch.device("cpu")

    def _backend(self) -> Backend:
        world = dist.group.WORLD
        assert world is not None
        if self._run.transport == "nccl":
            hidden = max(case.model["hidden_size"] for case in self._run.cases)
            rows = max(case.concurrency * (case.draft_tokens + 1) for case in self._run.cases)
            dtype = DTYPES[self._run.cases[0].dtype]
            return NcclBackend(world, max_rows=rows, hidden_size=hidden, dtype=dtype)
        if self._run.transport == "gloo" or self.size == 1:
            return GlooBackend(world)
        return self._shared_memory_backend()

    def _shared_memory_backend(self) -> Backend:
        capacity_bytes = sizes.largest_tensor_bytes(self._run)
        path = self.agree(
            str(
                shm.create_segment(
                    f"{sizes.segment_prefix(self._run)}{os.getpid()}", self.size, capacity_bytes
                )
            )
            if self.is_writer
            else None
        )
        backend = shm.SharedMemoryBackend(
            Path(path), self.rank, self.size, capacity_bytes, self._run.timeout_s, self._kernels()
        )
        dist.barrier()
        if self.is_writer:
            Path(path).unlink()
        return backend

    def _kernels(self) -> shm_kernels.Kernels | None:
        """The compiled all-reduces where every rank has them: they add in another order than torch, and ranks must not differ."""
        try:
            mine = shm_kernels.Kernels(shm_library.kernel_library())
        except MissingEnvironmentError as error:
            sys.stderr.write(f"no compiled all-reduce: {error}\n")
            mine = None
        everywhere = self.gather([int(mine is not None)])
        return mine if all(there for (there,) in everywhere) else None

    def open(self, run: RunRecord, case: CaseRecord) -> ReferenceSession:
        """Load the case's model; a following case with the same model reuses it."""
        spec = msgspec.convert(case.model, ModelSpec)
        key = (spec, case.dtype)
        if self._model is None or self._model[0] != key:
            self._model = None  # the old weights go before the new ones come
            model = ReferenceModel(
                spec, self.comm, dtype=DTYPES[case.dtype], device=self.device, seed=run.seed
            )
            self._model = (key, model)
        return ReferenceSession(self, self._model[1], run, case)

    def agree(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: list[int]) -> list[list[int]]:
        """Every rank's value, on every rank."""
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value)
        return box

    def alive(self, doing: str | None = None) -> None:
        """Feed the watchdog."""
        self._watchdog.feed(doing)

    def close(self) -> None:
        """Leave the group."""
        self.comm.close()
        dist.destroy_process_group()


class ReferenceSession:
    """A case on this rank. Every window starts from the same prompts and empty caches, so that arms are alike in all else."""

    def __init__(self, host: ReferenceHost, model: ReferenceModel, run: RunRecord, case: CaseRecord) -> None:
        self._host = host
        self._model = model
        self._run = run
        self._case = case
        generator = torch.Generator().manual_seed(run.seed)
        shape = (case.concurrency, case.prompt_len)
        self._prompts = torch.randint(case.model["vocab_size"], shape, generator=generator).to(host.device)

    def time_window(self, enabled: frozenset[str], *, warmup: int, steps: int) -> TimedWindow:
        """See `Session`."""
        host = self._host
        decode = self._begin(enabled, warmup, steps)
        step_ns, tokens, accepted = [], [list[int]() for _ in range(self._case.concurrency)], []
        cuda = host.device.type == "cuda"
        dist.barrier()
        for _ in range(steps):
            start_ns = time.perf_counter_ns()
            result = decode.step()
            if cuda:
                torch.cuda.synchronize()
            step_ns.append(time.perf_counter_ns() - start_ns)
            for sequence, new in zip(tokens, result.tokens, strict=True):
                sequence.extend(new)
            accepted.append([len(new) for new in result.tokens])
            host.alive()
        return TimedWindow(
            step_ns=host.gather(step_ns),
            tokens=tokens,
            accepted=accepted,
            probe=prompt_logprobs(self._model, self._prompts[:PROBED_PROMPTS, :PROBED_TOKENS]),
        )

    def profile_window(
        self, enabled: frozenset[str], *, warmup: int, steps: int, folder: Path
    ) -> list[list[int]]:
        """See `Session`."""
        host = self._host
        decode = self._begin(enabled, warmup, steps + 1)

        def step() -> None:
            decode.step()
            host.alive()

        host.comm.annotate = annotate
        try:
            dist.barrier()
            cuda = host.device.type == "cuda"
            if "torch" in self._run.capture:
                path = folder / f"rank{host.rank}.pt.trace.json.gz"
                step_ns = capture_window(path, step, steps, cuda=cuda)
            else:
                with recorded_by_nsys(dist.barrier):
                    step_ns = annotated_steps(step, steps, cuda=cuda)
        finally:
            host.comm.annotate = no_annotation
        return host.gather(step_ns)

    def close(self) -> None:
        """See `Session`: the model stays with the host for the next case."""

    def _begin(self, enabled: frozenset[str], warmup: int, steps: int) -> DecodeSession:
        self._model.set_arm(enabled)
        decode = DecodeSession(
            self._model,
            self._prompts,
            draft_tokens=self._case.draft_tokens,
            max_steps=warmup + steps,
            acceptance_length=self._run.acceptance_length,
            seed=self._run.seed,
        )
        decode.prefill()
        for _ in range(warmup):
            decode.step()
            self._host.alive()
        return decode
