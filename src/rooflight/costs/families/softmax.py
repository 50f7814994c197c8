"""Softmax along one dimension.

Conventions: softmax and log-softmax 5 FLOPs per element (maximum, subtract, exponential, add, divide), backward 4
(multiply, add, subtract, multiply). All run on the vector unit, the exponentials on its special functions.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import clamped_sum, moves, names, picked_bytes
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="softmax", fusable=True, needs=Needs.ROWS)
weights = partial(formula, softmax=True)

FORWARD_FLOPS = 5
BACKWARD_FLOPS = 4


@weights(*names("_softmax softmax special_softmax _safe_softmax _masked_softmax"))
@formula(*names("_log_softmax log_softmax special_log_softmax"))
def softmax(op: OpSignature) -> OpCost:
    """x [..., n] to y [..., n], and the mask where there is one."""
    return moves(op, vector_flops=FORWARD_FLOPS * op.inputs[0].numel)


@weights(*names("_softmax_backward_data _masked_softmax_backward"))
@formula("aten::_log_softmax_backward_data")
def softmax_backward(op: OpSignature) -> OpCost:
    """dy and y to dx."""
    return moves(op, vector_flops=BACKWARD_FLOPS * op.inputs[0].numel)


TRIANGULAR = "rooflight::scaled_upper_triang_masked_softmax"
"""Megatron's fused causal softmax, which no torch op is: sampling gives it a name of its own."""


@formula(TRIANGULAR, f"{TRIANGULAR}_backward", needs=Needs.JOINED)
def triangular_softmax(op: OpSignature) -> OpCost:
    """[..., n, n], backward dy and y: keys up to each query are read, all are written, the hidden ones as zeros."""
    out = op.outputs[0]
    rows, columns = out.shape[-2:]
    seen = out.numel // max(1, rows * columns) * clamped_sum(1, rows, columns)
    flops = BACKWARD_FLOPS if op.name.endswith("_backward") else FORWARD_FLOPS
    return OpCost(
        vector_flops=flops * seen,
        bytes_read=sum(picked_bytes(tensor, seen) for tensor in op.inputs),
        bytes_written=op.output_bytes,
    )
