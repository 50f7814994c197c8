"""fillmask: hidden attention scores overwritten in place, through a view, as GPT-NeoX does it."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, in_place, map_one, tensor
from rooflight.operators.sizes import ATTENTION_BATCH, HEADS, HIDDEN, LENGTH, TENSOR_PARALLEL
from rooflight.operators.tensor_parallel import heads
from rooflight.operators.tensors import differentiable, random

MASKED_SCORE = -10_000.0


def work(shape: Shape, dtype: str) -> Work:
    """masked_fill_ on [b, h / mp, l, l]; backward through the view and what was written through it."""
    b, parts, length = shape["b"], shape["h"] // shape["mp"], shape["l"]
    x, mask = tensor(dtype, b, parts, length, length), tensor("bool", 1, 1, length, length)
    flat, zeros = tensor(dtype, b * parts, length, length), tensor(dtype, b * parts * length * length)
    return Work(
        forward=(in_place("aten::masked_fill_", x, {"mask": mask}),),
        backward=(
            call("aten::new_zeros", {"self": x}, zeros),
            in_place("aten::copy_", x, {"src": x}),
            in_place("aten::copy_", flat, {"src": flat}),
            map_one("aten::clone", x),
            call("aten::masked_fill", {"self": x, "mask": mask}, x),
            in_place("aten::copy_", x, {"src": x}),
        ),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Scores, and a mask that hides the keys after each query."""
    b, parts, length = shape["b"], shape["h"] // shape["mp"], shape["l"]
    scores = random(torch, dtype, device, b * parts, length, length, grad=True)
    mask = torch.ones((1, 1, length, length), dtype=torch.bool, device=device).triu(1)

    class Through(torch.autograd.Function):  # type: ignore[misc]
        """Nothing, with a gradient: a leaf must not be written to, and a copy would be timed."""

        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x.detach()

        @staticmethod
        def backward(_: Any, grad: Any) -> Any:
            return grad

    def run() -> Any:
        return Through.apply(scores).view(b, parts, length, length).masked_fill_(mask, MASKED_SCORE)

    return differentiable(torch, run, [scores])


register(
    Operator(
        name="fillmask",
        summary="masked_fill_ of [b, h / mp, l, l] with a causal mask",
        sizes={
            "mp": TENSOR_PARALLEL,
            "b": ATTENTION_BATCH,
            "h": HEADS,
            "l": LENGTH,
            "dim": HIDDEN,
        },
        work=work,
        prepare=prepare,
        check=heads,
    )
)
