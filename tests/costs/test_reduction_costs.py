from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.families.reduction import REDUCTIONS

TABLE = {name: flops for flops, ops in REDUCTIONS.items() for name in ops.split()}


@given(rows=st.integers(0, 9), width=st.integers(0, 9))
def test_every_op_of_the_table_counts_per_input_element(rows, width):
    x, out = spec((rows, width)), spec((rows,))
    found = {name: cost(f"aten::{name}", {"self": x}, [out]).vector_flops for name in TABLE}
    assert found == {name: flops * rows * width for name, flops in TABLE.items()}


@given(st.integers(1, 40), st.integers(1, 40))
def test_the_dimension_reduced_does_not_matter(rows, columns):
    x = {"self": spec((rows, columns))}
    assert cost("aten::sum", x, [spec((rows,))]).vector_flops == cost("aten::sum", x, [spec((columns,))]).vector_flops


@given(st.integers(1, 64), st.integers(1, 512))
def test_the_cross_entropy_chain_is_about_five_per_logit(rows, classes):
    x = spec((rows, classes))
    chain = cost("aten::_log_softmax", {"self": x}, [x]).vector_flops
    chain += cost("aten::nll_loss_forward", {"self": x, "target": spec((rows,), "int64")}, [spec()]).vector_flops
    assert chain == 5 * rows * classes + rows


test_costs = costs(
    """
    # sum reads in and writes out
    sum self=4x6:bfloat16 -> 4:bfloat16 = vector 24, read 48, written 8
    # max with indices: 4 * 4 + 4 * 8
    max self=4x6 -> 4 4:int64 = written 48
    # max into out reads only its input
    max self=4x6@0 max=4@1 max_values=4:int64@2 -> 4@1 4:int64@2 = read 96
    # complex sum is two
    sum self=6:complex64 -> ():complex64 = vector 12
    # sum of an expanded tensor reads it once
    sum self=4x6~0,0 -> () = read 4
    # softmax: 5 * 40; 2 * 40
    _softmax self=4x10:bfloat16 -> 4x10:bfloat16 = vector 200, read 80, written 80, matrix 0
    # softmax backward reads gradient and result: 4 * 40; 3 N e together
    _log_softmax_backward_data grad_output=4x10 output=4x10 -> 4x10 = vector 160, read 320, written 160
    # nll reads one logit a row: 4 * 8 of targets, 4 * 4 of log-probabilities
    nll_loss_forward self=4x1000 target=4:int64 -> () () | reduction=1 = read 48, written 8, vector 4
    # nll with class weights reads those picked
    nll_loss_forward self=4x1000 target=4:int64 weight=1000 -> () () = read 64
    # nll backward writes the whole gradient and reads no logit: 4 + 32 + 4
    nll_loss_backward grad_output=() self=4x1000 target=4:int64 total_weight=() -> 4x1000 = read 40, written 16000
    # mse: subtract, square, add
    mse_loss self=4x6 target=4x6 -> () = vector 72
    # fused linear cross entropy never stores the logits: logits and two gradients: 3 * 2 * 4 * 100 * 8; 4 * (32 + 800)
    #   + 32; 4 * (1 + 32 + 800)
    torch_nn::_linear_cross_entropy_batch_chunked input=4x8 linear_weight=100x8 target=4:int64 -> () 4x8 100x8 0 |
        compute_input_grad=True compute_linear_weight_grad=True compute_linear_bias_grad=False = matrix 19200, read
        3360, written 3332
    """
)
