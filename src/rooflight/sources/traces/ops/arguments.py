"""The arguments of a call as a trace describes them, and the names and numbers of dtypes there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, Final

from rooflight.records.tensor import TensorSpec
from rooflight.sources.traces.file.trace import HostArgs, Trace

_FLOAT8: Final = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")

DTYPES: Final = {
    **{"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "bool": "bool"},
    **{f"c10::F{name[1:]}": name for name in (*_FLOAT8, "float8_e8m0fnu", "float4_e2m1fn_x2")},
    **{"c10::complex<c10::Half>": "complex32", "c10::complex<float>": "complex64"},
    **{"c10::complex<double>": "complex128"},
    **dict.fromkeys(("long int", "long", "long long", "__int64"), "int64"),
    **{"int": "int32", "short int": "int16", "short": "int16", "signed char": "int8", "unsigned char": "uint8"},
    **{"unsigned short": "uint16", "short unsigned int": "uint16", "unsigned int": "uint32"},
    **{"unsigned long": "uint64", "long unsigned int": "uint64"},
    **{f"c10::{name}": name for name in ("qint8", "quint8", "qint32")},
    **{"Byte": "uint8", "Char": "int8", "Short": "int16", "Long": "int64", "BFloat16": "bfloat16"},
    **{"Half": "float16", "Float": "float32", "ComplexHalf": "complex32", "ComplexFloat": "complex64"},
    **{f"F{name[1:]}": name for name in _FLOAT8},
}
"""The C++ type that an event's ``Input type`` has for a tensor, or its name in ``c10::ScalarType``, and the dtype.
Other entries mean no tensor.
"""

COLLECTIVE_DTYPES: Final = {  # of a tensor's input these four are numbers of Python
    **DTYPES,
    **{"Int": "int32", "Bool": "bool", "Double": "float64", "ComplexDouble": "complex128"},
}
"""The ``dtype`` of a collective."""

NUMBERED: Final = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    *("uint16", "uint32", "uint64"),
)
"""Dtypes in the order of ``c10::ScalarType``, whose number an event has for an argument that is a dtype."""

NUMBERS: Final[Mapping[str, Any]] = {"int64": 2, "float64": 2.0, "bool": True, "complex128": 1j}
"""The dtypes that Python's numbers have where an op takes a tensor, and a number of each. The profiler notes ``x + 1``
like the sum of x and a tensor without dimensions; a recording sees the number, and of 0 and 1 that they are."""

_KNOWN: Final = frozenset(DTYPES.values())
LIST: Final = "TensorList"
_MOST_DIMS: Final = 64
_MOST_ELEMENTS: Final = 1 << 48


class CannotRebuild(ValueError):  # noqa: N818 - not an error of the program: a call that the trace does not describe
    """The trace does not describe enough of a call; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call, one entry each: dims (nested for lists of tensors), type, strides, and value as text.
    ``inferred`` has values, by place, that the trace leaves out; ``list_dtypes`` those of the tensors in a list, by
    its place, where an execution trace has them.
    """

    dims: Sequence[Any]
    types: Sequence[str]
    strides: Sequence[Any]
    values: Sequence[str] | None
    inferred: Mapping[int, str] = field(default_factory=dict)
    list_dtypes: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.types)

    def behind(self, count: int) -> Arguments:
        """The arguments behind the first few."""
        values = None if self.values is None else self.values[count:]
        return Arguments(self.dims[count:], self.types[count:], self.strides[count:], values)

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
        """The value as text, empty where the trace has none and none is inferred."""
        if index in self.inferred:
            return self.inferred[index]
        return "" if self.values is None or index >= len(self.values) else self.values[index]


def parsed(args: HostArgs) -> Arguments | None:
    """The arguments that the profiler described, None without shapes. Raises CannotRebuild if they are damaged."""
    if not args.dims or not args.types:
        return None
    try:
        dims, types = json.loads(args.dims), json.loads(args.types)
        strides = json.loads(args.strides) if args.strides else []
        values: Any = json.loads(args.values) if args.values else None
    except (ValueError, RecursionError) as error:
        raise CannotRebuild("its shapes are no JSON") from error
    if all(isinstance(each, list) for each in (dims, types, values)) and len(dims) == len(types):
        unlisted = len(values) - len(dims)  # settings, which lists of another tool leave out
        dims, types = dims + [[]] * unlisted, types + [""] * unlisted
        strides = strides + [[]] * unlisted if isinstance(strides, list) else strides
    kinds = enumerate(types if isinstance(types, list) else ())
    listed = {place: kind for place, kind in kinds if isinstance(kind, list) and _KNOWN.issuperset(map(str, kind))}
    types = [LIST if place in listed else kind for place, kind in enumerate(types)] if listed else types
    if not (isinstance(dims, list) and _are_texts(types) and len(dims) == len(types)):
        raise CannotRebuild("its shapes and its types do not match")
    if not isinstance(strides, list) or len(strides) != len(dims):
        strides = [None] * len(dims)
    return Arguments(dims, types, strides, values if _are_texts(values) else None, list_dtypes=listed)


@lru_cache(maxsize=1 << 14)
def readable(args: HostArgs) -> Arguments | None:
    """The same, None for damaged ones too."""
    try:
        return parsed(args)
    except CannotRebuild:
        return None


def arguments_of_op(trace: Trace, op: int) -> Arguments | None:
    """The arguments of an op of a trace, None without shapes, or if they are damaged."""
    return readable(trace.arguments[trace.ops.args[op]])


def tensors_of(args: HostArgs) -> tuple[TensorSpec, ...]:
    """The arguments that are tensors, in order; none without shapes. Those in lists are left out."""
    arguments = readable(args)
    return () if arguments is None else arguments.tensors


def tensors_of_op(trace: Trace, op: int) -> tuple[TensorSpec, ...]:
    """The same of an op of a trace."""
    return tensors_of(trace.arguments[trace.ops.args[op]])


def _are_texts(listed: Any) -> bool:
    return isinstance(listed, list) and all(isinstance(each, str) for each in listed)


def is_shape(dims: Any) -> bool:
    """Whether this is a list of sizes, of no more elements than a memory can have."""
    return are_strides(dims) and prod(dims) <= _MOST_ELEMENTS


def are_strides(listed: Any) -> bool:
    """Whether this is a list of strides, in elements."""
    if not isinstance(listed, list) or len(listed) > _MOST_DIMS:
        return False
    return all(type(each) is int and 0 <= each <= _MOST_ELEMENTS for each in listed)
