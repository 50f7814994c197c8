"""adamw: torch's AdamW over equal tensors, as one kernel or as a chain of kernels over lists."""

from __future__ import annotations

from typing import Any

from rooflight.operators.builders.optimizer_stage import Sizes, fused_adamw, stepped
from rooflight.operators.builders.tensor_lists import LIST_ELEMENTS, LIST_TENSORS, MOST_TENSORS, over
from rooflight.operators.operator import STEP, Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, scalar, tensor
from rooflight.operators.sizes import FLAG
from rooflight.operators.tensor_parallel import at_most
from rooflight.records.tensor import TensorSpec


def sizes(shape: Shape) -> Sizes:
    """So many vectors."""
    return ((shape["elements"],),) * shape["tensors"]


def work(shape: Shape, dtype: str) -> Work:
    """Parameters, gradients and two states of one dtype."""
    if not shape["foreach"]:
        return Work(forward=fused_adamw(sizes(shape), dtype))
    each = [tensor(dtype, *size) for size in sizes(shape)]
    grads = [TensorSpec(one.shape, one.dtype, storage=place) for place, one in enumerate(each, start=len(each))]
    steps = [scalar("float32")] * shape["tensors"]
    read = call("aten::_local_scalar_dense", {"self": scalar("float32")})
    return Work(
        forward=(
            over("add_", steps, other=scalar("float32")),
            over("mul_", each),
            over("lerp_", each, tensors1=each),
            over("mul_", each),
            over("addcmul_", each, tensor1=grads, tensor2=grads),
            *[read] * (2 * shape["tensors"]),
            call("aten::_foreach_sqrt", {"self": each}, *each),
            over("div_", each),
            over("add_", each),
            over("addcdiv_", each, tensor1=each, tensor2=each),
        )
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """The optimizer after a first step."""
    kind = {"foreach": True} if shape["foreach"] else {"fused": True}
    return stepped(torch, sizes(shape), dtype, device, **kind)


register(
    Operator(
        name="adamw",
        summary="AdamW's step over `tensors` vectors of `elements`; foreach 1 for the unfused one",
        sizes={"elements": LIST_ELEMENTS, "tensors": LIST_TENSORS, "foreach": FLAG},
        work=work,
        prepare=prepare,
        check=at_most(tensors=MOST_TENSORS),
        directions=STEP,
        smart_share=4,
    )
)
