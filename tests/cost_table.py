"""Costs of calls as a table in text: ``op inputs -> outputs | settings = costs``, with the arithmetic in comments.

A tensor is ``4x6:bfloat16@0`` (float32 unless it says so, ``()`` without dimensions, ``@`` the memory that it shares,
``~0,1`` its strides), an input perhaps ``weight=4x6``; ops are of ``aten`` unless they have a namespace. Lines that are
indented go on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from builders import spec

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import cost_of
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

FIELDS = {
    "matrix": "matrix_flops",
    "avoidable": "avoidable_flops",
    "recomputed": "recomputed_flops",
    "vector": "vector_flops",
    "read": "bytes_read",
    "written": "bytes_written",
    "moved": "bytes_moved",
    "least_read": "least_read",
    "least_written": "least_written",
    "sent": "bytes_sent",
    "on": "matrix_dtype",
    "vector_on": "vector_dtype",
    "upper": "upper",
    "note": "note",
}


def costs(table: str, *, dtype: str = "float32", by_place: bool = False) -> Callable[..., None]:
    """A test of each row of a table; ``by_place``: inputs without a name are called arg0, arg1, ..., as in traces."""
    text = re.sub(r"^#.*\n", "", dedent(table).strip() + "\n", flags=re.M)
    rows = [" ".join(row.split()) for row in re.sub(r"\n +", " ", text).splitlines() if row]

    @pytest.mark.parametrize("row", rows)
    def test(row: str) -> None:
        call, _, expected = row.rpartition(" = ")
        found = cost_of(called(call, dtype, by_place=by_place))
        if expected == "uncosted":
            assert isinstance(found, Uncosted)
            return
        wanted = dict(each.split() for each in expected.split(", "))
        assert isinstance(found, OpCost), found
        assert {key: str(getattr(found, FIELDS[key])) for key in wanted} == wanted

    return test


def costs_in_traces(table: str) -> Callable[..., None]:
    """The same for ops whose arguments a trace has by place, in bfloat16 unless a tensor says so."""
    return costs(table, dtype="bfloat16", by_place=True)


def called(text: str, dtype: str, *, by_place: bool) -> OpSignature:
    """A call: ``op inputs -> outputs | settings``."""
    call, _, settings = text.partition(" | ")
    given, _, made = call.partition(" ->")
    name, *inputs = given.split()
    named = [each.rpartition("=")[::2] for each in inputs]
    if by_place:
        named = [(argument or f"arg{place}", tensor) for place, (argument, tensor) in enumerate(named)]
    return OpSignature(
        name=name if "::" in name else f"aten::{name}",
        inputs=tuple(_tensor(tensor, dtype) for _, tensor in named),
        input_names=tuple(argument for argument, _ in named if argument),
        outputs=tuple(_tensor(tensor, dtype) for tensor in made.split()),
        attributes=tuple(_setting(each) for each in settings.split()),
    )


def _tensor(text: str, dtype: str) -> TensorSpec:
    shape, strides, own, storage = re.fullmatch(r"([^~:@]+)(?:~([\d,]+))?(?::([^@]+))?(?:@(\d+))?", text).groups()
    sizes = () if shape == "()" else tuple(map(int, shape.split("x")))
    steps = strides and tuple(map(int, strides.split(",")))
    return spec(sizes, own or dtype, strides=steps, storage=int(storage or -1))


def _setting(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    return key, ast.literal_eval(value)
