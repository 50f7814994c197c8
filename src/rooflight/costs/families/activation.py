"""Activations and their gradients.

Conventions, FLOPs per element: relu and threshold 1, hardtanh 2, tanh 1, leaky relu 2, sigmoid 3 (exponential, add,
divide; the sign is free), silu 4, hardsigmoid 4, hardswish 5, elu 3, softplus 4, mish 6, gelu 8 (either
approximation). Gradients: tanh and sigmoid 3, gelu 12, silu 8.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.pointwise import elementwise
from rooflight.costs.families.rules import moves, names
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="activation", fusable=True, needs=Needs.ELEMENTS)

ACTIVATIONS: dict[int, str] = {
    1: "relu tanh threshold hardshrink softshrink threshold_backward hardtanh_backward hardshrink_backward "
    "softshrink_backward",
    2: "relu6 hardtanh leaky_relu prelu _prelu_kernel leaky_relu_backward hardsigmoid_backward rrelu_with_noise "
    "rrelu_with_noise_functional rrelu_with_noise_backward _add_relu",
    3: "sigmoid special_expit elu selu celu tanh_backward sigmoid_backward _prelu_kernel_backward",
    4: "silu hardsigmoid softplus log_sigmoid log_sigmoid_forward logit_backward elu_backward softplus_backward",
    5: "hardswish log_sigmoid_backward hardswish_backward",
    6: "mish",
    8: "gelu silu_backward",
    12: "gelu_backward infinitely_differentiable_gelu_backward mish_backward",
}

_PIECEWISE = frozenset(names("threshold_backward hardtanh_backward leaky_relu_backward"))
"""These need to know of each element only on which side of the kinks it lay."""

for _flops, _ops in ACTIVATIONS.items():
    for _name in names(_ops):
        formula(_name, mask_input="self" if _name in _PIECEWISE else None)(elementwise(_flops))


@formula("aten::glu", needs=Needs.SHARE)
def glu(op: OpSignature) -> OpCost:
    """x [..., 2 n] to a sigmoid(b) [..., n]: sigmoid 3, multiply 1."""
    return moves(op, vector_flops=4 * op.outputs[0].numel)


@formula("aten::glu_backward", needs=Needs.SHARE)
def glu_backward(op: OpSignature) -> OpCost:
    """dy [..., n], x [..., 2 n] to dx: sigmoid 3, its gradient 3, products 2, per element of dy."""
    return moves(op, vector_flops=8 * op.inputs[0].numel)


@formula("aten::glu_jvp", "aten::glu_backward_jvp", needs=Needs.SHARE)
def glu_tangent(op: OpSignature) -> OpCost:
    """The forward-mode derivative of either: about twice its work."""
    return moves(op, vector_flops=8 * op.outputs[0].numel)
