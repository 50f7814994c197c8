"""embedding: look-ups in one rank's part of a token table."""

from __future__ import annotations

from typing import Any

from rooflight.operators.builders.embedding_lookup import look_up_work, prepare_look_up
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.tensor_parallel import anything, padded_vocabulary


def _table(shape: Shape) -> tuple[int, int]:
    return padded_vocabulary(shape["mp"]), shape["dim"]


def work(shape: Shape, dtype: str) -> Work:
    """[V, dim] at [b, l] to [b, l, dim]."""
    return look_up_work(_table(shape), (shape["b"], shape["l"]), dtype)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """A table and random indices into it."""
    return prepare_look_up(torch, _table(shape), (shape["b"], shape["l"]), dtype, device)


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
