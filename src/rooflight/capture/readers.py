"""Readers: one function an op that notes a call on the tape, fast. Most of what recording costs is spent here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _storage_id  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor

from rooflight.capture.describe import signature_of, storage_of, tensors_in
from rooflight.capture.groups import rank_group
from rooflight.capture.plans import Kind, Plan, known_int
from rooflight.capture.tape import Tape
from rooflight.records.signature import OpSignature

Reader = Callable[[tuple[Any, ...], dict[str, Any] | None, Any, int], None]
"""Takes args, kwargs, result and context of a call that has just returned, and appends its record."""

_Tensor = torch.Tensor
_TENSOR, _TENSORS, _ATTRIBUTE, _GROUP = Kind.TENSOR, Kind.TENSORS, Kind.ATTRIBUTE, Kind.GROUP


def reader_of(plan: Plan, tape: Tape) -> Reader:
    """A reader that notes the calls of the op with this plan on ``tape``."""
    resizes = "out" in plan.names or plan.name.startswith("aten::resize")
    return tape.around(_reader_for(plan, tape), resizes=resizes)


def _reader_for(plan: Plan, tape: Tape) -> Reader:
    if not plan.names and plan.name.startswith("higher_order::"):
        return _careful_reader(plan, tape)
    if plan.name == "aten::lift_fresh":
        return _lift_reader(plan, tape)
    return _view_reader(plan, tape) if plan.is_view else _reader(plan, tape)


def _view_reader(plan: Plan, tape: Tape) -> Reader:
    """A view moves nothing: its shapes are enough, and it touches no storage."""
    careful = _careful_reader(plan, tape)
    number = plan.number
    keys, add_signature, add_context = tape.keys, tape.signatures.append, tape.contexts.append

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
        try:
            source = args[0]
            key = (number, source.shape, source.dtype, source.stride(), out.shape, out.stride())
            signature = keys.get(key)
            if signature is None:
                signature = keys[key] = tape.signature(_learn(key, plan, tape, args, kwargs, out), 0, 0)
        except Exception:  # whatever is odd about this call
            careful(args, kwargs, out, context)
            return
        try:
            add_context(context)
            add_signature(signature)
        except BaseException:  # an interrupt, which the program may survive
            tape.mend()
            raise

    return read


def _lift_reader(plan: Plan, tape: Tape) -> Reader:
    """``torch.tensor(data)`` allocates out of sight: here its memory is seen first, whatever lived there before."""
    read_view = _view_reader(plan, tape)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
        storage = storage_of(out)
        if storage is not None:
            tape.new_storage(storage._cdata, storage.nbytes(), out)
        read_view(args, kwargs, out, context)

    return read


def _reader(plan: Plan, tape: Tape) -> Reader:
    careful = _careful_reader(plan, tape)
    number, names, kinds = plan.number, plan.names, plan.kinds
    mutated, returns_new = plan.mutated, plan.returns_new
    in_place = mutated == (0,) and kinds[0] is _TENSOR and not returns_new
    keys, storage_ids, new_storage = tape.keys, tape.storage_ids, tape.new_storage
    add_signature, add_context, add_touched = tape.signatures.append, tape.contexts.append, tape.touched.extend

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
        key: list[Any] = [number]
        touched: list[int] = []
        add_key, add_id = key.append, touched.append
        values = args if not kwargs else args + tuple([kwargs.get(name) for name in names[len(args) :]])
        try:
            for kind, value in zip(kinds, values):  # noqa: B905 - arguments left at their defaults are not passed
                if kind is _TENSOR:
                    if isinstance(value, _Tensor):
                        add_key((value.shape, value.dtype, value.is_contiguous() or value.stride()))
                        address = _storage_id(value)
                        storage_id = storage_ids.get(address)
                        if storage_id is None:
                            storage_id = new_storage(address, value.untyped_storage().nbytes(), value)
                        add_id(storage_id)
                    else:
                        add_key(None)
                elif kind is _ATTRIBUTE:
                    add_key(tuple(value) if type(value) is list else value)
                elif kind is _TENSORS:
                    for item in tensors_in(value):
                        add_key((item.shape, item.dtype, item.is_contiguous() or item.stride()))
                        address = _storage_id(item)
                        storage_id = storage_ids.get(address)
                        if storage_id is None:
                            storage_id = new_storage(address, item.untyped_storage().nbytes(), item)
                        add_id(storage_id)
                    add_key(len(touched))
                elif kind is _GROUP:
                    add_key(rank_group(value))
            num_reads = len(touched)
            if num_reads > 1 and (touched[0] == touched[1] if num_reads == 2 else len(set(touched)) < num_reads):
                add_key(tuple(_alias_pattern(kinds, values, touched)))
            if in_place:
                add_id(touched[0])
            elif mutated:
                touched += _mutated_ids(mutated, values, storage_ids)
                if returns_new:
                    touched += _new_ids(out, touched, tape)
            elif isinstance(out, _Tensor):
                add_key((out.shape, out.dtype, out.is_contiguous() or out.stride()))
                address = _storage_id(out)
                storage_id = storage_ids.get(address)
                if storage_id is None or storage_id not in touched:
                    # not an alias of an input, so it was just allocated, whatever lived at its address before
                    storage_id = new_storage(address, out.nbytes, out)
                add_id(storage_id)
            elif out is not None:
                known = set(touched)
                for item in tensors_in(out):
                    add_key((item.shape, item.dtype, item.is_contiguous() or item.stride()))
                    address = _storage_id(item)
                    storage_id = storage_ids.get(address)
                    if storage_id is None or storage_id not in known:
                        storage_id = new_storage(address, item.nbytes, item)
                        known.add(storage_id)
                    add_id(storage_id)
            whole = tuple(key)
            signature = keys.get(whole)
            if signature is None:
                op = _learn(whole, plan, tape, args, kwargs, out)
                signature = keys[whole] = tape.signature(op, num_reads, len(touched) - num_reads)
        except Exception:  # whatever is odd about this call
            careful(args, kwargs, out, context)
            return
        try:
            add_context(context)
            add_touched(touched)
            add_signature(signature)
        except BaseException:
            tape.mend()
            raise

    return read


_KNOWN_LIMIT = 1 << 14
_known: dict[tuple[Any, ...], OpSignature] = {}
"""Signatures of calls seen in any recording, so that recording a program again describes nothing twice."""


def _learn(
    key: tuple[Any, ...], plan: Plan, tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any
) -> OpSignature:
    """The signature of a call of a kind that this recording had not met, and which devices it touched."""
    _note_devices(tape, args, out)
    op = _known.get(key)
    if op is None:
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        op = _known[key] = signature_of(plan, args, kwargs or {}, out)
    return op


def _note_devices(tape: Tape, args: tuple[Any, ...], out: Any) -> None:
    for value in (*args, out):
        tensor = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(tensor, _Tensor):
            tape.devices.add("meta" if isinstance(tensor, FakeTensor) else tensor.device.type)


def _mutated_ids(mutated: tuple[int, ...], values: tuple[Any, ...], storage_ids: dict[int, int]) -> list[int]:
    ids: list[int] = []
    for index in mutated:
        if index < len(values):
            ids += [storage_ids[_storage_id(item)] for item in tensors_in(values[index])]
    return ids


def _new_ids(out: Any, known: list[int], tape: Tape) -> list[int]:
    """Storages of the results that are none of the arguments: just allocated."""
    ids: list[int] = []
    for item in tensors_in(out):
        address = _storage_id(item)
        number = tape.storage_ids.get(address)
        if number is None or number not in known:
            ids.append(tape.new_storage(address, item.nbytes, item))
    return ids


def _alias_pattern(kinds: tuple[Kind, ...], values: tuple[Any, ...], reads: list[int]) -> list[int]:
    """Which tensors of a call share memory, and how far apart: relative, so that a loop over slices stays one key."""
    origin: dict[int, tuple[int, int]] = {}
    pattern: list[int] = []
    given = [value for kind, value in zip(kinds, values, strict=False) if kind in (_TENSOR, _TENSORS)]
    for position, (tensor, storage_id) in enumerate(zip(tensors_in(given), reads, strict=True)):
        offset = known_int(tensor.storage_offset())
        first, base = origin.setdefault(storage_id, (position, offset))
        pattern += (first, offset - base)
    return pattern


def _careful_reader(plan: Plan, tape: Tape) -> Reader:
    """For whatever the fast readers trip over: sparse and nested tensors, symbolic shapes, higher-order operators."""

    def storage_id(tensor: torch.Tensor, known: list[int] | None) -> int:
        storage = storage_of(tensor)
        if storage is None:
            return tape.new_storage(-1 - id(tensor), 0, tensor)
        number = tape.storage_ids.get(storage._cdata)
        if number is None or (known is not None and number not in known):
            number = tape.new_storage(storage._cdata, storage.nbytes(), tensor)
        return number

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
        kwargs = kwargs or {}
        op = signature_of(plan, args, kwargs, out)
        _note_devices(tape, args, out)
        if plan.is_view:
            tape.append(op, context, (), ())
            return
        reads = [storage_id(tensor, None) for tensor in tensors_in((args, kwargs))]
        values = plan.positional(args, kwargs) if plan.names else ()
        written = [tensor for index in plan.mutated for tensor in tensors_in(values[index])]
        tape.append(op, context, reads, [storage_id(tensor, reads) for tensor in (written or tensors_in(out))])

    return read
