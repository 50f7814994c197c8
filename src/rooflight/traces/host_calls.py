"""Calls of torch's ops as a trace describes them, run again on meta tensors.

The profiler notes an op's name without its overload, and of its arguments the shapes, dtypes, strides and, since torch
2.2, the settings. Its results follow from running it on tensors without contents, under the same recorder as a live
program, so that its costs are those of a live recording.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from rooflight.records.tensor import UNSHARED
from rooflight.traces.noted import LIST, CannotRebuild, Described, are_strides, is_shape
from rooflight.traces.scalar_types import NUMBERED, NUMBERS

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
