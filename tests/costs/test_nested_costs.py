"""Nested and jagged tensors, recorded: products of parts, and transformers that skip the padding."""

import pytest
import torch
from cost_table import costs
from recorded_costs import only_cost, recorded_costs
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*nested tensors is in prototype:UserWarning",
    "ignore:enable_nested_tensor is True:UserWarning",
    "ignore:Converting mask without torch.bool:UserWarning",
)


WIDTH, HEADS, HIDDEN = 16, 4, 32


def encoder(*, layers=1, dtype=torch.float32, **settings):
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True, dtype=dtype, **settings)
    return torch.nn.TransformerEncoder(layer, layers).eval()


def padding(lengths, longest=5):
    return torch.arange(longest)[None, :] >= torch.tensor(lengths)[:, None]


def totals(program):
    costs = [cost for calls in recorded_costs(program).values() for cost in calls]
    return sum(c.matrix_flops for c in costs), sum(c.vector_flops for c in costs)


def test_a_padded_batch_counts_the_tokens_that_are_there():
    x, mask, model = torch.randn(3, 5, WIDTH), padding([3, 4, 5]), encoder(layers=2)
    with torch.inference_mode():
        costs = recorded_costs(lambda: model(x, src_key_padding_mask=mask))
    first, second = costs["_transformer_encoder_layer_fwd"]
    # 12 tokens: projections 2 * 12 * (4 * 256 + 2 * 512) = 49152, attention 4 * (9 + 16 + 25) * 16 = 3200
    assert first.matrix_flops == second.matrix_flops == 52_352
    # scores 5 * 4 * 50 = 1000; per token biases 48 + 16 + 32 + 16, relu 32, norms and residuals 18 * 16 = 432
    assert first.vector_flops == 1_000 + 12 * 432
    weights = 4 * (4 * 256 + 2 * 512 + 48 + 32 + 6 * 16)
    assert (first.bytes_read, first.bytes_written) == (4 * 12 * 16 + weights, 4 * 12 * 16)
    assert not first.upper
    # into the nested layout: mask and 12 tokens read, padding not; back: 12 read, 15 written
    (packed,), (padded,) = costs["_nested_tensor_from_mask"], costs["to_padded_tensor"]
    assert (packed.bytes_read, packed.bytes_written) == (768 + 15, 768)
    assert (padded.bytes_read, padded.bytes_written) == (768, 960)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_fast_path_counts_as_the_slow_one_where_nothing_is_padded(dtype, norm_first, activation):
    model = encoder(dtype=dtype, norm_first=norm_first, activation=activation)
    x = torch.randn(3, 5, WIDTH, dtype=dtype)
    with torch.inference_mode():
        fast = recorded_costs(lambda: model.layers[0](x))
        nested = totals(lambda: model.layers[0](torch.nested.as_nested_tensor(x), is_causal=False))
    slow = totals(lambda: model.layers[0](x))  # gradients are enabled
    (layer,) = fast["_transformer_encoder_layer_fwd"]
    assert (layer.matrix_flops, layer.vector_flops) == slow
    assert nested[0] == slow[0]


def test_on_meta_the_layer_is_its_parts():
    model = encoder().to("meta")
    x = torch.empty(3, 5, WIDTH, device="meta")
    with torch.inference_mode():
        meta = totals(lambda: model(x))
    real = encoder()
    with torch.inference_mode():
        assert meta == totals(lambda: real(torch.randn(3, 5, WIDTH)))


def test_lengths_that_a_mask_holds_and_nobody_read_are_upper():
    layer, x = encoder().layers[0], torch.randn(3, 5, WIDTH)
    with torch.inference_mode():
        dense = only_cost(lambda: layer(x), "_transformer_encoder_layer_fwd")
        masked = only_cost(lambda: layer(x, src_key_padding_mask=padding([3, 4, 5])), "_transformer_encoder_layer_fwd")
        hidden = only_cost(
            lambda: layer(x, src_mask=torch.ones(5, 5, dtype=torch.bool).triu(1)), "_transformer_encoder_layer_fwd"
        )
    assert not dense.upper
    for found in (masked, hidden):
        assert found.upper
        assert found.matrix_flops == dense.matrix_flops


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_counts_as_its_slow_path(need_weights):
    module, x = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval(), torch.randn(3, 5, WIDTH)
    with torch.inference_mode():
        fast = only_cost(lambda: module(x, x, x, need_weights=need_weights), "_native_multi_head_attention")
    # projections 2 * 15 * 4 * 256 = 30720, attention 4 * 3 * 25 * 16 = 4800
    assert fast.matrix_flops == 35_520 == totals(lambda: module(x, x, x, need_weights=need_weights))[0]
    assert fast.bytes_read == 4 * (3 * 5 * 16 + 4 * 256 + 64)
    assert fast.bytes_written == 4 * (240 + (75 if need_weights else 0))


def test_multi_head_attention_of_nested_sequences():
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    x = torch.nested.nested_tensor([torch.randn(3, WIDTH), torch.randn(5, WIDTH)])
    with torch.inference_mode():
        c = only_cost(lambda: module(x, x, x, need_weights=False), "_native_multi_head_attention")
    assert c.matrix_flops == 2 * 8 * 4 * 256 + 4 * (9 + 25) * 16
    assert c.vector_flops == 5 * 4 * 34 + 4 * 8 * 16


def test_products_of_nested_tensors_are_those_of_their_parts():
    x = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(5, 8)], requires_grad=True)
    layer = torch.nn.Linear(8, 6)

    def program():
        y = layer(x)
        torch.nested.to_padded_tensor(torch.matmul(y, y.transpose(1, 2)), 0.0).sum().backward()

    costs = recorded_costs(program)
    assert costs["linear"][0].matrix_flops == 2 * 7 * 8 * 6
    assert costs["linear_backward"][0].matrix_flops == 2 * 2 * 7 * 8 * 6
    # [2, 6] @ [6, 2] and [5, 6] @ [6, 5]: 4 * 6 + 25 * 6 multiply-adds
    assert costs["matmul"][0].matrix_flops == 2 * 174
    assert costs["matmul_backward"][0].matrix_flops == 2 * 2 * 174
    # scores of 29 elements to [2, 5, 5] and back, where their gradient is read, not that of the padding
    assert (costs["to_padded_tensor"][0].bytes_read, costs["to_padded_tensor"][0].bytes_written) == (116, 200)
    assert costs["_nested_from_padded"][0].bytes_written == 116


@pytest.mark.parametrize("inference", [False, True])
def test_attention_of_nested_sequences(inference):
    q = torch.nested.nested_tensor([torch.randn(2, 3, 8), torch.randn(2, 5, 8)])
    with torch.inference_mode(inference):
        matrix, vector = totals(lambda: functional.scaled_dot_product_attention(q, q, q))
    assert matrix == 2 * 2 * (9 + 25) * 16
    assert vector >= 5 * 2 * 34  # softmax; the host's own split scales q and k, too


def test_dropout_of_nested_sequences_is_recorded_under_inference_mode():
    x = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(5, 8)])
    with torch.inference_mode():
        c = only_cost(lambda: functional.dropout(x, 0.5), "native_dropout")
    assert c.bytes_read == 4 * 56


def jagged(width=8):
    parts = [torch.randn(3, width), torch.randn(5, width)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def test_a_jagged_block_forward_and_backward():
    x, layer = jagged(), torch.nn.Linear(8, 6)

    def program():
        heads = layer(x).unflatten(-1, (2, 3)).transpose(1, 2)
        out = functional.scaled_dot_product_attention(heads, heads, heads)
        out.transpose(1, 2).flatten(-2).values().sum().backward()

    costs = recorded_costs(program)
    assert costs["addmm"][0].matrix_flops == 2 * 8 * 8 * 6
    # two heads of 3 features, sequences of 3 and 5: 2 * (9 + 25) scores, 3 multiply-adds each, twice
    assert [c.matrix_flops for c in costs["matmul"]] == [2 * 2 * 34 * 3] * 2
    assert [c.matrix_flops for c in costs["matmul_backward"]] == [2 * 2 * 2 * 34 * 3] * 2
    assert [c.matrix_flops for c in costs["mm"]] == [2 * 8 * 8 * 6] * 2  # dx and dw


def test_jagged_products_and_reductions_are_costed():
    x = jagged()

    def program():
        y = torch.matmul(x, torch.ones(8, 4))
        z = torch.matmul(x.transpose(1, 2), x)
        (z.sum() + y.values().sum()).backward()
        x.to_padded_tensor(0.0)
        x.mean(1)
        functional.softmax(functional.layer_norm(x, (8,)), -1)

    costs = recorded_costs(program)
    assert sum(c.matrix_flops for c in costs["mm"][:3]) == 2 * 8 * 8 * 4 + 2 * 8 * 8 * (3 + 5)


test_costs = costs(
    """
    # prims
    prims::mul a=4x6 -> 4x6 = vector 24, moved 192
    prims::sum a=4x6 -> 4x6 = vector 24, moved 192
    prims::var a=4x6 -> 4x6 = vector 96, moved 192
    prims::convert_element_type a=4x6 -> 4x6 = vector 0, moved 192
    prims::broadcast_in_dim a=4x6 -> 4x6 = vector 0, moved 0
    prims::iota a=4x6 -> 4x6 = vector 0, moved 96
    # encoder layer: projections 2 * 10 * (4 * 256 + 2 * 512) = 40960, attention 4 * 2 * 25 * 16 = 3200; scores 5 * 2 *
    #   4 * 25 = 1000; per token biases 48 + 16 + 32 + 16, relu 32, norms and residuals 18 * 16; 1000 + 10 * (112 + 32 +
    #   288); 4 * (160 + 4 * 256 + 2 * 512 + 48 + 32 + 6 * 16)
    _transformer_encoder_layer_fwd src=2x5x16 qkv_weight=48x16 qkv_bias=48 proj_weight=16x16 proj_bias=16
        norm_weight_1=16 norm_bias_1=16 norm_weight_2=16 norm_bias_2=16 ffn_weight_1=32x16 ffn_bias_1=32
        ffn_weight_2=16x32 ffn_bias_2=16 -> 2x5x16 | num_heads=4 use_gelu=False = matrix 44160, vector 5320, read 9536,
        written 640, upper False
    # encoder layer with a mask is upper
    _transformer_encoder_layer_fwd src=2x5x16 qkv_weight=48x16 qkv_bias=48 proj_weight=16x16 proj_bias=16
        norm_weight_1=16 norm_bias_1=16 norm_weight_2=16 norm_bias_2=16 ffn_weight_1=32x16 ffn_bias_1=32
        ffn_weight_2=16x32 ffn_bias_2=16 mask=2x5:bool -> 2x5x16 | num_heads=4 = upper True
    # two to four sparsity halves the work: 2 * 4 * 8 * 64 / 2; 512 + 512 + 64
    _sparse_semi_structured_linear input=4x64:float16 weight=8x32:float16 meta=8x4:int16 -> 4x8:float16 = matrix 2048,
        read 1088
    # jagged repacking skips the padding: 192 + 24
    _padded_dense_to_jagged_forward dense=2x10x4 offsets=3:int64 -> 12x4 = read 216
    # multi head attention: 2 * 10 * 4 * 256 + 3200; 4 * (160 + 4 * 256 + 64); x once though it is query, key and value
    _native_multi_head_attention query=2x5x16@0 key=2x5x16@0 value=2x5x16@0 qkv_weight=48x16 qkv_bias=48
        proj_weight=16x16 proj_bias=16 -> 2x5x16 | num_head=4 = matrix 23680, read 4992
    """
)
