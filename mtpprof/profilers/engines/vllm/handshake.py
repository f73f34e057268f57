"""What mtpprof's driver tells the plugin in every process that vLLM starts: one environment variable.

Without it the plugin does nothing at all, so that an installed mtpprof never changes a vLLM that somebody else runs.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec

from mtpprof.models.families import FAMILIES
from mtpprof.profilers.engines.vllm import VARIABLE

CONFIG_KEY = "mtpprof"
"""Key under vLLM's `additional_config`, which is part of its compile-cache key."""


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """What the plugin needs to know of the run."""

    family: str
    """Family of the model's spec: which patches it takes."""
    blocks: str
    """Blocks of the target, in the letters of `ModelSpec`."""
    draft_blocks: str = ""
    device: str = "cpu"
    tp: int = 1
    target_order: list[tuple[str, str]] = []
    """Kind and site of the collectives of a target pass, in order, where compiled code has no modules to tell them by; else empty."""
    draft_order: list[tuple[str, str]] = []
    """The same of a draft pass."""

    @property
    def layer_blocks(self) -> int:
        """Blocks that make up one published layer."""
        return FAMILIES[self.family].blocks_per_layer

    def write(self, environment: MutableMapping[str, str]) -> None:
        """Put it where vLLM's processes inherit it."""
        environment[VARIABLE] = msgspec.json.encode(self).decode()


def read_handshake(environment: Mapping[str, str]) -> Handshake | None:
    """The driver's word; None: this process was not started by mtpprof, or by one of another version."""
    text = environment.get(VARIABLE)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Handshake)
    except msgspec.MsgspecError:
        return None


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine gets to know of its switches."""

    switched: list[str] = []
    """Optimizations that are set, on or off."""
    enabled: list[str] = []
    """Those of them that are on when the engine starts."""

    def additional_config(self) -> dict[str, Any]:
        """The setting as vLLM takes it: the compile cache of one setting is then never another's."""
        return {CONFIG_KEY: {"switched": sorted(self.switched), "enabled": sorted(self.enabled)}}


def setting_of(config: Any) -> Setting:
    """The setting of an engine from its `additional_config`; nothing is switched in one that is not ours."""
    section = config.get(CONFIG_KEY) if isinstance(config, Mapping) else None
    try:
        return msgspec.convert(section, Setting)
    except msgspec.ValidationError:
        return Setting()
