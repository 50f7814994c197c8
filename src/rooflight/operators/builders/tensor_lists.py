"""Builder of operators over lists of tensors: torch's ``_foreach_*``, of which unfused optimizers are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rooflight.operators.operator import STEP, Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, tensor
from rooflight.operators.sizes import MUL, Progression, Size, Span
from rooflight.operators.tensor_parallel import at_most
from rooflight.operators.tensors import random
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

LIST_ELEMENTS = Size(test=4096, collect=Progression(1 << 10, 4, 1 << 26, MUL), smart=Span(64, 1 << 24))
LIST_TENSORS = Size(test=1, collect=Progression(1, 4, 64, MUL), smart=Span(choices=(1, 4, 16, 64, 150)), default=1)
MOST_TENSORS = 10_000
"""Nine times what a model of 405 billion parameters has."""


def over(name: str, target: Sequence[TensorSpec], **others: TensorSpec | Sequence[TensorSpec]) -> OpSignature:
    """A call of ``aten::_foreach_name`` that updates a list of tensors."""
    held = [TensorSpec(each.shape, each.dtype, each.strides, storage=place) for place, each in enumerate(target)]
    return call(f"aten::_foreach_{name}", {"self": held, **others}, *held)


def list_operator(name: str, summary: str, run: Callable[..., object], *others: str, fresh: bool = False) -> None:
    """Register ``foreach_name``: the in-place ``aten::_foreach_name_`` over so many vectors of so many elements, or
    with ``fresh`` the ``aten::_foreach_name`` that makes new ones.

    ``others`` are what its schema calls further lists of the same sizes; ``run`` takes torch, the first list and those.
    All numbers begin at 0.5 or more, so that none is divided by 0.
    """

    def work(shape: Shape, dtype: str) -> Work:
        each = [tensor(dtype, shape["elements"])] * shape["tensors"]
        if fresh:
            return Work(forward=(call(f"aten::_foreach_{name}", {"self": each}, *each),))
        return Work(forward=(over(f"{name}_", each, **dict.fromkeys(others, each)),))

    def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        lists = [
            [random(torch, dtype, device, shape["elements"]).abs_().add_(0.5) for _ in range(shape["tensors"])]
            for _ in range(1 + len(others))
        ]

        def forward() -> object:
            made = run(torch, *lists)
            return made if fresh else lists[0]

        return Prepared(forward=forward)

    register(
        Operator(
            name=f"foreach_{name}",
            summary=f"{summary}, over `tensors` vectors of `elements`",
            sizes={"elements": LIST_ELEMENTS, "tensors": LIST_TENSORS},
            work=work,
            prepare=prepare,
            check=at_most(tensors=MOST_TENSORS),
            directions=STEP,
            smart_share=1,
        )
    )
