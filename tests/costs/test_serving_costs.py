"""Ops of serving engines and of recommenders, as traces describe them: hand arithmetic."""

from cost_table import costs_in_traces

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


test_costs = costs_in_traces(
    """
    # products of 4 rows of 6 numbers to 10 columns, by weight [n, k] or [k, n]
    aiter::gemm_a16w16 4x6 10x6 -> = matrix 480, written 80
    vllm::rocm_unquantized_gemm 4x6 10x6 -> = matrix 480, written 80
    _rocm_C::wvSplitK 10x6 4x6 -> = matrix 480, written 80
    _C::cutlass_scaled_mm 4x10 4x6:float8_e4m3fn 6x10:float8_e4m3fn 1:float32 1:float32 -> = matrix 480, written 80
    _C::cutlass_scaled_fp4_mm 4x10 4x3:uint8 10x3:uint8 4x1:float8_e4m3fn 10x1:float8_e4m3fn -> = matrix 480,
        written 80
    sgl_kernel::fp8_scaled_mm 4x6:float8_e4m3fn 6x10:float8_e4m3fn 4x1:float32 10:float32 -> = matrix 480, written
        80
    sgl_kernel::dsv3_fused_a_gemm 4x10 4x6 6x10 -> = matrix 480, written 80
    sgl_kernel::bmm_fp8 2x2x6:float8_e4m3fn 2x6x10:float8_e4m3fn 2x2x10 -> = matrix 480, written 80
    aiter::gemm_a8w8_blockscale_ck 4x6:float8_e4m3fn 10x6:float8_e4m3fn 4x1:float32 10x1:float32 4x10 -> = matrix
        480, written 80
    aiter::gemm_a4w4 4x3:uint8 10x3:uint8 4x1:uint8 10x1:uint8 -> = matrix 480, written 80
    _C::awq_gemm 4x6 6x2:int32 1x10 1x2:int32 -> = matrix 480, written 80
    _C::gptq_gemm 4x6 1x10:int32 1x2:int32 1x10 6:int32 -> = matrix 480, written 80
    _C::machete_mm 4x6 1x10:int32 1x10 -> = matrix 480, written 80
    primus_turbo::grouped_gemm 4x6 3x10x6 3:int64 -> = matrix 480, written 80
    # bytes of x [4, 8] in 2 bytes, and of what comes with it
    _C::rms_norm_weightless 4x8 4x8 -> = read 64, written 64
    _C::silu_and_mul_quant 4x8:float8_e4m3fn 4x16 1:float32 -> = read 132, written 32
    _C::silu_and_mul_per_block_quant 4x8:float8_e4m3fn 4x16 4x1:float32 -> = read 128, written 48
    _C::per_token_group_fp8_quant 4x8 4x8:float8_e4m3fn 4x1:float32 -> = read 64, written 48
    _C::dynamic_scaled_int8_quant 4x8:int8 4x8 4x1:float32 -> = read 64, written 48
    sgl_kernel::sgl_per_token_quant_fp8 4x8 4x8:float8_e4m3fn 4x1:float32 -> = read 64, written 48
    sgl_kernel::merge_state_v2 4x8 4x1:float32 4x8 4x1:float32 4x8 4x1:float32 -> = read 160, written 80
    _C::merge_attn_states 4x8 4x1:float32 4x8 4x1:float32 4x8 4x1:float32 -> = read 160, written 80
    flashinfer::rmsnorm 4x8 4x8 8 -> = read 80, written 64
    aiter::rmsnorm2d_fwd 4x8 8 -> = read 80, written 64
    aiter::add_rmsnorm_quant 4x8:float8_e4m3fn 4x8 4x8 4x8 4x1:float32 8 -> = read 144, written 112
    aiter::rmsnorm2d_fwd_with_dynamicquant 4x8:float8_e4m3fn 4x8 4x1:float32 8 -> = read 80, written 48
    vllm::rocm_aiter_rmsnorm2d_fwd_with_add 4x8 4x8 8 -> = read 144, written 128
    aiter::rope_cached_fwd_impl 4x8 4x8 4x4 4x4 -> = read 128, written 64
    aiter::rope_2c_fwd_impl 4x8 4x2 4x8 4x2 4x4 -> = read 112, written 80
    _C_cache_ops::concat_and_cache_mla 4x8 4x2 9x16x10:uint8 4:int64 -> = read 112, written 40
    sgl_kernel::store_kv_cache 99x8 99x8 4:int64 4x8 4x8 -> = read 160, written 128
    _C::awq_dequantize 8x1:int32 1x8 1x1:int32 -> = read 52, written 128
    # a gated activation reads twice what it writes
    _C::silu_and_mul 4x8 4x16 -> = read 128, written 64, vector 160
    # quantizing writes one byte an element: 64 + 4; 32 + 16
    _C::static_scaled_fp8_quant 4x8:float8_e4m3fn 4x8 ():float32 -> = read 68, written 32
    _C::dynamic_per_token_scaled_fp8_quant 4x8:float8_e4m3fn 4x8 4x1:float32 -> = read 64, written 48
    # rotary embedding turns the part of each head that has cosines: 4 tokens, 2 heads of 8 for q, 1 for k, of which 4
    #   numbers are turned: q 64 and k 32 elements, half of them; 3 * (64 + 32) // 2; (64 + 32) // 2 * 2; 4 * 8 + 96 + 4
    #   * 4 * 2; positions, q and k, four rows of the table; (64 + 32) * 2; 3 * (64 + 32)
    _C::rotary_embedding 4:int64 4x16 4x8 1000x4 -> | arg3=8 = vector 144, written 96, read 160
    _C::rotary_embedding 4:int64 4x16 4x8 1000x8 -> | arg3=8 = written 192
    _C::rotary_embedding 4:int64 4x16 4x8 1000x4 -> = vector 288
    # a cache is written where the tokens go and nowhere else: 2 * 4 * 64 * 2 + 4 * 8 + 2 * 4; 2 * 4 * 64; one byte each
    _C_cache_ops::reshape_and_cache_flash 4x1x64 4x1x64 1000x16x1x64:uint8 1000x16x1x64:uint8 4:int64 ():float32
        ():float32 -> = read 1064, written 512
    # products read weights as they are packed: (32 * 64 + 128 * 64) * 2; 4 * 6 * 2 + 6 * 2 * 4 + 10 * 2 + 2 * 4; 4 * 6
    #   + 6 * 10 + 8; 12 + 30 + 4 + 10; 4 * 6 * 2 + 10 * 6 * 2; 4 * 10 * 4
    aiter::gemm_a16w16 32x64 128x64 -> | arg3=15 = read 20480
    _C::awq_gemm 4x6 6x2:int32 1x10 1x2:int32 -> = read 124
    _C::cutlass_scaled_mm 4x10 4x6:float8_e4m3fn 6x10:float8_e4m3fn 1:float32 1:float32 -> = read 92, on float8_e4m3fn
    aiter::gemm_a4w4 4x3:uint8 10x3:uint8 4x1:uint8 10x1:uint8 -> = read 56, on float4_e2m1fn_x2
    primus_turbo::grouped_gemm 4x6 3x10x6 3:int64 -> = read 168
    sgl_kernel::fp8_scaled_mm 4x6:float8_e4m3fn 6x10:float8_e4m3fn 4x1:float32 10:float32 -> | arg4=6 = written 160
    # a norm that quantizes may add a residual: 64 + 16; 32 + 16; 7 * 32; 128 + 16; 32 + 16 + 64; 8 * 32
    _C::rms_norm_dynamic_per_token_quant 4x8:float8_e4m3fn 4x8 8 4x1:float32 -> = read 80, written 48, vector 224
    _C::rms_norm_dynamic_per_token_quant 4x8:float8_e4m3fn 4x8 8 4x1:float32 arg6=4x8 -> = read 144, written 112, vector
        256
    # norm and rotary embedding of queries and keys leave values: 4 * 24 * 2; 4 * 24 * 2; 4 of 8 numbers of 3 heads are
    #   turned; 4 rows of the table; 4 * 8 + 4 * 3 * 4 * 2 + 4 * 4 * 4; 4 * 3 * 4 * 2
    _C::fused_qk_norm_rope 4x32 8 8 99x8 4:int64 -> | arg1=2 arg2=1 arg3=1 arg4=8 = read 192, written 192
    sgl_kernel::apply_rope_pos_ids_cos_sin_cache 4x2x8 4x1x8 4x2x8 4x1x8 99x4:float32 4:int64 -> = read 192, written 96
    # a look up counts what is certain: 100 indices of 8 bytes, 9 offsets, 100 weights of 4; 2 tables, 4 bags each, 2 *
    #   4 numbers of 2 bytes at the least; 800 + 72 + 400; 4 * 8 * 2; 4 * 96 * 2
    fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function 0:float32 960:float32 arg6=3:int32 arg11=100:int64
        arg12=9:int64 arg14=100:float32 -> = read 1272, written 64
    fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function 0:float32 960:float32 arg6=3:int32 arg11=100:int64
        arg12=9:int64 arg14=100:float32 -> | arg7=96 = written 768
    # other ops of recommenders: 24 + 800 + 72; 5 * 8 * 4
    fbgemm::permute_pooled_embs_auto_grad 4x10:float32 3:int64 3:int64 3:int64 3:int64 -> = written 160
    trace::torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op> 4x10:float32 -> = read 160
    fbgemm::bounds_check_indices 3:int64 100:int64 9:int64 1:int64 -> = read 896
    fbgemm::permute_sparse_features 5:int32 3x8:int32 100:int32 -> = read 20, written 160
    fb::asynchronous_complete_cumsum 8:int32 -> = read 32, written 36
    fbgemm::permute_2D_sparse_data 5:int32 3x8:int32 100:int32 -> = read 20, written 160
    fbgemm::permute_1D_sparse_data 5:int32 8:int64 100:int32 -> = read 20, written 40
    # a dense look up has its lists elsewhere, its total width is known: 800 + 72; 4 bags, 96 numbers of 2 bytes
    fbgemm::dense_embedding_codegen_lookup_function 960:float32 2:int64 arg2=3:int32 arg7=100:int64 arg8=9:int64 -> |
        arg3=96 = read 872, written 768
    # quantizing by rows, and the product: 4 * 32 numbers of 2 bytes; 2 * 4 * 32 * 6; 4 * 32 + 6 * 32 + 4 * 4 + 6 * 4
    fbgemm::quantize_fp8_per_row 4x32 -> 4x32:float8_e4m3fn 4:float32 = read 256, written 144, vector 512
    fbgemm::f8f8bf16_rowwise 4x32:float8_e4m3fn 6x32:float8_e4m3fn 4:float32 6:float32 -> = matrix 1536, read 360,
        written 48, on float8_e4m3fn
    # products whose columns are among the settings: 2 * 4 * 6 * 10; 4 * 6 * 2 + 20 * 4; 4 * 6 * 2 + 60 * 2; 4 * 10 * 2;
    #   4 * 6 + 60; 2 * 8 * 6 * 10; 2 * 6 * 10 * 2
    _C::marlin_gemm 4x6 arg2=1x20:int32 arg4=1x10 arg10=64:int32 -> | arg11=123456789 arg12=4 arg13=10 arg14=6
        arg15=True = matrix 480, read 128
    _C::marlin_gemm 4x6 arg2=1x20:int32 arg4=1x10 arg10=64:int32 -> = uncosted
    _C::allspark_w8a16_gemm 4x6 6x10:uint8 10 -> | arg4=10 = matrix 480
    _C::allspark_w8a16_gemm 4x6 6x10:uint8 10 -> = uncosted
    _C::ggml_mul_mat_a8 10x5:uint8 4x6 -> | arg2=8 arg3=10 = matrix 480
    trace::_LayerNormLinear 2x2x6 6 10x6 10 -> = matrix 480, read 168, written 80
    trace::_Linear 10x6 4x6 -> | product_dtype='float8_e4m3fn' = matrix 480, on float8_e4m3fn, read 84
    trace::_Linear 4x6 -> = uncosted
    tex_ts::te_gemm_ts 10x6 arg5=4x6 arg10=4x10 -> = matrix 480
    primus_turbo::grouped_gemm_variable_k 8x6 8x10 2:int64 -> = matrix 960, written 240
    # a kernel of inductor moves each tensor once: a look-up may read a part of a table: no more than one element of it
    #   for each of the 32 steps; sizes of the shapes come before the steps, of which a tiled kernel has two; a kernel
    #   over lists of tensors has no size of its own
    trace::triton_poi_fused_mul_silu_2 8x4 32 -> | arg2=32 = read 64, written 64, upper True
    trace::triton_poi_fused_mul_silu_2 1000x4 32 -> | arg2=32 = read 64
    trace::triton_poi_fused_mul_silu_2 1000 32 -> | arg2=7 arg3=32 = read 64
    trace::triton_poi_fused_mul_silu_2 32x8 32x8 -> | arg2=32 arg3=8 = read 512
    trace::triton_red_fused_mean_0 8x16 8 -> | arg2=8 arg3=16 = read 256
    trace::triton_for_fused_add_0 64 64 -> | arg2=8 = read 128
    trace::triton_poi_fused_add_0 -> = uncosted
    """
)
