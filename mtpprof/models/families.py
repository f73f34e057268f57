"""The families of models: what members of one have in common beside their dimensions. No torch here.

To add a family: a row here, a reader of its config.json in `hf`, presets as files in `presets/`; and for vLLM, the layout of its
weights and what its classes lack there (`profilers/engines/vllm/layouts.py` and `patching.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the models of a family have in common."""

    name: str
    blocks_per_layer: int
    """Blocks that make up one published layer: attention + MLP, or a single block in Nemotron's hybrid pattern."""
    reduced_layers: int
    """Published layers of a tiny model or a slice."""
    draft_tokens: int
    """Draft tokens per step that a run has by default, where the model has a draft module."""
    draft_ends_in_sum: bool
    """The draft module's final norm directly follows its last all-reduce."""
    latent_projection_plain: bool = False
    """Latent output projections are unquantized whatever the config says: published checkpoints hold them so, and vLLM builds them so."""


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(name="deepseek", blocks_per_layer=2, reduced_layers=4, draft_tokens=3, draft_ends_in_sum=True),
        Family(
            name="nemotron-h", blocks_per_layer=1, reduced_layers=7, draft_tokens=0, draft_ends_in_sum=False
        ),
        Family(
            name="kimi-k3",
            blocks_per_layer=2,
            reduced_layers=4,
            draft_tokens=0,
            draft_ends_in_sum=False,
            latent_projection_plain=True,
        ),
    )
}
"""The registry, by `ModelSpec.family`."""
