import pytest
from builders import cost, spec
from hypothesis import given
from hypothesis import strategies as st


def lists(*names, numel=100, dtype="float32"):
    """Lists of one tensor for each argument named."""
    return {name: [spec((numel,), dtype, storage=place)] for place, name in enumerate(names)}


def mutated(inputs):
    return [tensor for tensors in inputs.values() for tensor in tensors]


ADAM = ("self", "grads", "exp_avgs", "exp_avg_sqs")
STEPS = {"state_steps": [spec(storage=90)]}


@pytest.mark.parametrize("name", ["_fused_adamw_", "_fused_adam_"])
def test_adam_moves_28_bytes_a_parameter(name):
    inputs = lists(*ADAM)
    c = cost(f"aten::{name}", {**inputs, **STEPS}, mutated(inputs), amsgrad=False)
    assert c.vector_flops == 1_400  # 14 * 100
    assert c.bytes_read == 1_604  # p, g, m, v: 16 * 100, and the step count
    assert c.bytes_written == 1_200  # p, m, v; the schema mutates gradients, the kernel does not


def test_amsgrad_reads_and_writes_the_maximum():
    inputs = lists(*ADAM, "max_exp_avg_sqs")
    c = cost("aten::_fused_adamw_", {**inputs, **STEPS}, mutated(inputs), amsgrad=True)
    assert c.bytes_moved == 3_604  # 36 * 100 + 4
    assert c.vector_flops == 1_500


def test_gradients_are_written_where_they_are_unscaled():
    inputs = lists(*ADAM)
    c = cost("aten::_fused_adamw_", {**inputs, **STEPS, "grad_scale": spec()}, mutated(inputs))
    assert c.bytes_written == 1_600


def test_sgd_moves_12_bytes_and_20_with_momentum():
    plain = lists("self", "grads")
    c = cost("aten::_fused_sgd_", plain, mutated(plain), nesterov=False, is_first_step=False)
    assert (c.bytes_moved, c.vector_flops) == (1_200, 200)
    momentum = lists("self", "grads", "momentum_buffer_list")
    c = cost("aten::_fused_sgd_", momentum, mutated(momentum), nesterov=False, is_first_step=False)
    assert (c.bytes_moved, c.vector_flops) == (2_000, 400)
    c = cost("aten::_fused_sgd_", momentum, mutated(momentum), nesterov=True, is_first_step=True)
    assert (c.bytes_moved, c.vector_flops) == (1_600, 600)  # the first step only writes the buffer


def test_adagrad_moves_20_bytes():
    inputs = lists("self", "grads", "state_sums")
    c = cost("aten::_fused_adagrad_", {**inputs, **STEPS}, mutated(inputs))
    assert c.bytes_moved == 2_004


@given(st.integers(1, 10_000), st.sampled_from(["float32", "bfloat16"]))
def test_bytes_grow_with_the_parameters(numel, dtype):
    inputs = lists(*ADAM, numel=numel, dtype=dtype)
    c = cost("aten::_fused_adamw_", inputs, mutated(inputs))
    assert c.bytes_moved == 7 * mutated(inputs)[0].nbytes
