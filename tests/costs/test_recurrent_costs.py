from builders import cost, spec
from cost_table import costs


def weights(gates, hidden, inputs, layers=1):
    """Per layer: input-to-state, state-to-state and two biases."""
    sizes = [inputs] + [hidden] * (layers - 1)
    return [
        tensor
        for size in sizes
        for tensor in (
            spec((gates * hidden, size)),
            spec((gates * hidden, hidden)),
            spec((gates * hidden,)),
            spec((gates * hidden,)),
        )
    ]


def test_what_a_kernel_keeps_for_backward_is_no_byte_that_must_move():
    params = weights(4, 16, 8)
    inputs = {"input": spec((5, 3, 8)), "weight": params, "weight_buf": spec((1664,)), "hx": spec((1, 3, 16))}
    results = [spec((5, 3, 16)), spec((1, 3, 16)), spec((1, 3, 16)), spec((100_000,)), spec((1664,))]
    c = cost("aten::_cudnn_rnn", inputs, results, mode=2)
    assert c.bytes_written == 4 * (240 + 48 + 48)
    assert c.bytes_read == 4 * (120 + 1664 + 48)
    inputs |= {"output": results[0], "grad_output": results[0], "reserve": results[3]}
    c = cost("aten::_cudnn_rnn_backward", inputs, [spec((5, 3, 8))], mode=2, output_mask=(True, False, False, False))
    assert c.bytes_read == 4 * (120 + 1664 + 48 + 240 + 240)
    assert c.vector_flops == 6_480  # as forward


def test_gates_are_pointwise():
    inputs = {"input_gates": spec((3, 64)), "hidden_gates": spec((3, 64)), "cx": spec((3, 16))}
    c = cost("aten::_thnn_fused_lstm_cell", inputs, [spec((3, 16)), spec((3, 16)), spec((3, 64))])
    assert (c.matrix_flops, c.vector_flops) == (0, 912)  # 19 * 48
    inputs |= {"input_bias": spec((64,)), "hidden_bias": spec((64,))}
    with_biases = cost("aten::_thnn_fused_lstm_cell", inputs, [spec((3, 16)), spec((3, 16)), spec((3, 64))])
    assert with_biases.vector_flops == 1_296  # 3 * (19 * 16 + 128)


test_costs = costs(
    """
    # cudnn lstm meets every weight with every token: 15 tokens * 2 * (64 * 8 + 64 * 16 + 2 * 64 * 16); 15 tokens * 2
    #   layers * (19 * 16 units + 2 * 64 biases)
    _cudnn_rnn input=5x3x8 weight=64x8 weight=64x16 weight=64 weight=64 weight=64x16 weight=64x16 weight=64 weight=64
        hx=2x3x16 -> 5x3x16 | mode=2 = matrix 107520, vector 12960
    # projected states: w_ih [64, 8], w_hh [64, 4], two biases, w_hr [4, 16]: 832 entries of matrices; 2 * 15 * 832
    _cudnn_rnn input=5x3x8 weight=64x8 weight=64x4 weight=64 weight=64 weight=4x16 hx=1x3x4 -> 5x3x4 | mode=2 = matrix
        24960, vector 6480
    # backward is twice forward
    _cudnn_rnn_backward input=5x3x8 weight=64x8 weight=64x16 weight=64 weight=64 weight=64x16 weight=64x16 weight=64
        weight=64 -> 5x3x8 | mode=2 output_mask=(True,True,True,True) = matrix 215040
    _cudnn_rnn_backward input=5x3x8 weight=64x8 weight=64x16 weight=64 weight=64 weight=64x16 weight=64x16 weight=64
        weight=64 -> 5x3x8 | mode=2 output_mask=(True,True,True,False) = matrix 107520
    # one layer of mkldnn: 15 * 2 * (64 * 8 + 64 * 16); 15 * (19 * 16 + 2 * 64); 4 * (120 + 1536 + 128); 15 * 19 * 16; 4
    #   * (120 + 1536); what stands in for biases is not read
    mkldnn_rnn_layer input=5x3x8 weight0=64x8 weight1=64x16 weight2=64 weight3=64 -> 5x3x16 | mode=2 has_biases=True =
        matrix 46080, vector 6480, read 7136
    mkldnn_rnn_layer input=5x3x8 weight0=64x8 weight1=64x16 weight2=64 weight3=64 -> 5x3x16 | mode=2 has_biases=False =
        vector 4560, read 6624
    # gru has three gates: 15 * 2 * (48 * 8 + 48 * 16); 15 * (14 * 16 + 2 * 48)
    gru input=5x3x8 hx=1x3x16 params=48x8 params=48x16 params=48 params=48 -> 5x3x16 = matrix 34560, vector 4800
    # cells: 3 * 2 * 1536
    lstm_cell input=3x8 hx=3x16 hx=3x16 w_ih=64x8 w_hh=64x16 -> 3x16 3x16 = matrix 9216
    """
)
