import pytest
from builders import cost, spec
from hypothesis import given
from hypothesis import strategies as st


def test_layer_norm():
    inputs = {"input": spec((4, 10)), "weight": spec((10,)), "bias": spec((10,))}
    c = cost("aten::native_layer_norm", inputs, [spec((4, 10)), spec((4, 1)), spec((4, 1))])
    assert c.vector_flops == 320  # 8 * 40
    assert c.bytes_read == 240  # 4 * (40 + 10 + 10)
    assert c.bytes_written == 192  # 4 * (40 + 4 + 4)


def test_layer_norm_backward_does_not_read_the_bias():
    x, row, p = spec((4, 10)), spec((4, 1)), spec((10,))
    inputs = {"grad_out": x, "input": x, "mean": row, "rstd": row, "weight": p, "bias": p}
    c = cost("aten::native_layer_norm_backward", inputs, [x, p, p], output_mask=(True, True, True))
    assert c.vector_flops == 640  # 16 * 40
    assert c.bytes_read == 392  # 4 * (40 + 40 + 4 + 4 + 10)
    assert c.bytes_written == 240


def test_rms_norm():
    inputs = {"input": spec((4, 10)), "weight": spec((10,))}
    assert cost("aten::_fused_rms_norm", inputs, [spec((4, 10)), spec((4, 1))]).vector_flops == 200  # 5 * 40
    grads = {"grad_out": spec((4, 10)), "input": spec((4, 10)), "rstd": spec((4, 1)), "weight": spec((10,))}
    assert cost("aten::_fused_rms_norm_backward", grads, [spec((4, 10)), spec((10,))]).vector_flops == 400


def batch_norm_inputs():
    mean, var = spec((3,), storage=1), spec((3,), storage=2)
    return {
        "input": spec((2, 3, 5)),
        "weight": spec((3,)),
        "bias": spec((3,)),
        "running_mean": mean,
        "running_var": var,
    }


def test_batch_norm_in_training_updates_its_statistics():
    inputs = batch_norm_inputs()
    outputs = [spec((2, 3, 5)), spec((3,)), spec((3,)), inputs["running_mean"], inputs["running_var"]]
    c = cost("aten::_native_batch_norm_legit", inputs, outputs, training=True)
    assert c.vector_flops == 240  # 8 * 30
    assert c.bytes_read == 168  # 4 * (30 + 4 * 3)
    assert c.bytes_written == 168  # 4 * (30 + 4 * 3)


def test_batch_norm_in_evaluation_only_scales():
    inputs = batch_norm_inputs()
    outputs = [spec((2, 3, 5)), spec((0,)), spec((0,)), inputs["running_mean"], inputs["running_var"]]
    c = cost("aten::_native_batch_norm_legit", inputs, outputs, training=False)
    assert c.vector_flops == 120  # 4 * 30
    assert c.bytes_written == 120  # the running statistics stay


@pytest.mark.parametrize(("train", "flops", "read"), [(True, 480, 4 * 69), (False, 240, 4 * 69)])
def test_batch_norm_backward(train, flops, read):
    x, p = spec((2, 3, 5)), spec((3,))
    inputs = {"grad_out": x, "input": x, "weight": p}
    inputs |= {"running_mean": p, "running_var": p, "save_mean": p, "save_invstd": p}
    c = cost("aten::native_batch_norm_backward", inputs, [x, p, p], train=train)
    assert c.vector_flops == flops
    assert c.bytes_read == read  # 30 + 30 + weight 3 + the pair of statistics in use 6


def test_weight_norm():
    v, g = spec((4, 6)), spec((4, 1))
    assert cost("aten::_weight_norm_interface", {"v": v, "g": g}, [v, g]).vector_flops == 72  # 3 * 24


@given(st.integers(1, 64), st.integers(1, 64))
def test_backward_is_twice_the_forward(rows, width):
    x = spec((rows, width))
    forward = cost("aten::native_group_norm", {"input": x}, [x])
    backward = cost("aten::native_group_norm_backward", {"grad_out": x, "input": x}, [x])
    assert backward.vector_flops == 2 * forward.vector_flops
