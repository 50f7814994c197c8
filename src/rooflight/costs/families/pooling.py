"""Pooling over windows, forward and backward.

Conventions: one FLOP (addition or comparison) per tap of each window, padded taps included; adaptive pooling, whose
windows cover the input once, one per input element. Backward one addition per gradient put back. Max pooling's
backward needs its indices, not its input. Of the input no more is read than lies under a window.
"""

from __future__ import annotations

from functools import partial
from math import prod

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import further_bytes, integers, moves, names, per_input, picked_bytes, register
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="pooling", fusable=True)


def _taps(op: OpSignature) -> int:
    """Elements of a window; one size given stands for all dimensions, whose number is in the op's name."""
    sizes = integers(op, "kernel_size")
    rank = next((int(digit) for digit in op.name.partition("pool")[2] if digit.isdigit()), len(sizes))
    return prod(sizes) if len(sizes) == rank else prod(sizes) ** rank


@formula(*names("avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d"))
@formula(*names("max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"))
@formula(*names("mkldnn_max_pool2d mkldnn_max_pool3d quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d"))
@formula(*names("fractional_max_pool2d fractional_max_pool3d"))
@formula(*names("max_pool1d max_pool2d", "quantized"))
def pool(op: OpSignature) -> OpCost:
    """x [B, C, in...] to y [B, C, out...], and indices where asked for."""
    x, out = op.inputs[0], op.outputs[0]
    under_windows = out.numel * _taps(op)
    return OpCost(
        vector_flops=under_windows,
        bytes_read=further_bytes(op) + picked_bytes(x, under_windows),
        bytes_written=op.output_bytes,
    )


@formula("aten::avg_pool2d_backward", "aten::avg_pool3d_backward", needs=Needs.JOINED)
def avg_pool_backward(op: OpSignature) -> OpCost:
    """dy [B, C, out...] spread over each window of dx."""
    return moves(op, vector_flops=op.inputs[0].numel * _taps(op), unread=("self",))


@formula(
    *names("max_pool2d_with_indices_backward max_pool3d_with_indices_backward"),
    mask_input="indices",
    needs=Needs.JOINED,
)
@formula(*names("adaptive_max_pool2d_backward adaptive_max_pool3d_backward"), needs=Needs.JOINED)
@formula(*names("fractional_max_pool2d_backward fractional_max_pool3d_backward"), needs=Needs.JOINED)
def max_pool_backward(op: OpSignature) -> OpCost:
    """dy and indices to dx, zero but where a maximum was."""
    return moves(op, vector_flops=op.inputs[0].numel, unread=("self",))


@formula(*names("max_pool2d_backward mkldnn_max_pool2d_backward mkldnn_max_pool3d_backward"), needs=Needs.JOINED)
def max_pool_backward_without_indices(op: OpSignature) -> OpCost:
    """dy and x to dx: the maxima are found again."""
    return moves(op, vector_flops=op.inputs[0].numel * _taps(op))


register(
    formula,
    {
        per_input(1): "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d mkldnn_adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    },
)
register(partial(formula, needs=Needs.JOINED), {per_input(0): "max_unpool2d max_unpool3d"})


@formula(
    *names("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward"),
    needs=Needs.JOINED,
)
@formula("aten::mkldnn_adaptive_avg_pool2d_backward", needs=Needs.JOINED)
def adaptive_avg_pool_backward(op: OpSignature) -> OpCost:
    """dy spread over dx: one division per element of dx."""
    return moves(op, vector_flops=op.outputs[0].numel, unread=("self",))
