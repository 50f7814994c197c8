from builders import cost, spec
from hypothesis import given
from hypothesis import strategies as st


def test_softmax():
    c = cost("aten::_softmax", {"self": spec((4, 10), "bfloat16")}, [spec((4, 10), "bfloat16")])
    assert (c.vector_flops, c.bytes_read, c.bytes_written) == (200, 80, 80)  # 5 * 40; 2 * 40
    assert c.matrix_flops == 0


def test_softmax_backward_reads_gradient_and_result():
    y = spec((4, 10))
    c = cost("aten::_log_softmax_backward_data", {"grad_output": y, "output": y}, [spec((4, 10))])
    assert (c.vector_flops, c.bytes_read, c.bytes_written) == (160, 320, 160)  # 4 * 40; 3 N e together


def test_nll_reads_one_logit_a_row():
    inputs = {"self": spec((4, 1000)), "target": spec((4,), "int64")}
    c = cost("aten::nll_loss_forward", inputs, [spec(), spec()], reduction=1)
    assert c.bytes_read == 48  # 4 * 8 of targets, 4 * 4 of log-probabilities
    assert c.bytes_written == 8
    assert c.vector_flops == 4


def test_nll_with_class_weights_reads_those_picked():
    inputs = {"self": spec((4, 1000)), "target": spec((4,), "int64"), "weight": spec((1000,))}
    assert cost("aten::nll_loss_forward", inputs, [spec(), spec()]).bytes_read == 64


def test_nll_backward_writes_the_whole_gradient_and_reads_no_logit():
    inputs = {"grad_output": spec(), "self": spec((4, 1000)), "target": spec((4,), "int64"), "total_weight": spec()}
    c = cost("aten::nll_loss_backward", inputs, [spec((4, 1000))])
    assert c.bytes_read == 40  # 4 + 32 + 4
    assert c.bytes_written == 16_000


@given(st.integers(1, 64), st.integers(1, 512))
def test_the_cross_entropy_chain_is_about_five_per_logit(rows, classes):
    x = spec((rows, classes))
    chain = cost("aten::_log_softmax", {"self": x}, [x]).vector_flops
    chain += cost("aten::nll_loss_forward", {"self": x, "target": spec((rows,), "int64")}, [spec()]).vector_flops
    assert chain == 5 * rows * classes + rows


def test_mse():
    x = spec((4, 6))
    assert cost("aten::mse_loss", {"self": x, "target": x}, [spec()]).vector_flops == 72  # subtract, square, add


def test_fused_linear_cross_entropy_never_stores_the_logits():
    inputs = {"input": spec((4, 8)), "linear_weight": spec((100, 8)), "target": spec((4,), "int64")}
    c = cost(
        "torch_nn::_linear_cross_entropy_batch_chunked",
        inputs,
        [spec(), spec((4, 8)), spec((100, 8)), spec((0,))],
        compute_input_grad=True,
        compute_linear_weight_grad=True,
        compute_linear_bias_grad=False,
    )
    assert c.matrix_flops == 19_200  # logits and two gradients: 3 * 2 * 4 * 100 * 8
    assert c.bytes_read == 3_360  # 4 * (32 + 800) + 32
    assert c.bytes_written == 3_332  # 4 * (1 + 32 + 800)
