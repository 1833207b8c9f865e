"""Whose kernel a name belongs to. The names are as torch's profiler gave them on an H200, or as the libraries spell
them."""

from __future__ import annotations

import pytest

from tilewright.judge.profile.origins import origin, shares
from tilewright.judge.wire.messages import SpentClocks

LIBRARIES = {
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)": "torch",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)": "torch",
    "void at_cuda_detail::cub::DeviceScanKernel<float>(float*)": "torch",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(Flash_fwd_params)": "torch",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)": "torch",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT": "cuBLAS",
    "ampere_sgemm_128x64_tn": "cuBLAS",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_ffma_aligna4": "cuBLAS",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(cutlass_80_simt_sgemm_128x128_8x4_nn_align1::"
    "Params)": "cuBLAS",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(float const*)": "cuBLAS",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>(float*)": "cuBLAS",
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3": "cuDNN",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(float)": "cuDNN",
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, true>(int, int)": "cuDNN",
    "triton_poi_fused_add_relu_0": "inductor",
    "triton_red_fused__softmax_1": "inductor",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "NCCL",
    "Memcpy DtoD (Device -> Device)": "copy",
    "Memset (Device)": "copy",
    "void cub::detail::scan::DeviceScanKernel<float>(float*)": "CUB",
}  # fmt: skip
OWN = (
    "my_kernel(float const*, float*, int)",
    "void rows<float>(at::GenericPackedTensorAccessor<float, 2ul>)",  # torch's types among its parameters
    "void (anonymous namespace)::fused_norm<4>(float*, int)",
    "kernel_cutlass_sweep_tensorptrf32gmem_o4096_0",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int> > >(int)",
    "triton_kernel_by_hand_0d1d2",
    "_layer_norm_fwd",
    "sgemm_tiled_f32x3(float const*, float const*, float*)",
)


@pytest.mark.parametrize(("name", "whose"), LIBRARIES.items(), ids=[n[:40] for n in LIBRARIES])
def test_a_librarys_kernel_is_not_the_candidates(name: str, whose: str) -> None:
    assert origin(name, "cuda") == whose


@pytest.mark.parametrize("name", OWN, ids=[n[:40] for n in OWN])
def test_other_kernels_are_its_own(name: str) -> None:
    assert origin(name, "cuda") == "own"


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("aten::addmm", "torch"),
        ("Torch-Compiled Region: 0/0", "inductor"),
        ("## Call CompiledFxGraph f4iq ##", "inductor"),
        ("tilewright_ab12::fused_0", "own"),
        ("outside torch's operators", "own"),
    ],
)
def test_operators_on_the_cpu(name: str, whose: str) -> None:
    assert origin(name, "cpu") == whose


def test_shares_add_up_and_come_largest_first() -> None:
    spent = (
        SpentClocks(name="ampere_sgemm_128x64_tn", ns=6e5),
        SpentClocks(name="mine(float*)", ns=3e5),
        SpentClocks(name="Memset (Device)", ns=0.5e5),
        SpentClocks(name="mine_too(float*)", ns=0.5e5),
    )
    found = shares(spent, "cuda")
    assert found == (("cuBLAS", pytest.approx(0.6)), ("own", pytest.approx(0.35)), ("copy", pytest.approx(0.05)))


def test_nothing_seen_or_too_little_has_no_shares() -> None:
    assert shares((), "cuda") == ()
    assert shares((SpentClocks(name="aten::relu", ns=9e4),), "cpu") == ()
    assert shares((SpentClocks(name="aten::relu", ns=2e5),), "cpu") == (("torch", 1.0),)
