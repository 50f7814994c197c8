import pytest
from builders import cost, spec
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.families.attention import Mask

lengths = st.integers(min_value=0, max_value=24)
reaches = st.none() | st.integers(min_value=0, max_value=24)

SDPA = "aten::scaled_dot_product_attention"
BACKWARD = "rooflight::scaled_dot_product_attention_backward"


def qkv(*, heads=4, kv_heads=4, num_queries=8, num_keys=8, qk=16, v=16, batch=2, dtype="bfloat16"):
    return {
        "query": spec((batch, heads, num_queries, qk), dtype),
        "key": spec((batch, kv_heads, num_keys, qk), dtype),
        "value": spec((batch, kv_heads, num_keys, v), dtype),
    }


def out(*, heads=4, num_queries=8, v=16, batch=2, dtype="bfloat16"):
    return spec((batch, heads, num_queries, v), dtype)


def test_forward():
    c = cost(SDPA, qkv(), [out()], is_causal=False)
    assert c.matrix_flops == 32_768  # 2 * B 2 * H 4 * P 8 * 8 * (16 + 16)
    assert c.matrix_dtype == "bfloat16"
    assert c.vector_flops == 2_560  # 5 * 2 * 4 * 64
    assert c.bytes_read == 6_144  # 2 bytes * 3 * 2 * 4 * 8 * 16
    assert c.bytes_written == 2_048
    assert not c.upper


def test_causal_square_is_a_triangle():
    c = cost(SDPA, qkv(), [out()], is_causal=True)
    assert c.matrix_flops == 18_432  # 2 * 2 * 4 * (8 * 9 / 2) * 32


def test_causal_of_a_short_query_is_top_left_in_torch():
    c = cost(SDPA, qkv(num_queries=2), [out(num_queries=2)], is_causal=True)
    assert c.matrix_flops == 1_536  # 2 * 2 * 4 * (1 + 2) * 32


def test_keys_that_no_query_sees_are_not_read():
    # causal from the top left: 2 queries see the first 2 of 8 keys; q 512 B, k and v 2 / 8 of 2048 B each
    assert cost(SDPA, qkv(num_queries=2), [out(num_queries=2)], is_causal=True).bytes_read == 1_536
    assert cost(SDPA, qkv(num_queries=2), [out(num_queries=2)], is_causal=False).bytes_read == 4_608
    # a decode step with a window: key 7 and the 3 before it; q and out [2, 1, 4, 16], k and v [2, 8, 4, 16]
    q, k = spec((2, 1, 4, 16), "bfloat16"), spec((2, 8, 4, 16), "bfloat16")
    inputs = {"q": q, "k": k, "v": k}
    c = cost("flash_attn::_flash_attn_forward", inputs, [q], causal=True, window_size_left=3, window_size_right=0)
    assert c.bytes_read == 2_304  # 256 + 2 * 4 / 8 * 2048


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


def test_log_sum_exp_is_written_when_returned():
    lse = spec((2, 4, 8))
    c = cost("aten::_scaled_dot_product_flash_attention", qkv(), [out(), lse, spec((2,), "int64")], is_causal=False)
    assert c.bytes_written == 2_304  # 2048 + 4 * 2 * 4 * 8, counters left out


def test_grouped_queries_read_fewer_keys():
    c = cost(SDPA, qkv(kv_heads=1), [out()], is_causal=False, enable_gqa=True)
    assert c.matrix_flops == 32_768  # query heads count
    assert c.bytes_read == 3_072  # 2048 + 2 * 512


def test_expanded_key_heads_are_read_once():
    inputs = qkv()
    inputs["key"] = spec((2, 4, 8, 16), "bfloat16", strides=(128, 0, 16, 1))
    inputs["value"] = spec((2, 4, 8, 16), "bfloat16", strides=(128, 0, 16, 1))
    assert cost(SDPA, inputs, [out()]).bytes_read == 3_072


def test_decode_reads_the_cache_once():
    c = cost(SDPA, qkv(num_queries=1, num_keys=100), [out(num_queries=1)])
    assert c.matrix_flops == 51_200  # 2 * 2 * 4 * 100 * 32
    assert c.bytes_read == 51_456  # 2 * 2 * 4 * 16 * (1 + 100 + 100)


def test_different_head_sizes():
    c = cost(SDPA, qkv(qk=24, v=8), [out(v=8)])
    assert c.matrix_flops == 32_768  # 2 * 2 * 4 * 64 * (24 + 8)


def test_three_dimensional_inputs():
    inputs = {name: spec((6, 8, 16)) for name in ("query", "key", "value")}
    assert cost(SDPA, inputs, [spec((6, 8, 16))]).matrix_flops == 24_576  # 2 * 6 * 64 * 32


def test_a_mask_is_data():
    c = cost(SDPA, {**qkv(), "attn_mask": spec((8, 8), "bool")}, [out()])
    assert c.upper
    assert "mask" in c.note
    assert c.matrix_flops == 32_768
    assert c.bytes_read == 6_208  # and 64 bytes of mask


def backward_inputs(**shape):
    return {"grad_out": out(), **qkv(**shape), "out": out(), "logsumexp": spec((2, 4, 8))}


def test_backward_with_recomputation_is_two_and_a_half_forwards():
    c = cost(BACKWARD, backward_inputs(), [out()] * 3, is_causal=False)
    assert c.matrix_flops == 81_920  # 2 * 2 * 4 * 64 * (3 * 16 + 2 * 16) = 2.5 * 32768
    assert c.vector_flops == 3_072  # 6 * 512
    assert c.bytes_read == 10_496  # do, q, k, v, o: 5 * 2048; 256 of log-sum-exp
    assert c.bytes_written == 6_144


def test_backward_without_recomputation_is_two_forwards():
    c = cost(BACKWARD, backward_inputs(), [out()] * 3, is_causal=False, recompute=False)
    assert c.matrix_flops == 65_536
    assert c.vector_flops == 2_048


def test_backward_of_key_heads_writes_key_heads():
    gradients = [out(), out(heads=1), out(heads=1)]
    assert cost(BACKWARD, backward_inputs(kv_heads=1), gradients).bytes_written == 3_072


def test_backward_of_the_values_alone():
    c = cost(
        "aten::_scaled_dot_product_efficient_attention_backward",
        backward_inputs(),
        [out()],
        grad_input_mask=(False, False, True, False),
    )
    assert c.matrix_flops == 32_768  # scores again and dV: 2 * 512 * (16 + 16)


def test_flash_attn_is_causal_from_the_bottom_right():
    inputs = {
        "q": spec((2, 2, 4, 16), "float16"),
        "k": spec((2, 8, 1, 16), "float16"),
        "v": spec((2, 8, 1, 16), "float16"),
    }
    outputs = [spec((2, 2, 4, 16), "float16"), spec((2, 4, 2))]
    c = cost("flash_attn::_flash_attn_forward", inputs, outputs, causal=True, window_size_left=-1, window_size_right=-1)
    assert c.matrix_flops == 7_680  # 2 * 2 * 4 * (7 + 8) * 32
    c = cost("flash_attn::_flash_attn_forward", inputs, outputs, causal=True, window_size_left=3, window_size_right=0)
    assert c.matrix_flops == 4_096  # 2 * 2 * 4 * (4 + 4) * 32


def test_flash_attn_backward_only_writes_the_gradients_it_is_given():
    x = spec((2, 8, 4, 16), "float16")
    grads = [spec((2, 8, 4, 16), "float16", storage=i) for i in range(3)]
    inputs = {"dout": x, "q": x, "k": x, "v": x, "out": x, "softmax_lse": spec((2, 4, 8))}
    inputs |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    c = cost("flash_attn::_flash_attn_backward", inputs, grads, causal=False)
    assert c.bytes_read == 10_496
    assert c.bytes_written == 6_144


def packed(tokens=12, cum=("cum_seq_q", "cum_seq_k")):
    x = spec((tokens, 4, 16), "bfloat16")
    return {"query": x, "key": x, "value": x, **{name: spec((4,), "int32") for name in cum}}


def test_packed_sequences_are_an_upper_count():
    c = cost(
        "aten::_flash_attention_forward",
        packed(),
        [spec((12, 4, 16), "bfloat16"), spec((4, 12))],
        max_q=6,
        max_k=6,
        is_causal=False,
    )
    assert c.upper
    assert c.matrix_flops == 18_432  # 2 * 4 * (12 * 6) * 32


def test_packed_causal_sequences():
    c = cost(
        "flash_attn::_flash_attn_varlen_forward",
        packed(cum=("cu_seqlens_q", "cu_seqlens_k")),
        [spec((12, 4, 16), "bfloat16"), spec((4, 12))],
        max_seqlen_q=6,
        max_seqlen_k=6,
        causal=True,
    )
    assert c.matrix_flops == 10_752  # 2 * 4 * (2 * 6 * 7 / 2) * 32


def test_packed_backward():
    x = spec((12, 4, 16), "bfloat16")
    inputs = {"grad_out": x, **packed(), "out": x, "logsumexp": spec((4, 12))}
    c = cost("aten::_flash_attention_backward", inputs, [x] * 3, max_q=6, max_k=6, is_causal=False)
    assert c.upper
    assert c.matrix_flops == 46_080  # 2.5 * 18432


def test_dense_batch_of_the_packed_op_is_exact():
    x = spec((2, 8, 4, 16), "bfloat16")
    c = cost("aten::_efficient_attention_forward", {"query": x, "key": x, "value": x}, [x], custom_mask_type=1)
    assert not c.upper
    assert c.matrix_flops == 18_432  # the triangle of test_causal_square


def test_flex_attention_is_upper():
    inputs = list(qkv().values())
    c = cost("higher_order::flex_attention", inputs, [out(), spec((2, 4, 8))])
    assert c.upper
    assert c.matrix_flops == 32_768
    c = cost("higher_order::flex_attention_backward", [*inputs, out(), spec((2, 4, 8)), out()], [out()] * 3)
    assert c.matrix_flops == 81_920


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
