"""The running part of the stand-in: copied as `vllm._standin` into the package that `vllm_standin.install` writes."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FAIL = os.environ.get("STANDIN_FAIL", "")
HIDDEN, VOCAB, LAYERS, DRAFTS = 256, 512, 4, 3


class RequestOutputKind(Enum):
    DELTA = 1


@dataclass
class ProfilerConfig:
    profiler: str = ""
    torch_profiler_dir: str = ""
    torch_profiler_record_shapes: bool = False
    torch_profiler_with_stack: bool = True
    max_iterations: int = 0


@dataclass
class SamplingParams:
    max_tokens: int = 1
    temperature: float = 1.0
    ignore_eos: bool = False
    detokenize: bool = True
    output_kind: Any = None
    prompt_logprobs: int | None = None

    def clone(self) -> SamplingParams:
        return self


class GroupCoordinator:
    unique_name = "tp:0"

    def __init__(self, size: int) -> None:
        self.world_size = size
        self.device_communicator = SimpleNamespace(dist_module=self)

    def _all_reduce_out_place(self, tensor: Any) -> Any:
        return tensor

    def _all_gather_out_place(self, tensor: Any, dim: int) -> Any:
        return tensor

    def _reduce_scatter_out_place(self, tensor: Any, dim: int) -> Any:
        return tensor


def tensor_model_parallel_all_reduce(group: GroupCoordinator, rows: int) -> None:
    import torch

    group._all_reduce_out_place(torch.zeros(rows, HIDDEN, dtype=torch.bfloat16))


class Module:
    def __init__(self, group: GroupCoordinator, prefix: str = "") -> None:
        self.group = group
        if prefix:
            self.prefix = prefix

    def reduce(self, rows: int) -> None:
        tensor_model_parallel_all_reduce(self.group, rows)

    def gather(self, rows: int) -> None:
        import torch

        shard = torch.zeros(rows, VOCAB // self.group.world_size, dtype=torch.bfloat16)
        self.group._all_gather_out_place(shard, -1)

    def gather_pairs(self, rows: int) -> None:
        import torch

        self.group._all_gather_out_place(torch.zeros(rows, 2), -1)

    def _maybe_reduce_final_output(self, rows: int) -> None:
        tensor_model_parallel_all_reduce(self.group, rows)


VocabParallelEmbedding = type("VocabParallelEmbedding", (Module,), {})
RowParallelLinear = type("RowParallelLinear", (Module,), {})
MoERunner = type("MoERunner", (Module,), {})
LogitsProcessor = type("LogitsProcessor", (Module,), {})


class Model:
    """A DeepSeek-like model: dense, then MoE; or its draft module."""

    def __init__(self, group: GroupCoordinator, first: int, layers: int, dense: int) -> None:
        self.embedding = VocabParallelEmbedding(group)
        self.logits = LogitsProcessor(group)
        self.blocks = []
        for layer in range(first, first + layers):
            name = f"model.layers.{layer}"
            self.blocks.append(RowParallelLinear(group, f"{name}.self_attn.o_proj").reduce)
            if layer - first < dense:
                self.blocks.append(RowParallelLinear(group, f"{name}.mlp.down_proj").reduce)
            else:
                self.blocks.append(MoERunner(group, f"{name}.mlp.experts")._maybe_reduce_final_output)

    def modules(self) -> list[Any]:
        return []

    def forward(self, rows: int) -> None:
        self.embedding.reduce(rows)
        for block in self.blocks:
            block(rows)

    def compute_logits(self, rows: int) -> None:
        self.logits.gather(rows)

    def get_top_tokens(self, rows: int) -> None:
        self.logits.gather_pairs(rows)


class Drafter:
    use_local_argmax_reduction = False

    def __init__(self, model: Model) -> None:
        self.model = model

    def propose(self, sequences: int, drafts: int) -> None:
        for index in range(drafts):
            self.model.forward(sequences * (drafts + 1) if index == 0 else sequences)
            head = self.model.get_top_tokens if self.use_local_argmax_reduction else self.model.compute_logits
            head(sequences)


class Runner:
    def __init__(self, size: int) -> None:
        group = GroupCoordinator(size)
        self.model = Model(group, 0, LAYERS, 1)
        self.drafter = Drafter(Model(group, LAYERS, 1, 0))

    def get_model(self) -> Model:
        return self.model


class Worker:
    def __init__(self, rank: int, size: int, config: Any) -> None:
        self.rank, self.size, self.vllm_config = rank, size, config
        self.steps = 0
        self.profiler: Any = None

    def load_model(self) -> None:
        self.model_runner = Runner(self.size)

    def execute_model(self, scheduled: Any) -> None:
        self.steps += 1
        if FAIL.startswith("step-") and self.rank == self.size - 1 and self.steps == 6:
            self._fail()
        sequences, drafts = scheduled.sequences, scheduled.drafts
        rows = scheduled.total_num_scheduled_tokens
        self.model_runner.model.forward(rows)
        self.model_runner.model.compute_logits(rows)
        self.model_runner.drafter.propose(sequences, drafts)

    def _fail(self) -> None:
        if FAIL == "step-kill":
            os.kill(os.getpid(), 9)
        if FAIL == "step-error":
            raise ValueError("no such block in the cache")
        if FAIL == "step-hang":
            time.sleep(600)

    def start_profile(self, prefix: str) -> None:
        from torch.profiler import ProfilerActivity, profile

        self.prefix = prefix
        self.profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self.profiler.start()

    def stop_profile(self) -> None:
        self.profiler.stop()
        folder = Path(self.vllm_config.profiler_config.torch_profiler_dir)
        folder.mkdir(parents=True, exist_ok=True)
        if FAIL == "trace-missing" and self.rank:
            return
        path = folder / f"{self.prefix}_dp0_pp0_tp{self.rank}_rank{self.rank}.1.pt.trace.json.gz"
        self.profiler.export_chrome_trace(str(path))
        if FAIL == "trace-cut" and self.rank:
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])


def serve(rank: int, size: int, config: Any, pipe: Any, extension: str) -> None:
    from importlib import import_module

    from mtpprof.profilers.engines.vllm.plugin import register

    register()
    module, _, name = extension.rpartition(".")
    commands = getattr(import_module(module), name)
    kind = type("CPUWorker", (Worker, commands), {})
    worker = kind(rank, size, config)
    worker.load_model()
    pipe.send("ready")
    if FAIL == "leftovers":
        Path(f"/dev/shm/psm_standin{os.getpid():08x}").write_bytes(b"x")
    ctypes.CDLL(None).prctl(15, b"VLLM::standin", 0, 0, 0)
    while True:
        method, args = pipe.recv()
        try:
            pipe.send((True, getattr(worker, method)(*args)))
        except ValueError as error:
            print(
                f"(Worker_TP{rank}) ERROR 11-29 10:00:00 [x.py:1] {type(error).__name__}: {error}", flush=True
            )
            pipe.send((False, str(error)))


@dataclass
class Request:
    prompt: list[int]
    params: SamplingParams
    got: int = 0


@dataclass
class Engine:
    vllm_config: Any
    tp: int
    drafts: int
    workers: list[Any] = field(default_factory=list)
    pipes: list[Any] = field(default_factory=list)
    requests: dict[str, Request] = field(default_factory=dict)

    @property
    def model_executor(self) -> Any:
        return SimpleNamespace(workers=[SimpleNamespace(proc=proc) for proc in self.workers])

    @property
    def engine_core(self) -> Any:
        return SimpleNamespace(shutdown=self.shutdown)

    def start(self, extension: str) -> None:
        import torch

        torch.zeros(1)  # in this process, so that the forked workers need not load it
        context = multiprocessing.get_context("fork")
        for rank in range(self.tp):
            mine, theirs = context.Pipe()
            arguments = (rank, self.tp, self.vllm_config, theirs, extension)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.workers.append(process)
            self.pipes.append(mine)
        for pipe in self.pipes:
            assert pipe.recv() == "ready"

    def rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((method, args))
        answers = []
        for pipe in self.pipes:
            try:
                well, answer = pipe.recv()
            except EOFError:
                time.sleep(600 if FAIL == "step-silent" else 0)
                raise RuntimeError("cancelled") from None
            if not well:
                raise RuntimeError(
                    f"Worker failed with error '{answer}', please check the stack trace for the root cause"
                )
            answers.append(answer)
        return answers

    def add_request(self, name: str, prompt: dict[str, list[int]], params: SamplingParams) -> str:
        self.requests[name] = Request(prompt["prompt_token_ids"], params)
        return name

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.requests.pop(name, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[Any]:
        new = [name for name, request in self.requests.items() if not request.got]
        count = len(self.requests)
        rows = sum(len(self.requests[name].prompt) for name in new) if new else count * (self.drafts + 1)
        scheduled = SimpleNamespace(
            total_num_scheduled_tokens=rows, scheduled_new_reqs=new, sequences=count, drafts=self.drafts
        )
        self.rpc("execute_model", (scheduled,))
        outputs = []
        for name, request in list(self.requests.items()):
            tokens = [
                (sum(request.prompt) + 7 * (request.got + i)) % VOCAB for i in range(1 + (request.got > 0))
            ]
            request.got += len(tokens)
            logprobs = None
            if request.params.prompt_logprobs is not None:
                logprobs = [
                    None,
                    *({token: SimpleNamespace(logprob=-token / 100)} for token in request.prompt[1:]),
                ]
                del self.requests[name]
            outputs.append(
                SimpleNamespace(
                    request_id=name, outputs=[SimpleNamespace(token_ids=tokens)], prompt_logprobs=logprobs
                )
            )
        return outputs

    def start_profile(self, prefix: str) -> None:
        self.rpc("start_profile", (prefix,))

    def stop_profile(self) -> None:
        self.rpc("stop_profile")

    def shutdown(self) -> None:
        if FAIL == "stop-hang":
            time.sleep(600)
        for worker in self.workers:
            worker.terminate()
            worker.join()


class LLM:
    def __init__(self, **arguments: Any) -> None:
        if FAIL == "start-old":
            raise TypeError(
                "EngineArgs.__init__() got an unexpected keyword argument 'kv_cache_memory_bytes'"
            )
        if FAIL == "start-port":
            raise OSError(98, "Address already in use")
        if FAIL == "start-error":
            print(
                "(EngineCore) ERROR 11-29 10:00:00 [core.py:1] ValueError: no kernel for this head size",
                flush=True,
            )
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        print("starting", flush=True)
        if FAIL == "start-hang":
            time.sleep(600)
        speculative = arguments.get("speculative_config", {})
        config = SimpleNamespace(
            profiler_config=ProfilerConfig(**arguments["profiler_config"]),
            additional_config=arguments["additional_config"],
        )
        drafts = speculative.get("num_speculative_tokens", 0)
        self.llm_engine = Engine(config, arguments["tensor_parallel_size"], drafts)
        self.llm_engine.start(arguments["worker_extension_cls"])
        json.dump({key: str(value) for key, value in arguments.items()}, sys.stdout)

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        return self.llm_engine.rpc(method, args)

    def get_metrics(self) -> list[Any]:
        return []
