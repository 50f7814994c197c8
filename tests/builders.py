"""Short ways to write the nouns down: tensors and operations as a capture would record them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rooflight.costs.cost import OpCost
from rooflight.costs.registry import cost_of
from rooflight.records.document import Document
from rooflight.records.signature import AttributeValue, OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec

Argument = TensorSpec | Sequence[TensorSpec]


def spec(
    shape: Sequence[int] = (),
    dtype: str = "float32",
    *,
    strides: Sequence[int] | None = None,
    storage: int = UNSHARED,
    offset: int = 0,
) -> TensorSpec:
    """A tensor; contiguous and alone in its memory unless told otherwise."""
    return TensorSpec(tuple(shape), dtype, None if strides is None else tuple(strides), storage, offset)


def op(
    name: str,
    inputs: Sequence[TensorSpec] | Mapping[str, Argument] = (),
    outputs: Sequence[TensorSpec] = (),
    /,
    **attributes: AttributeValue,
) -> OpSignature:
    """An operation. ``inputs`` is a list, or a mapping from the schema's argument to a tensor or a list of them."""
    places: list[tuple[str, TensorSpec]] = []
    if isinstance(inputs, Mapping):
        for argument, given in inputs.items():
            places += [(argument, tensor) for tensor in ([given] if isinstance(given, TensorSpec) else given)]
    return OpSignature(
        name=name,
        inputs=tuple(tensor for _, tensor in places) or tuple(inputs if not isinstance(inputs, Mapping) else ()),
        outputs=tuple(outputs),
        input_names=tuple(argument for argument, _ in places),
        attributes=tuple(attributes.items()),
    )


def cost(
    name: str,
    inputs: Sequence[TensorSpec] | Mapping[str, Argument] = (),
    outputs: Sequence[TensorSpec] = (),
    /,
    **attributes: AttributeValue,
) -> OpCost:
    """The cost of an operation that must have one."""
    found = cost_of(op(name, inputs, outputs, **attributes))
    assert isinstance(found, OpCost), f"{name}: {found}"
    return found


class Nothing(Document, frozen=True, kw_only=True, tag="rooflight.test/3"):
    """What programs read of reports by hand: no fields."""
