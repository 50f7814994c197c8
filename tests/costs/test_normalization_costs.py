from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 64), st.integers(1, 64))
def test_backward_is_twice_the_forward(rows, width):
    x = spec((rows, width))
    forward = cost("aten::native_group_norm", {"input": x}, [x])
    backward = cost("aten::native_group_norm_backward", {"grad_out": x, "input": x}, [x])
    assert backward.vector_flops == 2 * forward.vector_flops


test_costs = costs(
    """
    # layer norm: 8 * 40; 4 * (40 + 10 + 10); 4 * (40 + 4 + 4)
    native_layer_norm input=4x10 weight=10 bias=10 -> 4x10 4x1 4x1 = vector 320, read 240, written 192
    # layer norm backward does not read the bias: 16 * 40; 4 * (40 + 40 + 4 + 4 + 10)
    native_layer_norm_backward grad_out=4x10 input=4x10 mean=4x1 rstd=4x1 weight=10 bias=10 -> 4x10 10 10 |
        output_mask=(True,True,True) = vector 640, read 392, written 240
    # rms norm: 5 * 40
    _fused_rms_norm input=4x10 weight=10 -> 4x10 4x1 = vector 200
    _fused_rms_norm_backward grad_out=4x10 input=4x10 rstd=4x1 weight=10 -> 4x10 10 = vector 400
    # batch norm in training updates its statistics: 8 * 30; 4 * (30 + 4 * 3); 4 * (30 + 4 * 3)
    _native_batch_norm_legit input=2x3x5 weight=3 bias=3 running_mean=3@1 running_var=3@2 -> 2x3x5 3 3 3@1 3@2 |
        training=True = vector 240, read 168, written 168
    # batch norm in evaluation only scales: 4 * 30; the running statistics stay
    _native_batch_norm_legit input=2x3x5 weight=3 bias=3 running_mean=3@1 running_var=3@2 -> 2x3x5 0 0 3@1 3@2 |
        training=False = vector 120, written 120
    # batch norm backward: 30 + 30, weight 3 and the pair of statistics in use 6
    native_batch_norm_backward grad_out=2x3x5 input=2x3x5 weight=3 running_mean=3 running_var=3 save_mean=3
        save_invstd=3 -> 2x3x5 3 3 | train=True = vector 480, read 276
    native_batch_norm_backward grad_out=2x3x5 input=2x3x5 weight=3 running_mean=3 running_var=3 save_mean=3
        save_invstd=3 -> 2x3x5 3 3 | train=False = vector 240, read 276
    # weight norm: 3 * 24
    _weight_norm_interface v=4x6 g=4x1 -> 4x6 4x1 = vector 72
    """
)
