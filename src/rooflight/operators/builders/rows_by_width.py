"""Builder of operators from [rows, width] to [rows, width]: elementwise ones and softmaxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooflight.operators.operator import STEP, Operator, Prepared, Shape, Work
from rooflight.operators.signatures import call, map_one, tensor
from rooflight.operators.sizes import FLAG, ROWS, WIDTH
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, random
from rooflight.records.signature import AttributeValue

SCALAR = 0.625
"""The number that stands in for the second tensor; no power of it has a special kernel."""


def binary_operator(name: str, second: str = "other", *, smart_share: int = 0) -> Operator:
    """``aten::name`` of two tensors, or of one and a number; ``second`` is what its schema calls the other one.

    One way: what its gradient runs is other operators, where it is anything. No number is negative, as no power of such
    is one.
    """

    def work(shape: Shape, dtype: str) -> Work:
        x = tensor(dtype, shape["rows"], shape["width"])
        return Work(forward=(call(f"aten::{name}", {"self": x, second: None if shape["scalar"] else x}, x),))

    def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        run = getattr(torch, name)
        left, right = (random(torch, dtype, device, shape["rows"], shape["width"]).abs_() for _ in range(2))
        if shape["scalar"]:
            right = SCALAR
        return Prepared(forward=lambda: run(left, right))

    return Operator(
        name=name,
        summary=f"{name} of two [rows, width]; scalar 1 for one and a number",
        sizes={"rows": ROWS, "width": WIDTH, "scalar": FLAG},
        work=work,
        prepare=prepare,
        check=anything,
        directions=STEP,
        smart_share=smart_share,
    )


def unary_operator(
    name: str,
    summary: str,
    op: str,
    backward: str,
    run: Callable[[Any], Callable[[Any], Any]],
    *,
    kept: str = "self",
    smart_share: int = 0,
    **settings: AttributeValue,
) -> Operator:
    """An operator from one tensor to one like it.

    ``backward`` takes the gradient and ``kept``: "self", the input, or "output". ``run`` takes torch and gives the
    function that is called. ``settings`` are those of either direction.
    """

    def work(shape: Shape, dtype: str) -> Work:
        x = tensor(dtype, shape["rows"], shape["width"])
        return Work(
            forward=(map_one(op, x, **settings),),
            backward=(call(backward, {"grad_output": x, kept: x}, x, **settings),),
        )

    def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        called = run(torch)
        x = random(torch, dtype, device, shape["rows"], shape["width"], grad=True)
        return differentiable(torch, lambda: called(x), [x])

    return Operator(
        name=name,
        summary=summary,
        sizes={"rows": ROWS, "width": WIDTH},
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=smart_share,
    )
