"""Normalizations and softmax, forward and backward.

Conventions: layer, group, instance and training batch norm 8 FLOPs per element (mean 1, variance 3, normalize 2, scale
and shift 2); RMS norm 5 (squares and their sum 2, normalize 1, scale 1, round to 5 with the root); batch norm with
fixed statistics 4. Backward twice the forward, and only the gradients of ``output_mask`` are written. Bytes: input,
parameters and statistics read, output and statistics written.

Softmax and log-softmax 5 FLOPs per element (maximum, subtract, exponential, add, divide), backward 4 (multiply, add,
subtract, multiply). All run on the vector unit, the exponentials on its special functions.
"""

from __future__ import annotations

from rooflight.costs.cost import Needs, OpCost
from rooflight.costs.rules import Family, clamped_sum, first_input, moves, per_input, picked_bytes, tensor_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED

normalization_ops = Family("normalization", fusable=True)

LAYER_NORM_FLOPS = 8
RMS_NORM_FLOPS = 5
FIXED_NORM_FLOPS = 4


@normalization_ops(
    "native_batch_norm batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm "
    "miopen_batch_norm _batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update "
    "_native_batch_norm_legit_no_training _batch_norm_impl_index"
)
def batch_norm(op: OpSignature) -> OpCost:
    """x [B, C, ...] per channel; running statistics are read and, in training, updated."""
    x = op.inputs[0]
    fixed = op.attribute("training") is False or op.name.endswith(("_no_training", "_no_update"))
    running = op.named("running_mean") + op.named("running_var")
    # training updates them, whether or not the schema says so (native_batch_norm's does not); in evaluation they are
    # fixed, though the schema may say otherwise, and statistics returned unused are empty
    updated = () if fixed or op.name.endswith("_functional") else running
    return OpCost(
        vector_flops=(FIXED_NORM_FLOPS if fixed else LAYER_NORM_FLOPS) * x.numel,
        bytes_read=tensor_bytes(x, op.input("weight"), op.input("bias"), *running),
        bytes_written=tensor_bytes(
            *(out for out in op.outputs if not (fixed and out.storage != UNSHARED and out in running)), *updated
        ),
    )


@normalization_ops("native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward")
def batch_norm_backward(op: OpSignature) -> OpCost:
    """dy, x, statistics and weight to dx, dweight, dbias."""
    fixed = op.attribute("train") is False
    flops = 2 * (FIXED_NORM_FLOPS if fixed else LAYER_NORM_FLOPS)
    unread = ("save_mean", "save_invstd", "save_var") if fixed else ("running_mean", "running_var")
    return moves(op, vector_flops=flops * op.inputs[0].numel, unread=(*unread, "reserve"))


normalization_ops.having(needs=Needs.ROWS).rows(
    {
        first_input(LAYER_NORM_FLOPS): "native_layer_norm layer_norm",  # x [..., n] to y, mean and 1/std per row
        first_input(RMS_NORM_FLOPS): "rms_norm _fused_rms_norm",  # x [..., n], weight [n] to y and 1/rms per row
    }
)
normalization_ops.rows(
    {
        first_input(LAYER_NORM_FLOPS): "native_group_norm group_norm instance_norm",  # statistics per group of channels
        first_input(2 * LAYER_NORM_FLOPS, "bias"): "native_layer_norm_backward native_group_norm_backward",
        first_input(2 * RMS_NORM_FLOPS): "_fused_rms_norm_backward",
        first_input(2 * LAYER_NORM_FLOPS, "running_mean", "running_var"): "miopen_batch_norm_backward "
        "_batch_norm_impl_index_backward",
        # synchronized batch norm: statistics per rank, gathered, then applied
        per_input(4): "batch_norm_stats batch_norm_update_stats batch_norm_gather_stats "
        "batch_norm_gather_stats_with_counts batch_norm_elemt",
        per_input(6): "batch_norm_backward_reduce",
        per_input(8): "batch_norm_backward_elemt",
        # v, g to v g / |v|: square, add, scale; backward twice as much; renorm: squares, sums, scales
        first_input(3): "_weight_norm _weight_norm_interface renorm",
        first_input(6): "_weight_norm_interface_backward _weight_norm_differentiable_backward",
    }
)

softmax_ops = Family("softmax", fusable=True, needs=Needs.ROWS)
weights = softmax_ops.having(softmax=True)

FORWARD_FLOPS = 5
BACKWARD_FLOPS = 4
weights.rows(
    {
        first_input(FORWARD_FLOPS): "_softmax softmax special_softmax _safe_softmax _masked_softmax",
        first_input(BACKWARD_FLOPS): "_softmax_backward_data _masked_softmax_backward",
    }
)
softmax_ops.rows(
    {
        first_input(FORWARD_FLOPS): "_log_softmax log_softmax special_log_softmax",
        first_input(BACKWARD_FLOPS): "_log_softmax_backward_data",
    }
)


TRIANGULAR = "rooflight::scaled_upper_triang_masked_softmax"
"""Megatron's fused causal softmax, which no torch op is: sampling gives it a name of its own."""


@softmax_ops(TRIANGULAR, f"{TRIANGULAR}_backward", needs=Needs.JOINED)
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
