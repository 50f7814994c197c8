"""At which precision float32 products of a trace ran."""

from itertools import chain

import pytest
from kineto_traces import ran

import rooflight as rl
from rooflight.records.signature import COMPUTED_IN
from rooflight.sources.traces.ops.context import precision_of_kernel

MM = {"dims": [[256, 512], [512, 1024]], "types": ["float", "float"]}
FLOPS = 2 * 256 * 512 * 1024
TF32, SGEMM = "cutlass_80_tensorop_s1688gemm_64x64", "ampere_sgemm_32x128_tn"
A100 = "NVIDIA A100-SXM4-80GB"
SETTING = "torch.backends.cuda.matmul.fp32_precision"


@pytest.mark.parametrize(
    ("kernel_name", "precision"),
    [
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_tn_align1>", "tfloat32"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16", "tfloat32"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1", "tfloat32"),
        ("nvjet_sm90_sss_128x64_64x3_2x1_v_bz_TNN", "tfloat32"),
        ("Cijk_Alik_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x160x64_MI16x16x1", "tfloat32"),
        ("ampere_sgemm_32x128_tn", "float32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", "float32"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "float32"),
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1", "float32"),
        ("ampere_fp16_s16816gemm_fp16_128x128", ""),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs", ""),
        ("void splitKreduce_kernel<float, float, float, float>", ""),
    ],
)
def test_names_of_kernels_show_the_precision(kernel_name, precision):
    assert precision_of_kernel(kernel_name) == precision


def products(read, *kernels):
    """Products of equal shapes by these kernels, 100 µs apart."""
    each = (ran("aten::mm", 100 * place, 5 + place, by=name, **MM) for place, name in enumerate(kernels))
    return read(*chain.from_iterable(each), gpu=A100)


def test_each_product_is_bounded_at_the_precision_of_its_own_kernel(read):
    analysis = rl.analyze(products(read, TF32, SGEMM))
    assert [op.attribute(COMPUTED_IN) for op in analysis.session.signatures] == ["tfloat32", "float32"]
    # A100: 156 TFLOP/s in TF32, 19.5 in float32
    seconds = sorted(operation.bound.compute_s for operation in analysis.operations)
    assert seconds == pytest.approx([FLOPS / 156e12, FLOPS / 19.5e12])
    # all at once, the matrix unit has both to do
    assert analysis.program.program_bound_s == pytest.approx(FLOPS / 156e12 + FLOPS / 19.5e12)
    notes = " ".join(analysis.report().notes)
    assert "matrix products at the float32 peak (the kernels in the trace)" in notes
    assert "matrix products at the tfloat32 peak (the kernels in the trace)" in notes
    # a V100 has no TF32: 15.7 TFLOP/s
    bounds = {operation.bound.compute_s for operation in rl.analyze(analysis.session, "V100-SXM2-32GB").operations}
    assert bounds == {FLOPS / 15.7e12}


def test_a_product_whose_kernel_does_not_show_it_may_use_tf32_where_another_did(read):
    session = products(read, TF32, "my_own_product")
    assert session.environment[SETTING] == "tf32"
    assert {operation.bound.compute_s for operation in rl.analyze(session).operations} == {FLOPS / 156e12}
    for other in (SGEMM, "ampere_fp16_s16816gemm_fp16_128x128"):
        assert SETTING not in products(read, other, "my_own_product").environment


@pytest.mark.parametrize(
    ("kernel_name", "peak"),
    [
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32", 156e12),
        ("implicit_convolve_sgemm<float, float, 128>", 19.5e12),
        ("cudnn_kernel_of_unknown_kind", 156e12),  # cuDNN may by default
    ],
)
def test_a_convolution_is_bounded_at_the_precision_of_its_kernel(read, kernel_name, peak):
    settings = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "False", "False", "True"]
    types = ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", *["Scalar"] * 4]
    inputs = {"dims": [[8, 64, 32, 32], [64, 64, 3, 3], *[[]] * 10], "types": types, "Concrete_Inputs": settings}
    session = read(*ran("aten::_convolution", by=kernel_name, **inputs), gpu=A100)
    (operation,) = rl.analyze(session).operations
    taps = (3 * 32 - 2) ** 2  # that meet data: at both ends of a row and of a column one lies on padding
    assert operation.bound.compute_s == pytest.approx(2 * 8 * 64 * 64 * taps / peak)


def test_attention_in_float32_keeps_its_rule(read):
    inputs = {
        "dims": [*[[2, 8, 128, 64]] * 3, [], [], [], [], []],
        "types": [*["float"] * 3, "", "Scalar", "Scalar", "Scalar", ""],
        "Concrete_Inputs": ["", "", "", "", "False", "0.", "False", ""],
    }
    name = "aten::_scaled_dot_product_efficient_attention"
    (signature,) = read(*ran(name, by="fmha_cutlassF_f32_simt_gemv", **inputs), gpu=A100).signatures
    assert signature.attribute(COMPUTED_IN) is None
