"""Switches of the same family that only vLLM has: what carries a collective, what it is fused with, whether it is needed at all.

None of them is compared unless it is asked for, and where it is not, vLLM's own default holds. Those that choose a backend leave the
ledger as it is; which backend ran is read off the trace. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mtpprof.models.ledger import EMBED, LM_HEAD, MTP_PREFIX, TARGET, LedgerEntry, Workload
from mtpprof.models.optimizations.base import (
    FUSED_RESIDUAL_RMSNORM,
    Eligibility,
    Ledger,
    Optimization,
    Proof,
    count,
    fused_among,
    needs_ranks,
    unless,
)
from mtpprof.models.spec import ModelSpec
from mtpprof.models.traffic import Kind

EMBED_SITES = (EMBED, f"{MTP_PREFIX}{EMBED}")
HEAD_SITES = (LM_HEAD, f"{MTP_PREFIX}{LM_HEAD}")


def _several_ranks(spec: ModelSpec, workload: Workload) -> Eligibility:
    return unless(needs_ranks(workload))


def _is_sparse(spec: ModelSpec) -> bool:
    """DeepSeek-V3.2 and GLM-5, for which vLLM has models of its own on CUDA."""
    return spec.mla is not None and spec.mla.indexer is not None


def _sparse_only(spec: ModelSpec, workload: Workload) -> Eligibility:
    return unless(
        (not _is_sparse(spec), f"vLLM's model of {spec.title} has no such code"),
        (spec.sequence_parallel, "sequence parallelism has reduce-scatters in place of these all-reduces"),
        needs_ranks(workload),
    )


def _compiled_only(spec: ModelSpec, workload: Workload) -> Eligibility:
    return unless(
        (_is_sparse(spec), f"vLLM runs {spec.title} without the compiler's passes"),
        (spec.sequence_parallel, "sequence parallelism has reduce-scatters in place of these all-reduces"),
        needs_ranks(workload),
    )


def _unchanged(entries: Ledger, spec: ModelSpec, workload: Workload) -> Ledger:
    return entries


def _carried_by(*names: str) -> Callable[[Ledger], Proof]:
    """All-reduces that one of these implementations carries out."""

    def by_carrier(entries: Ledger) -> Proof:
        known = [entry for entry in entries if entry.kind == Kind.ALL_REDUCE and entry.implementation]
        return Proof(
            engaged_calls=count(entry for entry in known if entry.implementation.startswith(names)),
            opportunities=count(known),
        )

    return by_carrier


def _is_block_sum(entry: LedgerEntry) -> bool:
    return entry.kind == Kind.ALL_REDUCE and entry.phase == TARGET and entry.site not in EMBED_SITES


def _fuse_target(entries: Ledger, spec: ModelSpec, workload: Workload) -> Ledger:
    return tuple(
        replace(entry, fused=FUSED_RESIDUAL_RMSNORM) if _is_block_sum(entry) else entry for entry in entries
    )


def _target_fused(entries: Ledger) -> Proof:
    return fused_among(entry for entry in entries if _is_block_sum(entry))


def _without_embedding(entries: Ledger, spec: ModelSpec, workload: Workload) -> Ledger:
    return tuple(entry for entry in entries if entry.site not in EMBED_SITES)


def _embedding_gone(entries: Ledger) -> Proof:
    """One embedding a pass, and one gather of logits: passes without the former have it on every rank."""
    passes = count(entry for entry in entries if entry.site in HEAD_SITES)
    embeddings = count(entry for entry in entries if entry.site in EMBED_SITES)
    return Proof(engaged_calls=max(0, passes - embeddings), opportunities=passes)


VLLM_ONLY: tuple[Optimization, ...] = (
    Optimization(
        id="allreduce-norm-fusion-main",
        title="Fused all-reduce + residual + RMSNorm in the target model",
        source="vLLM, models/deepseek_v32/nvidia/model.py",
        summary="Every all-reduce of the target model runs as one kernel with the residual add and the RMSNorm that follow.",
        changes="Neither calls nor payload: one RMSNorm kernel and one round trip through memory per block.",
        proof="The target's all-reduces carry the norm; above the kernel's size limit they are plain.",
        switches={
            "vllm": "no official switch: the plugin replaces fused_allreduce_rms_norm in the target model"
        },
        eligible=_sparse_only,
        rewrite=_fuse_target,
        proof_by_site=_target_fused,
    ),
    Optimization(
        id="compiled-norm-fusion",
        title="Fused all-reduce + RMSNorm by the compiler",
        source="vLLM, AllReduceFusionPass",
        summary="vLLM's compiler pass replaces all-reduce and RMSNorm by one kernel in models that are compiled.",
        changes="Neither calls nor payload: one RMSNorm kernel and one round trip through memory per block.",
        proof="The target's all-reduces carry the norm; above the pass's size limit they are plain.",
        switches={"vllm": "compilation_config.pass_config.fuse_allreduce_rms"},
        eligible=_compiled_only,
        rewrite=_fuse_target,
        proof_by_site=_target_fused,
    ),
    Optimization(
        id="replicated-embedding",
        title="Embedding on every rank",
        source="vLLM, VLLM_REPLICATE_EMBED",
        summary="Every rank holds the whole embedding, so that looking tokens up needs no sum over the ranks.",
        changes="One all-reduce of [rows, hidden] less in the target and in every draft pass, for a copy of the table a rank.",
        proof="Passes issue no all-reduce at their embedding.",
        switches={"vllm": "environment variable VLLM_REPLICATE_EMBED"},
        eligible=_sparse_only,
        rewrite=_without_embedding,
        proof_by_site=_embedding_gone,
    ),
    Optimization(
        id="custom-allreduce",
        title="vLLM's own all-reduce kernels",
        source="vLLM, disable_custom_all_reduce",
        summary="Small all-reduces on one host run by vLLM's peer-to-peer kernels in place of NCCL.",
        changes="Neither calls nor payload; wire bytes and latency, up to a size limit.",
        proof="All-reduces are carried out by vllm_custom.",
        switches={"vllm": "disable_custom_all_reduce"},
        eligible=_several_ranks,
        rewrite=_unchanged,
        proof_by_site=_carried_by("vllm_custom"),
    ),
    Optimization(
        id="flashinfer-allreduce",
        title="FlashInfer's all-reduce kernels",
        source="vLLM, VLLM_ALLREDUCE_USE_FLASHINFER",
        summary="All-reduces run by FlashInfer's Lamport and multicast kernels, up to a size limit.",
        changes="Neither calls nor payload; wire bytes and latency.",
        proof="All-reduces are carried out by flashinfer.",
        switches={"vllm": "environment variable VLLM_ALLREDUCE_USE_FLASHINFER"},
        eligible=_several_ranks,
        rewrite=_unchanged,
        proof_by_site=_carried_by("flashinfer"),
    ),
    Optimization(
        id="symmetric-memory-allreduce",
        title="All-reduce in symmetric memory",
        source="vLLM, VLLM_ALLREDUCE_USE_SYMM_MEM",
        summary="All-reduces run by torch's symmetric-memory kernels: in the switch (multimem) or in two shots.",
        changes="Neither calls nor payload; wire bytes and latency.",
        proof="All-reduces are carried out by torch_symm_mem.",
        switches={"vllm": "environment variable VLLM_ALLREDUCE_USE_SYMM_MEM"},
        eligible=_several_ranks,
        rewrite=_unchanged,
        proof_by_site=_carried_by("torch_symm_mem"),
    ),
)
"""The entries, in the order in which they are shown."""
