"""Kernels that torch.compile's Inductor writes in Triton, as a trace shows them: ``triton_poi_fused_add_mul_0``.

Such a kernel is a fused region of ops. A trace has its arguments: tensors that it reads, then those that it writes,
then sizes. Convention: each tensor is moved once, the last one is written (the order of Inductor's arguments is
``in_out_ptr``, ``in_ptr``, ``out_ptr``); ``in_out_ptr`` and further results count as read, so that they move once too,
which is the least. Of a tensor with more elements than the kernel has steps only as many are counted, since the kernel
may read a part. FLOPs are not counted: the trace does not tell what is computed. A kernel after a template of a product
(``triton_tem_fused_addmm_relu_1``) has its operands first and its result last.
"""

from __future__ import annotations

import re
from math import isqrt, prod
from typing import Final

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.families.matmul import product
from rooflight.costs.registry import GENERATED, KERNEL, TEMPLATE
from rooflight.costs.rules import Family, integer, integers, picked_bytes
from rooflight.records.quantity import Quantity
from rooflight.records.signature import OpSignature

inductor_ops = Family("inductor")

_PRODUCT: Final = re.compile(r"_(?:b|add|badd|int_)?mm_")

FUSED_NOTE = "each tensor of a Triton kernel moves once; a kernel that reads a part of one moves less"


KERNEL_NOTE = "counted by running some of the kernel's programs without values; masked loads count as loads"


@inductor_ops(GENERATED)
def fused_kernel(op: OpSignature) -> OpCost:
    """Tensors in, the last one out, and sizes: one of a pointwise kernel, rows and columns of a reduction."""
    if not op.inputs:
        raise ValueError("the kernel has no tensors")
    steps = _steps(op)
    *read, written = (min(picked_bytes(tensor, steps or tensor.numel), tensor.nbytes) for tensor in op.inputs)
    return OpCost(bytes_read=sum(read), bytes_written=written, upper=True, note=FUSED_NOTE)


@inductor_ops(KERNEL)
def counted_kernel(op: OpSignature) -> OpCost | Uncosted:
    """Any tensors; ``matrix_flops``, and number and bytes of those that are read and written, were counted."""
    flops = integer(op, "matrix_flops", -1)
    if flops < 0:
        return Uncosted(f"what this kernel does with {Quantity(op.input_bytes, 'B')} of tensors is not known")
    read, written = (sum(integers(op, name)[1::2]) for name in ("read", "written"))
    return OpCost(matrix_flops=flops, bytes_read=read, bytes_written=written, upper=True, note=KERNEL_NOTE)


@inductor_ops(TEMPLATE)
def template_kernel(op: OpSignature) -> OpCost | Uncosted:
    """a of [b] m k numbers and b of [b] k n, in any order of dimensions, what is fused in, the result of [b] m n."""
    if not _PRODUCT.search(op.name) or len(op.inputs) < 3:
        return Uncosted("no formula for this template of Inductor")
    a, b, *_, result = op.inputs
    batch = a.shape[0] if len(a.shape) == len(b.shape) == 3 else 1
    contracted = isqrt(a.numel * b.numel // max(result.numel * batch, 1))
    if not result.numel or contracted**2 * batch * result.numel != a.numel * b.numel:
        return Uncosted("the shapes of its tensors are those of no product")
    read, written = sum(tensor.nbytes for tensor in op.inputs[:-1]), result.nbytes
    return product(op, contracted * result.numel, a, read=read, bytes_written=written, upper=True, note=FUSED_NOTE)


def _steps(op: OpSignature) -> int:
    """Elements that the kernel works on; 0 where the trace has no sizes, as of a list of tensors (``triton_for_…``)."""
    if "triton_for_" in op.name:
        return 0
    sizes = [value for _, value in op.attributes if type(value) is int and value > 0]
    if not sizes:
        return 0
    largest = max(tensor.numel for tensor in op.inputs)
    pair = prod(sizes[-2:])
    return pair if "_poi_" not in op.name or pair == largest else sizes[-1]
