"""Builder of the optimizer's first step over one pipeline stage of GPT-NeoX: its parameters, and how they are stepped.

The operators that estimate-train-time times make a new optimizer in each call: its states are made, and filled with
zeros, within the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflight.operators.operator import STEP, Operator, Prepared, Shape, Work
from rooflight.operators.signatures import call, tensor
from rooflight.operators.sizes import ENCODERS, HIDDEN, TENSOR_PARALLEL, Span
from rooflight.operators.tensor_parallel import at_most, hidden, padded_vocabulary
from rooflight.operators.tensors import random
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

COUNTED = "float32"
"""What torch counts an optimizer's steps in."""

MOST_ENCODERS = 1000
"""Ten times what a whole model has."""

Sizes = tuple[tuple[int, ...], ...]
_few = at_most(encoders=MOST_ENCODERS)


def layer_sizes(dim: int, mp: int) -> Sizes:
    """Parameters of one transformer layer on one rank: two norms, attention in and out, MLP up and down."""
    return (
        *((dim,), (dim,)),
        *((3 * dim // mp, dim), (3 * dim // mp,), (dim, dim // mp), (dim,)),
        *((dim,), (dim,)),
        *((4 * dim // mp, dim), (4 * dim // mp,), (dim, 4 * dim // mp), (dim,)),
    )


def stage_sizes(shape: Shape, *, first: bool = False, last: bool = False) -> Sizes:
    """Parameters of a stage; the first also has the embedding, the last the final norm and the output layer."""
    mp, dim = shape["mp"], shape["dim"]
    table = (padded_vocabulary(mp), dim)
    sizes = layer_sizes(dim, mp) * shape["encoders"]
    return ((table,) if first else ()) + sizes + (((dim,), (dim,), table) if last else ())


def fused_adamw(sizes: Sizes, dtype: str) -> tuple[OpSignature, ...]:
    """The step counts, one number a parameter, then one kernel over all parameters, gradients and states."""
    count = len(sizes)
    steps = _held([tensor(COUNTED)] * count, 0)
    lists = [_held([tensor(dtype, *size) for size in sizes], place * count) for place in range(4)]
    names = ("self", "grads", "exp_avgs", "exp_avg_sqs")
    return (
        call("aten::_foreach_add_", {"self": steps}, *steps),
        call(
            "aten::_fused_adamw_",
            {**dict(zip(names, lists, strict=True)), "state_steps": [tensor(COUNTED)] * count},
            *(each for held in lists for each in held),
            amsgrad=False,
            maximize=False,
        ),
    )


def first_step(sizes: Sizes, dtype: str) -> tuple[OpSignature, ...]:
    """``fused_adamw`` after the step count and both states of each parameter were filled: by a call for each tensor,
    here as one of a list.
    """
    count = len(sizes)
    counts = [tensor(COUNTED)] * count
    states = [tensor(dtype, *size) for size in sizes] * 2
    filled = _held([*counts, *states], 0)
    return (call("aten::_foreach_zero_", {"self": filled}, *filled), *fused_adamw(sizes, dtype))


def parameters_of(torch: Any, sizes: Sizes, dtype: str, device: str) -> list[Any]:
    """Parameters of these sizes with gradients."""
    parameters = [torch.nn.Parameter(random(torch, dtype, device, *size)) for size in sizes]
    for parameter in parameters:
        parameter.grad = random(torch, dtype, device, *parameter.shape)
    return parameters


def stepped(torch: Any, sizes: Sizes, dtype: str, device: str, **settings: Any) -> Prepared:
    """AdamW over parameters of these sizes, its states made by a first step."""
    optimizer = torch.optim.AdamW(parameters_of(torch, sizes, dtype, device), lr=1e-6, **settings)
    optimizer.step()
    return Prepared(forward=optimizer.step)


def _check(shape: Shape) -> str | None:
    """``dim`` is cut into parts, and the stage is one that somebody has."""
    return hidden(shape) or _few(shape)


def stage_operator(name: str, summary: str, *, first: bool = False, last: bool = False) -> Operator:
    """An operator that steps a stage with a new fused AdamW."""

    def work(shape: Shape, dtype: str) -> Work:
        return Work(forward=first_step(stage_sizes(shape, first=first, last=last), dtype))

    def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        parameters = parameters_of(torch, stage_sizes(shape, first=first, last=last), dtype, device)

        def step() -> None:
            torch.optim.AdamW(parameters, lr=1e-6, fused=True).step()

        step()  # torch refuses it where it has no fused kernel
        return Prepared(forward=step)

    return Operator(
        name=name,
        summary=summary,
        sizes={"mp": TENSOR_PARALLEL, "dim": replace(HIDDEN, smart=Span(128, 4096, 64)), "encoders": ENCODERS},
        work=work,
        prepare=prepare,
        check=_check,
        directions=STEP,
    )


def _held(tensors: Sequence[TensorSpec], first: int) -> list[TensorSpec]:
    """Tensors that are read and written, each in memory that it shares with none."""
    return [
        TensorSpec(each.shape, each.dtype, each.strides, storage=first + place) for place, each in enumerate(tensors)
    ]
