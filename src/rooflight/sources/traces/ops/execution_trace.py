"""Which memory each op of a trace read and wrote, from torch's execution trace of the same run.

``torch.profiler.ExecutionTraceObserver`` writes a node for every op: its inputs and results, each tensor with the
number of its storage and where it begins there. The profiler's events have the number of the node ("Record function
id"). Shapes and dtypes in lists of tensors, which the profiler leaves out, are there too.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from rooflight.costs.registry import traits_of
from rooflight.records.quantity import count_of
from rooflight.records.record import OpRecord
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, contiguous_strides
from rooflight.sources.traces.file.trace import HostArgs, Trace
from rooflight.sources.traces.ops.arguments import DTYPES, LIST, NUMBERS, is_shape

_FITS: Final = 0.9
"""The least share of the ops with a number whose node must have their name."""
_RECORDED_BY: Final = "record both in one run: profile(..., record_shapes=True, execution_trace_observer=observer)"
_TENSOR: Final = "Tensor("
_GENERIC: Final = "GenericList["


class _Side(msgspec.Struct, gc=False):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] = []

    @property
    def entries(self) -> Iterator[tuple[Any, str, Any, Any]]:
        return zip(self.values, self.types, self.shapes, self.strides or [None] * len(self.values), strict=False)


class _Attribute(msgspec.Struct, gc=False):
    name: str = ""
    value: Any = None


class _Node(msgspec.Struct, gc=False):
    name: str = ""
    inputs: _Side = msgspec.field(default_factory=_Side)
    outputs: _Side = msgspec.field(default_factory=_Side)
    attrs: list[_Attribute] = []


class _Flat(msgspec.Struct, gc=False):
    """A node of schema 1.0.1."""

    name: str = ""
    rf_id: int | None = None
    inputs: list[Any] = []
    input_shapes: list[Any] = []
    input_types: list[str] = []
    outputs: list[Any] = []
    output_shapes: list[Any] = []
    output_types: list[str] = []

    @property
    def node(self) -> _Node:
        inputs = _Side(self.inputs, self.input_shapes, self.input_types)
        outputs = _Side(self.outputs, self.output_shapes, self.output_types)
        return _Node(self.name, inputs, outputs, [_Attribute("rf_id", self.rf_id)])


class _File(msgspec.Struct, gc=False):
    nodes: list[msgspec.Raw]
    schema: str = ""


_as_flat: Final = msgspec.json.Decoder(_Flat)
_as_node: Final = msgspec.json.Decoder(_Node)


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor and its memory: its storage, and where it begins there in elements."""

    storage: int
    start: int
    tensor: TensorSpec

    @property
    def end_bytes(self) -> int:
        """Where in the storage it ends."""
        return (self.start + self.tensor.extent) * self.tensor.item_bytes

    @property
    def may_be_number(self) -> bool:
        """Whether it may be a number of Python's, which torch makes a tensor of for the observer."""
        return not self.tensor.shape and self.tensor.dtype in NUMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """The tensors that an op was given and that it returned, in order, those of lists one by one."""

    inputs: tuple[Held, ...]
    outputs: tuple[Held, ...]

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that it returned."""
        return tuple(each.tensor for each in self.outputs)

    @property
    def shared(self) -> tuple[tuple[int, int], ...]:
        """By input, the number of a storage that it shares with another input and where it begins there; ``UNSHARED``
        for one that shares none. Empty where none does.
        """
        times = Counter(each.storage for each in self.inputs)
        numbers: dict[int, int] = {}
        found = [
            (numbers.setdefault(each.storage, len(numbers)), each.start) if times[each.storage] > 1 else (UNSHARED, 0)
            for each in self.inputs
        ]
        return tuple(found) if numbers else ()


def join_execution(trace: Trace, path: Path) -> tuple[Trace, dict[int, Operands]]:
    """The trace with the lists of tensors in its ops' arguments, and the operands by op, from the nodes of the
    execution trace at ``path``.

    Raises ValueError for what is no execution trace, and for one of another run; OSError.
    """
    nodes = _nodes(path)
    numbers = trace.ops.record_function
    known = np.flatnonzero(np.isin(numbers, list(nodes))).tolist()
    if not known:
        raise ValueError(f"{path.name} has no op of {trace.path.name}: {_RECORDED_BY}")
    found = {op: nodes[int(numbers[op])] for op in known}
    same = {op: node for op, node in found.items() if node.name == trace.op_name(op)}
    if len(same) < _FITS * len(found):
        raise ValueError(
            f"{path.name} is not of the run of {trace.path.name}: {count_of(len(found) - len(same), 'op')} of "
            f"{len(found)} have other names there; {_RECORDED_BY}"
        )
    operands = {op: Operands(inputs=_tensors(node.inputs), outputs=_tensors(node.outputs)) for op, node in same.items()}
    sides = {op: node.inputs for op, node in same.items() if any(map(_is_list, node.inputs.types))}
    listed = {op: _listed(trace.arguments[trace.ops.args[op]], side) for op, side in sides.items()}
    return trace.with_arguments(listed), operands


def _nodes(path: Path) -> Mapping[int, _Node]:
    text = path.read_bytes()
    try:
        if text[:2] == b"\x1f\x8b":
            text = gzip.decompress(text)
        file = msgspec.json.decode(text, type=_File)
        flat = file.schema.startswith("1.0.1")
        nodes = [_as_flat.decode(each).node if flat else _as_node.decode(each) for each in file.nodes]
    except (msgspec.DecodeError, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        why = "is cut off" if "truncated" in str(error) else "is no execution trace of ExecutionTraceObserver"
        raise ValueError(f"{path} {why}: {error}") from None
    found = {}
    for node in nodes:
        number = next((each.value for each in node.attrs if each.name == "rf_id"), None)
        if isinstance(number, int):
            found[number] = node
    return found


def _tensors(side: _Side) -> tuple[Held, ...]:
    return tuple(held for entry in side.entries for held in _within(*entry))


def _within(value: Any, kind: str, shape: Any, strides: Any) -> Iterator[Held]:
    if kind.startswith(_GENERIC) and isinstance(value, list):
        kinds = kind.removeprefix(_GENERIC).removesuffix("]").split(",")
        inner = strides if isinstance(strides, list) and len(strides) == len(value) else [None] * len(value)
        for each in zip(value, kinds, shape, inner, strict=False):
            yield from _within(*each)
        return
    dtype = DTYPES.get(kind.removeprefix(_TENSOR).removesuffix(")")) if kind.startswith(_TENSOR) else None
    is_place = isinstance(value, list) and len(value) >= 4 and all(isinstance(each, int) for each in value[:4])
    if dtype is None or not is_place or not is_shape(shape):
        return
    dense = not isinstance(strides, list) or len(strides) != len(shape)
    plain = dense or strides == contiguous_strides(shape)
    yield Held(value[1], value[2], TensorSpec(tuple(shape), dtype, None if plain else tuple(strides)))


def _is_list(kind: str) -> bool:
    return kind.startswith((f"{_GENERIC}{_TENSOR}", f"{_GENERIC}]"))


def _listed(args: HostArgs, side: _Side) -> HostArgs:
    if not args.dims or not args.types:
        return args
    dims, types = json.loads(args.dims), json.loads(args.types)
    strides = json.loads(args.strides) if args.strides else []
    if len(strides) != len(dims):
        strides = [[] for _ in dims]
    for place, entry in zip(range(len(types)), side.entries, strict=False):
        if types[place] in (LIST, "GenericList", "") and _is_list(entry[1]):
            found = [each.tensor for each in _within(*entry)]
            types[place] = [each.dtype for each in found]
            dims[place], strides[place] = [each.shape for each in found], [each.strides for each in found]
    texts = [json.dumps(each, separators=(",", ":")).encode() for each in (dims, types, strides)]
    return replace(args, dims=texts[0], types=texts[1], strides=texts[2])


def with_storages(
    records: Sequence[OpRecord], operands: Sequence[Operands | None]
) -> tuple[list[OpRecord], list[int], int]:
    """The records with the storages that each read and wrote, the sizes of these, and how many records lack theirs."""
    storages = _Storages()
    found, lacking = [], 0
    for record, held in zip(records, operands, strict=True):
        touched = None if held is None else storages.touched(record.signature, held)
        lacking += touched is None
        found.append(record if touched is None else replace(record, **touched))
    return found, storages.sizes, lacking


class _Storages:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._numbers: dict[int, int] = {}

    def touched(self, op: OpSignature, held: Operands) -> dict[str, Any] | None:
        """What an op read and wrote, as ``OpRecord`` has it; None where its tensors are not those of the node."""
        if traits_of(op).view:
            return {}
        inputs = held.inputs
        while len(inputs) > len(op.inputs) and inputs[-1].may_be_number:
            inputs = inputs[:-1]
        if len(op.inputs) != len(inputs):
            return None
        given: dict[tuple[int, int], Held] = {}
        for spec, each in zip(op.inputs, inputs, strict=True):
            if spec.storage != UNSHARED:
                given.setdefault((spec.storage, spec.offset), each)
        written = [self._result(place, spec, given, held) for place, spec in enumerate(op.outputs)]
        reads = tuple(self._number(each) for each in inputs)
        for made in {each.storage for each in written} - {each.storage for each in inputs}:
            self._numbers.pop(made, None)  # torch numbers storages by address: another may have lived there before
        return {
            "reads": reads,
            "read_starts": tuple(each.start for each in inputs),
            "writes": tuple(self._number(each) for each in written),
            "write_starts": tuple(each.start for each in written),
        }

    def _result(self, place: int, spec: TensorSpec, given: Mapping[tuple[int, int], Held], held: Operands) -> Held:
        shared = [each for (storage, _), each in given.items() if storage == spec.storage]
        if shared:
            return given.get((spec.storage, spec.offset), shared[0])
        if place < len(held.outputs):
            return held.outputs[place]
        return Held(storage=-1 - len(self.sizes), start=0, tensor=spec)

    def _number(self, held: Held) -> int:
        number = self._numbers.setdefault(held.storage, len(self.sizes))
        if number == len(self.sizes):
            self.sizes.append(0)
        self.sizes[number] = max(self.sizes[number], held.end_bytes)
        return number
