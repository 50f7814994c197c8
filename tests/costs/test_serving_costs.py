"""Ops of serving engines and of recommenders, as traces describe them: hand arithmetic."""

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


def test_products():
    found = cost("aiter::gemm_a16w16", (32, 64), (128, 64), ints=[("arg3", 15)])
    assert found.matrix_flops == 2 * 32 * 64 * 128
    assert found.bytes_read == (32 * 64 + 128 * 64) * 2
    assert found.bytes_written == 32 * 128 * 2
    eight, scales = "float8_e4m3fn", ((1,), "float32")
    scaled = cost("_C::cutlass_scaled_mm", (32, 128), ((32, 64), eight), ((64, 128), eight), scales, scales)
    assert (scaled.matrix_flops, scaled.matrix_dtype) == (2 * 32 * 64 * 128, eight)
    assert scaled.bytes_read == 32 * 64 + 64 * 128 + 8


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
    assert isinstance(cost("trace::triton_tem_fused_mm_0", (8, 8), (8, 8)), Uncosted)
    assert isinstance(cost("trace::triton_poi_fused_add_0"), Uncosted)
