import pytest
from builders import cost, spec
from cost_table import costs
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


@given(st.integers(1, 10_000), st.sampled_from(["float32", "bfloat16"]))
def test_bytes_grow_with_the_parameters(numel, dtype):
    inputs = lists(*ADAM, numel=numel, dtype=dtype)
    c = cost("aten::_fused_adamw_", inputs, mutated(inputs))
    assert c.bytes_moved == 7 * mutated(inputs)[0].nbytes


test_costs = costs(
    """
    # amsgrad reads and writes the maximum: 36 * 100 + 4
    _fused_adamw_ self=100@0 grads=100@1 exp_avgs=100@2 exp_avg_sqs=100@3 max_exp_avg_sqs=100@4 state_steps=()@90 ->
        100@0 100@1 100@2 100@3 100@4 | amsgrad=True = moved 3604, vector 1500
    # gradients are written where they are unscaled
    _fused_adamw_ self=100@0 grads=100@1 exp_avgs=100@2 exp_avg_sqs=100@3 state_steps=()@90 grad_scale=() -> 100@0 100@1
        100@2 100@3 = written 1600
    # sgd moves 12 bytes and 20 with momentum: the first step only writes the buffer
    _fused_sgd_ self=100@0 grads=100@1 -> 100@0 100@1 | nesterov=False is_first_step=False = moved 1200, vector 200
    _fused_sgd_ self=100@0 grads=100@1 momentum_buffer_list=100@2 -> 100@0 100@1 100@2 | nesterov=False
        is_first_step=False = moved 2000, vector 400
    _fused_sgd_ self=100@0 grads=100@1 momentum_buffer_list=100@2 -> 100@0 100@1 100@2 | nesterov=True
        is_first_step=True = moved 1600, vector 600
    # adagrad moves 20 bytes
    _fused_adagrad_ self=100@0 grads=100@1 state_sums=100@2 state_steps=()@90 -> 100@0 100@1 100@2 = moved 2004
    """
)
