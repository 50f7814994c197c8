"""embedding_rows: lookups in a table of any size; `embedding` has estimate-train-time's parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.operators.builders.table_lookup import lookup_work, prepare_lookup
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.sizes import ADD, ROWS, VOCABULARY, WIDTH, Progression
from rooflight.operators.tensor_parallel import anything


def work(shape: Shape, dtype: str) -> Work:
    """[vocab, width] at [rows]."""
    return lookup_work((shape["vocab"], shape["width"]), (shape["rows"],), dtype)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """A table and random indices into it."""
    return prepare_lookup(torch, (shape["vocab"], shape["width"]), (shape["rows"],), dtype, device)


register(
    Operator(
        name="embedding_rows",
        summary="lookups [vocab, width] at [rows]",
        sizes={"rows": ROWS, "vocab": VOCABULARY, "width": replace(WIDTH, collect=Progression(1024, 1024, 8192, ADD))},
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=3,
    )
)
