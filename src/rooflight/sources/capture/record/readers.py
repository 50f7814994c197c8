"""Readers: one function per op, which notes a call on the tape, fast. Most of the time that recording costs is here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._C import _storage_id  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor

from rooflight.costs.cost import Float32Kind
from rooflight.costs.registry import traits_of
from rooflight.records.signature import NUMBER, OpSignature
from rooflight.sources.capture.record.schemas import ArgumentKind, OpSchema, known_int
from rooflight.sources.capture.record.signatures import (
    alias_pattern,
    leading_tensors,
    signature_of,
    sorter,
    start_of,
    storage_of,
    tensors_in,
)
from rooflight.sources.capture.record.tape import Tape

Reader = Callable[[tuple[Any, ...], dict[str, Any] | None, Any, int], None]
"""Takes args, kwargs, result and context of a call that has just returned, and appends its record."""

_Written = Callable[[tuple[Any, ...], dict[str, Any] | None, Any, list[int]], tuple[list[int], list[int]]]
"""Returns storages, and where in them the tensors begin."""

_Tensor = torch.Tensor
_TENSOR = ArgumentKind.TENSOR
_ZERO = 0  # one object in CPython; comparing a symbolic offset by value would fix the traced program to that value


def reader_of(schema: OpSchema, tape: Tape) -> Reader:
    """A reader that notes the calls of the op with this schema on ``tape``."""
    reader, traits = _reader_for(schema, tape), traits_of(schema.name)
    if (
        schema.name.startswith("aten::")
        and not schema.is_view
        and (traits.product or traits.convolution or not traits.fusable)
    ):
        reader = _settings_reader(reader, tape, traits.float32)
    number = _NUMBERS.get(schema.name)
    if number in schema.names:
        reader = _number_reader(reader, tape, schema, number)
    return tape.around(reader, schema)


_NUMBERS = {
    **dict.fromkeys(("aten::mul", "aten::mul_", "aten::div", "aten::div_"), "other"),
    **dict.fromkeys(("aten::pow", "aten::pow_"), "exponent"),
    "aten::native_dropout": "p",
}


def _number_reader(reader: Reader, tape: Tape, schema: OpSchema, name: str) -> Reader:
    place = schema.names.index(name)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
        reader(args, kwargs, out, context)
        number = args[place] if len(args) > place else (kwargs or {}).get(name)
        if type(number) in (int, float) and number in (0, 1):
            tape.refine(((NUMBER, int(number)),))

    return read


def _settings_reader(reader: Reader, tape: Tape, kind: Float32Kind) -> Reader:
    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
        reader(args, kwargs, out, context)
        tape.note_settings(kind)

    return read


def _reader_for(schema: OpSchema, tape: Tape) -> Reader:
    if not schema.names and schema.name.startswith("higher_order::"):
        return partial(_read_carefully, schema, tape)
    if schema.name == "aten::lift_fresh":
        return _lift_reader(schema, tape)
    return _view_reader(schema, tape) if schema.is_view else _reader(schema, tape)


def _view_reader(schema: OpSchema, tape: Tape) -> Reader:
    """A view moves nothing: its shapes are enough, and it touches no storage."""
    number, takes_one = schema.number, len(schema.names) == 1
    keys, add_signature, add_context = tape.keys, tape.signatures.append, tape.contexts.append

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
        try:
            source = args[0]
            key: tuple[Any, ...]
            if source.is_sparse:  # the key would lack the number of elements that it stores
                raise NotImplementedError
            if takes_one:  # t, detach: the result follows from the input
                key = number, source.shape, source.dtype, source.is_contiguous() or source.stride()
            elif isinstance(out, _Tensor):
                key = number, source.shape, source.dtype, source.stride(), out.shape, out.stride()
            else:  # split, unbind
                layouts = [layout for item in out for layout in (item.shape, item.stride())]
                key = number, source.shape, source.dtype, source.stride(), *layouts
            signature = keys.get(key)
            if signature is None:
                signature = keys[key] = tape.signature(_learn(key, schema, tape, args, kwargs, out), 0, 0)
        except Exception:  # whatever is odd about this call
            _read_carefully(schema, tape, args, kwargs, out, context)
            return
        try:
            add_context(context)
            add_signature(signature)
        except BaseException:  # an interrupt, after which the program may continue
            tape.mend()
            raise

    return read


def _lift_reader(schema: OpSchema, tape: Tape) -> Reader:
    """``torch.tensor(data)`` allocates without an op. This op is the first on its memory, whatever was there before."""
    read_view = _view_reader(schema, tape)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
        storage = storage_of(out)
        if storage is not None and not storage.resizable():  # torch.from_numpy
            tape.foreign_storage(storage, out, context, made=True)
        elif storage is not None:
            tape.new_storage(storage._cdata, storage.nbytes(), out)
        read_view(args, kwargs, out, context)

    return read


def _reader(schema: OpSchema, tape: Tape) -> Reader:
    sort, written_arguments = sorter(schema), _written_arguments(schema, tape)
    number, (num_leading, most_given) = schema.number, leading_tensors(schema)
    writes_first = schema.mutated == (0,) and schema.kinds[0] is _TENSOR and not schema.returns_new
    keys, storage_ids, all_bytes = tape.keys, tape.storage_ids, tape.storage_bytes
    new_storage, foreign_storage = tape.new_storage, tape.foreign_storage
    new_result = new_storage if _allocates(schema.name) else tape.new_result
    add_bytes = all_bytes.append if type(tape) is Tape and _allocates(schema.name) else None
    add_signature, add_context, add_touched = tape.signatures.append, tape.contexts.append, tape.touched.extend
    all_touched, add_place, add_start, on_host = tape.touched, tape.places.append, tape.starts.append, tape.on_host

    def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
        key: list[Any] = [number]  # all that the op's signature depends on
        touched: list[int] = []  # the storages that it reads, then those that it writes
        inside: list[tuple[int, int]] | None = None  # of ``touched``, tensors that do not begin with their storage
        try:
            if len(args) > most_given or kwargs:
                tensors, settings = sort(args, kwargs)
                key.append(settings)
            else:
                tensors = args[:num_leading]
            for tensor in tensors:
                if isinstance(tensor, _Tensor):
                    key += tensor.shape, tensor.dtype, tensor.is_contiguous() or tensor.stride()
                    memory = tensor.untyped_storage()
                    storage = storage_ids.get(address := memory._cdata)
                    if not memory.resizable():
                        storage = foreign_storage(memory, tensor, context)
                    elif storage is None:
                        storage = new_storage(address, memory.nbytes(), tensor)
                    if (start := tensor.storage_offset()) is not _ZERO:
                        inside = [*(inside or ()), (len(touched), known_int(start))]
                    touched.append(storage)
                else:
                    key.append(None)
            num_reads = len(touched)
            if num_reads > 1 and (touched[0] == touched[1] if num_reads == 2 else len(set(touched)) < num_reads):
                key.append(alias_pattern(tensors, touched))
            if writes_first:
                if inside and inside[0][0] == 0:
                    inside.append((len(touched), inside[0][1]))
                touched.append(touched[0])
            elif written_arguments is not None:
                written, starts = written_arguments(args, kwargs, out, touched)
                inside = [*(inside or ()), *enumerate(starts, len(touched))]
                touched += written
            else:
                for tensor in (out,) if isinstance(out, _Tensor) else tensors_in(out):
                    key += tensor.shape, tensor.dtype, tensor.is_contiguous() or tensor.stride()
                    storage = storage_ids.get(address := _storage_id(tensor))
                    if storage is None or storage not in touched:  # no alias of an input, so it was just allocated
                        if add_bytes is None:
                            storage = new_result(address, tensor.nbytes, tensor)
                        else:  # what ``Tape.new_storage`` does, without the call
                            add_bytes(nbytes if type(nbytes := tensor.nbytes) is int else known_int(nbytes))
                            storage = storage_ids[address] = len(all_bytes) - 1
                            if tensor.is_cpu:
                                on_host.append(storage)
                    elif (start := tensor.storage_offset()) is not _ZERO:
                        inside = [*(inside or ()), (len(touched), known_int(start))]
                    touched.append(storage)
            signature = keys.get(whole := tuple(key))
            if signature is None:
                op = _learn(whole, schema, tape, args, kwargs, out)
                signature = keys[whole] = tape.signature(op, num_reads, len(touched) - num_reads)
        except Exception:  # whatever is odd about this call
            _read_carefully(schema, tape, args, kwargs, out, context)
            return
        try:
            add_context(context)
            for place, start in inside or ():
                add_place(len(all_touched) + place)
                add_start(start)
            add_touched(touched)
            add_signature(signature)
        except BaseException:
            tape.mend()
            raise

    return read


def _allocates(name: str) -> bool:
    """Whether torch allocates all results of an op; those of others may be views of memory of somebody else."""
    return name.startswith("aten::") and name != "aten::from_file"


_KNOWN_LIMIT = 1 << 14
_known: dict[tuple[Any, ...], OpSignature] = {}
"""Signatures of the calls of all recordings, so that a program that is recorded again is not described again."""


def _learn(
    key: tuple[Any, ...], schema: OpSchema, tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any
) -> OpSignature:
    _note_devices(tape, args, out)
    op = _known.get(key)
    if op is None:
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        op = _known[key] = signature_of(schema, args, kwargs or {}, out)
    return op


def _note_devices(tape: Tape, args: tuple[Any, ...], out: Any) -> None:
    for value in (*args, out):
        tensor = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(tensor, _Tensor):
            tape.devices.add(tensor.device.type)
            if isinstance(tensor, FakeTensor):
                tape.devices.add("fake")


def _written_arguments(schema: OpSchema, tape: Tape) -> _Written | None:
    """What returns the storages of written arguments, and of results that are no arguments: just allocated."""
    if not schema.mutated:
        return None
    storage_ids = tape.storage_ids

    def written(
        args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, read: list[int]
    ) -> tuple[list[int], list[int]]:
        values = schema.positional(args, kwargs or {})
        items = [item for index in schema.mutated for item in tensors_in(values[index])]
        ids, starts = [storage_ids[_storage_id(item)] for item in items], [known_int(i.storage_offset()) for i in items]
        if schema.returns_new:
            known = {*read, *ids}
            for item in tensors_in(out):
                number = storage_ids.get(_storage_id(item))
                if number is None or number not in known:
                    ids.append(tape.new_result(_storage_id(item), item.nbytes, item))
                    starts.append(0)
        return ids, starts

    return written


def _read_carefully(
    schema: OpSchema, tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int
) -> None:
    """For calls of sparse and nested tensors, symbolic shapes and higher-order operators."""
    kwargs = kwargs or {}
    op = signature_of(schema, args, kwargs, out)
    _note_devices(tape, args, out)
    if schema.is_view:
        tape.append(op, context, (), ())
        return
    inputs = tensors_in((args, kwargs))

    def number(tensor: torch.Tensor, known: Sequence[int] | None) -> int:
        found = tape.number_of(tensor, context, known)
        return tape.new_storage(-1 - id(tensor), 0, tensor) if found is None else found

    reads = [number(tensor, None) for tensor in inputs]
    values = schema.positional(args, kwargs) if schema.names else ()
    outputs = [tensor for index in schema.mutated for tensor in tensors_in(values[index])] or tensors_in(out)
    writes = [number(tensor, reads) for tensor in outputs]
    tape.append(op, context, reads, writes, [start_of(tensor) for tensor in (*inputs, *outputs)])
