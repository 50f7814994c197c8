"""Sparse layouts.

Convention: how many elements a sparse tensor stores is data that a shape does not tell, so ops on coordinate and
compressed layouts are Uncosted. 2:4 semi-structured products are known: half the multiply-adds of the dense product,
and its weight at half size plus 2 bits of metadata per kept element, as the operands' shapes say.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.matmul import product
from rooflight.costs.families.rules import copies, register, uncosted
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="sparse")

UNKNOWN = uncosted("sparse layout: how many elements are stored is data")

register(
    formula,
    {
        UNKNOWN: "_sparse_mm _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward _sparse_addmm "
        "_sparse_sparse_matmul _sparse_sum _sparse_sum_backward _sparse_softmax _sparse_softmax_backward_data "
        "_sparse_log_softmax _sparse_log_softmax_backward_data _sparse_csr_sum _sparse_csr_prod "
        "_sparse_mask_projection sparse_mask "
        "sparse_sampled_addmm smm sspaddmm hspmm _spdiags _spsolve _coalesce coalesce copy_sparse_to_sparse "
        "_to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc to_sparse to_sparse_csr to_sparse_csc "
        "to_sparse_bsr to_sparse_bsc _sparse_coo_tensor_with_dims_and_tensors _gather_sparse_backward",
        copies: "_to_dense to_dense to_dense_backward to_mkldnn to_mkldnn_backward _convert_indices_from_coo_to_csr "
        "_convert_indices_from_csr_to_coo _cslt_compress _sparse_semi_structured_tile _sparse_semi_structured_apply "
        "_sparse_semi_structured_apply_dense _to_sparse_semi_structured",
    },
)


@formula("aten::_cslt_sparse_mm")
def cslt_sparse_mm(op: OpSignature) -> OpCost:
    """2:4 [m, k] @ dense [k, n]: k / 2 multiply-adds per element of the result."""
    dense = op.inputs[1]
    bias = op.outputs[0].numel if op.input("bias") else 0
    return product(op, op.outputs[0].numel * dense.shape[0] // 2, dense, vector_flops=bias)


@formula("aten::_sparse_semi_structured_linear")
def semi_structured_linear(op: OpSignature) -> OpCost:
    """x [..., k] @ (2:4 [n, k], kept [n, k / 2])^T: k / 2 multiply-adds per element of the result."""
    x, weight = op.inputs[:2]
    bias = op.outputs[0].numel if op.input("bias") else 0
    return product(op, op.outputs[0].numel * weight.shape[-1], x, vector_flops=bias)


@formula("aten::_sparse_semi_structured_mm")
def semi_structured_mm(op: OpSignature) -> OpCost:
    """2:4 [m, k] kept as [m, k / 2], @ dense [k, n]."""
    kept = op.inputs[0]
    return product(op, op.outputs[0].numel * kept.shape[-1], kept)


@formula("aten::_sparse_semi_structured_addmm")
def semi_structured_addmm(op: OpSignature) -> OpCost:
    """bias + 2:4 [m, k] kept as [m, k / 2], @ dense [k, n]."""
    kept = op.inputs[1]
    return product(op, op.outputs[0].numel * kept.shape[-1], kept, vector_flops=op.outputs[0].numel)
