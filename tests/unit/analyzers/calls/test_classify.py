"""Every rule with a real name: from traces, from vLLM's and FlashInfer's sources, from published profiles."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.calls.classify import Classifier, kind_of_word, with_user_rules
from mtpprof.analyzers.calls.rules import BoundedPattern, Budget, Role, Scope, built_in_rules, load_rules
from mtpprof.errors import InputError
from mtpprof.models.traffic import Algorithm, Kind

FI = "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel"
FI_PATTERN = "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)"
FI_PARAMS = "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionParams<__nv_bfloat16>)"
MNNVL = "void flashinfer::trtllm_mnnvl_allreduce"
NORM = "residual_rmsnorm"
AR, AG, RS, A2A = Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL

Row = tuple[str, str, Kind, str, Algorithm, str]

KERNELS: list[Row] = [
    (
        "trtllm-moe-lamport",
        "void flashinfer::trtllm_moe_allreduce_fusion::moereduce_allreduce_fusion_kernel_oneshot_lamport"
        "<__nv_bfloat16, 8, true, true, false>"
        "(flashinfer::trtllm_moe_allreduce_fusion::MoeReductionAllReduceFusionParams<__nv_bfloat16>)",
        AR,
        "flashinfer_trtllm",
        Algorithm.ONE_SHOT,
        f"moe_{NORM}",
    ),
    (
        "trtllm-oneshot-lamport",
        f"{FI}_oneshot_lamport<{FI_PATTERN}1, __nv_bfloat16, 4, false, false>{FI_PARAMS}",
        AR,
        "flashinfer_trtllm",
        Algorithm.ONE_SHOT,
        NORM,
    ),
    (
        "trtllm-oneshot-lamport",
        f"{FI}_oneshot_lamport<{FI_PATTERN}0, __nv_bfloat16, 8, true, true>{FI_PARAMS}",
        AR,
        "flashinfer_trtllm",
        Algorithm.ONE_SHOT,
        "",
    ),
    (
        "trtllm-oneshot-lamport",
        "tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport"
        "<(tensorrt_llm::kernels::ar_fusion::AllReduceFusionPattern)4, __nv_bfloat16, 8, true, true>"
        "(tensorrt_llm::kernels::ar_fusion::AllReduceFusionParams)",
        AR,
        "flashinfer_trtllm",
        Algorithm.ONE_SHOT,
        f"{NORM}_out_fp8",
    ),
    (
        "trtllm-twoshot",
        f"{FI}_twoshot_sync<{FI_PATTERN}1, __nv_bfloat16, 8, false>{FI_PARAMS[:-1]}, std::array<int, 8>, std::array<int, 8>)",
        AR,
        "flashinfer_trtllm",
        Algorithm.TWO_SHOT,
        NORM,
    ),
    (
        "trtllm-twoshot",
        f"{FI}_twoshot_sync<{FI_PATTERN}0, __nv_bfloat16, 8, false>{FI_PARAMS}",
        AR,
        "flashinfer_trtllm",
        Algorithm.TWO_SHOT,
        "",
    ),
    (
        "trtllm-oneshot-cut-short",
        f"{FI}_oneshot_lamport<(flashinfer::trtllm_allreduce_fus",
        AR,
        "flashinfer_trtllm",
        Algorithm.ONE_SHOT,
        "unknown",
    ),
    (
        "trtllm-twoshot-cut-short",
        f"{FI}_twoshot_sync<(",
        AR,
        "flashinfer_trtllm",
        Algorithm.TWO_SHOT,
        "unknown",
    ),
    (
        "mnnvl-oneshot",
        f"{MNNVL}::oneshotAllreduceFusionKernel<(unsigned char)4, __nv_bfloat16, false, (flashinfer::QuantType)0>"
        "(flashinfer::trtllm_mnnvl_allreduce::AllReduceFusionParams)",
        AR,
        "flashinfer_mnnvl",
        Algorithm.MNNVL_ONE_SHOT,
        "",
    ),
    (
        "mnnvl-oneshot",
        f"{MNNVL}::oneshotAllreduceFusionKernel<(unsigned char)8, __nv_bfloat16, true, float4>(__nv_bfloat16*)",
        AR,
        "flashinfer_mnnvl",
        Algorithm.MNNVL_ONE_SHOT,
        NORM,
    ),
    (
        "mnnvl-oneshot",
        f"{MNNVL}::oneshotAllreduceFusionKernel<(unsigned char)8, __nv_bfloat16, (bool)1, float4>(__nv_bfloat16*)",
        AR,
        "flashinfer_mnnvl",
        Algorithm.MNNVL_ONE_SHOT,
        NORM,
    ),
    (
        "mnnvl-oneshot-cut-short",
        f"{MNNVL}::oneshotAllreduceFusionKernel<(unsigned char)8,",
        AR,
        "flashinfer_mnnvl",
        Algorithm.MNNVL_ONE_SHOT,
        "unknown",
    ),
    (
        "mnnvl-twoshot",
        f"{MNNVL}::twoshotAllreduceKernel<(unsigned char)4, __nv_bfloat16, true, float4>(__nv_bfloat16*)",
        AR,
        "flashinfer_mnnvl",
        Algorithm.MNNVL_TWO_SHOT,
        "",
    ),
    (
        "mnnvl-norm-tail",
        f"{MNNVL}::rmsNormLamport<__nv_bfloat16, (flashinfer::QuantType)0, true, 8>(RMSNormParams)",
        AR,
        "flashinfer_mnnvl",
        Algorithm.UNKNOWN,
        NORM,
    ),
    (
        "trtllm-oneshot-norm",
        "void tensorrt_llm::kernels::reduce_fusion::lamport_style_one_shot_all_reduce_norm_kernel"
        "<8, __nv_bfloat16, 8, false, true, true>(tensorrt_llm::kernels::AllReduceParams)",
        AR,
        "trtllm_custom",
        Algorithm.ONE_SHOT,
        NORM,
    ),
    (
        "trtllm-custom-oneshot",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8, true, true>(AllReduceParams)",
        AR,
        "trtllm_custom",
        Algorithm.ONE_SHOT,
        "",
    ),
    (
        "trtllm-custom-twoshot",
        "void tensorrt_llm::kernels::twoShotAllReduceKernel<__nv_bfloat16, 8, true, true>(AllReduceParams)",
        AR,
        "trtllm_custom",
        Algorithm.TWO_SHOT,
        "",
    ),
    (
        "aiter-1stage",
        "void aiter::cross_device_reduce_1stage<std::bfloat16_t, 4, false>(aiter::RankData*, aiter::RankSignals)",
        AR,
        "aiter_custom",
        Algorithm.ONE_SHOT,
        "",
    ),
    (
        "aiter-2stage",
        "void aiter::cross_device_reduce_2stage<std::bfloat16_t, 8, false>(aiter::RankData*, aiter::RankSignals)",
        AR,
        "aiter_custom",
        Algorithm.TWO_SHOT,
        "",
    ),
    (
        "sglang-1stage",
        "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(sglang::RankData*, sglang::RankSignals, "
        "sglang::Signal*, __nv_bfloat16*, int, int)",
        AR,
        "sglang_custom",
        Algorithm.ONE_SHOT,
        "",
    ),
    (
        "sglang-2stage",
        "void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*, sglang::RankSignals)",
        AR,
        "sglang_custom",
        Algorithm.TWO_SHOT,
        "",
    ),
    (
        "vllm-1stage",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals)",
        AR,
        "vllm_custom",
        Algorithm.ONE_SHOT,
        "",
    ),
    (
        "vllm-2stage",
        "void vllm::cross_device_reduce_2stage<__hip_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        AR,
        "vllm_custom",
        Algorithm.TWO_SHOT,
        "",
    ),
    (
        "vllm-all-gather",
        "void vllm::cross_device_all_gather<__nv_bfloat16, 4>(vllm::RankData*, vllm::RankSignals)",
        AG,
        "vllm_custom",
        Algorithm.DIRECT,
        "",
    ),
    (
        "vllm-reduce-scatter",
        "void vllm::cross_device_reduce_scatter<__nv_bfloat16, 4>(vllm::RankData*, vllm::RankSignals)",
        RS,
        "vllm_custom",
        Algorithm.DIRECT,
        "",
    ),
    (
        "vllm-mnnvl-all-gather",
        "void vllm::mnnvl_lamport_all_gather<__nv_bfloat16, 8>(vllm::RankData*, __nv_bfloat16 const*)",
        AG,
        "vllm_mnnvl",
        Algorithm.MULTICAST,
        "",
    ),
    (
        "vllm-mnnvl-reduce-scatter",
        "void vllm::mnnvl_multimem_reduce_scatter<__nv_bfloat16, 8>(vllm::RankData*)",
        RS,
        "vllm_mnnvl/multimem",
        Algorithm.UNKNOWN,
        "",
    ),
    (
        "vllm-dcp-gather",
        "(anonymous namespace)::direct_dcp_q_gather_multimem_kernel(uint4 const*, uint4*, unsigned int)",
        AG,
        "vllm_dcp",
        Algorithm.MULTICAST,
        "",
    ),
    (
        "aiter-fused-1stage",
        "void aiter::allreduce_fusion_kernel_1stage<std::bfloat16_t, std::bfloat16_t, 4, true>(aiter::RankData*)",
        AR,
        "aiter_custom",
        Algorithm.ONE_SHOT,
        NORM,
    ),
    (
        "aiter-fused-2stage",
        "void aiter::allreduce_fusion_kernel_2stage<std::bfloat16_t, std::bfloat16_t, 8, true>(aiter::RankData*)",
        AR,
        "aiter_custom",
        Algorithm.TWO_SHOT,
        NORM,
    ),
    (
        "aiter-split-fusion",
        "void aiter::reduce_scatter_cross_device_store<std::bfloat16_t, 8>(aiter::RankData*, aiter::RankSignals)",
        AR,
        "aiter_custom",
        Algorithm.TWO_SHOT,
        "",
    ),
    (
        "aiter-norm-tail",
        "void aiter::local_device_load_rmsnorm_512n<std::bfloat16_t, 512, 1>(aiter::RankSignals, std::bfloat16_t*)",
        AR,
        "aiter_custom",
        Algorithm.UNKNOWN,
        NORM,
    ),
    (
        "quickreduce",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half, "
        "quickreduce::CodecQ4<__half, 4>, true>, __half>(__half const*, __half*, unsigned int)",
        AR,
        "quickreduce",
        Algorithm.QUICKREDUCE_Q4,
        "",
    ),
    (
        "quickreduce",
        "quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecFP<__half,8>, true>, __half>",
        AR,
        "quickreduce",
        Algorithm.QUICKREDUCE_FP,
        "",
    ),
    ("quickreduce", "allreduce_prototype_twoshot", AR, "quickreduce", Algorithm.UNKNOWN, ""),
    (
        "sglang-oneshot",
        "void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 4u, true>"
        "((anonymous namespace)::AllReducePushData, device::distributed::PushController)",
        AR,
        "sglang_custom/push",
        Algorithm.ONE_SHOT,
        "",
    ),
    (
        "sglang-twoshot",
        "void (anonymous namespace)::all_reduce_two_shot_kernel<__nv_bfloat16, 4u, true>"
        "(host::distributed::AllReduceData const*, (anonymous namespace)::AllReduceParams)",
        AR,
        "sglang_custom",
        Algorithm.TWO_SHOT,
        "",
    ),
    (
        "symm-mem-multimem",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        AR,
        "torch_symm_mem",
        Algorithm.NVLS,
        "",
    ),
    (
        "symm-mem-multimem-oneshot",
        "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        AR,
        "torch_symm_mem/multimem_one_shot",
        Algorithm.UNKNOWN,
        "",
    ),
    (
        "symm-mem-multimem-all-gather",
        "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*, unsigned long, unsigned int**)",
        AG,
        "torch_symm_mem",
        Algorithm.MULTICAST,
        "",
    ),
    (
        "symm-mem-reduce-scatter",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true, false>(c10::BFloat16**)",
        RS,
        "torch_symm_mem",
        Algorithm.DIRECT,
        "",
    ),
    (
        "symm-mem-twoshot",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**, "
        "unsigned long, unsigned long, unsigned int**, unsigned long, unsigned long)",
        AR,
        "torch_symm_mem",
        Algorithm.TWO_SHOT,
        "",
    ),
    (
        "symm-mem-oneshot",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 4>(c10::BFloat16**)",
        AR,
        "torch_symm_mem",
        Algorithm.ONE_SHOT,
        "",
    ),
    (
        "triton-distributed-multimem",
        "allreduce_two_shot_multimem_intra_node_kernel",
        AR,
        "triton_distributed",
        Algorithm.NVLS,
        "",
    ),
    (
        "triton-distributed-oneshot",
        "allreduce_one_shot_push_intra_node_kernel",
        AR,
        "triton_distributed",
        Algorithm.ONE_SHOT,
        "",
    ),
    (
        "nccl-symmetric",
        "void ncclSymDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16",
        AR,
        "nccl_symmetric",
        Algorithm.NVLS,
        "",
    ),
    (
        "nccl-symmetric",
        "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)",
        AR,
        "nccl_symmetric",
        Algorithm.TWO_SHOT,
        "",
    ),
    (
        "nccl-symmetric",
        "ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_f32(ncclSymkDevWorkArgs4K)",
        AR,
        "nccl_symmetric",
        Algorithm.MNNVL_ONE_SHOT,
        "",
    ),
    (
        "nccl-symmetric",
        "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f16(ncclSymkDevWorkArgs4K)",
        AR,
        "nccl_symmetric",
        Algorithm.ONE_SHOT,
        "",
    ),
    (
        "nccl-symmetric",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)",
        AG,
        "nccl_symmetric",
        Algorithm.DIRECT,
        "",
    ),
    (
        "nccl-symmetric",
        "ncclSymDevKernel_AllGather_STMC(ncclSymDevArgs)",
        AG,
        "nccl_symmetric",
        Algorithm.MULTICAST,
        "",
    ),
    (
        "nccl-symmetric",
        "ncclSymkDevKernel_ReduceScatter_LL_sum_f8e4m3(ncclSymkDevWorkArgs4K)",
        RS,
        "nccl_symmetric",
        Algorithm.DIRECT,
        "",
    ),
    (
        "nccl-symmetric-cut-short",
        "ncclSymkDevKernel_AllReduce",
        AR,
        "nccl_symmetric",
        Algorithm.UNKNOWN,
        "",
    ),
    (
        "nccl",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        AR,
        "nccl/LL",
        Algorithm.RING,
        "",
    ),
    (
        "nccl",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        AG,
        "nccl/LL",
        Algorithm.RING,
        "",
    ),
    (
        "nccl",
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL128(ncclDevKernelArgsStorage<4096ul>)",
        RS,
        "nccl/LL128",
        Algorithm.RING,
        "",
    ),
    (
        "nccl",
        "ncclDevKernel_AllReduce_Sum_bf16_NVLS_SIMPLE",
        AR,
        "nccl/SIMPLE",
        Algorithm.NVLS,
        "",
    ),
    ("nccl", "ncclDevKernel_AllGather_PAT_SIMPLE", AG, "nccl/SIMPLE", Algorithm.UNKNOWN, ""),
    (
        "nccl",
        "ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)",
        AR,
        "nccl/LL",
        Algorithm.TREE,
        "",
    ),
    (
        "nccl",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        AR,
        "nccl/LL",
        Algorithm.RING,
        "",
    ),
    (
        "nccl",
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        Kind.BROADCAST,
        "nccl/LL",
        Algorithm.RING,
        "",
    ),
    (
        "nccl",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        Kind.SEND_RECV,
        "nccl/SIMPLE",
        Algorithm.RING,
        "",
    ),
    (
        "nccl-send-recv",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        Kind.SEND_RECV,
        "nccl",
        Algorithm.DIRECT,
        "",
    ),
    ("nccl-old", "ncclAllReduceRingLLKernel_sum_f16(ncclColl)", AR, "nccl/LL", Algorithm.RING, ""),
    ("nccl-old", "ncclAllReduceTreeLL128Kernel_sum_f32(ncclColl)", AR, "nccl/LL128", Algorithm.TREE, ""),
    (
        "rccl-generic",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        Kind.UNKNOWN,
        "rccl",
        Algorithm.UNKNOWN,
        "",
    ),
    (
        "rccl-generic",
        "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
        Kind.UNKNOWN,
        "rccl",
        Algorithm.UNKNOWN,
        "",
    ),
    (
        "msccl",
        "mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
        Kind.UNKNOWN,
        "msccl",
        Algorithm.UNKNOWN,
        "",
    ),
    (
        "deep-ep-notify",
        "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*, int, int, int)",
        A2A,
        "deep_ep_notify",
        Algorithm.DIRECT,
        "",
    ),
    (
        "deep-ep-notify",
        "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int, int, int**, int)",
        A2A,
        "deep_ep_notify",
        Algorithm.DIRECT,
        "",
    ),
    (
        "deep-ep",
        "void deep_ep::internode_ll::dispatch<(bool)1, (bool)1, (int)6144>(void *, void *, int *, long *)",
        A2A,
        "deep_ep/dispatch",
        Algorithm.DIRECT,
        "",
    ),
    (
        "trtllm-moe-all-to-all",
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, false>(int const*, DispatchKernelPointers)",
        A2A,
        "trtllm_moe",
        Algorithm.DIRECT,
        "",
    ),
    ("nvshmem-all-to-all", "nvshmemi_alltoall_on_stream_kernel", A2A, "nvshmem", Algorithm.DIRECT, ""),
]

OPS: list[tuple[str, str, Scope, Kind, Role]] = [
    ("mtpprof-shm", "mtpprof_shm::all_reduce", Scope.CPU_OP, AR, Role.COLLECTIVE),
    ("mtpprof-shm-fused", "mtpprof_shm::all_reduce_residual_rmsnorm", Scope.CPU_OP, AR, Role.COLLECTIVE),
    ("cpu-shm", "_C::shm_allreduce", Scope.CPU_OP, AR, Role.COLLECTIVE),
    ("cpu-shm", "_C::shm_all_gather", Scope.CPU_OP, AG, Role.COLLECTIVE),
    ("cpu-shm", "_C::shm_gather", Scope.CPU_OP, Kind.GATHER, Role.COLLECTIVE),
    ("c10d", "c10d::allreduce_", Scope.CPU_OP, AR, Role.COLLECTIVE),
    ("c10d", "c10d::_allgather_base_", Scope.CPU_OP, AG, Role.COLLECTIVE),
    ("c10d", "c10d::_reduce_scatter_base_", Scope.CPU_OP, RS, Role.COLLECTIVE),
    ("c10d", "c10d::broadcast_", Scope.CPU_OP, Kind.BROADCAST, Role.COLLECTIVE),
    ("c10d", "c10d::alltoall_base_", Scope.CPU_OP, A2A, Role.COLLECTIVE),
    ("c10d", "c10d::allgather_into_tensor_coalesced_", Scope.CPU_OP, AG, Role.COLLECTIVE),
    ("c10d", "c10d::barrier", Scope.CPU_OP, Kind.BARRIER, Role.COLLECTIVE),
    ("c10d-functional", "_c10d_functional::all_reduce_", Scope.CPU_OP, AR, Role.COLLECTIVE),
    ("c10d-functional", "_c10d_functional::all_gather_into_tensor", Scope.CPU_OP, AG, Role.COLLECTIVE),
    ("wait", "_c10d_functional::wait_tensor", Scope.CPU_OP, Kind.UNKNOWN, Role.NONE),
    ("wait", "All2All_Pooled_Wait", Scope.CPU_OP, Kind.UNKNOWN, Role.NONE),
    ("aten", "aten::gather", Scope.CPU_OP, Kind.UNKNOWN, Role.NONE),
    ("record-param-comms", "record_param_comms", Scope.CPU_OP, Kind.UNKNOWN, Role.LAUNCH),
    ("vllm-fused", "vllm::flashinfer_trtllm_fused_allreduce_norm", Scope.CPU_OP, AR, Role.LAUNCH),
    ("vllm-op", "vllm::all_reduce", Scope.CPU_OP, AR, Role.LAUNCH),
    ("vllm-op", "vllm::all_reduce_symmetric_with_copy", Scope.CPU_OP, AR, Role.LAUNCH),
    ("custom-ar-op", "_C_custom_ar::all_reduce", Scope.CPU_OP, AR, Role.LAUNCH),
    ("custom-ar-op", "_C_custom_ar::mnnvl_lamport_reduce_scatter", Scope.CPU_OP, RS, Role.LAUNCH),
    ("custom-ar-op", "_C_custom_ar::qr_all_reduce", Scope.CPU_OP, AR, Role.LAUNCH),
    ("symm-mem-op", "symm_mem::multimem_all_reduce_", Scope.CPU_OP, AR, Role.LAUNCH),
    ("symm-mem-op", "symm_mem::two_shot_all_reduce_", Scope.CPU_OP, AR, Role.LAUNCH),
    ("sglang-fused", "sglang::flashinfer_allreduce_residual_rmsnorm", Scope.CPU_OP, AR, Role.LAUNCH),
    ("sglang-op", "sglang::reg_all_gather_into_tensor", Scope.CPU_OP, AG, Role.LAUNCH),
    ("sglang-op", "sglang::inplace_all_reduce", Scope.CPU_OP, AR, Role.LAUNCH),
    ("sgl-kernel-op", "sgl_kernel::all_reduce", Scope.CPU_OP, AR, Role.LAUNCH),
    ("sgl-kernel-op", "sgl_kernel::qr_all_reduce", Scope.CPU_OP, AR, Role.LAUNCH),
    ("aiter-fused", "aiter::fused_allreduce_rmsnorm", Scope.CPU_OP, AR, Role.LAUNCH),
    ("aiter-op", "aiter::all_reduce", Scope.CPU_OP, AR, Role.LAUNCH),
    ("gloo", "gloo:all_reduce", Scope.ANNOTATION, AR, Role.COLLECTIVE),
    ("gloo", "gloo:all_gather", Scope.ANNOTATION, AG, Role.COLLECTIVE),
    ("nccl-launch", "nccl:_all_gather_base", Scope.ANNOTATION, AG, Role.LAUNCH),
    ("nccl-launch", "nccl:all_to_all", Scope.ANNOTATION, A2A, Role.LAUNCH),
    ("nccl-nvtx", "ncclAllReduce", Scope.ANNOTATION, AR, Role.LAUNCH),
    ("nccl-nvtx", "ncclAlltoAll", Scope.ANNOTATION, A2A, Role.LAUNCH),
    ("backend-wait", "gloo:wait", Scope.ANNOTATION, Kind.UNKNOWN, Role.NONE),
]


@pytest.mark.parametrize("row", KERNELS, ids=lambda row: f"{row[0]}:{row[1][:40]}")
def test_a_kernel_is_what_it_is(row: Row) -> None:
    rule, name, kind, implementation, algorithm, fused = row
    found = Classifier().classify(name, Scope.KERNEL)
    assert found is not None
    assert (found.rule, found.kind, found.implementation, found.algorithm, found.fused) == (
        rule,
        kind,
        implementation,
        algorithm,
        fused,
    )


@pytest.mark.parametrize("row", OPS, ids=lambda row: row[1])
def test_an_operation_is_what_it_is(row: tuple[str, str, Scope, Kind, Role]) -> None:
    rule, name, scope, kind, role = row
    found = Classifier().classify(name, scope)
    assert found is not None
    assert (found.rule, found.kind, found.role) == (rule, kind, role)


def test_every_rule_has_a_real_name() -> None:
    shown = {row[0] for row in KERNELS} | {row[0] for row in OPS}
    assert {rule.id for rule in built_in_rules()} == shown


def test_every_rule_tells_its_source_and_every_tail_completes_a_rule() -> None:
    rules = built_in_rules()
    assert [rule.id for rule in rules if not rule.source] == []
    for rule in rules:
        assert (rule.role is Role.TAIL) == (rule.completes != "")
        assert not rule.completes or rule.completes in {other.id for other in rules}


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxOps<float>>>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, false>",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>",
        "void moe_sum_reduce_kernel_warp<8>",
        "triton_red_fused_add_mean_mul_pow_rsqrt_0",
    ],
)
def test_computation_is_neither_known_nor_suspected(name: str) -> None:
    classifier = Classifier()
    assert classifier.classify(name, Scope.KERNEL) is None
    assert not classifier.looks_like_communication(name, Scope.KERNEL)


@pytest.mark.parametrize(
    "name", ["my_fancy_allreduce_v2<float>", "triton_poi_fused_add_all_reduce_4", "mori::A2AKernel"]
)
def test_an_unknown_name_that_looks_like_communication_is_suspected(name: str) -> None:
    classifier = Classifier()
    assert classifier.classify(name, Scope.KERNEL) is None
    assert classifier.looks_like_communication(name, Scope.KERNEL)


def test_a_known_name_is_not_suspected() -> None:
    assert not Classifier().looks_like_communication(KERNELS[0][1], Scope.KERNEL)


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("allreduce", AR),
        ("_allgather_base", AG),
        ("all_gather_into_tensor_coalesced", AG),
        ("_reduce_scatter_base", RS),
        ("all_to_allv", A2A),
        ("wait", Kind.UNKNOWN),
        ("", Kind.UNKNOWN),
    ],
)
def test_spellings_of_a_collective(word: str, kind: Kind) -> None:
    assert kind_of_word(word) is kind


@given(st.text(max_size=200), st.sampled_from(Scope))
def test_no_name_is_too_strange(name: str, scope: Scope) -> None:
    classifier = Classifier()
    found = classifier.classify(name, scope)
    assert found is None or found.rule in {rule.id for rule in built_in_rules()}


def test_a_name_of_a_megabyte_is_no_trouble() -> None:
    name = f"{FI}_oneshot_lamport<" + "a, " * 400_000
    found = Classifier().classify(name, Scope.KERNEL)
    assert found is not None
    assert found.fused == "unknown"


def test_the_users_rules_stand_before_ours(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[rule]]\nid = "mine"\npattern = "multimem_all_reduce"\nkind = "all_reduce"\nalgorithm = "two_shot"\n'
    )
    found = with_user_rules(load_rules(file)).classify("multimem_all_reduce_kernel<float>", Scope.KERNEL)
    assert found is not None
    assert (found.rule, found.implementation, found.algorithm) == ("mine", "mine", Algorithm.TWO_SHOT)
    assert Classifier().classify("multimem_all_reduce_kernel<float>", Scope.KERNEL) != found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no rules"),
        ("[[rule]", "not a TOML file"),
        ("rule = 3", "holds no rules"),
        ('[[rule]]\nid = "a"\n', "lacks ['kind', 'pattern']"),
        ('[[rule]]\nid = "a"\npattern = "("\nkind = "all_reduce"\n', "is wrong"),
        ('[[rule]]\nid = "a"\npattern = "x"\nkind = "all_the_things"\n', "all_the_things"),
        (
            '[[rule]]\nid = "a"\npattern = "x"\nkind = "all_reduce"\ncolour = "red"\n',
            "unknown keys ['colour']",
        ),
        ('[[rule]]\nid = "a"\npattern = 3\nkind = "all_reduce"\n', "in quotes"),
        ('[[rule]]\nid = "a"\npattern = "x"\nkind = "reduce"\n' * 2, "used twice"),
        ('[[rule]]\nid = "a"\npattern = "' + "(" * 5000 + ")" * 5000 + '"\nkind = "reduce"\n', "is wrong"),
        ("rule = " + "[" * 5000 + "]" * 5000, "not a TOML file"),
        ("#" * (1 << 20) + "\n", "larger than 1,048,576 bytes"),
    ],
    ids=range(12),
)
def test_a_wrong_rules_file_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        load_rules(file)
    assert str(file) in str(error.value)
    assert says in str(error.value)


def test_a_rules_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_rules(tmp_path / "absent.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\x9f\xff")
    with pytest.raises(InputError, match="UTF-8"):
        load_rules(tmp_path / "bytes.toml")


@pytest.mark.parametrize("path", ["/dev/zero", "."])
def test_endless_files_are_no_rules(path: str) -> None:
    with pytest.raises(InputError, match="no ordinary file"):
        load_rules(Path(path))


def test_a_pipe_is_no_rules_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no ordinary file"):
        load_rules(tmp_path / "pipe")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(a|a)*$", "(.*)*x", "a*a*a*a*b"])
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    bounded = BoundedPattern(pattern, "mine.toml: rule 1 (a)", Budget(total_s=0.2))
    with suppress(InputError):
        assert bounded.search("a" * 200 + "!") is None


def test_a_pattern_that_uses_up_its_time_is_named() -> None:
    budget = Budget(total_s=0.2)
    slow = BoundedPattern("(a|aa)+$", "mine.toml: rule 1 (slow)", budget)
    quick = BoundedPattern("a", "mine.toml: rule 2 (quick)", budget)
    assert quick.search("a") is not None
    with pytest.raises(InputError, match=r"mine.toml: rule 1 \(slow\): .* need more than 0.2 s"):
        slow.search("a" * 200 + "!")
    with pytest.raises(InputError, match="need more than"):
        quick.search("a")
