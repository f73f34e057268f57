"""Small models, arms and passes that the tests of the reference model share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from mtpprof.models.ledger import Workload
from mtpprof.models.optimizations.catalogue import eligible_optimizations
from mtpprof.models.presets import PRESETS, load_preset
from mtpprof.models.reference.block import Context, Rows
from mtpprof.models.reference.collectives.comm import Communicator
from mtpprof.models.reference.model import ReferenceModel
from mtpprof.models.reference.switches import Switches
from mtpprof.models.reference.weights import Weights
from mtpprof.models.spec import ModelSpec, Scale
from tests.unit.models.reference.thread_ranks import solo

HIDDEN, VOCAB = 96, 512
SEQUENCES, PROMPT_LEN = 3, 14

ALL = sorted(PRESETS)
WITH_DRAFTS = [name for name in ALL if PRESETS[name].mtp]
STRUCTURES = ["deepseek-v3.2", "nemotron-3-super"]
"""One preset of each structure that can draft; the others of `WITH_DRAFTS` differ in dimensions."""
LATENT = [name for name in ALL if (moe := PRESETS[name].moe) and moe.latent_size]


def tiny(name: str, vocab: int = VOCAB) -> ModelSpec:
    """A preset at tiny scale, and narrower still: tests check functions, not sizes, and run each model many times."""
    spec = load_preset(name, Scale.TINY, vocab=vocab)
    moe = spec.moe
    assert moe is not None, "every preset is a mixture of experts"
    return replace(
        spec,
        hidden_size=HIDDEN,
        dense_intermediate_size=64 if spec.dense_intermediate_size else 0,
        moe=replace(
            moe,
            intermediate_size=32,
            shared_intermediate_size=40,
            latent_size=moe.latent_size and moe.latent_size * HIDDEN // spec.hidden_size,
        ),
    )


def default_draft_tokens(spec: ModelSpec) -> int:
    """3 where the model can draft."""
    return 3 if spec.mtp else 0


def arms(spec: ModelSpec, workload: Workload) -> Iterator[frozenset[str]]:
    """Every combination of the optimizations that the model is eligible for, the baseline first."""
    names = [name for name, verdict in eligible_optimizations(spec, workload).items() if verdict.ok]
    for count in range(len(names) + 1):
        yield from (frozenset(chosen) for chosen in combinations(names, count))


def all_arms(spec: ModelSpec, tp: int = 2) -> list[frozenset[str]]:
    """`arms` with drafts where there can be any."""
    k = default_draft_tokens(spec)
    return list(arms(spec, Workload(concurrency=SEQUENCES, draft_tokens=k, tp=tp)))


def prompts(vocab: int = VOCAB, sequences: int = SEQUENCES, length: int = PROMPT_LEN) -> Tensor:
    """Seeded token ids `[sequences, length]`."""
    return torch.randint(vocab, (sequences, length), generator=torch.Generator().manual_seed(11))


def rows_at(start: int, count: int, sequences: int = SEQUENCES, *, keep_states: bool = True) -> Rows:
    """The same `count` positions of every sequence."""
    positions = torch.arange(start, start + count).expand(sequences, -1)
    return Rows(positions, key_length=start + count, keep_states=keep_states)


def build(spec: ModelSpec, comm: Communicator, dtype: torch.dtype = torch.float64) -> ReferenceModel:
    """The model of a spec on a rank."""
    return ReferenceModel(spec, comm, dtype=dtype, seed=5)


def context(spec: ModelSpec, dtype: torch.dtype = torch.float64) -> Context:
    """What a single block of a spec is built from, on one rank."""
    comm = solo()
    weights = Weights(seed=5, rank=comm.rank, size=comm.size, dtype=dtype)
    return Context(spec=spec, comm=comm, weights=weights, switches=Switches(), branch_gain=1.0)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Seeded standard normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
