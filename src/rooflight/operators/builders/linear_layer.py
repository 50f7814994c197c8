"""A linear layer, [rows, inputs] @ [outputs, inputs]^T, and the builder of those whose sizes follow from a model's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.signatures import call, mm, swapped, tensor
from rooflight.operators.sizes import BATCH, HIDDEN, LENGTH, TENSOR_PARALLEL
from rooflight.operators.tensor_parallel import hidden, padded_vocabulary
from rooflight.operators.tensors import differentiable, random


class Layer(NamedTuple):
    """Sizes of one rank's part of a layer."""

    rows: int
    inputs: int
    outputs: int


def linear_work(layer: Layer, dtype: str, *, bias: bool) -> Work:
    """The product; backward one product for each of x and the weight, and a sum for the bias."""
    rows, inputs, outputs = layer
    x, weight, grad = tensor(dtype, rows, inputs), tensor(dtype, outputs, inputs), tensor(dtype, rows, outputs)
    backward = (mm(grad, weight), mm(swapped(grad), x))
    if not bias:
        return Work(forward=(mm(x, swapped(weight)),), backward=backward)
    addend = tensor(dtype, outputs)
    forward = call("aten::addmm", {"self": addend, "mat1": x, "mat2": swapped(weight)}, grad)
    summed = call("aten::sum", {"self": grad}, tensor(dtype, 1, outputs), dim=(0,), keepdim=True)
    return Work(forward=(forward,), backward=(*backward, summed))


def prepare_linear(torch: Any, layer: Layer, dtype: str, device: str, *, bias: bool) -> Prepared:
    """x, weight and perhaps a bias, all of which require gradients."""
    rows, inputs, outputs = layer
    x = random(torch, dtype, device, rows, inputs, grad=True)
    leaves = [x, random(torch, dtype, device, outputs, inputs, grad=True)]
    if bias:
        leaves.append(random(torch, dtype, device, outputs, grad=True))
    return differentiable(torch, lambda: torch.nn.functional.linear(*leaves), leaves)


def linear_operator(
    name: str, summary: str, layer_of: Callable[[Shape], Layer], *, bias: bool = False, check: Any = hidden
) -> Operator:
    """An operator over mp, b, l and dim that is a linear layer of sizes that follow from them."""

    def work(shape: Shape, dtype: str) -> Work:
        return linear_work(layer_of(shape), dtype, bias=bias)

    def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        return prepare_linear(torch, layer_of(shape), dtype, device, bias=bias)

    return Operator(
        name=name,
        summary=summary,
        sizes={"mp": TENSOR_PARALLEL, "b": BATCH, "l": LENGTH, "dim": HIDDEN},
        work=work,
        prepare=prepare,
        check=check,
    )


def tokens(shape: Shape) -> int:
    """Rows of a batch of sequences."""
    return shape["b"] * shape["l"]


def vocabulary_part(shape: Shape) -> int:
    """Rows of one rank's part of the vocabulary."""
    return padded_vocabulary(shape["mp"])
