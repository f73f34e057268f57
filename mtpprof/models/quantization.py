"""What a checkpoint's quantization config says of one module. No torch here.

A quantized model can leave a single projection unquantized, and a mostly unquantized one can quantize it in three layers of
forty, so the question is always asked of a module by its name. The configs in use answer it in three ways: everything but a list
(`ignore`, `exclude_modules`, `modules_to_not_convert`, …), what matches target patterns (`config_groups`), or one module at a time
(`quantized_layers`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from mtpprof.models.ledger import moe_paths
from mtpprof.models.spec import ModelSpec

_IGNORE_KEYS = (
    "ignore",
    "exclude_modules",
    "ignored_layers",
    "modules_to_not_convert",
    "llm_int8_skip_modules",
)
_NAME_KEYS = ("quant_algo", "format", "quant_method")
_EXPERTS_ONLY = frozenset({"mxfp4", "experts_int8"})
"""Methods under which vLLM leaves every linear layer as it is and quantizes the routed experts alone."""
_EVERY_LINEAR = "Linear"
_REGEX = "re:"
_MODULE_PREFIXES = (
    "",
    "model.",
    "backbone.",
    "language_model.",
    "language_model.model.",
    "language_model.backbone.",
)
"""What stands before `layers` in the names of the checkpoints and of the engines that read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """A checkpoint's quantization, in the one form that all configs come down to."""

    name: str
    """What it is called, in lower case, e.g. `fp8` or `nvfp4`."""
    linears: bool = True
    """Whether linear layers are quantized at all."""
    ignored: tuple[str, ...] = ()
    """Patterns of modules left out: a name, a dotted part of one, a glob, or a regular expression after `re:`."""
    targets: tuple[str, ...] | None = None
    """Patterns of the modules quantized; None: every linear layer."""
    listed: Mapping[str, str] | None = field(default=None, repr=False)
    """The modules quantized, each with its algorithm; None: not listed one by one."""

    def of(self, names: Iterable[str]) -> str | None:
        """Quantization of a module known by any of `names`; None: it is not quantized.

        Raises:
            ValueError: a pattern of the config is not a regular expression.
        """
        names = tuple(names)
        if not self.linears or any(_matches(pattern, names) for pattern in self.ignored):
            return None
        if self.listed is not None:
            return next((self.listed[name] for name in names if name in self.listed), None)
        if self.targets is not None and not any(_matches(pattern, names) for pattern in self.targets):
            return None
        return self.name


def apply_quantization(spec: ModelSpec, config: Mapping[str, object]) -> ModelSpec:
    """The spec with the model's quantization, and that of its latent output projections, as the config has them.

    Of some families these projections stay unquantized whatever the config says (`Family.latent_projection_plain`).

    Raises:
        ValueError: as `read_quantization` and `Quantization.of`.
    """
    quantization = read_quantization(config)
    if quantization is None:
        return spec
    spec = replace(spec, quantization=quantization.name)
    if spec.moe is None or spec.moe.latent_size is None or spec.traits.latent_projection_plain:
        return spec
    paths = moe_paths(spec)
    found = {path: name for path in paths if (name := quantization.of(_latent_projection_names(path)))}
    if len(found) == len(paths):
        return replace(spec, moe=replace(spec.moe, latent_quantization=found[paths[0]]))
    return replace(spec, moe=replace(spec.moe, latent_quantized_layers=tuple(found)))


def _latent_projection_names(path: str) -> list[str]:
    return [f"{prefix}{path}.mixer.fc2_latent_proj" for prefix in _MODULE_PREFIXES]


def read_quantization(config: Mapping[str, object]) -> Quantization | None:
    """The quantization that `quantization_config` or the `quantization` part of a `hf_quant_config.json` describes.

    Returns:
        None where it says that nothing is quantized.

    Raises:
        ValueError: a part of it has another form than these configs have.
    """
    names = [value for key in _NAME_KEYS if isinstance(value := config.get(key), str)]
    if not names:
        return None
    return Quantization(
        name=names[0].lower(),
        linears=_EXPERTS_ONLY.isdisjoint(name.lower() for name in names),
        ignored=tuple(pattern for key in _IGNORE_KEYS for pattern in _strings(config, key)),
        targets=_read_targets(config),
        listed=_read_listed(config, names[0].lower()),
    )


def _read_targets(config: Mapping[str, object]) -> tuple[str, ...] | None:
    groups = config.get("config_groups")
    if groups is None:
        return None
    if not isinstance(groups, dict):
        raise ValueError("config_groups is not an object")
    targets: list[str] = []
    for name, group in groups.items():
        if not isinstance(group, dict):
            raise ValueError(f"config_groups.{name} is not an object")
        targets += _strings(group, "targets")
    return None if _EVERY_LINEAR in targets or not targets else tuple(targets)


def _read_listed(config: Mapping[str, object], name: str) -> dict[str, str] | None:
    layers = config.get("quantized_layers")
    if layers is None:
        return None
    if isinstance(layers, dict):
        return {module: _algorithm(value) or name for module, value in layers.items()}
    return dict.fromkeys(_strings(config, "quantized_layers"), name)


def _algorithm(value: object) -> str | None:
    algorithm = value.get("quant_algo") if isinstance(value, dict) else None
    return algorithm.lower() if isinstance(algorithm, str) else None


def _strings(config: Mapping[str, object], key: str) -> list[str]:
    value = config.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{key} is not a list of names")
    return value


def _matches(pattern: str, names: tuple[str, ...]) -> bool:
    if pattern.startswith(_REGEX):
        try:
            expression = re.compile(pattern.removeprefix(_REGEX))
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression ({error})") from None
        return any(expression.match(name) for name in names)
    if any(sign in pattern for sign in "*?["):
        return any(fnmatchcase(name, pattern) for name in names)
    return any(f".{pattern}." in f".{name}." for name in names)
