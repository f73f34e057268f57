"""Draft tokens chosen per vocabulary shard, so that (value, index) pairs are gathered in place of logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mtpprof.models.ledger import DRAFT_LM_HEAD, LM_HEAD, Workload, is_draft_phase
from mtpprof.models.optimizations.base import (
    CallsSeen,
    ChangeSeen,
    Eligibility,
    KernelWork,
    Ledger,
    Optimization,
    Proof,
    count,
    needs_drafts,
    needs_ranks,
    unless,
)
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import DTYPE_BYTES, Kind

PAIR_WIDTH = 2
"""A draft row's best token on one rank: its value and its index."""
PAIR_DTYPE = "fp32"
EXACT_IN_PAIR = 2**24
"""Token ids up to this number are exact in fp32."""
COPY, ARGMAX = "logit copies", "argmax"
"""Terms of a prediction."""
LOCAL_KERNELS = 3
"""max, stacking of (value, index), and the argmax over pairs, in place of one argmax (vLLM's `get_top_tokens`)."""


def _eligible(spec: ModelSpec, workload: Workload) -> Eligibility:
    return unless(
        *needs_drafts(spec, workload),
        (
            spec.logit_scale <= 0,
            f"{spec.title} scales its logits by {spec.logit_scale:g}, and a scale that is not positive moves the maximum",
        ),
        (
            spec.vocab_size > EXACT_IN_PAIR,
            f"token ids of a vocabulary of {spec.vocab_size} are not exact in fp32",
        ),
        needs_ranks(workload),
    )


def _rewrite(entries: Ledger, spec: ModelSpec, workload: Workload) -> Ledger:
    return tuple(
        replace(entry, shape=(entry.shape[0], PAIR_WIDTH), dtype=PAIR_DTYPE)
        if entry.site == DRAFT_LM_HEAD
        else entry
        for entry in entries
    )


def _by_site(entries: Ledger) -> Proof:
    """The gathers at the draft module's head: those of pairs among all."""
    gathers = [
        entry
        for entry in entries
        if is_draft_phase(entry.phase) and entry.kind == Kind.ALL_GATHER and entry.site == DRAFT_LM_HEAD
    ]
    pairs = (entry for entry in gathers if entry.shape[-1] == PAIR_WIDTH and entry.dtype == PAIR_DTYPE)
    return Proof(engaged_calls=count(pairs), opportunities=count(gathers))


def _by_change(changed: Sequence[ChangeSeen], after: Sequence[CallsSeen]) -> Proof:
    """All-gathers of logits that became all-gathers of (value, index) pairs."""
    pairs = sum(
        change.calls
        for change in changed
        if change.what == "replaced"
        and change.kind == Kind.ALL_GATHER
        and change.after is not None
        and change.after.shape is not None
        and tuple(change.after.shape[-1:]) == (PAIR_WIDTH,)
        and change.after.dtype == PAIR_DTYPE
    )
    return Proof(engaged_calls=round(pairs), opportunities=round(pairs))


def _kernels(entries: Ledger, spec: ModelSpec, workload: Workload) -> Iterator[tuple[str, KernelWork]]:
    """The layout copy of gathered logits, and the choice of a token out of them."""
    for entry in entries:
        if entry.site not in (LM_HEAD, DRAFT_LM_HEAD):
            continue
        local = entry.shape[-1] == PAIR_WIDTH and entry.site == DRAFT_LM_HEAD
        logits = entry.shape[0] * spec.vocab_size * DTYPE_BYTES[workload.dtype]
        if not local:
            yield COPY, KernelWork(kernels=entry.count, moved_bytes=entry.count * 2 * logits)
        kernels, read = (LOCAL_KERNELS, logits / workload.tp) if local else (1, logits)
        yield ARGMAX, KernelWork(kernels=entry.count * kernels, moved_bytes=entry.count * read)


LOCAL_ARGMAX = Optimization(
    id="local-argmax",
    title="Vocabulary-local argmax of draft tokens",
    source="vLLM pull request 49793",
    summary="Each rank takes the argmax over its vocabulary shard; (value, index) pairs are gathered in place of "
    "the logits. Greedy drafts only, and not with adaptive verification.",
    changes="Each draft pass's gather of [rows, vocabulary] becomes one of [rows, 2] fp32; the target's own "
    "gather stays.",
    proof="The draft passes gather pairs, not logits.",
    switches={
        "reference": "the draft head computes pairs",
        "vllm": "speculative_config use_local_argmax_reduction; the plugin adds get_top_tokens where a draft "
        "model lacks it",
    },
    eligible=_eligible,
    rewrite=_rewrite,
    proof_by_site=_by_site,
    proof_by_change=_by_change,
    kernels=_kernels,
)
