"""The ledger: the collectives that a model issues, computed from its dimensions. No torch here.

What a trace shows is held against this list, call for call, so it is written the way a forward pass runs: one entry per call
site and phase, in order, with the shape of *one rank's input*. The base ledger has every optimization off; an optimization is a
function that rewrites it (`mtpprof.models.optimizations.catalogue`).

Per decode step of a DeepSeek-like model with L layers and k draft tokens that is 1 + 2L + 3k all-reduces and 1 + k all-gathers
of logits. Rows: c(k+1) in the target and in the first draft pass, c in later draft passes and in all draft logits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mtpprof.errors import UsageError
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import DTYPE_BYTES, Kind, payload_bytes

EMBED = "embed"
LM_HEAD = "lm_head"
MTP_PREFIX = "mtp."
EH_PROJ = f"{MTP_PREFIX}eh_proj"
DRAFT_LM_HEAD = f"{MTP_PREFIX}{LM_HEAD}"

BLOCK_SITES = {
    "A": "mla.o_proj",
    "*": "attn.o_proj",
    "K": "kda.o_proj",
    "M": "mamba.out_proj",
    "D": "mlp.down_proj",
}
"""Last part of the site of a block's one all-reduce; `E` has its own below."""
MOE_FINAL = "moe.final"
"""The sum of routed and shared output: the only all-reduce of an MoE layer that is not latent, or whose sum commutes."""
MOE_LATENT = "moe.latent"
MOE_SHARED = "moe.shared"

TARGET = "target"
PREFILL = "prefill"
DRAFT = "draft"


def draft_phase(index: int) -> str:
    """Name of the phase of draft pass `index`."""
    return f"{DRAFT}[{index}]"


def is_draft_phase(phase: str) -> bool:
    """Whether `phase` is a draft pass."""
    return phase.startswith(f"{DRAFT}[")


def moe_paths(spec: ModelSpec) -> list[str]:
    """Paths of the MoE layers of the target and of the draft module, e.g. `layers.3` and `mtp.layers.1`."""
    draft = spec.mtp.blocks if spec.mtp else ""
    return [
        spec.block_path(index, prefix)
        for prefix, blocks in (("", spec.blocks), (MTP_PREFIX, draft))
        for index, block in enumerate(blocks)
        if block == "E"
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a model is run with, as far as its collectives depend on it.

    Raises:
        UsageError: a number out of range, or an unknown dtype.
    """

    concurrency: int
    """Sequences decoded together."""
    draft_tokens: int
    """Draft passes per step; 0: no speculation."""
    tp: int
    dtype: str = "bf16"
    """Dtype of activations and logits."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"concurrency {self.concurrency}: at least one sequence is needed.")
        if self.draft_tokens < 0:
            raise UsageError(
                f"{self.draft_tokens} draft tokens: give 0 for no speculation, or a positive number."
            )
        if self.tp < 1:
            raise UsageError(f"TP {self.tp}: the tensor-parallel size must be 1 or more.")
        if self.dtype not in DTYPE_BYTES:
            raise UsageError(f"dtype {self.dtype!r} is not known; choose one of {', '.join(DTYPE_BYTES)}.")

    @property
    def target_rows(self) -> int:
        """Rows of the target's forward pass in a decode step, and of the first draft pass: c(k+1)."""
        return self.concurrency * (self.draft_tokens + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One collective at one place in one phase, `count` times per step."""

    kind: Kind
    site: str
    phase: str
    shape: tuple[int, ...]
    """This rank's input tensor."""
    dtype: str
    group_size: int
    count: int = 1
    fused: str = ""
    """What runs in the same kernel after it, e.g. `residual_rmsnorm`; empty: nothing."""
    implementation: str = ""
    """What carried it out, where it was observed; empty: not known, and in every ledger."""

    @property
    def payload_bytes(self) -> int:
        """Payload of one call in the sense of nccl-tests."""
        return payload_bytes(self.kind, self.shape, self.dtype, self.group_size)

    @property
    def total_payload_bytes(self) -> int:
        """Payload of all calls."""
        return self.payload_bytes * self.count


def base_ledger(spec: ModelSpec, workload: Workload) -> tuple[LedgerEntry, ...]:
    """Expected collectives of one decode step with every optimization off, in the order in which they run.

    Returns:
        One entry per call; empty at TP 1, which issues none.

    Raises:
        UsageError: TP does not divide the model, draft tokens without a draft module, or sequence-parallel MoE.
    """
    _check(spec, workload)
    if workload.tp == 1:
        return ()
    target = _Pass(spec=spec, workload=workload, phase=TARGET, rows=workload.target_rows)
    entries = [*target.forward(), target.logits(workload.target_rows)]
    for index in range(workload.draft_tokens):
        draft = _Pass(
            spec=spec,
            workload=workload,
            phase=draft_phase(index),
            rows=workload.target_rows if index == 0 else workload.concurrency,
            prefix=MTP_PREFIX,
        )
        entries += [*draft.forward(), draft.logits(workload.concurrency)]
    return tuple(entries)


def prefill_ledger(spec: ModelSpec, workload: Workload, prompt_len: int) -> tuple[LedgerEntry, ...]:
    """Expected collectives of one prefill of all sequences with every optimization off.

    The target runs over all c·prompt_len rows and computes the logits of each sequence's last row; with draft tokens, the draft
    module then runs once over the same rows, to fill its caches, and computes no logits.

    Raises:
        UsageError: as `base_ledger`, or a prompt of no tokens.
    """
    _check(spec, workload)
    if prompt_len < 1:
        raise UsageError(f"prompt length {prompt_len}: at least one token is needed.")
    if workload.tp == 1:
        return ()
    rows = workload.concurrency * prompt_len
    target = _Pass(spec=spec, workload=workload, phase=PREFILL, rows=rows)
    entries = [*target.forward(), target.logits(workload.concurrency)]
    if workload.draft_tokens:
        entries += _Pass(spec=spec, workload=workload, phase=PREFILL, rows=rows, prefix=MTP_PREFIX).forward()
    return tuple(entries)


def _check(spec: ModelSpec, workload: Workload) -> None:
    spec.check_tp(workload.tp)
    if workload.draft_tokens and spec.mtp is None:
        raise UsageError(
            f"{spec.title} has no multi-token-prediction module to draft {workload.draft_tokens} tokens with; "
            f"use 0 draft tokens."
        )
    if spec.sequence_parallel and workload.tp > 1:
        raise UsageError(
            f"{spec.title} is sequence-parallel, for which the expected collectives are not known; "
            f"run it without expert and data parallelism together."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One forward pass of the target (`prefix` empty) or of the draft module."""

    spec: ModelSpec
    workload: Workload
    phase: str
    rows: int
    prefix: str = ""

    def forward(self) -> Iterator[LedgerEntry]:
        """The collectives from the embedding to the last block."""
        spec = self.spec
        yield self._all_reduce(f"{self.prefix}{EMBED}", spec.hidden_size)
        blocks = spec.blocks
        if self.prefix:
            assert spec.mtp is not None
            blocks = spec.mtp.blocks
            if spec.mtp.gathered_eh_proj:
                yield self._all_gather(EH_PROJ, self.rows, spec.hidden_size // self.workload.tp)
        for index, block in enumerate(blocks):
            path = spec.block_path(index, self.prefix)
            if block == "E":
                yield from self._moe(path)
            else:
                yield self._all_reduce(f"{path}.{BLOCK_SITES[block]}", spec.hidden_size)

    def logits(self, rows: int) -> LedgerEntry:
        """The gather of the full-vocabulary logits."""
        return self._all_gather(f"{self.prefix}{LM_HEAD}", rows, self.spec.vocab_size // self.workload.tp)

    def _moe(self, path: str) -> Iterator[LedgerEntry]:
        moe = self.spec.moe
        assert moe is not None
        if moe.latent_size is None:
            yield self._all_reduce(f"{path}.{MOE_FINAL}", self.spec.hidden_size)
            return
        yield self._all_reduce(f"{path}.{MOE_LATENT}", moe.latent_size)
        if moe.shared_intermediate_size:
            yield self._all_reduce(f"{path}.{MOE_SHARED}", self.spec.hidden_size)

    def _all_reduce(self, site: str, width: int) -> LedgerEntry:
        return self._entry(Kind.ALL_REDUCE, site, (self.rows, width))

    def _all_gather(self, site: str, rows: int, width: int) -> LedgerEntry:
        return self._entry(Kind.ALL_GATHER, site, (rows, width))

    def _entry(self, kind: Kind, site: str, shape: tuple[int, ...]) -> LedgerEntry:
        return LedgerEntry(
            kind=kind,
            site=site,
            phase=self.phase,
            shape=shape,
            dtype=self.workload.dtype,
            group_size=self.workload.tp,
        )


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def site_patterns(sites: Iterable[str]) -> list[str]:
    """Sites with their layer numbers taken together: `layers.*.moe.latent`; a pattern of one site keeps its number."""
    grouped: dict[str, set[str]] = {}
    for site in sites:
        grouped.setdefault(_NUMBER.sub("*", site), set()).add(site)
    return [
        pattern if len(members) > 1 else next(iter(members)) for pattern, members in sorted(grouped.items())
    ]
