"""Ops over lists of tensors: what the single op does, summed over the list.

Conventions: FLOPs per element as in the pointwise family; in place the first list is read and written, except by
``_foreach_copy_`` and ``_foreach_zero_``, which overwrite it. Gradient unscaling of mixed precision is 2 per element
(finite?, multiply).
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.pointwise import ELEMENTWISE, MULTIPLICATIVE
from rooflight.costs.families.rules import (
    copies,
    in_place,
    moves,
    names,
    overwrites,
    read_bytes,
    tensor_bytes,
)
from rooflight.costs.registry import Formula
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED

formula = partial(registry.formula, error_group="foreach", fusable=True, over_lists=True, needs=Needs.ELEMENTS)


def listwise(flops: int) -> Formula:
    """A formula: so many FLOPs for each element of each tensor of the result."""

    def cost(op: OpSignature) -> OpCost:
        return moves(op, vector_flops=flops * sum(tensor.numel for tensor in op.outputs))

    return cost


_LISTS = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div exp expm1 floor frac lerp "
    "log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sign sin sinh sqrt sub tan trunc"
)

for _flops, _ops in (*MULTIPLICATIVE.items(), *ELEMENTWISE.items()):
    _single = set(_ops.split())
    if _listed := [f"aten::_foreach_{name}" for name in _LISTS.split() if name in _single]:
        formula(*_listed)(listwise(_flops))

formula(*names("_foreach_erf _foreach_erfc _foreach_lgamma _foreach_tanh"))(listwise(1))
formula("aten::_foreach_sigmoid")(listwise(3))
formula("aten::_foreach_zero")(overwrites)
formula("aten::_foreach_clone")(copies)


@formula("aten::_foreach_copy")
def foreach_copy(op: OpSignature) -> OpCost:
    """Each src over its x; nothing in place where both are one view of the same memory."""
    pairs = zip(op.named("self"), op.named("src"), op.outputs, strict=True)
    moved = [(src, out) for x, src, out in pairs if not (in_place(op) and x == src and x.storage != UNSHARED)]
    return OpCost(
        bytes_read=tensor_bytes(*(src for src, _ in moved)), bytes_written=tensor_bytes(*(out for _, out in moved))
    )


@formula("aten::_foreach_max", needs=Needs.ALL)
def foreach_max(op: OpSignature) -> OpCost:
    """The largest element of each tensor: one comparison per element."""
    return moves(op, vector_flops=sum(tensor.numel for tensor in op.named("self")))


@formula("aten::_foreach_norm", "aten::_foreach_powsum", needs=Needs.ALL)
def foreach_norm(op: OpSignature) -> OpCost:
    """The norm of each tensor: raise and add per element."""
    return moves(op, vector_flops=2 * sum(tensor.numel for tensor in op.named("self")))


@formula("aten::_amp_foreach_non_finite_check_and_unscale", needs=Needs.ALL)
def unscale(op: OpSignature) -> OpCost:
    """Gradients times 1/scale, noting whether any is not finite."""
    grads = op.named("self")
    return OpCost(
        vector_flops=2 * sum(tensor.numel for tensor in grads),
        bytes_read=read_bytes(op, "found_inf"),
        bytes_written=tensor_bytes(*grads, op.input("found_inf")),
    )


@formula("aten::_amp_update_scale")
def update_scale(op: OpSignature) -> OpCost:
    """Grows or shrinks one number."""
    return moves(op, vector_flops=1)
