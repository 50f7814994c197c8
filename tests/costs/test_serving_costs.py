"""Ops of serving engines and of recommenders, as traces describe them: hand arithmetic."""

import pytest

from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec


def described(name, *shapes, ints=(), places=None, dtype="bfloat16"):
    """A signature as a trace without schema gives it: inputs by place, no results."""
    tensors = tuple(
        TensorSpec(shape[0], shape[1]) if shape and isinstance(shape[0], tuple) else TensorSpec(shape, dtype)
        for shape in shapes
    )
    at = places or range(len(tensors))
    names = tuple(f"arg{place}" for place in at)
    return OpSignature(name=name, inputs=tensors, input_names=names, attributes=tuple(ints))


def cost(*args, **settings):
    return cost_of(described(*args, **settings))


def test_norms_write_into_the_tensors_they_are_given():
    found = cost("_C::rms_norm", (4, 8), (4, 8), (8,))
    # reads x 4 * 8 and the weight 8, writes 4 * 8, 2 bytes each; 5 FLOPs per element
    assert (found.bytes_read, found.bytes_written, found.vector_flops) == (80, 64, 160)
    both = cost("_C::fused_add_rms_norm", (4, 8), (4, 8), (8,))
    # x and residual read and written
    assert (both.bytes_read, both.bytes_written, both.vector_flops) == (64 + 64 + 16, 128, 192)
    apart = cost("aiter::add_rmsnorm", *[(4, 8)] * 4, (8,))
    assert (apart.bytes_read, apart.bytes_written) == (64 + 64 + 16, 128)
    assert cost("sgl_kernel::rmsnorm", (4, 8), (4, 8), (8,)) == cost("aiter::rmsnorm", (4, 8), (4, 8), (8,))


def test_a_gated_activation_reads_twice_what_it_writes():
    found = cost("_C::silu_and_mul", (4, 8), (4, 16))
    assert (found.bytes_read, found.bytes_written, found.vector_flops) == (128, 64, 160)


def test_quantizing_writes_one_byte_an_element():
    found = cost("_C::static_scaled_fp8_quant", ((4, 8), "float8_e4m3fn"), (4, 8), ((), "float32"))
    assert (found.bytes_read, found.bytes_written) == (64 + 4, 32)
    dynamic = cost("_C::dynamic_per_token_scaled_fp8_quant", ((4, 8), "float8_e4m3fn"), (4, 8), ((4, 1), "float32"))
    assert (dynamic.bytes_read, dynamic.bytes_written) == (64, 32 + 16)


def test_rotary_embedding_turns_the_part_of_each_head_that_has_cosines():
    # 4 tokens, 2 heads of 8 for q, 1 for k, of which 4 numbers are turned: q 64 and k 32 elements, half of them
    table, tokens = (1000, 4), ((4,), "int64")
    found = cost("_C::rotary_embedding", tokens, (4, 16), (4, 8), table, ints=[("arg3", 8)])
    assert found.vector_flops == 3 * (64 + 32) // 2
    assert found.bytes_written == (64 + 32) // 2 * 2
    assert found.bytes_read == 4 * 8 + 96 + 4 * 4 * 2  # positions, q and k, four rows of the table
    whole = cost("_C::rotary_embedding", tokens, (4, 16), (4, 8), (1000, 8), ints=[("arg3", 8)])
    assert whole.bytes_written == (64 + 32) * 2
    unknown = cost("_C::rotary_embedding", tokens, (4, 16), (4, 8), table)
    assert unknown.vector_flops == 3 * (64 + 32)


def test_a_cache_is_written_where_the_tokens_go_and_nowhere_else():
    cache = ((1000, 16, 1, 64), "uint8")
    slots, scale = ((4,), "int64"), ((), "float32")
    found = cost("_C_cache_ops::reshape_and_cache_flash", (4, 1, 64), (4, 1, 64), cache, cache, slots, scale, scale)
    assert found.bytes_read == 2 * 4 * 64 * 2 + 4 * 8 + 2 * 4
    assert found.bytes_written == 2 * 4 * 64  # one byte each


EIGHT, F32, I32 = "float8_e4m3fn", "float32", "int32"

# result, x and weight [n, k] or [k, n] of 4 rows, 6 numbers each, to 10 columns
OUT, X, W, WT = (4, 10), (4, 6), (10, 6), (6, 10)
PRODUCTS = {
    "aiter::gemm_a16w16": (X, W),
    "vllm::rocm_unquantized_gemm": (X, W),
    "_rocm_C::wvSplitK": (W, X),
    "_C::cutlass_scaled_mm": (OUT, (X, EIGHT), (WT, EIGHT), ((1,), F32), ((1,), F32)),
    "_C::cutlass_scaled_fp4_mm": (OUT, ((4, 3), "uint8"), ((10, 3), "uint8"), ((4, 1), EIGHT), ((10, 1), EIGHT)),
    "sgl_kernel::fp8_scaled_mm": ((X, EIGHT), (WT, EIGHT), ((4, 1), F32), ((10,), F32)),
    "sgl_kernel::dsv3_fused_a_gemm": (OUT, X, WT),
    "sgl_kernel::bmm_fp8": (((2, 2, 6), EIGHT), ((2, 6, 10), EIGHT), (2, 2, 10)),
    "aiter::gemm_a8w8_blockscale_ck": ((X, EIGHT), (W, EIGHT), ((4, 1), F32), ((10, 1), F32), OUT),
    "aiter::gemm_a4w4": (((4, 3), "uint8"), ((10, 3), "uint8"), ((4, 1), "uint8"), ((10, 1), "uint8")),
    "_C::awq_gemm": (X, ((6, 2), I32), (1, 10), ((1, 2), I32)),
    "_C::gptq_gemm": (X, ((1, 10), I32), ((1, 2), I32), (1, 10), ((6,), I32)),
    "_C::machete_mm": (X, ((1, 10), I32), (1, 10)),
    "primus_turbo::grouped_gemm": (X, (3, 10, 6), ((3,), "int64")),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    found = cost(name, *PRODUCTS[name])
    assert found.matrix_flops == 2 * 4 * 6 * 10
    assert found.bytes_written == 4 * 10 * 2


def test_products_read_weights_as_they_are_packed():
    found = cost("aiter::gemm_a16w16", (32, 64), (128, 64), ints=[("arg3", 15)])
    assert found.bytes_read == (32 * 64 + 128 * 64) * 2
    assert cost("_C::awq_gemm", *PRODUCTS["_C::awq_gemm"]).bytes_read == 4 * 6 * 2 + 6 * 2 * 4 + 10 * 2 + 2 * 4
    scaled = cost("_C::cutlass_scaled_mm", *PRODUCTS["_C::cutlass_scaled_mm"])
    assert (scaled.bytes_read, scaled.matrix_dtype) == (4 * 6 + 6 * 10 + 8, EIGHT)
    four = cost("aiter::gemm_a4w4", *PRODUCTS["aiter::gemm_a4w4"])
    assert (four.bytes_read, four.matrix_dtype) == (12 + 30 + 4 + 10, "float4_e2m1fn_x2")
    grouped = cost("primus_turbo::grouped_gemm", *PRODUCTS["primus_turbo::grouped_gemm"])
    assert grouped.bytes_read == 4 * 6 * 2 + 10 * 6 * 2
    wide = cost("sgl_kernel::fp8_scaled_mm", *PRODUCTS["sgl_kernel::fp8_scaled_mm"], ints=[("arg4", 6)])
    assert wide.bytes_written == 4 * 10 * 4


def test_products_whose_columns_are_among_the_settings():
    sizes = [("arg11", 123456789), ("arg12", 4), ("arg13", 10), ("arg14", 6), ("arg15", True)]
    weights = [((1, 20), I32), (1, 10), ((64,), I32)]
    found = cost("_C::marlin_gemm", X, *weights, places=(0, 2, 4, 10), ints=sizes)
    assert found.matrix_flops == 2 * 4 * 6 * 10
    assert found.bytes_read == 4 * 6 * 2 + 20 * 4
    assert isinstance(cost("_C::marlin_gemm", X, *weights, places=(0, 2, 4, 10)), Uncosted)
    assert cost("_C::allspark_w8a16_gemm", X, ((6, 10), "uint8"), (10,), ints=[("arg4", 10)]).matrix_flops == 480
    assert isinstance(cost("_C::allspark_w8a16_gemm", X, ((6, 10), "uint8"), (10,)), Uncosted)
    assert cost("_C::ggml_mul_mat_a8", ((10, 5), "uint8"), X, ints=[("arg2", 8), ("arg3", 10)]).matrix_flops == 480
    layer = cost("trace::_LayerNormLinear", (2, 2, 6), (6,), W, (10,))
    assert (layer.matrix_flops, layer.bytes_read, layer.bytes_written) == (480, 4 * 6 * 2 + 60 * 2, 4 * 10 * 2)
    eight = cost("trace::_Linear", W, X, ints=[("product_dtype", EIGHT)])
    assert (eight.matrix_flops, eight.matrix_dtype, eight.bytes_read) == (480, EIGHT, 4 * 6 + 60)
    assert isinstance(cost("trace::_Linear", (4, 6)), Uncosted)
    engine = cost("tex_ts::te_gemm_ts", W, X, OUT, places=(0, 5, 10))
    assert engine.matrix_flops == 480
    gradient = cost("primus_turbo::grouped_gemm_variable_k", (8, 6), (8, 10), ((2,), "int64"))
    assert (gradient.matrix_flops, gradient.bytes_written) == (2 * 8 * 6 * 10, 2 * 6 * 10 * 2)


SCALES = ((4, 1), F32)
QUANTIZED = ((4, 8), EIGHT)
MOVED = {  # bytes read and written of x [4, 8] in 2 bytes, and of what comes with it
    "_C::rms_norm_weightless": (((4, 8), (4, 8)), 64, 64),
    "_C::silu_and_mul_quant": ((QUANTIZED, (4, 16), ((1,), F32)), 128 + 4, 32),
    "_C::silu_and_mul_per_block_quant": ((QUANTIZED, (4, 16), SCALES), 128, 32 + 16),
    "_C::per_token_group_fp8_quant": (((4, 8), QUANTIZED, SCALES), 64, 32 + 16),
    "_C::dynamic_scaled_int8_quant": ((((4, 8), "int8"), (4, 8), SCALES), 64, 32 + 16),
    "sgl_kernel::sgl_per_token_quant_fp8": (((4, 8), QUANTIZED, SCALES), 64, 32 + 16),
    "sgl_kernel::merge_state_v2": (((4, 8), SCALES, (4, 8), SCALES, (4, 8), SCALES), 2 * (64 + 16), 64 + 16),
    "_C::merge_attn_states": (((4, 8), SCALES, (4, 8), SCALES, (4, 8), SCALES), 2 * (64 + 16), 64 + 16),
    "flashinfer::rmsnorm": (((4, 8), (4, 8), (8,)), 64 + 16, 64),
    "aiter::rmsnorm2d_fwd": (((4, 8), (8,)), 64 + 16, 64),
    "aiter::add_rmsnorm_quant": ((QUANTIZED, (4, 8), (4, 8), (4, 8), SCALES, (8,)), 128 + 16, 32 + 64 + 16),
    "aiter::rmsnorm2d_fwd_with_dynamicquant": ((QUANTIZED, (4, 8), SCALES, (8,)), 64 + 16, 32 + 16),
    "vllm::rocm_aiter_rmsnorm2d_fwd_with_add": (((4, 8), (4, 8), (8,)), 128 + 16, 128),
    "aiter::rope_cached_fwd_impl": (((4, 8), (4, 8), (4, 4), (4, 4)), 64 + 2 * 32, 64),
    "aiter::rope_2c_fwd_impl": (((4, 8), (4, 2), (4, 8), (4, 2), (4, 4)), 64 + 16 + 32, 64 + 16),
    "_C_cache_ops::concat_and_cache_mla": (((4, 8), (4, 2), ((9, 16, 10), "uint8"), ((4,), "int64")), 80 + 32, 40),
    "sgl_kernel::store_kv_cache": (((99, 8), (99, 8), ((4,), "int64"), (4, 8), (4, 8)), 32 + 128, 128),
    "_C::awq_dequantize": ((((8, 1), I32), (1, 8), ((1, 1), I32)), 32 + 16 + 4, 8 * 8 * 2),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_moves(name):
    shapes, read, written = MOVED[name]
    found = cost(name, *shapes)
    assert (found.bytes_read, found.bytes_written) == (read, written)


def test_a_norm_that_quantizes_may_add_a_residual():
    tensors = [QUANTIZED, (4, 8), (8,), SCALES]
    found = cost("_C::rms_norm_dynamic_per_token_quant", *tensors)
    assert (found.bytes_read, found.bytes_written, found.vector_flops) == (64 + 16, 32 + 16, 7 * 32)
    added = cost("_C::rms_norm_dynamic_per_token_quant", *tensors, (4, 8), places=(0, 1, 2, 3, 6))
    assert (added.bytes_read, added.bytes_written, added.vector_flops) == (128 + 16, 32 + 16 + 64, 8 * 32)


def test_norm_and_rotary_embedding_of_queries_and_keys_leave_values():
    heads = [("arg1", 2), ("arg2", 1), ("arg3", 1), ("arg4", 8)]
    found = cost("_C::fused_qk_norm_rope", (4, 32), (8,), (8,), (99, 8), ((4,), "int64"), ints=heads)
    assert (found.bytes_read, found.bytes_written) == (4 * 24 * 2, 4 * 24 * 2)
    tensors = [(4, 2, 8), (4, 1, 8), (4, 2, 8), (4, 1, 8), ((99, 4), F32), ((4,), "int64")]
    found = cost("sgl_kernel::apply_rope_pos_ids_cos_sin_cache", *tensors)
    # 4 of 8 numbers of 3 heads are turned; 4 rows of the table
    assert (found.bytes_read, found.bytes_written) == (4 * 8 + 4 * 3 * 4 * 2 + 4 * 4 * 4, 4 * 3 * 4 * 2)


def lookup(ints=()):
    f, i, n = "float32", "int32", "int64"
    tensors = [((0,), f), ((960,), f), ((3,), i), ((100,), n), ((9,), n), ((100,), f)]
    return cost(
        "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function",
        *tensors,
        places=(0, 1, 6, 11, 12, 14),
        ints=ints,
    )


def test_a_look_up_counts_what_is_certain():
    found = lookup()
    # 100 indices of 8 bytes, 9 offsets, 100 weights of 4; 2 tables, 4 bags each, 2 * 4 numbers of 2 bytes at the least
    assert found.bytes_read == 800 + 72 + 400
    assert found.bytes_written == 4 * 8 * 2
    assert lookup(ints=[("arg7", 96)]).bytes_written == 4 * 96 * 2


def test_other_ops_of_recommenders():
    ints = ((3,), "int64")
    x = ((4, 10), "float32")
    assert cost("fbgemm::permute_pooled_embs_auto_grad", x, ints, ints, ints, ints).bytes_written == 160
    backward = "trace::torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"
    assert cost(backward, x).bytes_read == 160
    check = cost("fbgemm::bounds_check_indices", ints, ((100,), "int64"), ((9,), "int64"), ((1,), "int64"))
    assert check.bytes_read == 24 + 800 + 72
    features = cost("fbgemm::permute_sparse_features", ((5,), "int32"), ((3, 8), "int32"), ((100,), "int32"))
    assert (features.bytes_read, features.bytes_written) == (20, 5 * 8 * 4)
    sums = cost("fb::asynchronous_complete_cumsum", ((8,), "int32"))
    assert (sums.bytes_read, sums.bytes_written) == (32, 36)


def test_a_kernel_of_inductor_moves_each_tensor_once():
    name = "trace::triton_poi_fused_mul_silu_2"
    found = cost(name, (8, 4), (32,), ints=[("arg2", 32)])
    assert (found.bytes_read, found.bytes_written, found.upper) == (64, 64, True)
    # a look-up may read a part of a table: no more than one element of it for each of the 32 steps
    assert cost(name, (1000, 4), (32,), ints=[("arg2", 32)]).bytes_read == 64
    # sizes of the shapes come before the steps, of which a tiled kernel has two
    assert cost(name, (1000,), (32,), ints=[("arg2", 7), ("arg3", 32)]).bytes_read == 64
    assert cost(name, (32, 8), (32, 8), ints=[("arg2", 32), ("arg3", 8)]).bytes_read == 512
    reduction = "trace::triton_red_fused_mean_0"
    assert cost(reduction, (8, 16), (8,), ints=[("arg2", 8), ("arg3", 16)]).bytes_read == 256
    # a kernel over lists of tensors has no size of its own
    assert cost("trace::triton_for_fused_add_0", (64,), (64,), ints=[("arg2", 8)]).bytes_read == 128
    assert isinstance(cost("trace::triton_poi_fused_add_0"), Uncosted)


def test_a_kernel_of_inductor_after_a_template_is_a_product():
    found = cost("trace::triton_tem_fused_addmm_relu_1", (4, 6), (10, 6), (10,), (4, 10))
    assert found.matrix_flops == 2 * 4 * 6 * 10
    assert (found.bytes_read, found.bytes_written) == (48 + 120 + 20, 80)
    assert cost("trace::triton_tem_fused_bmm_2", (3, 4, 6), (3, 6, 10), (3, 4, 10)).matrix_flops == 2 * 3 * 4 * 6 * 10
    for name, shapes in {
        "trace::triton_tem_fused_mm_0": [(8, 8), (8, 8)],
        "trace::triton_tem_fused_mm_1": [(4, 6), (10, 6), (4, 11)],
        "trace::triton_tem_fused_mm_2": [(4, 6), (10, 6), (0, 10)],
        "trace::triton_tem_fused_flex_attention_0": [(4, 6), (10, 6), (4, 10)],
        "trace::triton_mystery_0": [(4, 6), (10, 6), (4, 10)],
    }.items():
        assert isinstance(cost(name, *shapes), Uncosted), name
