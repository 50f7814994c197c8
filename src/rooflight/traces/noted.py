"""What a trace notes of the arguments of a call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from rooflight.records.tensor import TensorSpec
from rooflight.traces.scalar_types import DTYPES
from rooflight.traces.trace import HostArgs

_KNOWN_DTYPES: Final = frozenset(DTYPES.values())
LIST: Final = "TensorList"
_MOST_DIMS: Final = 64
_MOST_ELEMENTS: Final = 1 << 48


class CannotRebuild(ValueError):  # noqa: N818 - not an error of the program: a call that the trace does not describe
    """The trace does not tell enough of a call; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Described:
    """The arguments of a call, one entry each: dims (nested for lists of tensors), type, strides, and value as text.
    ``inferred`` has values, by place, that the trace does not tell; ``list_dtypes`` those of the tensors in a list, by
    its place, where an execution trace tells them.
    """

    dims: Sequence[Any]
    types: Sequence[str]
    strides: Sequence[Any]
    values: Sequence[str] | None
    inferred: Mapping[int, str] = field(default_factory=dict)
    list_dtypes: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.types)

    def behind(self, count: int) -> Described:
        """The arguments behind the first few."""
        values = None if self.values is None else self.values[count:]
        return Described(self.dims[count:], self.types[count:], self.strides[count:], values)

    def dtype(self, index: int) -> str | None:
        """The dtype if the argument is a tensor, else None."""
        return DTYPES.get(self.types[index])

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The arguments that are tensors, in order; those in lists are left out."""
        return tuple(
            TensorSpec(tuple(dims), dtype)
            for dims, kind in zip(self.dims, self.types, strict=True)
            if (dtype := DTYPES.get(kind)) is not None and is_shape(dims)
        )

    def value(self, index: int) -> str:
        """The value as text, empty where none was noted or inferred."""
        if index in self.inferred:
            return self.inferred[index]
        return "" if self.values is None or index >= len(self.values) else self.values[index]


def described(args: HostArgs) -> Described | None:
    """What the profiler noted, None if it noted no shapes. Raises CannotRebuild if it is damaged."""
    if not args.dims or not args.types:
        return None
    try:
        dims, types = json.loads(args.dims), json.loads(args.types)
        strides = json.loads(args.strides) if args.strides else []
        values = json.loads(args.values) if args.values else None
    except (ValueError, RecursionError) as error:
        raise CannotRebuild("its shapes are no JSON") from error
    listed = _list_dtypes(types)
    types = [LIST if place in listed else kind for place, kind in enumerate(types)] if listed else types
    if not (isinstance(dims, list) and _are_texts(types) and len(dims) == len(types)):
        raise CannotRebuild("its shapes and its types do not match")
    if not isinstance(strides, list) or len(strides) != len(dims):
        strides = [None] * len(dims)
    return Described(dims, types, strides, values if _are_texts(values) else None, list_dtypes=listed)


def _list_dtypes(types: Any) -> Mapping[int, Sequence[str]]:
    """The dtypes of lists of tensors that stand in the place of a type, by place."""
    kinds = enumerate(types if isinstance(types, list) else ())
    return {place: kind for place, kind in kinds if isinstance(kind, list) and _KNOWN_DTYPES.issuperset(map(str, kind))}


def _are_texts(listed: Any) -> bool:
    return isinstance(listed, list) and all(isinstance(each, str) for each in listed)


def is_shape(dims: Any) -> bool:
    """Whether this is a list of sizes, of no more elements than a memory can have."""
    return are_strides(dims) and prod(dims) <= _MOST_ELEMENTS


def are_strides(listed: Any) -> bool:
    """Whether this is a list of strides, in elements."""
    if not isinstance(listed, list) or len(listed) > _MOST_DIMS:
        return False
    return all(isinstance(each, int) and 0 <= each <= _MOST_ELEMENTS for each in listed)
