"""swiglu: the gated activation of today's MLPs."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, map_one, map_two, tensor
from rooflight.operators.sizes import HIDDEN_WIDTH, ROWS
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, random


def work(shape: Shape, dtype: str) -> Work:
    """silu(gate) up, both [rows, dim]."""
    x = tensor(dtype, shape["rows"], shape["dim"])
    product = map_two("aten::mul", x, x)
    return Work(
        forward=(map_one("aten::silu", x), product),
        backward=(product, product, call("aten::silu_backward", {"grad_output": x, "self": x}, x)),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """The gate and what it gates."""
    gate, up = (random(torch, dtype, device, shape["rows"], shape["dim"], grad=True) for _ in range(2))
    return differentiable(torch, lambda: torch.nn.functional.silu(gate) * up, [gate, up])


register(
    Operator(
        name="swiglu",
        summary="silu(gate) * up, both [rows, dim]",
        sizes={"rows": ROWS, "dim": HIDDEN_WIDTH},
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=2,
    )
)
