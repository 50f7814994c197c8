import pytest
from builders import cost, spec
from cost_table import costs


def encoder_inputs(width=16, hidden=32):
    e = spec((width,))
    return {
        "src": spec((2, 5, width)),
        "qkv_weight": spec((3 * width, width)),
        "qkv_bias": spec((3 * width,)),
        "proj_weight": spec((width, width)),
        "proj_bias": e,
        "norm_weight_1": e,
        "norm_bias_1": e,
        "norm_weight_2": e,
        "norm_bias_2": e,
        "ffn_weight_1": spec((hidden, width)),
        "ffn_bias_1": spec((hidden,)),
        "ffn_weight_2": spec((width, hidden)),
        "ffn_bias_2": e,
    }


@pytest.mark.parametrize(
    ("name", "flops", "moved"),
    [
        ("mul", 24, 192),
        ("sum", 24, 192),
        ("var", 96, 192),
        ("convert_element_type", 0, 192),
        ("broadcast_in_dim", 0, 0),
        ("iota", 0, 96),
    ],
)
def test_prims(name, flops, moved):
    c = cost(f"prims::{name}", {"a": spec((4, 6))}, [spec((4, 6))])
    assert (c.vector_flops, c.bytes_moved) == (flops, moved)


test_costs = costs(
    """
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
