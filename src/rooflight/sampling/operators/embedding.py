"""embedding: look-ups in one rank's part of a token table."""

from __future__ import annotations

from typing import Any

from rooflight.sampling.operator import Operator, Prepared, Shape, Work
from rooflight.sampling.registry import register
from rooflight.sampling.shards import anything, padded_vocabulary
from rooflight.sampling.signatures import call, tensor
from rooflight.sampling.tensors import differentiable, integers, random


def work(shape: Shape, dtype: str) -> Work:
    """[V, dim] at [b, l] to [b, l, dim]; the gradient writes the whole table."""
    b, length, dim, rows = shape["b"], shape["l"], shape["dim"], padded_vocabulary(shape["mp"])
    table, indices, out = tensor(dtype, rows, dim), tensor("int64", b, length), tensor(dtype, b, length, dim)
    return Work(
        forward=(call("aten::embedding", {"weight": table, "indices": indices}, out),),
        backward=(call("aten::embedding_dense_backward", {"grad_output": out, "indices": indices}, table),),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """A table and random indices into it."""
    rows = padded_vocabulary(shape["mp"])
    table = random(torch, dtype, device, rows, shape["dim"], grad=True)
    indices = integers(torch, device, rows, shape["b"], shape["l"])
    return differentiable(torch, lambda: torch.nn.functional.embedding(indices, table), [table])


register(
    Operator(
        name="embedding",
        summary="token look-ups [V, dim] at [b, l], V = 50257 / mp padded to a multiple of 128",
        parameters=("mp", "b", "l", "dim"),
        family="embedding",
        work=work,
        prepare=prepare,
        check=anything,
    )
)
