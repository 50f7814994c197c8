"""Sorting, searching and counting.

Conventions: sorting and selecting are bytes only: how many comparisons they take depends on the algorithm (radix
sort has none). Searching is one comparison per halving; of the sorted sequence no more is read than it holds.
Counting is 1 FLOP per element.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.reduction import STOPS_NOTE
from rooflight.costs.families.rules import copies, names, per_input, picked_bytes, register
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

formula = partial(registry.formula, error_group="sorting", fusable=True)

register(
    formula,
    {
        copies: "sort argsort msort topk kthvalue median nanmedian mode quantile nanquantile isin",
        per_input(1): "bincount histc histogram _histogramdd_from_bin_cts _histogramdd_bin_edges "
        "_histogramdd_from_bin_tensors segment_reduce _segment_reduce_backward one_hot",
    },
)
# how many distinct elements there are is data
formula(*names("_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive"), fusable=False)(copies)


def _search(op: OpSignature, sequence: TensorSpec, wanted: TensorSpec | None) -> OpCost:
    length = sequence.shape[-1] if sequence.shape else 1
    halvings = length.bit_length()
    looked_up = wanted.numel if wanted else 1
    return OpCost(
        vector_flops=looked_up * halvings,
        bytes_read=(wanted.nbytes if wanted else 0) + picked_bytes(sequence, looked_up * halvings),
        bytes_written=op.output_bytes,
    )


@formula("aten::searchsorted")
def searchsorted(op: OpSignature) -> OpCost:
    """sorted sequences [..., n] and values [..., v]: log2(n) comparisons per value."""
    return _search(op, op.inputs[0], op.input("self") or (op.inputs[1] if len(op.inputs) > 1 else None))


@formula("aten::bucketize")
def bucketize(op: OpSignature) -> OpCost:
    """values [...] and boundaries [n]."""
    return _search(op, op.input("boundaries") or op.inputs[-1], op.input("self"))


@formula(*names("allclose"))
def allclose(op: OpSignature) -> OpCost:
    """|a - b| <= atol + rtol |b|, about 4 per element: no at the latest where it fails, perhaps for the first two."""
    first = [picked_bytes(tensor, 1) for tensor in op.inputs[:2]]
    return OpCost(vector_flops=4 if all(first) else 0, bytes_read=sum(first) if all(first) else 0, note=STOPS_NOTE)
