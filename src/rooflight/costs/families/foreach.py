"""Ops over lists of tensors, and fused optimizers: what the single op does, summed over the list.

Conventions: FLOPs per element as in the pointwise family; in place the first list is read and written, except by
``_foreach_copy_`` and ``_foreach_zero_``, which overwrite it. Gradient unscaling of mixed precision is 2 per element
(finite?, multiply).

Fused optimizers: one pass over parameters, gradients and states.

Conventions, fp32 bytes per parameter: Adam and AdamW 28 (read p, g, m, v; write p, m, v), 36 with amsgrad, which reads
and writes the maximum too; SGD 12, with momentum 20; Adagrad 20. Gradients are written only where the kernel unscales
them (``grad_scale``). FLOPs per parameter: AdamW 14, Adam 14, with amsgrad 15; SGD 2, with momentum 4, Nesterov 6, and
2 more for weight decay, which no record has; Adagrad 7.
"""

from __future__ import annotations

from rooflight.costs.cost import Needs, OpCost
from rooflight.costs.families.pointwise import ELEMENTWISE, MULTIPLICATIVE
from rooflight.costs.registry import Formula
from rooflight.costs.rules import Family, copies, in_place, moving, overwrites, read_bytes, tensor_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, distinct_bytes

foreach_ops = Family("foreach", fusable=True, over_lists=True, needs=Needs.ELEMENTS)


def listwise(flops: int) -> Formula:
    """A formula: so many FLOPs for each element of each tensor of the result."""
    return moving(lambda op: flops * sum(tensor.numel for tensor in op.outputs))


def _of_inputs(flops: int) -> Formula:
    return moving(lambda op: flops * sum(tensor.numel for tensor in op.named("self")))


_LISTS = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div exp expm1 floor frac lerp "
    "log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sign sin sinh sqrt sub tan trunc"
)

for _flops, _ops in (*MULTIPLICATIVE.items(), *ELEMENTWISE.items()):
    _single = set(_ops.split())
    if _listed := [f"aten::_foreach_{name}" for name in _LISTS.split() if name in _single]:
        foreach_ops(*_listed)(listwise(_flops))

foreach_ops.rows(
    {
        listwise(1): "_foreach_erf _foreach_erfc _foreach_lgamma _foreach_tanh",
        listwise(3): "_foreach_sigmoid",
        overwrites: "_foreach_zero",
        copies: "_foreach_clone",
        moving(lambda _: 1): "_amp_update_scale",  # grows or shrinks one number
    }
)
# the largest element of each tensor, one comparison per element, and its norm: raise and add
foreach_ops.having(needs=Needs.ALL).rows(
    {_of_inputs(1): "_foreach_max", _of_inputs(2): "_foreach_norm _foreach_powsum"}
)


@foreach_ops("_foreach_copy")
def foreach_copy(op: OpSignature) -> OpCost:
    """Each src over its x; nothing in place where both are one view of the same memory."""
    pairs = zip(op.named("self"), op.named("src"), op.outputs, strict=True)
    moved = [(src, out) for x, src, out in pairs if not (in_place(op) and x == src and x.storage != UNSHARED)]
    return OpCost(
        bytes_read=tensor_bytes(*(src for src, _ in moved)), bytes_written=tensor_bytes(*(out for _, out in moved))
    )


@foreach_ops("_amp_foreach_non_finite_check_and_unscale", needs=Needs.ALL)
def unscale(op: OpSignature) -> OpCost:
    """Gradients times 1/scale, noting whether any is not finite."""
    grads = op.named("self")
    return OpCost(
        vector_flops=2 * sum(tensor.numel for tensor in grads),
        bytes_read=read_bytes(op, "found_inf"),
        bytes_written=tensor_bytes(*grads, op.input("found_inf")),
    )


optimizer_ops = Family("optimizer", fusable=True, over_lists=True)


def step(op: OpSignature, *states: str, flops: int, unread: tuple[str, ...] = ()) -> OpCost:
    """The cost of reading all lists and writing parameters and states; ``flops`` per parameter."""
    parameters = op.named("self")
    written: list[TensorSpec] = [*parameters]
    for state in states:
        written += op.named(state)
    if op.input("grad_scale"):
        written += op.named("grads")
    return OpCost(
        vector_flops=flops * sum(tensor.numel for tensor in parameters),
        bytes_read=read_bytes(op, *unread),
        bytes_written=distinct_bytes(written),
    )


_MOMENTS = ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")
optimizer_ops.rows(
    {
        # lists of p, g, m, v (and the maximum of v), and a step count each
        lambda op: step(op, *_MOMENTS, flops=14 + bool(op.named(_MOMENTS[-1]))): "_fused_adam _fused_adamw",
        # lists of p, g and the sum of squares: square, add, root, add, divide, scale, subtract
        lambda op: step(op, "state_sums", flops=7): "_fused_adagrad",
    }
)


@optimizer_ops("_fused_sgd")
def sgd(op: OpSignature) -> OpCost:
    """Lists of p, g and, with momentum, its buffer, which the first step only writes."""
    momentum = bool(op.named("momentum_buffer_list"))
    flops = 2 + 2 * momentum + 2 * bool(op.attribute("nesterov"))
    unread = ("momentum_buffer_list",) if op.attribute("is_first_step") else ()
    return step(op, "momentum_buffer_list", flops=flops, unread=unread)


@optimizer_ops("inductor::accumulate_grad_")
def accumulate_grad(op: OpSignature) -> OpCost:
    """A gradient added to what a parameter has gathered."""
    grad = op.inputs[-1]
    return OpCost(vector_flops=grad.numel, bytes_read=2 * grad.nbytes, bytes_written=grad.nbytes)
