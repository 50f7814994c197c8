from dataclasses import replace

import pytest
from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.families.attention import Mask

lengths = st.integers(min_value=0, max_value=24)
reaches = st.none() | st.integers(min_value=0, max_value=24)

SDPA = "aten::scaled_dot_product_attention"


def qkv(*, heads=4, kv_heads=4, num_queries=8, num_keys=8, qk=16, v=16, batch=2, dtype="bfloat16"):
    return {
        "query": spec((batch, heads, num_queries, qk), dtype),
        "key": spec((batch, kv_heads, num_keys, qk), dtype),
        "value": spec((batch, kv_heads, num_keys, v), dtype),
    }


def out(*, heads=4, num_queries=8, v=16, batch=2, dtype="bfloat16"):
    return spec((batch, heads, num_queries, v), dtype)


@given(lengths, lengths, st.booleans(), st.booleans(), reaches, reaches)
def test_hidden_keys_are_those_counted_one_by_one(num_queries, num_keys, causal, bottom_right, left, right):
    shift = num_keys - num_queries if bottom_right else 0
    reach = 0 if causal else num_keys + num_queries if right is None else right
    behind = num_keys + num_queries if left is None else left
    seen = {
        key
        for key in range(num_keys)
        for query in range(num_queries)
        if shift + query - behind <= key <= shift + query + reach
    }
    mask = Mask(causal=causal, bottom_right=bottom_right, left=left, right=right)
    hidden = mask.hidden(num_queries, num_keys)
    assert not num_queries or num_keys - hidden == len(seen)


def test_a_mask_is_data():
    c = cost(SDPA, {**qkv(), "attn_mask": spec((8, 8), "bool")}, [out()])
    assert c.upper
    assert "mask" in c.note
    assert c.matrix_flops == 32_768
    assert c.bytes_read == 6_208  # and 64 bytes of mask


def test_a_batch_of_the_same_sequence_is_needed_once():
    """32,768 FLOPs of two entries, one of which a kernel may spare, unless dropout makes them differ."""
    expanded = {name: replace(each, strides=(0, 8 * 16, 16, 1)) for name, each in qkv().items()}
    assert cost(SDPA, expanded, [out()]).avoidable_flops == 16_384
    assert cost(SDPA, {**expanded, "key": qkv()["key"]}, [out()]).avoidable_flops == 0
    assert cost(SDPA, expanded, [out()], dropout_p=0.5).avoidable_flops == 0
    none = {name: replace(each, shape=(0, 4, 8, 16)) for name, each in expanded.items()}
    assert cost(SDPA, none, [out(batch=0)]).matrix_flops == 0


def packed(tokens=12, cum=("cum_seq_q", "cum_seq_k")):
    x = spec((tokens, 4, 16), "bfloat16")
    return {"query": x, "key": x, "value": x, **{name: spec((4,), "int32") for name in cum}}


@given(lengths, lengths, st.booleans(), st.booleans(), st.tuples(reaches, reaches))
def test_visible_pairs_are_those_counted_one_by_one(num_queries, num_keys, causal, bottom_right, window):
    left, right = window
    shift = num_keys - num_queries if bottom_right else 0
    reach = 0 if causal else right
    counted = sum(
        (left is None or j >= i + shift - left) and (reach is None or j <= i + shift + reach)
        for i in range(num_queries)
        for j in range(num_keys)
    )
    mask = Mask(causal=causal, bottom_right=bottom_right, left=left, right=right)
    assert counted == mask.pairs(num_queries, num_keys)


@given(lengths.filter(bool), lengths.filter(bool), st.booleans())
def test_causal_never_costs_more_than_full(num_queries, num_keys, enable_gqa):
    inputs = qkv(num_queries=num_queries, num_keys=num_keys, kv_heads=2 if enable_gqa else 4)
    outputs = [out(num_queries=num_queries)]
    full = cost(SDPA, inputs, outputs, is_causal=False, enable_gqa=enable_gqa)
    causal = cost(SDPA, inputs, outputs, is_causal=True, enable_gqa=enable_gqa)
    assert 0 < causal.matrix_flops <= full.matrix_flops
    assert causal.bytes_moved <= full.bytes_moved
    assert causal.bytes_moved == full.bytes_moved or num_queries < num_keys


@pytest.mark.parametrize("num", [1, 7, 4096, 131_072])
def test_causal_square_closed_form(num):
    assert Mask(causal=True).pairs(num, num) == num * (num + 1) // 2


test_costs = costs(
    """
    # forward: 2 * B 2 * H 4 * P 8 * 8 * (16 + 16); 5 * 2 * 4 * 64; 2 bytes * 3 * 2 * 4 * 8 * 16
    scaled_dot_product_attention query=2x4x8x16:bfloat16 key=2x4x8x16:bfloat16 value=2x4x8x16:bfloat16 ->
        2x4x8x16:bfloat16 | is_causal=False = matrix 32768, on bfloat16, vector 2560, read 6144, written 2048, upper
        False
    # causal square is a triangle: 2 * 2 * 4 * (8 * 9 / 2) * 32
    scaled_dot_product_attention query=2x4x8x16:bfloat16 key=2x4x8x16:bfloat16 value=2x4x8x16:bfloat16 ->
        2x4x8x16:bfloat16 | is_causal=True = matrix 18432
    # causal of a short query is top left in torch: 2 * 2 * 4 * (1 + 2) * 32
    scaled_dot_product_attention query=2x4x2x16:bfloat16 key=2x4x8x16:bfloat16 value=2x4x8x16:bfloat16 ->
        2x4x2x16:bfloat16 | is_causal=True = matrix 1536
    # keys that no query sees are not read: causal from the top left: 2 queries see the first 2 of 8 keys; q 512 B, k
    #   and v 2 / 8 of 2048 B each; a decode step with a window: key 7 and the 3 before it; q and out [2, 1, 4, 16], k
    #   and v [2, 8, 4, 16]; 256 + 2 * 4 / 8 * 2048
    scaled_dot_product_attention query=2x4x2x16:bfloat16 key=2x4x8x16:bfloat16 value=2x4x8x16:bfloat16 ->
        2x4x2x16:bfloat16 | is_causal=True = read 1536
    scaled_dot_product_attention query=2x4x2x16:bfloat16 key=2x4x8x16:bfloat16 value=2x4x8x16:bfloat16 ->
        2x4x2x16:bfloat16 | is_causal=False = read 4608
    flash_attn::_flash_attn_forward q=2x1x4x16:bfloat16 k=2x8x4x16:bfloat16 v=2x8x4x16:bfloat16 -> 2x1x4x16:bfloat16 |
        causal=True window_size_left=3 window_size_right=0 = read 2304
    # log sum exp is written when returned: 2048 + 4 * 2 * 4 * 8, counters left out
    _scaled_dot_product_flash_attention query=2x4x8x16:bfloat16 key=2x4x8x16:bfloat16 value=2x4x8x16:bfloat16 ->
        2x4x8x16:bfloat16 2x4x8 2:int64 | is_causal=False = written 2304
    # grouped queries read fewer keys: query heads count; 2048 + 2 * 512
    scaled_dot_product_attention query=2x4x8x16:bfloat16 key=2x1x8x16:bfloat16 value=2x1x8x16:bfloat16 ->
        2x4x8x16:bfloat16 | is_causal=False enable_gqa=True = matrix 32768, read 3072
    # decode reads the cache once: 2 * 2 * 4 * 100 * 32; 2 * 2 * 4 * 16 * (1 + 100 + 100)
    scaled_dot_product_attention query=2x4x1x16:bfloat16 key=2x4x100x16:bfloat16 value=2x4x100x16:bfloat16 ->
        2x4x1x16:bfloat16 = matrix 51200, read 51456
    # different head sizes: 2 * 2 * 4 * 64 * (24 + 8)
    scaled_dot_product_attention query=2x4x8x24:bfloat16 key=2x4x8x24:bfloat16 value=2x4x8x8:bfloat16 ->
        2x4x8x8:bfloat16 = matrix 32768
    # three dimensional inputs: 2 * 6 * 64 * 32
    scaled_dot_product_attention query=6x8x16 key=6x8x16 value=6x8x16 -> 6x8x16 = matrix 24576
    # backward with recomputation is two and a half forwards: 2 * 2 * 4 * 64 * (3 * 16 + 2 * 16) = 2.5 * 32768; 6 * 512;
    #   do, q, k, v, o: 5 * 2048; 256 of log-sum-exp
    rooflight::scaled_dot_product_attention_backward grad_out=2x4x8x16:bfloat16 query=2x4x8x16:bfloat16
        key=2x4x8x16:bfloat16 value=2x4x8x16:bfloat16 out=2x4x8x16:bfloat16 logsumexp=2x4x8 -> 2x4x8x16:bfloat16
        2x4x8x16:bfloat16 2x4x8x16:bfloat16 | is_causal=False = matrix 81920, vector 3072, read 10496, written 6144
    # backward without recomputation is two forwards
    rooflight::scaled_dot_product_attention_backward grad_out=2x4x8x16:bfloat16 query=2x4x8x16:bfloat16
        key=2x4x8x16:bfloat16 value=2x4x8x16:bfloat16 out=2x4x8x16:bfloat16 logsumexp=2x4x8 -> 2x4x8x16:bfloat16
        2x4x8x16:bfloat16 2x4x8x16:bfloat16 | is_causal=False recompute=False = matrix 65536, vector 2048
    # backward of key heads writes key heads
    rooflight::scaled_dot_product_attention_backward grad_out=2x4x8x16:bfloat16 query=2x4x8x16:bfloat16
        key=2x1x8x16:bfloat16 value=2x1x8x16:bfloat16 out=2x4x8x16:bfloat16 logsumexp=2x4x8 -> 2x4x8x16:bfloat16
        2x1x8x16:bfloat16 2x1x8x16:bfloat16 = written 3072
    # backward of the values alone: scores again and dV: 2 * 512 * (16 + 16)
    _scaled_dot_product_efficient_attention_backward grad_out=2x4x8x16:bfloat16 query=2x4x8x16:bfloat16
        key=2x4x8x16:bfloat16 value=2x4x8x16:bfloat16 out=2x4x8x16:bfloat16 logsumexp=2x4x8 -> 2x4x8x16:bfloat16 |
        grad_input_mask=(False,False,True,False) = matrix 32768
    # flash attn is causal from the bottom right: 2 * 2 * 4 * (7 + 8) * 32; 2 * 2 * 4 * (4 + 4) * 32
    flash_attn::_flash_attn_forward q=2x2x4x16:float16 k=2x8x1x16:float16 v=2x8x1x16:float16 -> 2x2x4x16:float16 2x4x2 |
        causal=True window_size_left=-1 window_size_right=-1 = matrix 7680
    flash_attn::_flash_attn_forward q=2x2x4x16:float16 k=2x8x1x16:float16 v=2x8x1x16:float16 -> 2x2x4x16:float16 2x4x2 |
        causal=True window_size_left=3 window_size_right=0 = matrix 4096
    # packed sequences of unknown lengths, 12 tokens of 3: 4 each have the fewest pairs, 2 * 4 * (3 * 4 * 4) * 32
    _flash_attention_forward query=12x4x16:bfloat16 key=12x4x16:bfloat16 value=12x4x16:bfloat16 cum_seq_q=4:int32
        cum_seq_k=4:int32 -> 12x4x16:bfloat16 4x12 | max_q=6 max_k=6 is_causal=False = upper True, matrix 12288
    # packed causal sequences: 2 * 4 * (3 * 4 * 5 / 2) * 32
    flash_attn::_flash_attn_varlen_forward query=12x4x16:bfloat16 key=12x4x16:bfloat16 value=12x4x16:bfloat16
        cu_seqlens_q=4:int32 cu_seqlens_k=4:int32 -> 12x4x16:bfloat16 4x12 | max_seqlen_q=6 max_seqlen_k=6 causal=True =
        matrix 7680
    # 13 tokens of 3 sequences: 4, 4 and 5 of them, of which each sees itself and one before: 2 * 4 * (7 + 7 + 9) * 32
    torch_attn::_varlen_attn query=13x4x16:bfloat16 key=13x4x16:bfloat16 value=13x4x16:bfloat16 cu_seq_q=4:int32
        cu_seq_k=4:int32 -> 13x4x16:bfloat16 4x13 2:uint64 | is_causal=False window_size=(1,0) = upper True, matrix 5888
    # more keys than queries: each key is seen once at least, 2 * 4 * 20 * 32
    torch_attn::_varlen_attn query=12x4x16:bfloat16 key=20x4x16:bfloat16 value=20x4x16:bfloat16 cu_seq_q=4:int32
        cu_seq_k=4:int32 -> 12x4x16:bfloat16 4x12 2:uint64 | is_causal=True window_size=(-1,0) = matrix 5120
    # in a window not even that: a key of each sequence; read are q, 2 tables of 16 B and 3 keys and values of 128 B
    torch_attn::_varlen_attn query=12x4x16:bfloat16 key=20x4x16:bfloat16 value=20x4x16:bfloat16 cu_seq_q=4:int32
        cu_seq_k=4:int32 -> 12x4x16:bfloat16 4x12 2:uint64 | window_size=(1,0) = matrix 768, read 2336
    # of a pool of pages only the keys of the call's own tokens are certain: q, k and v of 12, and the tables
    torch_attn::_varlen_attn query=12x4x16:bfloat16 key=9x8x4x16:bfloat16 value=9x8x4x16:bfloat16 cu_seq_q=4:int32
        cu_seq_k=4:int32 seqused_k=3:int32 block_table=3x4:int32 -> 12x4x16:bfloat16 4x12 2:uint64 |
        is_causal=True window_size=(-1,0) = matrix 7680, read 4700
    # packed backward: 2.5 * 12288
    _flash_attention_backward grad_out=12x4x16:bfloat16 query=12x4x16:bfloat16 key=12x4x16:bfloat16
        value=12x4x16:bfloat16 cum_seq_q=4:int32 cum_seq_k=4:int32 out=12x4x16:bfloat16 logsumexp=4x12 ->
        12x4x16:bfloat16 12x4x16:bfloat16 12x4x16:bfloat16 | max_q=6 max_k=6 is_causal=False = upper True, matrix 30720
    torch_attn::_varlen_attn_backward grad_out=12x4x16:bfloat16 query=12x4x16:bfloat16 key=12x4x16:bfloat16
        value=12x4x16:bfloat16 out=12x4x16:bfloat16 lse=4x12 cu_seq_q=4:int32 cu_seq_k=4:int32 ->
        12x4x16:bfloat16 12x4x16:bfloat16 12x4x16:bfloat16 | is_causal=True window_size=(-1,0) = matrix 19200
    # dense batch of the packed op is exact: the triangle of test_causal_square
    _efficient_attention_forward query=2x8x4x16:bfloat16 key=2x8x4x16:bfloat16 value=2x8x4x16:bfloat16 ->
        2x8x4x16:bfloat16 | custom_mask_type=1 = upper False, matrix 18432
    # an unknown block mask of flex attention counts as the least: a key for each of 2 * 4 * 8 queries, of 32 numbers;
    # read are the queries and one key and value of each head, 2 * 4 * (8 + 1 + 1) * 16
    higher_order::flex_attention 2x4x8x16:bfloat16 2x4x8x16:bfloat16 2x4x8x16:bfloat16 -> 2x4x8x16:bfloat16 2x4x8 =
        upper True, matrix 4096, read 2560
    # half of the pairs hidden, and 2 of 8 keys from all queries: 2 * 4 * (8 + 6 + 6) * 16
    higher_order::flex_attention 2x4x8x16:bfloat16 2x4x8x16:bfloat16 2x4x8x16:bfloat16 -> 2x4x8x16:bfloat16 2x4x8 |
        hidden=(32,64,2,8,0) = upper False, matrix 16384, read 5120
    higher_order::flex_attention_backward 2x4x8x16:bfloat16 2x4x8x16:bfloat16 2x4x8x16:bfloat16 2x4x8x16:bfloat16 2x4x8
        2x4x8x16:bfloat16 -> 2x4x8x16:bfloat16 2x4x8x16:bfloat16 2x4x8x16:bfloat16 | hidden=(0,1,0,1,0) = matrix 81920
    # expanded key heads are read once
    scaled_dot_product_attention query=2x4x8x16:bfloat16 key=2x4x8x16~128,0,16,1:bfloat16
        value=2x4x8x16~128,0,16,1:bfloat16 -> 2x4x8x16:bfloat16 = read 3072
    # flash attn backward only writes the gradients it is given
    flash_attn::_flash_attn_backward dout=2x8x4x16:float16 q=2x8x4x16:float16 k=2x8x4x16:float16 v=2x8x4x16:float16
        out=2x8x4x16:float16 softmax_lse=2x4x8 dq=2x8x4x16:float16@0 dk=2x8x4x16:float16@1 dv=2x8x4x16:float16@2 ->
        2x8x4x16:float16@0 2x8x4x16:float16@1 2x8x4x16:float16@2 | causal=False = read 10496, written 6144
    """
)
