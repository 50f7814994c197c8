"""FBGEMM's embedding tables and sparse features (``fbgemm_gpu``), in training of recommenders.

Conventions: a look-up reads indices and offsets and writes a row for each bag; rows that it reads are not counted,
since indices may all pick one of them. Rows of tables have at least 4 numbers, FBGEMM's smallest. Its backward, a node
of autograd in traces, reads the gradient; which rows it updates is unknown. So these counts are the least, not the
usual. Signatures: ``fbgemm_gpu/codegen/training/forward`` and ``fbgemm_gpu/src/sparse_ops`` of FBGEMM.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import names, tensor_bytes
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="embedding")

LEAST_WIDTH: Final = 4
_LENGTHS_NOTE: Final = "rows read are not counted: indices may repeat"
_NODE: Final = "trace::torch::autograd::CppNode"


def _at(op: OpSignature, place: int) -> int:
    """The bytes of the tensor at a place of the schema, 0 where there is none."""
    return tensor_bytes(op.input(f"arg{place}"))


@formula("fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function")
def lookup(op: OpSignature) -> OpCost:
    """T tables, indices [n] in bags [B T + 1], perhaps weights [n], to [B, sum of the tables' widths] float32."""
    widths, indices, offsets = op.input("arg6"), op.input("arg11"), op.input("arg12")
    if widths is None or indices is None or offsets is None:
        raise ValueError("its arguments are not those of 2022: no D_offsets, indices, offsets")
    tables, bags = widths.numel - 1, max(offsets.numel - 1, 0)
    told = op.attribute("arg7")  # total_D, which old traces do not tell
    total = told if type(told) is int and told >= LEAST_WIDTH * tables else LEAST_WIDTH * tables
    return OpCost(
        vector_flops=LEAST_WIDTH * indices.numel,
        vector_dtype="float32",
        bytes_read=indices.nbytes + offsets.nbytes + _at(op, 14),
        bytes_written=bags // max(tables, 1) * total * 2,  # results may be float16
        note=_LENGTHS_NOTE,
    )


@formula(f"{_NODE}<SplitLookupFunction_rowwise_adagrad_Op>")
def lookup_backward(op: OpSignature) -> OpCost:
    """dy [B, sum of widths], added to the rows that the look-up picked."""
    return OpCost(bytes_read=op.input_bytes, note="rows updated are not counted: indices may repeat")


@formula(
    *names("permute_pooled_embs permute_pooled_embs_auto_grad recat_embedding_grad_output_mixed_D_batch", "fbgemm"),
    f"{_NODE}<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >",
)
def rearrange(op: OpSignature) -> OpCost:
    """x [B, D] in another order of its columns; the lists of offsets are read too."""
    return OpCost(bytes_read=op.input_bytes, bytes_written=op.inputs[0].nbytes)


@formula("fbgemm::bounds_check_indices")
def bounds_check(op: OpSignature) -> OpCost:
    """Rows per table, indices [n] and offsets: two comparisons per index."""
    indices = op.inputs[1]
    return OpCost(vector_flops=2 * indices.numel, vector_dtype="float32", bytes_read=tensor_bytes(*op.inputs[:3]))


@formula("fbgemm::permute_sparse_features")
def permute_sparse(op: OpSignature) -> OpCost:
    """permute [T'], lengths [T, B] to [T', B]; how many indices the features picked have is unknown."""
    permute, lengths = op.inputs[:2]
    written = permute.numel * (lengths.shape[-1] if lengths.shape else 0) * lengths.item_bytes
    return OpCost(
        bytes_read=permute.nbytes,
        bytes_written=written,
        note="the indices of features are not counted: some may be left",
    )


@formula(*names("asynchronous_complete_cumsum", "fbgemm"), *names("asynchronous_complete_cumsum", "fb"))
def complete_cumsum(op: OpSignature) -> OpCost:
    """x [n] to its sums [n + 1], from 0 on."""
    x = op.inputs[0]
    return OpCost(
        vector_flops=x.numel,
        vector_dtype="float32",
        bytes_read=x.nbytes,
        bytes_written=(x.numel + 1) * x.item_bytes,
    )


@formula("fb::offsets_range", "fbgemm::offsets_range")
def offsets_range(op: OpSignature) -> OpCost:
    """offsets [n] to places within the bags; their number is not counted."""
    return OpCost(bytes_read=op.inputs[0].nbytes)
