from cost_table import costs

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
    # what a kernel keeps for backward is no byte that must move: 4 * (240 + 48 + 48); 4 * (120 + 1664 + 48); 4 * (120 +
    #   1664 + 48 + 240 + 240); as forward
    _cudnn_rnn input=5x3x8 weight=64x8 weight=64x16 weight=64 weight=64 weight_buf=1664 hx=1x3x16 -> 5x3x16 1x3x16
        1x3x16 100000 1664 | mode=2 = written 1344, read 7328
    _cudnn_rnn_backward input=5x3x8 weight=64x8 weight=64x16 weight=64 weight=64 weight_buf=1664 hx=1x3x16 output=5x3x16
        grad_output=5x3x16 reserve=100000 -> 5x3x8 | mode=2 output_mask=(True,False,False,False) = read 9248, vector
        6480
    # gates are pointwise: 19 * 48; 3 * (19 * 16 + 128)
    _thnn_fused_lstm_cell input_gates=3x64 hidden_gates=3x64 cx=3x16 -> 3x16 3x16 3x64 = matrix 0, vector 912
    _thnn_fused_lstm_cell input_gates=3x64 hidden_gates=3x64 cx=3x16 input_bias=64 hidden_bias=64 -> 3x16 3x16 3x64 =
        vector 1296
    """
)
