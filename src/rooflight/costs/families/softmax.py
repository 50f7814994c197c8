"""Softmax along one dimension.

Conventions: softmax and log-softmax 5 FLOPs per element (maximum, subtract, exponential, add, divide), backward 4
(multiply, add, subtract, multiply). All run on the vector unit, the exponentials on its special functions.
"""

from __future__ import annotations

from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import moves, names
from rooflight.costs.registry import formula
from rooflight.records.signature import OpSignature

FORWARD_FLOPS = 5
BACKWARD_FLOPS = 4


@formula(*names("_softmax softmax special_softmax _log_softmax log_softmax special_log_softmax"))
@formula(*names("_safe_softmax _masked_softmax"))
def softmax(op: OpSignature) -> OpCost:
    """x [..., n] to y [..., n], and the mask where there is one."""
    return moves(op, vector_flops=FORWARD_FLOPS * op.inputs[0].numel)


@formula(*names("_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward"))
def softmax_backward(op: OpSignature) -> OpCost:
    """dy and y to dx."""
    return moves(op, vector_flops=BACKWARD_FLOPS * op.inputs[0].numel)
