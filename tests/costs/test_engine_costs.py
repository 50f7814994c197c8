"""Attention and experts of serving engines: hand arithmetic."""

import pytest
from cost_table import costs_in_traces
from test_serving_costs import cost

from rooflight.costs.cost import Uncosted

EIGHT = "float8_e4m3fn"
KNOWN = [("kv_tokens", 100), ("visible_pairs", 90)]


def test_attention_of_unknown_lengths_counts_the_calls_own_tokens():
    found = cost("vllm::unified_attention", (4, 2, 8), (4, 1, 8), (4, 1, 8))
    assert found.matrix_flops == 2 * 4 * 2 * (8 + 8)  # each query sees its own key
    assert found.bytes_read == 4 * 2 * 8 * 2 + 4 * (8 + 8) * 2
    assert not found.upper
    assert "not counted" in found.note
    too_few = [("kv_tokens", 2), ("visible_pairs", 2)]  # no lengths of a call with 4 queries
    assert cost("vllm::unified_attention", (4, 2, 8), (4, 1, 8), (4, 1, 8), ints=too_few) == found


def test_flash_attention_over_pages():
    tables = [(4, 2, 8), (50, 16, 1, 8), (50, 16, 1, 8), ((5,), "int32"), ((4, 9), "int32")]
    paged = cost("_vllm_fa3_C::fwd", *tables, places=(0, 1, 2, 7, 14), ints=[*KNOWN, ("arg25", -1), ("arg26", -1)])
    assert paged.bytes_read == 4 * 2 * 8 * 2 + 100 * (8 + 8) * 2
    assert paged.matrix_flops == 2 * 90 * 2 * (8 + 8)
    windowed = cost("_vllm_fa3_C::fwd", *tables, places=(0, 1, 2, 7, 14), ints=[*KNOWN, ("arg25", 16)])
    assert windowed.matrix_flops == 2 * 4 * 2 * (8 + 8)  # how many keys the window leaves is unknown
    older = cost("_vllm_fa2_C::varlen_fwd", *tables, places=(0, 1, 2, 4, 8), ints=[*KNOWN, ("arg16", -1)])
    assert older.bytes_read == paged.bytes_read
    caches = [(4, 1, 2, 8), (50, 16, 1, 8), (50, 16, 1, 8)]
    assert cost("_vllm_fa2_C::fwd_kvcache", *caches, ints=KNOWN).bytes_read == paged.bytes_read


def test_a_layer_of_experts_of_an_unknown_model_is_not_costed():
    found = cost("vllm::moe_forward", (5, 12), (5, 6))
    assert isinstance(found, Uncosted)
    assert "give the model's config" in found.reason


EXPERTS = [(5, 8), (6, 20, 8), (6, 8, 10), ((5, 2), "float32"), ((5, 2), "int32")]


@pytest.mark.parametrize(
    "name", ["vllm::inplace_fused_experts", "sglang::outplace_fused_experts", "vllm::rocm_aiter_fused_moe"]
)
def test_fused_experts(name):
    found = cost(name, *EXPERTS)
    # 5 tokens to 2 experts of 20 * 8 and 8 * 10 weights, of which at least 2 are read
    assert found.matrix_flops == 2 * 5 * 2 * (160 + 80)
    assert found.bytes_read == 5 * 8 * 2 + 2 * 240 * 2
    assert found.bytes_written == 5 * 8 * 2
    eight = cost(name, EXPERTS[0], ((6, 20, 8), EIGHT), ((6, 8, 10), EIGHT), *EXPERTS[3:])
    assert eight.matrix_dtype == EIGHT
    assert eight.bytes_read == 5 * 8 * 2 + 2 * 240
    four = cost(name, EXPERTS[0], ((6, 20, 4), "uint8"), ((6, 8, 5), "uint8"), *EXPERTS[3:])
    assert four.matrix_flops == found.matrix_flops
    assert four.bytes_read == 5 * 8 * 2 + 2 * 240 // 2


def test_experts_of_aiter():
    lists = [((64,), "int32"), ((64,), "float32"), ((2,), "int32"), ((1,), "int32")]
    found = cost("aiter::fmoe_g1u1", (5, 8), *EXPERTS[:3], *lists, ints=[("arg8", 2)])
    assert found.matrix_flops == 2 * 5 * 2 * (160 + 80)
    stage = [((64,), "int32"), ((2,), "int32"), ((1,), "int32")]
    first = cost("aiter::ck_moe_stage1", *EXPERTS[:3], *stage, (5, 2, 10), ints=[("arg7", 2)])
    assert first.matrix_flops == 2 * 5 * 2 * 160
    assert first.bytes_read == 5 * 8 * 2 + 2 * 160 * 2
    assert cost("aiter::moe_stage1_g1u1", *EXPERTS[:3], *stage, (5, 2, 10)).matrix_flops == first.matrix_flops
    second = cost("aiter::ck_moe_stage2", (5, 2, 10), *EXPERTS[1:3], *stage, (5, 8), ints=[("arg7", 2)])
    assert second.matrix_flops == 2 * 10 * 10 * 8


def test_routing():
    shares, chosen = ((5, 2), "float32"), ((5, 2), "int32")
    found = cost("_moe_C::topk_softmax", shares, chosen, chosen, ((5, 6), "float32"))
    assert (found.bytes_read, found.bytes_written) == (5 * 6 * 4, 2 * 5 * 2 * 4)
    assert cost("sgl_kernel::topk_softmax", shares, chosen, ((5, 6), "float32")) == found
    align = cost("_moe_C::moe_align_block_size", chosen, ((64,), "int32"), ((4,), "int32"), ((1,), "int32"))
    assert (align.bytes_read, align.bytes_written) == (40, 40)
    summed = cost("_moe_C::moe_sum", (5, 2, 8), (5, 8))
    assert (summed.vector_flops, summed.bytes_read, summed.bytes_written) == (40, 160, 80)


def test_latent_attention_of_decode_steps():
    # 4 tokens, 2 heads, latents of 16 numbers and a rotary part of 4; 100 keys, 90 pairs
    shapes = [(4, 2, 16), (4, 2, 16), (4, 2, 4), (50, 16, 20), ((4,), "int32")]
    found = cost("sgl_kernel::cutlass_mla_decode", *shapes, ints=KNOWN)
    assert found.matrix_flops == 2 * 90 * 2 * (20 + 16)
    assert found.bytes_read == 4 * 2 * 20 * 2 + 100 * 20 * 2
    parts = [((4, 3, 2, 16), "float32"), ((4, 3, 2, 1), "float32"), (4, 2, 16)]
    stage = cost("aiter::mla_decode_stage1_asm_fwd", (4, 2, 20), (50, 1, 1, 20), ((5,), "int32"), *parts, ints=KNOWN)
    assert (stage.matrix_flops, stage.bytes_read) == (found.matrix_flops, found.bytes_read)


test_costs = costs_in_traces(
    """
    # attention of known lengths reads the cache once: 4 tokens, 2 query heads and 1 of keys, of 8 numbers each; 90
    #   pairs for each of 2 heads, 100 keys; 2 * 90 * 2 * (8 + 8); 5 * 90 * 2; 4 * 2 * 8 * 2 + 100 * (8 + 8) * 2; 4 * 2
    #   * 8 * 2; 4 * 2 * 8 * 2 + 100 * (8 + 8)
    vllm::unified_attention_with_output 4x2x8 4x1x8 4x1x8 4x2x8 -> | kv_tokens=100 visible_pairs=90 = matrix 5760,
        vector 900, read 3328, written 128, upper True
    vllm::unified_attention_with_output 4x2x8 4x1x8 4x1x8 4x2x8 -> | kv_tokens=100 visible_pairs=90 cache_dtype='uint8'
        = read 1728
    # paged attention, one head of keys of 8 numbers: 2 * 90 * 2 * (8 + 8); 256 / 2 + 100 * (8 + 8) * 2; 4 * 2 * 8 * 2
    _C::paged_attention_v1 4x2x8 4x2x8 50x1x1x16x8 50x1x8x16 -> | arg4=1 kv_tokens=100 visible_pairs=90 = matrix
        5760, read 3328, written 128
    _rocm_C::paged_attention 4x2x8 4x2 4x2 4x2x8 4x2x8 50x1x1x16x8 -> | arg7=1 kv_tokens=100 visible_pairs=90 =
        matrix 5760, read 3328, written 128
    _C::paged_attention_v2 4x2x8 4x2 4x2 4x2x8 4x2x8 50x1x1x16x8 -> | arg7=1 kv_tokens=100 visible_pairs=90 = matrix
        5760, read 3328, written 128
    aiter::paged_attention_rocm 4x2x8 4 4 4 4x2x8 50x1x1x16x8 -> | arg7=1 kv_tokens=100 visible_pairs=90 = matrix
        5760, read 3328, written 128
    aiter::paged_attention_ragged 4x2x8 99:uint8 4x2x8 50x16x1x8 50x16x1x8 -> | kv_tokens=100 visible_pairs=90 =
        matrix 5760, read 3328, written 128
    aiter::pa_fwd_asm 4x2x8 50x1x1x16x8 50x1x8x16 -> | kv_tokens=100 visible_pairs=90 = matrix 5760, read 3328,
        written 128
    # layers that share keys read what is known: 4 * 2 * 8 * 2
    vllm::unified_attention 4x2x8 -> = read 128
    # latent attention reads a latent per key: a latent of 16 and a rotary part of 4 numbers a key; results of 2 heads
    #   of 8; 4 * 2 * 12 * 2 + 100 * (16 + 4) * 2; 2 * 90 * 2 * (12 + 8)
    vllm::unified_mla_attention_with_output 4x2x12 4x16 4x1x4 4x16 -> | kv_tokens=100 visible_pairs=90 = read 4192,
        matrix 7200
    # a width of the cache that is known is taken: 4 * 2 * 8 * 2 + 100 * 2 * 24 * 2
    aiter::paged_attention_ragged 4x2x8 99:uint8 4x2x8 50x16x1x8 50x16x1x8 -> | kv_tokens=100 visible_pairs=90
        kv_width=24 = read 9728
    # flash attention over keys that are given: 3 sequences of 12 queries together, 20 keys: at least 3 times the 4 * 5
    #   / 2 pairs of causal attention; 2 * (3 * 10) * 2 * (8 + 8); 12 * 2 * 8 * 2 + 20 * (8 + 8) * 2; 2 * (3 * 10) * 2 *
    #   (8 + 8)
    sgl_kernel::fwd 12x2x8 20x1x8 20x1x8 arg7=4:int32 arg8=4:int32 -> = matrix 1920, read 1024
    flash_attn_3::fwd 3x4x2x8 3x6x1x8 3x6x1x8 -> = matrix 1920
    # its backward, causal: 3 batches of 2 heads, 4 (4 + 1) / 2 pairs, 5 products of 8; dout, q, out of 3 * 4 * 2 * 8
    #   numbers, k and v of half as many, 3 * 2 * 4 sums in float32; 2 * 60 * 40; 2 * (3 * 192 + 2 * 96) + 96
    flash_attn_3::bwd 3x4x2x8 3x4x2x8 3x4x1x8 3x4x1x8 3x4x2x8 3x2x4:float32 -> | arg16=True = matrix 4800, read 1632,
        written 768
    # packed, 3 sequences of 12 queries at least 3 * 10 pairs, and a window of a key before its own: 3 * (4 + 3)
    flash_attn_3::bwd 12x2x8 12x2x8 12x1x8 12x1x8 12x2x8 2x12:float32 arg9=4:int32 -> | arg16=True = matrix 4800
    flash_attn_3::bwd 12x2x8 12x2x8 12x1x8 12x1x8 12x2x8 2x12:float32 arg9=4:int32 -> | arg16=True arg17=1 =
        matrix 3360
    # a layer of experts of a known model: 5 tokens, padded from 8 to 12 numbers, 6 experts: each token goes to 2
    #   experts of 240 weights of 4 bits; 2 * 5 * 2 * 240; 5 * 8 * 2 + 5 * 6 * 2 + 2 * 240 // 2; 5 * 8 * 2
    vllm::moe_forward 5x12 5x6 -> | hidden_size=8 expert_weights=240 experts_per_token=2 expert_bits=4 = matrix 4800,
        read 380, written 80, on bfloat16
    vllm::moe_forward 5x12 5x6 -> | hidden_size=8 expert_weights=240 experts_per_token=2 expert_bits=4
        product_dtype='float8_e4m3fn' = on float8_e4m3fn
    vllm::moe_forward 0x12 0x6 -> | hidden_size=8 expert_weights=240 experts_per_token=2 expert_bits=4 = moved 0
    # experts on other ranks are not counted: where each of 48 experts is; 5 * 8 * 2
    vllm::inplace_fused_experts 5x8 6x20x8 6x8x10 5x2:float32 5x2:int32 48:int32 -> = matrix 0, read 80
    # a window of paged attention hides keys: 4 * 2 * 8 * 2 + 100 * (8 + 8) * 2; 4 * 2 * 8 * 2 + 4 * 32
    aiter::paged_attention_v1 4x2x8 99:uint8 4x2x8 50x16x1x8 50x16x1x8 -> | kv_tokens=100 visible_pairs=90 arg19=0 =
        read 3328
    aiter::paged_attention_v1 4x2x8 99:uint8 4x2x8 50x16x1x8 50x16x1x8 -> | kv_tokens=100 visible_pairs=90 arg19=64 =
        read 256
    # products of rows with experts: 2 * 10 * 8 * 20; 5 * 8 * 2 + 20 * 4; 2 * 10 * 8 * 20; 2 * 10 * 8 * 20; 2 * 10 * 8 *
    #   20
    _moe_C::moe_wna16_gemm 5x8 5x2x20 6x20x4:uint8 6x20x1 -> = matrix 3200, read 160
    sgl_kernel::moe_wna16_marlin_gemm 5x8 10x20 6x1x40:int32 -> = matrix 3200
    sgl_kernel::moe_wna16_marlin_gemm 5x8 arg2=6x1x40:int32 -> = uncosted
    _C::cutlass_moe_mm 10x20 10x8:float8_e4m3fn 6x8x20:float8_e4m3fn -> = matrix 3200, on float8_e4m3fn
    _C::cutlass_fp4_group_mm 10x20 10x4:uint8 6x20x4:uint8 -> = matrix 3200, on float4_e2m1fn_x2
    """
)
