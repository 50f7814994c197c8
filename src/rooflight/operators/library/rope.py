"""RoPE: rotary embedding of queries and keys as GPT-NeoX writes it, a chain of small kernels."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, map_one, map_two, tensor
from rooflight.operators.sizes import ATTENTION_BATCH, HEADS, HIDDEN, LENGTH, TENSOR_PARALLEL
from rooflight.operators.tensor_parallel import heads
from rooflight.operators.tensors import differentiable, random
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec


def _size(shape: Shape) -> tuple[int, int, int, int]:
    return shape["l"], shape["b"], shape["h"] // shape["mp"], shape["dim"] // shape["h"]


def check(shape: Shape) -> str | None:
    """A head is turned in two halves."""
    odd = shape["dim"] // shape["h"] % 2
    return heads(shape) or (f"dim/h={shape['dim'] // shape['h']} is odd" if odd else None)


def work(shape: Shape, dtype: str) -> Work:
    """x cos + rotate_half(x) sin for q and k [l, b, h / mp, dim / h]."""
    *outer, width = _size(shape)
    x, table = tensor(dtype, *outer, width), tensor(dtype, outer[0], 1, 1, width)
    half = tensor(dtype, *outer, width // 2)
    return Work(forward=_turn(x, half, table) * 2, backward=_turn_back(x, half, table) * 2)


def _turn(x: TensorSpec, half: TensorSpec, table: TensorSpec) -> tuple[OpSignature, ...]:
    return (
        map_two("aten::mul", x, table),
        map_one("aten::neg", half),
        call("aten::cat", {"tensors": [half, half]}, x, dim=-1),
        map_two("aten::mul", x, table),
        map_two("aten::add", x, x),
    )


def _turn_back(x: TensorSpec, half: TensorSpec, table: TensorSpec) -> tuple[OpSignature, ...]:
    """Each slice's gradient fills a whole tensor, and the three that meet are added up."""
    sliced = call("aten::slice_backward", {"grad_output": half}, x)
    return (
        map_two("aten::mul", x, table),
        map_one("aten::neg", half),
        sliced,
        sliced,
        map_two("aten::add", x, x),
        map_two("aten::mul", x, table),
        map_two("aten::add", x, x),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """q, k and the tables of cosines and sines."""
    *outer, width = _size(shape)
    q, k = (random(torch, dtype, device, *outer, width, grad=True) for _ in range(2))
    cos, sin = (random(torch, dtype, device, outer[0], 1, 1, width) for _ in range(2))

    def rotate_half(x: Any) -> Any:
        left, right = x[..., : width // 2], x[..., width // 2 :]
        return torch.cat((-right, left), dim=-1)

    def run() -> Any:
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    return differentiable(torch, run, [q, k])


register(
    Operator(
        name="RoPE",
        summary="rotary embedding of q and k [l, b, h / mp, dim / h], as GPT-NeoX writes it",
        sizes={
            "mp": TENSOR_PARALLEL,
            "b": ATTENTION_BATCH,
            "h": HEADS,
            "l": LENGTH,
            "dim": HIDDEN,
        },
        work=work,
        prepare=prepare,
        check=check,
    )
)
