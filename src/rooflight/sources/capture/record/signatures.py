"""Makes the specs and signatures of records from live tensors: the slow, careful half of capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final

import torch

from rooflight.records.session import NOWHERE
from rooflight.records.signature import AttributeValue, OpSignature
from rooflight.records.tensor import UNSHARED, Packing, TensorSpec
from rooflight.sources.capture.record.schemas import (
    ArgumentKind,
    OpSchema,
    attribute_value,
    is_zero,
    known_int,
    rank_group,
)

_SEQUENCES: Final = (list, tuple)
_ROW_COMPRESSED: Final = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED: Final = (*_ROW_COMPRESSED, torch.sparse_csc, torch.sparse_bsc)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in a value, in order, those in lists, tuples and dicts included."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    for item in value if isinstance(value, _SEQUENCES) else value.values() if isinstance(value, dict) else ():
        if isinstance(item, torch.Tensor):
            found.append(item)
        else:
            found += tensors_in(item)
    return found


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor, or of the elements of a sparse one; None for opaque layouts, which have none."""
    try:
        return _elements(tensor).untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def start_of(tensor: torch.Tensor) -> int:
    """Where in its storage a tensor begins, in elements; ``NOWHERE`` for other layouts than strided."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return NOWHERE
    try:
        return known_int(tensor.storage_offset())
    except (NotImplementedError, RuntimeError):
        return NOWHERE


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    return tensor.values() if tensor.layout in _COMPRESSED else tensor


def spec_of(tensor: torch.Tensor, storage: int = UNSHARED, offset: int = 0) -> TensorSpec:
    """Shape, dtype and strides of a tensor. Sparse and nested ones are described by the elements they store."""
    dtype = _dtype_name(tensor.dtype)
    if tensor.layout is torch.strided and not tensor.is_nested:
        strides = None if _is_contiguous(tensor) else tensor.stride()
        try:
            return _spec(tensor.shape, dtype, strides, storage, offset)
        except TypeError:  # symbolic sizes cannot be hashed
            return _spec.__wrapped__(tensor.shape, dtype, strides, storage, offset)
    if tensor.is_nested:
        sizes = tensor._nested_tensor_size().tolist()  # kept on the host
        packing = Packing(layout="nested", parts=tuple(map(tuple, sizes)))
        return TensorSpec((int(tensor.numel()),), dtype, None, storage, offset, packing)
    if tensor.layout is torch.sparse_coo or tensor.layout in _COMPRESSED:
        stored = known_int(_elements(tensor).numel())
        return TensorSpec((stored,), dtype, None, storage, offset, _sparse_packing(tensor))
    return TensorSpec(tuple(known_int(size) for size in tensor.shape), dtype)


def _sparse_packing(tensor: torch.Tensor) -> Packing:
    if tensor.layout is torch.sparse_coo:
        indices = [tensor._indices()]
    elif tensor.layout in _ROW_COMPRESSED:
        indices = [tensor.crow_indices(), tensor.col_indices()]
    else:
        indices = [tensor.ccol_indices(), tensor.row_indices()]
    return Packing(
        layout=str(tensor.layout).removeprefix("torch."),
        shape=tuple(known_int(size) for size in tensor.shape),
        index_bytes=sum(known_int(each.numel()) * each.element_size() for each in indices),
    )


def _is_contiguous(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_contiguous()
    except RuntimeError:  # it depends on data
        return True


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=1 << 16)  # a model has few kinds of tensors
def _spec(shape: Sequence[int], dtype: str, strides: Sequence[int] | None, storage: int, offset: int) -> TensorSpec:
    return TensorSpec(
        tuple(known_int(size) for size in shape),
        dtype,
        None if strides is None else tuple(known_int(stride) for stride in strides),
        storage,
        offset,
    )


def gradients_of(tensors: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """The gradients of those tensors that require one; None is a tensor that was not given."""
    return tuple(
        replace(spec_of(tensor), strides=None) for tensor in tensors if tensor is not None and tensor.requires_grad
    )


def signature_of(schema: OpSchema, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OpSignature:
    """The signature of one call."""
    names: list[str] = []
    inputs: list[torch.Tensor] = []
    attributes: list[tuple[str, AttributeValue]] = []
    values = schema.positional(args, kwargs) if schema.names else (args, kwargs)
    for name, kind, value in zip(
        schema.names or ("args", "kwargs"),
        schema.kinds or (ArgumentKind.TENSORS, ArgumentKind.TENSORS),
        values,
        strict=True,
    ):
        if kind in (ArgumentKind.TENSOR, ArgumentKind.TENSORS):
            found = list(tensors_in(value))
            inputs += found
            names += [name] * len(found)
        elif schema.is_view:
            continue
        elif kind is ArgumentKind.GROUP:
            group = rank_group(value)
            if group is not None:  # the value that the caller passed under the same name is kept below
                attributes += [
                    entry for entry in group.attributes if entry[0] != "group_size" or "group_size" not in schema.names
                ]
        elif kind is ArgumentKind.FACTOR:
            if is_zero(value):
                attributes.append((name, 0))
        elif kind is ArgumentKind.FLAG:
            attributes.append((name, True))
        elif kind is ArgumentKind.ATTRIBUTE:
            attributes.append((name, attribute_value(value)))
    outputs = _outputs(schema, values, out)
    specs = _specs([*inputs, *outputs])
    return OpSignature(
        name=schema.name,
        inputs=specs[: len(inputs)],
        outputs=specs[len(inputs) :],
        input_names=tuple(names),
        attributes=tuple(attributes),
    )


def _outputs(schema: OpSchema, values: Sequence[Any], out: Any) -> list[torch.Tensor]:
    outputs = list(tensors_in(out))
    seen = {id(tensor) for tensor in outputs}
    for index in schema.mutated:
        outputs += [tensor for tensor in tensors_in(values[index]) if id(tensor) not in seen]
    return outputs


def _specs(tensors: list[torch.Tensor]) -> tuple[TensorSpec, ...]:
    storages = [storage_of(tensor) for tensor in tensors]
    addresses = [None if storage is None else storage._cdata for storage in storages]
    if len(set(addresses)) == len(addresses):  # nothing is shared, as in most calls
        return tuple([spec_of(tensor) for tensor in tensors])
    times = Counter(addresses)
    first: dict[int, int] = {}
    base: dict[int, int] = {}
    numbers: list[int] = []
    for tensor, address in zip(tensors, addresses, strict=True):
        if address is None or times[address] == 1:
            numbers.append(UNSHARED)
            continue
        numbers.append(first.setdefault(address, len(first)))
        offset = known_int(_elements(tensor).storage_offset())
        base[address] = min(base.get(address, offset), offset)
    return tuple(
        spec_of(tensor)
        if number == UNSHARED
        else spec_of(tensor, number, known_int(_elements(tensor).storage_offset()) - base[address or 0])
        for tensor, number, address in zip(tensors, numbers, addresses, strict=True)
    )


Sorter = Callable[[tuple[Any, ...], dict[str, Any] | None], tuple[Sequence[Any], tuple[Any, ...]]]
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
