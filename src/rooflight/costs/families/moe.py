"""Grouped products: the experts of a mixture, each with its own rows.

Conventions: T rows routed to G groups take 2 K N T matrix FLOPs however they are routed. Which experts are active is
data: under balanced routing G (1 - (1 - 1/G)^T) of them are expected to have rows, and only their weights are read.
Rows beyond the last offset are padding that no kernel touches, so counts are ``upper``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import trunc

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.matmul import multiply_adds
from rooflight.costs.families.quantized import values_per_byte
from rooflight.costs.families.rules import further_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

formula = partial(registry.formula, error_group="moe", fusable=True, epilogue=True)

ROUTING_NOTE = "balanced routing assumed: G (1 - (1 - 1/G)^T) of G experts active"
ROWS_NOTE = "rows beyond the last offset counted"


def active_experts(num_experts: int, num_rows: int) -> float:
    """Experts expected to have at least one of so many rows, if each row goes to any expert alike."""
    if num_experts == 0:
        return 0.0
    return num_experts * (1 - (1 - 1 / num_experts) ** num_rows)


def _active_bytes(experts: TensorSpec, num_rows: int) -> int:
    """Bytes of the active experts among [G, ...]."""
    num_experts = experts.shape[0]
    return trunc(experts.nbytes * active_experts(num_experts, num_rows) / max(1, num_experts))


@formula("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
def grouped_mm(op: OpSignature) -> OpCost:
    """a [T, K] @ b [G, K, N], a [G, M, K] @ b [K, T], a [M, T] @ b [T, N] per group, or batched 3-D @ 3-D."""
    a, b = op.inputs[:2]
    others = further_bytes(op, 2)
    packing = values_per_byte(a)
    contracted = a.shape[-1] * packing
    cost = OpCost(
        matrix_dtype=a.dtype,
        vector_flops=op.outputs[0].numel if op.input("bias") else 0,
        bytes_read=others + a.nbytes + b.nbytes,
        bytes_written=op.output_bytes,
    )
    if len(a.shape) == 2 and len(b.shape) == 2:  # the weights' gradient: T, split into groups, is contracted away
        return replace(
            cost, matrix_flops=multiply_adds(a.shape[0] * contracted * b.shape[1], a), upper=True, note=ROWS_NOTE
        )
    if len(a.shape) == len(b.shape):
        return replace(cost, matrix_flops=multiply_adds(a.shape[0] * a.shape[1] * contracted * b.shape[2], a))
    if len(a.shape) == 2:
        rows, experts, shared = a.shape[0], b, a
        work = rows * contracted * b.shape[2]
    else:
        rows, experts, shared = b.shape[1], a, b
        work = rows * contracted * a.shape[1]
    return replace(
        cost,
        matrix_flops=multiply_adds(work, a),
        bytes_read=others + shared.nbytes + _active_bytes(experts, rows),
        upper=True,
        note=ROUTING_NOTE,
    )
