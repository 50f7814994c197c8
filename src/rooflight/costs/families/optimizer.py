"""Fused optimizers: one pass over parameters, gradients and states.

Conventions, fp32 bytes per parameter: Adam and AdamW 28 (read p, g, m, v; write p, m, v), 36 with amsgrad, which
reads and writes the maximum too; SGD 12, with momentum 20; Adagrad 20. Gradients are written only where the kernel
unscales them (``grad_scale``). FLOPs per parameter: AdamW 14, Adam 14, with amsgrad 15; SGD 2, with momentum 4,
Nesterov 6, and 2 more for weight decay which is not told; Adagrad 7.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import read_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec, distinct_bytes

formula = partial(registry.formula, error_group="optimizer", fusable=True, over_lists=True)


def step(op: OpSignature, *states: str, flops: int, unread: tuple[str, ...] = ()) -> OpCost:
    """The cost of reading all lists and writing parameters and states; ``flops`` per parameter."""
    parameters = op.named("self")
    written: list[TensorSpec] = [*parameters]
    for state in states:
        written += op.named(state)
    if op.input("grad_scale"):
        written += op.named("grads")
    return OpCost(
        vector_flops=flops * sum(tensor.numel for tensor in parameters),
        bytes_read=read_bytes(op, *unread),
        bytes_written=distinct_bytes(written),
    )


@formula("aten::_fused_adam", "aten::_fused_adamw")
def adam(op: OpSignature) -> OpCost:
    """Lists of p, g, m, v (and the maximum of v), and a step count each."""
    amsgrad = bool(op.named("max_exp_avg_sqs"))
    return step(op, "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", flops=14 + amsgrad)


@formula("aten::_fused_sgd")
def sgd(op: OpSignature) -> OpCost:
    """Lists of p, g and, with momentum, its buffer, which the first step only writes."""
    momentum = bool(op.named("momentum_buffer_list"))
    flops = 2 + 2 * momentum + 2 * bool(op.attribute("nesterov"))
    unread = ("momentum_buffer_list",) if op.attribute("is_first_step") else ()
    return step(op, "momentum_buffer_list", flops=flops, unread=unread)


@formula("aten::_fused_adagrad")
def adagrad(op: OpSignature) -> OpCost:
    """Lists of p, g and the sum of squares: square, add, root, add, divide, scale, subtract."""
    return step(op, "state_sums", flops=7)


@formula("inductor::accumulate_grad_")
def accumulate_grad(op: OpSignature) -> OpCost:
    """A gradient added to what a parameter has gathered."""
    grad = op.inputs[-1]
    return OpCost(vector_flops=grad.numel, bytes_read=2 * grad.nbytes, bytes_written=grad.nbytes)
