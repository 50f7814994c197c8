"""The arguments of an op's call as a trace describes them, and the same call on meta tensors.

The profiler notes an op's name without its overload, and of its arguments the shapes, dtypes, strides and, since torch
2.2, the settings. Its results follow from running it on tensors without contents, under the same recorder as a live
program, so that its costs are those of a live recording.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch

from rooflight.records.tensor import UNSHARED, TensorSpec
from rooflight.traces.file.trace import HostArgs

DTYPES: Final = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
    "c10::Float4_e2m1fn_x2": "float4_e2m1fn_x2",
    "c10::complex<c10::Half>": "complex32",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "__int64": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "unsigned short": "uint16",
    "short unsigned int": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "long unsigned int": "uint64",
    "bool": "bool",
    "c10::qint8": "qint8",
    "c10::quint8": "quint8",
    "c10::qint32": "qint32",
}
"""The C++ type that an event's ``Input type`` has for a tensor, and the dtype. Other entries mean no tensor."""

NUMBERED: Final = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    *("uint16", "uint32", "uint64"),
)
"""Dtypes in the order of ``c10::ScalarType``, whose number an event has for an argument that is a dtype."""

NUMBERS: Final[Mapping[str, Any]] = {"int64": 1, "float64": 1.0, "bool": True, "complex128": 1j}
"""The dtypes that Python's numbers have where an op takes a tensor, and a number of each. The profiler notes ``x + 1``
like the sum of x and a tensor without dimensions; a recording sees the number."""

COLLECTIVE_DTYPES: Final = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e4m3fnuz": "float8_e4m3fnuz",
    "Float8_e5m2": "float8_e5m2",
    "Float8_e5m2fnuz": "float8_e5m2fnuz",
}
"""The ``dtype`` of a collective, in the names of ``c10::ScalarType``."""


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


_FORWARD: Final = "q k v dropout_p softmax_scale causal window_size_left window_size_right"
_BACKWARD: Final = (
    "dout q k v out softmax_lse dq dk dv dropout_p softmax_scale causal window_size_left window_size_right"
)
_LENGTHS: Final = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
_AITER_BACKWARD: Final = "dout q k v out softmax_lse dropout_p softmax_scale causal window_size_left window_size_right"
_PACKED: Final = _FORWARD.replace("k v", f"k v {_LENGTHS}")
_PACKED_BACKWARD: Final = _BACKWARD.replace("dk dv", f"dk dv {_LENGTHS}")


@dataclass(frozen=True, slots=True)
class Known:
    """The names of an op's first arguments, in order, and of those that its results are like."""

    names: tuple[str, ...]
    like: tuple[str, ...]

    def named(self, count: int) -> Sequence[str]:
        """The names of ``count`` arguments; by place where none is known."""
        return [*self.names, *(f"arg{place}" for place in range(len(self.names), count))][:count]


def _known(names: str, like: str) -> Known:
    return Known(tuple(names.split()), tuple(like.split()))


KNOWN: Final = {
    "flash_attn::_flash_attn_forward": _known(_FORWARD, "q"),
    "flash_attn::_flash_attn_backward": _known(_BACKWARD, "q k v"),
    "flash_attn::_flash_attn_varlen_forward": _known(_PACKED, "q"),
    "flash_attn::_flash_attn_varlen_backward": _known(_PACKED_BACKWARD, "q k v"),
    "trace::FlashAttnFunc": _known("q k v dropout_p softmax_scale causal", "q"),
    "aiter::_flash_attn_forward": _known(_FORWARD, "q"),
    "aiter::mha_fwd": _known(_FORWARD, "q"),
    "aiter::fmha_v3_fwd": _known(_FORWARD, "q"),
    "aiter::_flash_attn_backward": _known(_BACKWARD, "q k v"),
    "aiter::mha_bwd": _known(_AITER_BACKWARD, "q k v"),
    "aiter::fmha_v3_bwd": _known(_AITER_BACKWARD, "q k v"),
}


_SHARED_BYTES: Final = 1 << 50
"""Of a storage without memory that several tensors share: larger than any."""


def overload_of(name: str, found: Described) -> Any:
    """The overload of torch's op ``name`` ("aten::add") that takes such arguments.

    Raises CannotRebuild if torch has no such op or none of its overloads takes them.
    """
    overloads = list(overloads_of(name))
    if not overloads:
        raise CannotRebuild("this torch has no such op")
    fitting = [each for each in overloads if _fits(each._schema.arguments, found)]
    if not fitting:
        raise CannotRebuild("no overload of it takes such arguments")
    exact = [each for each in fitting if len(each._schema.arguments) == len(found)]
    return (exact or fitting)[0]


def overloads_of(name: str) -> Iterator[Any]:
    """Every overload of torch's op ``name``, none if torch has no such op."""
    namespace, _, op = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), op)
    except (AttributeError, RuntimeError):
        return
    for overload in packet.overloads():
        yield getattr(packet, overload)


def _fits(arguments: Sequence[Any], found: Described) -> bool:
    """Whether arguments as described can be those of a schema. Older traces end before the arguments with defaults."""
    if len(found) > len(arguments):
        return False
    if any(not argument.has_default_value() for argument in arguments[len(found) :]):
        return False
    return all(_fits_one(argument, found, index) for index, argument in enumerate(arguments[: len(found)]))


_TAKEN_BY: Final[Mapping[str, Callable[[str], bool]]] = {
    "ScalarList": lambda kind: kind.startswith("List["),
    "Scalar": lambda kind: not kind.startswith("List["),
    "Int": lambda kind: kind in ("int", "number"),
    "Double": lambda kind: kind in ("float", "number"),
    "Bool": lambda kind: kind in ("bool", "number"),
}
"""Which types of a schema take what the profiler calls by these names; the last three are those of 2021."""


def _fits_one(argument: Any, found: Described, index: int) -> bool:
    kind = str(argument.type)
    type_, is_tensor = found.types[index], found.dtype(index) is not None
    optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    if kind == "Tensor":
        return is_tensor or (type_ == "" and optional)
    if kind.startswith("List[") and "Tensor" in kind:
        return type_ in (LIST, "GenericList", "")
    if is_tensor or type_ == LIST:
        return False
    taken = _TAKEN_BY.get(type_)
    return taken is None or taken(kind)


class _Memory:
    """Makes the tensors of a call in order; those that share a storage are views of one. ``places``: by tensor the
    storage and the begin in it, ``UNSHARED`` for one of its own; where they are fewer, so are the others.
    """

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        self._places = iter(places)
        self._storages: dict[int, torch.UntypedStorage] = {}

    def skip(self) -> None:
        """Leave out a tensor that is none."""
        next(self._places, None)

    def tensor(self, dims: Any, dtype: str, strides: Any) -> torch.Tensor:
        made = meta_tensor(dims, dtype, strides)
        storage, start = next(self._places, (UNSHARED, 0))
        if storage == UNSHARED:
            return made
        if storage not in self._storages:
            self._storages[storage] = torch.empty(_SHARED_BYTES, dtype=torch.uint8, device="meta").untyped_storage()
        held = torch.empty(0, dtype=made.dtype, device="meta")
        return held.set_(self._storages[storage], start, made.shape, made.stride())


def arguments_of(
    overload: Any, found: Described, list_dtype: str | None, shared: Sequence[tuple[int, int]] = ()
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments and the keywords for a call of ``overload`` on meta tensors. ``list_dtype``: that of tensors in
    lists, whose dtypes the profiler does not note. ``shared``: by tensor the storage that it shares with others, and
    where it begins there; ``UNSHARED`` for one that shares none.

    Raises CannotRebuild for a setting that the trace does not tell and that has no default.
    """
    memory = _Memory(shared)
    given: list[Any] = []
    keywords: dict[str, Any] = {}
    for index, argument in enumerate(overload._schema.arguments[: len(found)]):
        value = _argument(argument, found, index, list_dtype, memory)
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            given.append(value)
    if "device" in (argument.name for argument in overload._schema.arguments):
        keywords["device"] = torch.device("meta")
    return given, keywords


def _argument(argument: Any, found: Described, index: int, list_dtype: str | None, memory: _Memory) -> Any:
    if (dtype := found.dtype(index)) is not None:
        if argument.name == "other" and found.dims[index] == [] and dtype in NUMBERS:
            memory.skip()
            return NUMBERS[dtype]
        return memory.tensor(found.dims[index], dtype, found.strides[index])
    if found.types[index] == LIST:
        return _tensor_list(found, index, list_dtype, memory)
    return _setting(argument, found, index)


def meta_tensor(dims: Any, dtype: str, strides: Any) -> torch.Tensor:
    """A tensor without contents. Raises CannotRebuild for shapes that are none."""
    if not is_shape(dims):
        raise CannotRebuild(f"its shape {str(dims)[:40]} is none")
    if not (are_strides(strides) and len(strides) == len(dims)):
        strides = contiguous_strides(dims)
    return torch.empty_strided(dims, strides, dtype=getattr(torch, dtype), device="meta")


def contiguous_strides(dims: Sequence[int]) -> list[int]:
    """The strides, in elements, of a contiguous tensor of a shape."""
    return [math.prod(max(size, 1) for size in dims[index + 1 :]) for index in range(len(dims))]


def _tensor_list(found: Described, index: int, dtype: str | None, memory: _Memory) -> list[torch.Tensor]:
    if not found.dims[index] and index not in found.list_dtypes:
        raise CannotRebuild("the trace leaves out the shapes of its list of tensors")
    dtypes: Sequence[str | None] = found.list_dtypes.get(index) or [dtype] * len(found.dims[index])
    if None in dtypes:
        raise CannotRebuild("the dtype of a list of tensors is in no trace, and nothing near it shows it")
    strides = found.strides[index]
    if not isinstance(strides, list) or len(strides) != len(found.dims[index]):
        strides = [None] * len(found.dims[index])
    return [
        memory.tensor(dims, str(each), stride)
        for dims, each, stride in zip(found.dims[index], dtypes, strides, strict=True)
    ]


def _setting(argument: Any, found: Described, index: int) -> Any:
    """A setting from its text, its default where there is none."""
    text, kind, real = found.value(index), str(argument.type), str(argument.real_type)
    if text in ("", "None"):
        return _setting_untold(argument, kind, values=found.values is not None)
    if "ScalarType" in real:
        return _numbered_dtype(text)
    if any(each in real for each in ("Layout", "MemoryFormat", "Device", "Generator")):
        return None
    return text if "str" in kind else _number(text, argument.name)


def _setting_untold(argument: Any, kind: str, *, values: bool) -> Any:
    """What a setting without a text is; ``values``: the trace has texts of the others."""
    if kind.startswith("Optional["):
        return None
    if argument.has_default_value():
        return argument.default_value
    if values and kind.startswith("List["):
        return []
    raise CannotRebuild(f"the trace does not contain its {argument.name}")


def _numbered_dtype(text: str) -> torch.dtype:
    if text.isdecimal() and int(text) < len(NUMBERED):
        dtype = getattr(torch, NUMBERED[int(text)], None)
        if isinstance(dtype, torch.dtype):
            return dtype
    raise CannotRebuild(f"the trace has {text[:20]} for a dtype")


def _number(text: str, name: str) -> Any:
    if text.startswith("["):
        items = text.removeprefix("[").removesuffix("]").split(",")
        return [_number(item.strip(), name) for item in items if item.strip()]
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text) if any(mark in text for mark in ".einf") else int(text)
    except ValueError as error:
        raise CannotRebuild(f"the trace has {text[:20]!r} for its {name}") from error
