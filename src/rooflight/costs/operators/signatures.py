"""Short ways to write down what an operator does: tensors, calls, and the calls that several operators share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from rooflight.records.signature import AttributeValue, OpSignature
from rooflight.records.tensor import TensorSpec

Argument = TensorSpec | Sequence[TensorSpec] | None


def tensor(dtype: str, *shape: int, strides: Sequence[int] | None = None) -> TensorSpec:
    """A tensor that shares its memory with no other; contiguous unless strides are given."""
    return TensorSpec(tuple(shape), dtype, None if strides is None else tuple(strides))


def swapped(given: TensorSpec) -> TensorSpec:
    """A contiguous matrix or batch of them, its last two dimensions swapped by a view."""
    *batch, rows, columns = given.shape
    strides = [prod(given.shape[place + 1 :]) for place in range(len(batch))]
    return TensorSpec((*batch, columns, rows), given.dtype, (*strides, 1, columns))


def call(name: str, inputs: Mapping[str, Argument], *outputs: TensorSpec, **attributes: AttributeValue) -> OpSignature:
    """A call: ``inputs`` maps the arguments of the op's schema to a tensor, several, or None for one not given."""
    places: list[tuple[str, TensorSpec]] = []
    for argument, given in inputs.items():
        if given is not None:
            places += [(argument, each) for each in ([given] if isinstance(given, TensorSpec) else given)]
    return OpSignature(
        name=name,
        inputs=tuple(each for _, each in places),
        input_names=tuple(argument for argument, _ in places),
        outputs=outputs,
        attributes=tuple(attributes.items()),
    )


def in_place(
    name: str, target: TensorSpec, inputs: Mapping[str, Argument] | None = None, **attributes: AttributeValue
) -> OpSignature:
    """A call that updates its ``self``."""
    held = TensorSpec(target.shape, target.dtype, target.strides, storage=0)
    return call(name, {"self": held, **(inputs or {})}, held, **attributes)


def mm(left: TensorSpec, right: TensorSpec) -> OpSignature:
    """left [m, k] @ right [k, n]."""
    return call("aten::mm", {"self": left, "mat2": right}, tensor(left.dtype, left.shape[0], right.shape[1]))


def bmm(left: TensorSpec, right: TensorSpec) -> OpSignature:
    """left [b, m, k] @ right [b, k, n]."""
    out = tensor(left.dtype, *left.shape[:2], right.shape[2])
    return call("aten::bmm", {"self": left, "mat2": right}, out)


def map_one(name: str, x: TensorSpec, **attributes: AttributeValue) -> OpSignature:
    """A call that makes a tensor like its only input."""
    return call(name, {"self": x}, tensor(x.dtype, *x.shape), **attributes)


def map_two(name: str, x: TensorSpec, other: TensorSpec) -> OpSignature:
    """A call that makes a tensor like its first input from two."""
    return call(name, {"self": x, "other": other}, tensor(x.dtype, *x.shape))
