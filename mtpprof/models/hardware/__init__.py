"""Hardware profiles: what links, memory and small kernels of a machine can do, with the source of every figure.

A profile is one TOML file in this folder; to add a machine is to add a file. Every figure is a table of its value and its source, and the
reader refuses one without, so that a prediction can always say what it stands on.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from mtpprof.errors import InputError, UsageError
from mtpprof.models.traffic import Algorithm, Kind, wire_bytes


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number and where it comes from."""

    value: float
    source: str


class CollectiveCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way of doing a collective: `alpha` + per-rank `hop` + bytes sent / `beta`, on one link."""

    kind: Kind
    algorithm: Algorithm
    by: str
    """What carries it out, e.g. `NCCL`."""
    link: str
    """`scale-up`: within a node or NVLink domain; `scale-out`: between nodes."""
    alpha_us: float
    """Time of a call that moves nothing, launch included."""
    hop_us: float = 0.0
    """Further time for every rank beyond the second: rings pass every rank."""
    beta_gb_s: float | None
    """Bytes that a rank sends per nanosecond, effective at large sizes; None: no cost per byte could be measured."""
    max_bytes: float | None = None
    """Payload above which the implementation does not apply."""
    only_bytes: float | None = None
    """Sent by a rank in the one size that was measured: of others the time is not known. None: any size has a time."""
    source: str

    def time_ns(self, payload_bytes: int, ranks: int) -> float | None:
        """Time of one call without waiting; None: not known, of this size or because what this algorithm sends is not."""
        sent = wire_bytes(self.kind, self.algorithm, payload_bytes, ranks)
        if sent is None or (self.only_bytes is not None and sent != self.only_bytes):
            return None
        start_ns = 1000 * (self.alpha_us + self.hop_us * max(0, ranks - 2))
        return start_ns + (sent / self.beta_gb_s if self.beta_gb_s else 0.0)


class HardwareProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of machine."""

    name: str
    title: str
    memory_gb_s: Figure | None = None
    """Of device memory; None: not known, so kernels that a change takes away cannot be costed."""
    kernel_us: Figure | None = None
    """A kernel that does next to nothing, in a CUDA graph: what a removed kernel is worth at small sizes."""
    collective: list[CollectiveCost]

    def costs(self, kind: Kind, link: str, payload_bytes: int) -> list[CollectiveCost]:
        """The ways in which this machine does a collective of this size."""
        return [
            cost
            for cost in self.collective
            if cost.kind == kind
            and cost.link == link
            and (cost.max_bytes is None or payload_bytes <= cost.max_bytes)
        ]


@cache
def profile_names() -> tuple[str, ...]:
    """Names of all profiles."""
    folder = resources.files(__name__)
    return tuple(
        sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    )


@cache
def load_profile(name: str) -> HardwareProfile:
    """A profile by its name.

    Raises:
        UsageError: there is none; names those there are.
        InputError: the file is damaged.
    """
    if name not in profile_names():
        raise UsageError(f"hardware {name!r} is not known; choose from {', '.join(profile_names())}.")
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse_profile(tomllib.loads(text), name)


def parse_profile(content: dict[str, Any], name: str) -> HardwareProfile:
    """A profile out of a parsed TOML file.

    Raises:
        InputError: of another shape; names the place.
    """
    try:
        return msgspec.convert({"name": name, **content}, HardwareProfile)
    except msgspec.ValidationError as error:
        raise InputError(f"hardware profile {name}: {error}; correct the file.") from error
