"""embedding_rows: look-ups in a table of any size; `embedding` has the page's parameters."""

from __future__ import annotations

from typing import Any

from rooflight.operators.builders.embedding_lookup import look_up_work, prepare_look_up
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.tensor_parallel import anything


def work(shape: Shape, dtype: str) -> Work:
    """[vocab, width] at [rows]."""
    return look_up_work((shape["vocab"], shape["width"]), (shape["rows"],), dtype)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """A table and random indices into it."""
    return prepare_look_up(torch, (shape["vocab"], shape["width"]), (shape["rows"],), dtype, device)


register(
    Operator(
        name="embedding_rows",
        summary="look-ups [vocab, width] at [rows]",
        parameters=("rows", "vocab", "width"),
        family="embedding",
        work=work,
        prepare=prepare,
        check=anything,
    )
)
