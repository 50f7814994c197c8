"""Kernels that torch.compile's Inductor writes in Triton, as a trace shows them: ``triton_poi_fused_add_mul_0``.

Such a kernel is a fused region of ops. A trace has its arguments: tensors that it reads, then those that it writes,
then sizes. Convention: each tensor is moved once, the last one is written (the order of Inductor's arguments is
``in_out_ptr``, ``in_ptr``, ``out_ptr``); ``in_out_ptr`` and further results count as read, so that they move once too,
which is the least. Of a tensor with more elements than the kernel has steps only as many are counted, since the kernel
may read a part. FLOPs are not counted: the trace does not tell what is computed.
"""

from __future__ import annotations

from functools import partial
from math import prod

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import picked_bytes
from rooflight.costs.registry import GENERATED
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="inductor")

FUSED_NOTE = "each tensor of a Triton kernel moves once; a kernel that reads a part of one moves less"


@formula(GENERATED)
def fused_kernel(op: OpSignature) -> OpCost:
    """Tensors in, the last one out, and sizes: one of a pointwise kernel, rows and columns of a reduction."""
    if not op.inputs:
        raise ValueError("the kernel has no tensors")
    steps = _steps(op)
    *read, written = (min(picked_bytes(tensor, steps or tensor.numel), tensor.nbytes) for tensor in op.inputs)
    return OpCost(bytes_read=sum(read), bytes_written=written, upper=True, note=FUSED_NOTE)


def _steps(op: OpSignature) -> int:
    """How many elements the kernel works on: the product of its sizes, 0 where they are not told."""
    sizes = [value for _, value in op.attributes if type(value) is int and value > 0]
    if not sizes:
        return 0
    largest = max(tensor.numel for tensor in op.inputs)
    pair = prod(sizes[-2:])
    return pair if "_poi_" not in op.name or pair == largest else sizes[-1]
