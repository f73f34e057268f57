"""From a place in vLLM's code to the site that the ledger names.

vLLM knows modules by their prefix (`model.layers.3.self_attn.o_proj`); the ledger speaks of blocks (`layers.3.mla.o_proj`). One
ordered table translates; a place that no row knows keeps vLLM's own name, so that an unexpected collective shows as what it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mtpprof.models.ledger import (
    BLOCK_SITES,
    DRAFT_LM_HEAD,
    EH_PROJ,
    EMBED,
    LM_HEAD,
    MOE_FINAL,
    MOE_LATENT,
    MOE_SHARED,
    MTP_PREFIX,
)
from mtpprof.models.traffic import Kind
from mtpprof.profilers.engines.vllm.handshake import Handshake

FUSED_HELPER = "fused_allreduce_rms_norm"
"""vLLM's function that all-reduces, adds the residual and normalizes; it belongs to no module."""

MOE_FUNCTIONS = {
    "_maybe_reduce_final_output": MOE_FINAL,
    "_maybe_reduce_routed_output_before_transform": MOE_LATENT,
    "_maybe_reduce_shared_expert_output": MOE_SHARED,
}
"""Functions of vLLM's MoE runner that reduce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a collective was called: the nearest module that has a name, and its function."""

    owner: str = ""
    """Class of the module."""
    prefix: str = ""
    """vLLM's name of the module; empty where the class has none."""
    function: str = ""

    @property
    def text(self) -> str:
        """Own name of a place that the table does not know, without spaces and quotes."""
        name = ".".join(part for part in (self.prefix or self.owner, self.function) if part)
        return re.sub(r"[^\w.\[\]-]", "_", name) or "unknown"


_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
_TAILS = (
    (re.compile(r"(self_attn|mixer)\.o_proj$"), ("A", "*")),
    (re.compile(r"mixer\.out_proj$"), ("M",)),
    (re.compile(r"(mlp|mixer)\.down_proj$"), ("D",)),
)
"""Module of a layer, and the blocks whose one all-reduce it can be."""
_EXPERTS = re.compile(r"(mlp|mixer)\.experts(\.|$)")


class SiteMap:
    """Sites of one model."""

    def __init__(self, handshake: Handshake) -> None:
        self._model = handshake
        self._layers = len(handshake.blocks) // handshake.layer_blocks

    def site(self, place: Place, kind: Kind, *, drafting: bool, block: int, order: int) -> str:
        """The ledger's name of a place.

        Args:
            place: where the call came from.
            kind: what the call does.
            drafting: whether the draft module runs.
            block: number of blocks that this pass has reduced so far, for the fused helper.
            order: number of collectives that this pass has issued so far, for compiled code, which has no modules.
        """
        prefix = MTP_PREFIX if drafting else ""
        if place.function == FUSED_HELPER:
            return self._by_order(kind, drafting, order) or self._fused(prefix, block) or place.text
        if place.owner == "VocabParallelEmbedding":
            return f"{prefix}{EMBED}"
        if place.owner == "LogitsProcessor":
            return DRAFT_LM_HEAD if drafting else LM_HEAD
        if drafting and place.prefix.endswith("eh_proj"):
            return EH_PROJ
        if not place.owner and not place.prefix:
            return self._by_order(kind, drafting, order) or place.text
        found = _LAYER.search(place.prefix)
        tail = self._tail(found[2], place.function, drafting) if found else None
        if found is None or tail is None:
            return place.text
        # DeepSeek-like drafts count on from the target's layers, Nemotron's from 0.
        layer = int(found[1]) % self._layers if drafting and int(found[1]) >= self._layers else int(found[1])
        return f"{prefix}layers.{layer}.{tail}"

    def _by_order(self, kind: Kind, drafting: bool, order: int) -> str | None:
        expected = self._model.draft_order if drafting else self._model.target_order
        if order < len(expected) and expected[order][0] == kind:
            return expected[order][1]
        return None

    def _tail(self, module: str, function: str, drafting: bool) -> str | None:
        if _EXPERTS.match(module):
            return MOE_FUNCTIONS.get(function)
        blocks = self._model.draft_blocks if drafting else self._model.blocks
        for pattern, letters in _TAILS:
            if pattern.match(module):
                return next((BLOCK_SITES[letter] for letter in letters if letter in blocks), None)
        return None

    def _fused(self, prefix: str, block: int) -> str | None:
        blocks = self._model.draft_blocks if prefix else self._model.blocks
        if block >= len(blocks):
            return None
        tail = MOE_FINAL if blocks[block] == "E" else BLOCK_SITES[blocks[block]]
        return f"{prefix}layers.{block // self._model.layer_blocks}.{tail}"
