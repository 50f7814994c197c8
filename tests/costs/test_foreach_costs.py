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
    # add sums its lists: 24 + 5; 4 * 29 each
    _foreach_add self=4x6@0 self=5@1 other=4x6@10 other=5@11 -> 4x6@20 5@21 = vector 29, read 232, written 116
    # in place reads and writes
    _foreach_mul_ self=4x6@0 self=5@1 -> 4x6@0 5@1 = read 116, written 116, vector 29
    # equal tensors that share nothing both count
    _foreach_sqrt self=3 self=3 -> 3 3 = read 24, vector 6
    # addcdiv and lerp are three
    _foreach_addcdiv_ self=4x6@0 self=5@1 tensor1=4x6@10 tensor1=5@11 tensor2=4x6@20 tensor2=5@21 -> 4x6@0 5@1 = vector
        87, read 348, written 116
    _foreach_lerp_ self=4x6@0 self=5@1 tensors1=4x6@10 tensors1=5@11 -> 4x6@0 5@1 = vector 87
    # copy and zero only write
    _foreach_copy_ self=4x6@0 self=5@1 src=4x6@10 src=5@11 -> 4x6@0 5@1 = read 116, written 116, vector 0
    _foreach_zero_ self=4x6@0 self=5@1 -> 4x6@0 5@1 = read 0, written 116
    # norm reads all and writes one number each
    _foreach_norm self=4x6@0 self=5@1 -> () () = vector 58, read 116, written 8
    # unscaling gradients
    _amp_foreach_non_finite_check_and_unscale_ self=4x6@0 self=5@1 found_inf=1@9 inv_scale=1 -> 4x6@0 5@1 1@9 = vector
        58, read 120, written 120
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
