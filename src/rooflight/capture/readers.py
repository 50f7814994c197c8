"""Readers: one function an op that notes a call on the tape, fast. Most of what recording costs is spent here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rooflight.capture.describe import signature_of, storage_of, tensors_in
from rooflight.capture.plans import Kind, Plan
from rooflight.capture.tape import Tape

Reader = Callable[[tuple[Any, ...], dict[str, Any] | None, Any], tuple[int, list[int], list[int]]]
"""(args, kwargs, out) -> (signature number, storage ids read, storage ids written)"""

_Tensor = torch.Tensor
_TENSOR, _TENSORS, _ATTRIBUTE = Kind.TENSOR, Kind.TENSORS, Kind.ATTRIBUTE


def reader_of(plan: Plan, tape: Tape, number: int) -> Reader:
    """A reader for the op with this plan; ``number`` keeps its keys apart from other ops'."""
    if not plan.names and plan.name.startswith("higher_order::"):
        return _careful_reader(plan, tape)
    return _view_reader(plan, tape, number) if plan.is_view else _reader(plan, tape, number)


def _view_reader(plan: Plan, tape: Tape, number: int) -> Reader:
    """A view moves nothing: its shape is enough, and it touches no storage."""
    careful = _careful_reader(plan, tape)
    keys = tape.keys

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> tuple[int, list[int], list[int]]:
        try:
            source = args[0]
            key = (number, source.shape, source.dtype, source.stride(), out.shape, out.stride())
            signature = keys.get(key)
            if signature is None:
                signature = keys[key] = tape.signature(signature_of(plan, args, kwargs or {}, out))
            return signature, [], []
        except (AttributeError, RuntimeError, NotImplementedError, TypeError, IndexError):
            signature, _, _ = careful(args, kwargs, out)
            return signature, [], []

    return read


def _reader(plan: Plan, tape: Tape, number: int) -> Reader:
    careful = _careful_reader(plan, tape)
    names, kinds, mutated = plan.names, plan.kinds, plan.mutated
    keys, storage_ids, new_storage = tape.keys, tape.storage_ids, tape.new_storage

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> tuple[int, list[int], list[int]]:
        key: list[Any] = [number]
        reads: list[int] = []
        tensors: list[torch.Tensor] = []
        values = args
        if kwargs:
            values = args + tuple([kwargs.get(name) for name in names[len(args) :]])
        try:
            for kind, value in zip(kinds, values, strict=False):
                if kind is _TENSOR:
                    if isinstance(value, _Tensor):
                        key += (value.shape, value.dtype, value.stride())
                        tensors.append(value)
                        storage = value.untyped_storage()
                        address = storage._cdata
                        storage_id = storage_ids.get(address)
                        if storage_id is None:
                            storage_id = new_storage(address, storage.nbytes())
                        reads.append(storage_id)
                    else:
                        key.append(None)
                elif kind is _ATTRIBUTE:
                    key.append(tuple(value) if type(value) is list else value)
                elif kind is _TENSORS:
                    for item in tensors_in(value):
                        key += (item.shape, item.dtype, item.stride())
                        tensors.append(item)
                        storage = item.untyped_storage()
                        address = storage._cdata
                        storage_id = storage_ids.get(address)
                        if storage_id is None:
                            storage_id = new_storage(address, storage.nbytes())
                        reads.append(storage_id)
                    key.append(len(tensors))
            if len(reads) > 1 and len(set(reads)) < len(reads):
                key += _alias_pattern(tensors, reads)
            if mutated:
                writes = _mutated_ids(mutated, values, storage_ids)
            else:
                writes = []
                inputs = reads if len(reads) < 9 else set(reads)
                for item in (out,) if isinstance(out, _Tensor) else tensors_in(out):
                    key += (item.shape, item.dtype, item.stride())
                    storage = item.untyped_storage()
                    address = storage._cdata
                    storage_id = storage_ids.get(address)
                    if storage_id is None or storage_id not in inputs:
                        # not an alias of an input, so it was just allocated, whatever lived at its address before
                        storage_id = new_storage(address, storage.nbytes())
                    writes.append(storage_id)
            signature = keys.get(tuple(key))
            if signature is None:
                signature = keys[tuple(key)] = tape.signature(signature_of(plan, args, kwargs or {}, out))
        except (RuntimeError, NotImplementedError, TypeError):
            return careful(args, kwargs, out)
        return signature, reads, writes

    return read


def _mutated_ids(mutated: tuple[int, ...], values: tuple[Any, ...], storage_ids: dict[int, int]) -> list[int]:
    ids: list[int] = []
    for index in mutated:
        if index < len(values):
            ids += [storage_ids[item.untyped_storage()._cdata] for item in tensors_in(values[index])]
    return ids


def _alias_pattern(tensors: list[torch.Tensor], reads: list[int]) -> list[int]:
    """Which tensors of a call share memory, and how far apart: relative, so that a loop over slices stays one key."""
    origin: dict[int, tuple[int, int]] = {}
    pattern: list[int] = []
    for position, (tensor, storage_id) in enumerate(zip(tensors, reads, strict=True)):
        offset = int(tensor.storage_offset())
        first, base = origin.setdefault(storage_id, (position, offset))
        pattern += (first, offset - base)
    return pattern


def _careful_reader(plan: Plan, tape: Tape) -> Reader:
    """For whatever the fast readers trip over: sparse and nested tensors, symbolic shapes, higher-order operators."""

    def storage_id(tensor: torch.Tensor, known: list[int] | None) -> int:
        storage = storage_of(tensor)
        if storage is None:
            return tape.new_storage(-1 - id(tensor), 0)
        number = tape.storage_ids.get(storage._cdata)
        if number is None or (known is not None and number not in known):
            number = tape.new_storage(storage._cdata, int(storage.nbytes()))
        return number

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> tuple[int, list[int], list[int]]:
        kwargs = kwargs or {}
        signature = tape.signature(signature_of(plan, args, kwargs, out))
        reads = [storage_id(tensor, None) for tensor in tensors_in((args, kwargs))]
        values = plan.positional(args, kwargs) if plan.names else ()
        written = [tensor for index in plan.mutated for tensor in tensors_in(values[index])]
        writes = [storage_id(tensor, reads) for tensor in (written or tensors_in(out))]
        return signature, reads, [] if plan.is_view else writes

    return read
