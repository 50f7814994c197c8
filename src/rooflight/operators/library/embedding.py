"""embedding: lookups in one rank's part of a token table."""

from __future__ import annotations

from typing import Any

from rooflight.operators.builders.table_lookup import lookup_work, prepare_lookup
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.sizes import BATCH, HIDDEN, LENGTH, TENSOR_PARALLEL
from rooflight.operators.tensor_parallel import anything, padded_vocabulary


def _table(shape: Shape) -> tuple[int, int]:
    return padded_vocabulary(shape["mp"]), shape["dim"]


def work(shape: Shape, dtype: str) -> Work:
    """[V, dim] at [b, l] to [b, l, dim]."""
    return lookup_work(_table(shape), (shape["b"], shape["l"]), dtype)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """A table and random indices into it."""
    return prepare_lookup(torch, _table(shape), (shape["b"], shape["l"]), dtype, device)


register(
    Operator(
        name="embedding",
        summary="token lookups [V, dim] at [b, l], V = 50257 / mp padded to a multiple of 128",
        sizes={
            "mp": TENSOR_PARALLEL,
            "b": BATCH,
            "l": LENGTH,
            "dim": HIDDEN,
        },
        work=work,
        prepare=prepare,
        check=anything,
    )
)
