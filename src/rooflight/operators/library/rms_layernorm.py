"""RMSlayernorm: RMS norm as GPT-NeoX writes it in Python, a chain of small kernels with a float32 scale."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, in_place, map_one, map_two, tensor
from rooflight.operators.sizes import BATCH, HIDDEN, LENGTH
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, random
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

SCALE = "float32"
EPSILON = 1e-8


def work(shape: Shape, dtype: str) -> Work:
    """x [l, b, dim] / (rms + eps), times the scale in float32, back to the dtype."""
    length, b, dim = shape["l"], shape["b"], shape["dim"]
    x, wide, scale = tensor(dtype, length, b, dim), tensor(SCALE, length, b, dim), tensor(SCALE, dim)
    row = tensor(dtype, length, b, 1)
    converts = dtype != SCALE
    forward = [
        call("aten::linalg_vector_norm", {"self": x}, row),
        map_one("aten::mul", row),
        map_one("aten::add", row),
        map_two("aten::div", x, row),
        call("aten::mul", {"self": scale, "other": x}, wide),
    ]
    backward = [
        map_two("aten::mul", wide, scale),
        map_two("aten::mul", wide, x),
        call("aten::sum", {"self": wide}, tensor(SCALE, 1, 1, dim), dim=(0, 1), keepdim=True),
    ]
    if converts:
        forward.append(call("aten::_to_copy", {"self": wide}, x))
        backward = [call("aten::_to_copy", {"self": x}, wide), *backward, call("aten::_to_copy", {"self": wide}, x)]
    return Work(forward=tuple(forward), backward=(*backward, *_division(x, row)))


def _division(x: TensorSpec, row: TensorSpec) -> tuple[OpSignature, ...]:
    """The gradients of x / rms, and of the norm in rms, as autograd writes them out."""
    mask = tensor("bool", *row.shape)
    return (
        map_two("aten::div", x, row),
        map_two("aten::div", x, row),
        map_one("aten::neg", x),
        map_two("aten::mul", x, x),
        map_two("aten::div", x, row),
        call("aten::sum", {"self": x}, row, dim=(2,), keepdim=True),
        map_one("aten::mul", row),
        map_two("aten::div", x, row),
        call("aten::eq", {"self": row}, mask),
        in_place("aten::masked_fill_", x, {"mask": mask}),
        call("aten::mul", {"self": row, "other": x}, x),
        map_two("aten::add", x, x),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """x and the scale."""
    dim = shape["dim"]
    x = random(torch, dtype, device, shape["l"], shape["b"], dim, grad=True)
    scale = random(torch, SCALE, device, dim, grad=True)

    def run() -> Any:
        rms = x.norm(2, dim=-1, keepdim=True) * dim**-0.5
        return (scale * (x / (rms + EPSILON))).to(x.dtype)

    return differentiable(torch, run, [x, scale])


register(
    Operator(
        name="RMSlayernorm",
        summary="RMS norm of [l, b, dim] as GPT-NeoX's unfused Python; see rmsnorm for one kernel",
        sizes={"b": BATCH, "l": LENGTH, "dim": HIDDEN},
        work=work,
        prepare=prepare,
        check=anything,
    )
)
