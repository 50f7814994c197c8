"""Operators of optimizers: AdamW over equal tensors or a pipeline stage, and torch's ``_foreach_*``, of which unfused
ones are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rooflight.costs.operators.operator import STEP, Prepared, Shape, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import call, tensor
from rooflight.costs.operators.sizes import ENCODERS, FLAG, HIDDEN, MUL, TENSOR_PARALLEL, Progression, Size, Span
from rooflight.costs.operators.tensor_parallel import at_most, hidden, padded_vocabulary
from rooflight.costs.operators.tensors import random
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

COUNTED = "float32"
"""What torch counts an optimizer's steps in."""
MOST_ENCODERS = 1000
"""Ten times what a whole model has."""
MOST_TENSORS = 10_000
"""Nine times what a model of 405 billion parameters has."""

Sizes = tuple[tuple[int, ...], ...]
lists = partial(
    operator,
    check=at_most(tensors=MOST_TENSORS),
    directions=STEP,
    elements=Size(test=4096, collect=Progression(1 << 10, 4, 1 << 26, MUL), smart=Span(64, 1 << 24)),
    tensors=Size(test=1, collect=Progression(1, 4, 64, MUL), smart=Span(choices=(1, 4, 16, 64, 150)), default=1),
)
"""An operator over so many vectors of so many elements."""


def over(name: str, target: Sequence[TensorSpec], **others: TensorSpec | Sequence[TensorSpec]) -> OpSignature:
    """A call of ``aten::_foreach_name`` that updates a list of tensors."""
    held = _held(target)
    return call(f"aten::_foreach_{name}", {"self": held, **others}, *held)


def _held(tensors: Sequence[TensorSpec], first: int = 0) -> list[TensorSpec]:
    """Tensors that are read and written, each in memory that it shares with none."""
    return [replace(each, storage=first + place) for place, each in enumerate(tensors)]


class Foreach:
    """The in-place ``aten::_foreach_name_``, or with ``fresh`` the ``aten::_foreach_name`` that makes new tensors.

    ``others`` are what its schema calls further lists of the same sizes; the call takes the lists and ``number``, one
    for each tensor if ``each``. All numbers begin at 0.5 or more, so that none is divided by 0.
    """

    def __init__(self, name: str, *others: str, number: float = 0, each: bool = False, fresh: bool = False) -> None:
        self.name, self.others, self.number, self.each, self.fresh = name, others, number, each, fresh

    def work(self, shape: Shape, dtype: str) -> Work:
        each = [tensor(dtype, shape["elements"])] * shape["tensors"]
        if self.fresh:
            return Work(forward=(call(f"aten::_foreach_{self.name}", {"self": each}, *each),))
        return Work(forward=(over(f"{self.name}_", each, **dict.fromkeys(self.others, each)),))

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        given = [
            [random(torch, dtype, device, shape["elements"]).abs_().add_(0.5) for _ in range(shape["tensors"])]
            for _ in range(1 + len(self.others))
        ]

        if self.fresh:
            return Prepared(forward=partial(getattr(torch, f"_foreach_{self.name}"), *given))
        called = getattr(torch, f"_foreach_{self.name}_")
        number = [self.number] * shape["tensors"] if self.each else self.number

        def forward() -> object:
            called(*given, number)
            return given[0]

        return Prepared(forward=forward)


for _summary, _foreach in (
    ("add_ a number", Foreach("add", number=1e-3)),
    ("mul_ by a number", Foreach("mul", number=1.0)),
    ("div_ by a number each", Foreach("div", number=1.0, each=True)),
    ("new square roots", Foreach("sqrt", fresh=True)),
    ("lerp_ towards another list", Foreach("lerp", "tensors1", number=0.1)),
    ("addcmul_ of two lists", Foreach("addcmul", "tensor1", "tensor2", number=0.1)),
    ("addcdiv_ of two lists", Foreach("addcdiv", "tensor1", "tensor2", number=0.1, each=True)),
):
    lists(f"{_summary}, over `tensors` vectors of `elements`", name=f"foreach_{_foreach.name}", smart_share=1)(_foreach)


def fused_adamw(sizes: Sizes, dtype: str) -> tuple[OpSignature, ...]:
    """The step counts, one number a parameter, then one kernel over all parameters, gradients and states."""
    count = len(sizes)
    each = [tensor(dtype, *size) for size in sizes]
    states = [_held(each, place * count) for place in range(4)]
    names = ("self", "grads", "exp_avgs", "exp_avg_sqs")
    return (
        over("add_", [tensor(COUNTED)] * count),
        call(
            "aten::_fused_adamw_",
            {**dict(zip(names, states, strict=True)), "state_steps": [tensor(COUNTED)] * count},
            *(one for held in states for one in held),
            amsgrad=False,
            maximize=False,
        ),
    )


def _parameters(torch: Any, sizes: Sizes, dtype: str, device: str) -> list[Any]:
    parameters = [torch.nn.Parameter(random(torch, dtype, device, *size)) for size in sizes]
    for parameter in parameters:
        parameter.grad = random(torch, dtype, device, *parameter.shape)
    return parameters


@lists("AdamW's step over `tensors` vectors of `elements`; foreach 1 for the unfused one", smart_share=4, foreach=FLAG)
class adamw:
    """AdamW over equal tensors, as one kernel or as a chain of kernels over lists; all of one dtype."""

    def sizes(self, shape: Shape) -> Sizes:
        return ((shape["elements"],),) * shape["tensors"]

    def work(self, shape: Shape, dtype: str) -> Work:
        if not shape["foreach"]:
            return Work(forward=fused_adamw(self.sizes(shape), dtype))
        each = [tensor(dtype, *size) for size in self.sizes(shape)]
        grads = _held(each, len(each))
        read = call("aten::_local_scalar_dense", {"self": tensor(COUNTED)})
        return Work(
            forward=(
                over("add_", [tensor(COUNTED)] * shape["tensors"], other=tensor(COUNTED)),
                over("mul_", each),
                over("lerp_", each, tensors1=each),
                over("mul_", each),
                over("addcmul_", each, tensor1=grads, tensor2=grads),
                *[read] * (2 * shape["tensors"]),
                call("aten::_foreach_sqrt", {"self": each}, *each),
                over("div_", each),
                over("add_", each),
                over("addcdiv_", each, tensor1=each, tensor2=each),
            )
        )

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        """The optimizer, its states made by a first step."""
        kind = {"foreach": True} if shape["foreach"] else {"fused": True}
        optimizer = torch.optim.AdamW(_parameters(torch, self.sizes(shape), dtype, device), lr=1e-6, **kind)
        optimizer.step()
        return Prepared(forward=optimizer.step)


class Stage:
    """The first step of a new fused AdamW over one pipeline stage of GPT-NeoX, as estimate-train-time times it: its
    states are made, and filled with zeros, within the step.
    """

    def __init__(self, *, first: bool = False, last: bool = False) -> None:
        self.first, self.last = first, last

    def check(self, shape: Shape) -> str | None:
        """``dim`` is cut into parts, and the stage is one that somebody has."""
        return hidden(shape) or at_most(encoders=MOST_ENCODERS)(shape)

    def sizes(self, shape: Shape) -> Sizes:
        """Parameters of a stage; the first also has the embedding, the last the final norm and the output layer."""
        mp, dim = shape["mp"], shape["dim"]
        table = (padded_vocabulary(mp), dim)
        layer = (  # two norms, attention in and out, MLP up and down
            *((dim,), (dim,)),
            *((3 * dim // mp, dim), (3 * dim // mp,), (dim, dim // mp), (dim,)),
            *((dim,), (dim,)),
            *((4 * dim // mp, dim), (4 * dim // mp,), (dim, 4 * dim // mp), (dim,)),
        )
        sizes = layer * shape["encoders"]
        return ((table,) if self.first else ()) + sizes + (((dim,), (dim,), table) if self.last else ())

    def work(self, shape: Shape, dtype: str) -> Work:
        """The step count and both states of each parameter filled, by a call for each tensor, here as one of a list."""
        sizes = self.sizes(shape)
        filled = [tensor(COUNTED)] * len(sizes) + [tensor(dtype, *size) for size in sizes] * 2
        return Work(forward=(over("zero_", filled), *fused_adamw(sizes, dtype)))

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        parameters = _parameters(torch, self.sizes(shape), dtype, device)

        def step() -> None:
            torch.optim.AdamW(parameters, lr=1e-6, fused=True).step()

        step()  # torch refuses it where it has no fused kernel
        return Prepared(forward=step)


for _name, _over, _stage in (
    ("firstStage_optimizer", "embedding and encoders", Stage(first=True)),
    ("middleStage_optimizer", "encoders", Stage()),
    ("lastStage_optimizer", "encoders and output layer", Stage(last=True)),
):
    operator(
        f"fused AdamW over {_over}",
        name=_name,
        directions=STEP,
        mp=TENSOR_PARALLEL,
        dim=replace(HIDDEN, smart=Span(128, 4096, 64)),
        encoders=ENCODERS,
    )(_stage)
