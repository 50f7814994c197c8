"""Lookups of rows in a table, [rows, width], as `embedding` and `embedding_rows` run them."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Prepared, Work
from rooflight.operators.signatures import call, tensor
from rooflight.operators.tensors import differentiable, integers, random


def lookup_work(table: tuple[int, int], places: tuple[int, ...], dtype: str) -> Work:
    """A table [rows, width] at so many places; the gradient writes the whole table."""
    weight, indices, out = tensor(dtype, *table), tensor("int64", *places), tensor(dtype, *places, table[1])
    return Work(
        forward=(call("aten::embedding", {"weight": weight, "indices": indices}, out),),
        backward=(call("aten::embedding_dense_backward", {"grad_output": out, "indices": indices}, weight),),
    )


def prepare_lookup(torch: Any, table: tuple[int, int], places: tuple[int, ...], dtype: str, device: str) -> Prepared:
    """A table and random indices into it."""
    weight = random(torch, dtype, device, *table, grad=True)
    indices = integers(torch, device, table[0], *places)
    return differentiable(torch, lambda: torch.nn.functional.embedding(indices, weight), [weight])
