"""The key of a call: all that the signature of an op depends on, quick to form. The recorder's readers intern by it,
and hot loops compare calls by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from rooflight.capture.describe import tensors_in
from rooflight.capture.groups import rank_group
from rooflight.capture.schemas import ArgumentKind, OpSchema, is_zero, known_int

Sorter = Callable[[tuple[Any, ...], dict[str, Any] | None], tuple[list[Any], tuple[Any, ...]]]
CallKey = tuple[Any, ...]

_Tensor = torch.Tensor
_TENSOR, _TENSORS = ArgumentKind.TENSOR, ArgumentKind.TENSORS
_ATTRIBUTE, _GROUP, _IGNORED = ArgumentKind.ATTRIBUTE, ArgumentKind.GROUP, ArgumentKind.IGNORED
_FACTOR, _FLAG = ArgumentKind.FACTOR, ArgumentKind.FLAG


def key_former(
    schema: OpSchema,
) -> Callable[[tuple[Any, ...], dict[str, Any] | None, Any], tuple[CallKey, list[Any], list[Any]]]:
    """A function that forms the key of a call of an op that has just returned; the tensors that it was given and those
    that it returned come with it. Memory that arguments share is not in this key, whose user follows memory itself.
    """
    number, (num_leading, most_given) = schema.number, leading_tensors(schema)
    sort = sorter(schema)

    def form(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> tuple[CallKey, list[Any], list[Any]]:
        key: list[Any] = [number]
        tensors: Sequence[Any]
        if len(args) <= most_given and not kwargs:
            tensors = args[:num_leading]
        else:
            tensors, settings = sort(args, kwargs)
            key.append(settings)
        given = []
        for tensor in tensors:
            if isinstance(tensor, _Tensor):
                key += tensor.shape, tensor.dtype, tensor.is_contiguous() or tensor.stride()
                given.append(tensor)
            else:
                key.append(None)
        made = [out] if isinstance(out, _Tensor) else tensors_in(out)
        for tensor in made:
            key += tensor.shape, tensor.dtype, tensor.is_contiguous() or tensor.stride()
        return tuple(key), given, made

    return form


@cache
def leading_tensors(schema: OpSchema) -> tuple[int, int]:
    """How many single tensors an op takes before its other arguments, and how many arguments a call may pass at most
    for these to be all that its signature needs.
    """
    kinds = schema.kinds
    leading = next((place for place, kind in enumerate(kinds) if kind is not _TENSOR), len(kinds))
    return leading, len(kinds) if all(kind is _IGNORED for kind in kinds[leading:]) else leading


@cache
def sorter(schema: OpSchema) -> Sorter:
    """A function that divides the arguments of a call into tensors (or whatever was given for one) and settings, which
    are hashable.
    """
    kinds, names = schema.kinds, schema.names

    def sort(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[list[Any], tuple[Any, ...]]:
        tensors: list[Any] = []
        settings: list[Any] = []
        values = args if not kwargs else args + tuple([kwargs.get(name) for name in names[len(args) :]])
        for kind, value in zip(kinds, values):  # noqa: B905 - arguments left at their defaults are not passed
            if kind is _TENSOR:
                tensors.append(value)
            elif kind is _ATTRIBUTE:
                settings.append(tuple(value) if type(value) is list else value)
            elif kind is _FACTOR:
                settings.append(is_zero(value))
            elif kind is _TENSORS:
                tensors += tensors_in(value)
                settings.append(len(tensors))
            elif kind is _GROUP:
                settings.append(rank_group(value))
        return tensors, tuple(settings)

    return sort


def alias_pattern(tensors: Sequence[Any], reads: Sequence[int]) -> tuple[int, ...]:
    """Which tensors of a call share memory, and how far apart they are: relative offsets, so that all calls of a loop
    over slices have one key.
    """
    origin: dict[int, tuple[int, int]] = {}
    pattern: list[int] = []
    given = [tensor for tensor in tensors if isinstance(tensor, _Tensor)]
    for position, (tensor, storage_id) in enumerate(zip(given, reads, strict=True)):
        offset = known_int(tensor.storage_offset())
        first, base = origin.setdefault(storage_id, (position, offset))
        pattern += (first, offset - base)
    return tuple(pattern)
