"""Tensors that something outside torch's dispatcher made or wrote: which they are, and the records that stand for them.

*Writes* are found in a finished session. A kernel of Transformer Engine, a raw Triton kernel or a C extension allocates
its result by ``torch.empty`` and fills it without an op; a later op reads it. Such a storage is found by its records:
the first is an allocation, and a recorded op reads it before one writes it. In front of that op, a record without a
cost is inserted, in the module that allocated the tensor. Recording itself does nothing for this.

*Births* are tensors over memory that torch did not allocate: ``torch.from_numpy``, DLPack and ``from_blob`` of an
extension make them without an allocation that the dispatcher sees. Such a storage cannot be resized: that tells it from
all others. It is an input if

- it was first seen outside modules, their backward pass and optimizers, or the outermost module was given it, or no
  tensor at all;
- or it is an attribute of a module that runs, or the program still holds it, other than in what the module returned,
  when that has returned: it was there before, or is a constant that was made once.

Everything else over such memory is a kernel's result.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch._C import _current_graph_task_id
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rooflight.costs.cost import OpCost
from rooflight.costs.families.copying import UNINITIALIZED
from rooflight.costs.registry import cost_of, traits_of
from rooflight.costs.rules import names
from rooflight.hardware.network.collectives import CollectiveKind, kind_of
from rooflight.records.assembly import Insertion, Scope, with_insertions
from rooflight.records.record import Direction
from rooflight.records.session import Int32, Int64, Session, owners
from rooflight.records.signature import UNSEEN, WRITTEN_OUTSIDE, OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.fusion.ops import op_fusion_of
from rooflight.sources.capture.record.signatures import spec_of

_CLOSED: Final = (str, bytes, int, float, type, ModuleType, FunctionType, GeneratorType, nn.Module)
_DEPTH: Final = 5
"""How deep tensors are looked for in what a call was given or gives."""
_MOST: Final = 10_000
"""How many values are looked at there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """A storage first seen when there were ``before`` records, and where in the program. ``tensors`` are the one seen
    and the one of which it is a view.
    """

    storage: int
    before: int
    place: Scope
    tensor: TensorSpec
    memory: weakref.ref[torch.UntypedStorage]
    tensors: tuple[weakref.ref[torch.Tensor], ...]


class OutsideBirths:
    """What one recording knows of them."""

    def __init__(self) -> None:
        self.found: list[Birth] = []  # made by a kernel that nobody saw
        self.open_modules: Sequence[tuple[nn.Module, int]] = ()  # the calls that run, outermost first
        self.consumed: set[int] = set()  # storages that a module returned or autograd keeps, be they read or not
        self._pending: dict[int, Birth] = {}

    def may_be_one(self, memory: torch.UntypedStorage, place: Scope, *, made: bool) -> bool:
        """Whether a storage that is first seen at a place may be a kernel's result; ``made``: it was made just now."""
        if _current_graph_task_id() == -1:
            inside = bool(self.open_modules) or place.direction == Direction.OPTIMIZER
            return inside and not self._is_state(memory)
        leaf = getattr(torch._C._current_autograd_node(), "variable", None)
        if leaf is not None and leaf.grad is not None and _address(leaf.grad) == memory._cdata:
            return False  # a gradient is added to it
        return bool(place.module or made) and not self._is_state(memory)

    def add(
        self, memory: torch.UntypedStorage, tensor: torch.Tensor, *, storage: int, before: int, place: Scope
    ) -> None:
        """A storage that may be a kernel's result got its number."""
        spec, seen = spec_of(tensor), (tensor, tensor._base)
        self._pending[storage] = Birth(
            storage=storage,
            before=before,
            place=place,
            tensor=TensorSpec(spec.shape, spec.dtype),
            memory=weakref.ref(memory),
            tensors=tuple(weakref.ref(each) for each in seen if each is not None),
        )

    def read(self, storage: int, memory: torch.UntypedStorage) -> None:
        """An op reads a storage that was seen before. It is no result if it has become a parameter by now."""
        if storage in self._pending and self._is_state(memory):
            del self._pending[storage]

    def settle(self, given: Any, output: Any) -> None:
        """Decide on those whose answer is known when the outermost module returns ``output``."""
        if not self._pending:
            return
        inputs, results = ({_address(tensor) for tensor in plain_tensors(value)} for value in (given, output))
        for birth in list(self._pending.values()):
            memory = birth.memory()
            address = None if memory is None else memory._cdata
            is_gradient = birth.place.direction != Direction.FORWARD
            if address not in inputs and (inputs or is_gradient):
                if address is None or address in results:
                    self.found.append(birth)
                elif torch.is_grad_enabled() or is_gradient:
                    continue  # the program holds it, or autograd: known when the backward pass has run
            del self._pending[birth.storage]

    def finish(self) -> None:
        """Decide on all seen so far: the recording ends."""
        held = _held(self._pending.values()) if self._pending else ()
        self.found += [birth for birth in self._pending.values() if birth.storage not in held]
        self.consumed.update(birth.storage for birth in self._pending.values() if birth.memory() is not None)
        self._pending.clear()

    def _is_state(self, memory: torch.UntypedStorage) -> bool:
        start = memory.data_ptr()
        for module, _ in self.open_modules:
            for value in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
                if isinstance(value, torch.Tensor) and _address(value) == memory._cdata:
                    return True
                if isinstance(value, np.ndarray) and 0 <= start - value.ctypes.data < value.nbytes:
                    return True
        return False


def foreign_memory(value: Any) -> torch.UntypedStorage | None:
    """The storage of a tensor, if torch did not allocate it."""
    try:
        memory: torch.UntypedStorage = value.untyped_storage()
        return None if memory.resizable() else memory
    except (NotImplementedError, RuntimeError):
        return None


def may_be_foreign(value: Any) -> bool:
    """Whether torch may not have allocated the memory of a tensor in what a module returns: a quick first look."""
    kind = type(value)
    if kind is torch.Tensor:
        return foreign_memory(value) is not None
    if kind is tuple:
        return any(item is not None and may_be_foreign(item) for item in value)
    return value is not None


def plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a call takes or gives, without those that wrap others: containers and objects with attributes
    are opened, modules not.
    """
    seen: set[int] = set()
    level: list[Any] = [value]
    for _ in range(_DEPTH):
        following: list[Any] = []
        for item in level:
            if item is None or isinstance(item, _CLOSED) or id(item) in seen:
                continue
            if len(seen) >= _MOST:
                return
            seen.add(id(item))
            if not isinstance(item, torch.Tensor):
                following += _inside(item)
            elif not is_traceable_wrapper_subclass(item):
                yield item
        level = following


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    named = (getattr(value, "__dict__", ()), getattr(value, "__slots__", ()))
    return [getattr(value, name, None) for names in named for name in names]


def _address(tensor: torch.Tensor) -> int | None:
    try:
        with torch._C.DisableTorchFunction():
            return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _held(births: Iterable[Birth]) -> set[int]:
    seen = [(each(), birth.storage) for birth in births for each in birth.tensors]
    numbers = {id(tensor): storage for tensor, storage in seen if tensor is not None}
    alive = [tensor for tensor, _ in seen if tensor is not None]
    ours = {id(alive), *map(id, seen)}
    holders = gc.get_referrers(*alive) if alive else ()
    return {
        numbers[id(value)]
        for holder in holders
        if id(holder) not in ours and not isinstance(holder, FrameType)
        for value in gc.get_referents(holder)
        if id(value) in numbers
    }


_ALLOCATES: Final = frozenset(name for name in names(UNINITIALIZED) if "empty" in name)
_RESIZES: Final = frozenset({"aten::resize", "aten::resize_as", "aten::_resize_output"})
_FILLS: Final = ("fill", "index", "scatter", "put", "tri", "fused")
"""In the names of in-place ops that may fill a tensor, or a part of it: optimizers do so in their first step."""
_SOURCES: Final = frozenset({"input", "inputs", "input_tensor", "input_tensors", "input_list"})
_NOWHERE: Final = -1
_OUTSIDE: Final = -2
_READ_IN_PLACE: Final = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.SEND)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """How calls of one signature use the contents of their tensors.

    By place of the input: whether they read it (``reads``), and whether they may fill it although they are not recorded
    to write it (``fills``). ``writes``: they fill the tensors that they are recorded to write, as a view does not.
    ``updates``: they read the contents of a tensor that they read and write; otherwise they fill it.
    """

    reads: tuple[bool, ...] = ()
    fills: tuple[bool, ...] = ()
    writes: bool = True
    updates: bool = False


def with_outside_writes(session: Session, births: OutsideBirths, state: Callable[[], Collection[int]]) -> Session:
    """The session with a record of each tensor that something outside the dispatcher wrote. ``births`` has those whose
    memory torch did not allocate. ``state`` returns the storages of parameters and buffers, which are left out: a model
    that was built without initialising it reads memory that nothing has written.
    """
    made_by = _allocations(session)
    born = {birth.storage: birth for birth in births.found}
    made_by[list(born)] = _OUTSIDE
    if not (made_by != _NOWHERE).any():
        return session
    consumed = [storage for storage in births.consumed if made_by[storage] != _NOWHERE]
    found = list(_read_unwritten(session, made_by, consumed))
    standing = state() if found else ()
    insertions: list[Insertion] = []
    for storage, reader in found:
        birth, maker = born.get(storage), int(made_by[storage])
        tensor = _tensor_of(session, storage, maker, reader) if birth is None else birth.tensor
        if storage not in standing and tensor.numel:
            first = maker + 1 if reader == len(session) else reader
            insertions.append(
                Insertion(
                    before=first if birth is None else birth.before,
                    place=Scope.of(session, maker) if birth is None else birth.place,
                    signature=OpSignature(name=WRITTEN_OUTSIDE, outputs=(tensor,), attributes=(UNSEEN,)),
                    written=storage,
                )
            )
    return with_insertions(session, insertions)


def _allocations(session: Session) -> Int64:
    columns = session.columns
    made_by = np.full(len(session.storage_bytes), _NOWHERE, dtype=np.int64)
    allocates = [op.name in _ALLOCATES and "out" not in op.input_names for op in session.signatures]
    chosen = np.array(allocates, dtype=np.bool_)[columns.signature]
    records = np.flatnonzero(chosen & session.counted & (np.diff(columns.written_offsets) == 1))
    made_by[columns.written_ids[columns.written_offsets[records]]] = records
    return made_by


def _read_unwritten(session: Session, made_by: Int64, consumed: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The storages read before an op fills them, with the first reader; of ``consumed`` also those left unused.

    Times are in half records: an op that updates a tensor reads it and then writes it, one that fills it writes first.
    """
    columns = session.columns
    read, readers = _touches(columns.read_ids, columns.read_offsets, made_by)
    written, writers = _touches(columns.written_ids, columns.written_offsets, made_by)
    distinct: list[int] = np.unique(columns.signature[np.concatenate([readers, writers])]).tolist()
    uses = {number: _use_of(session.signatures[number]) for number in distinct}
    updates, writes = (np.zeros(len(session.signatures), dtype=np.bool_) for _ in range(2))
    for number, use in uses.items():
        updates[number], writes[number] = use.updates, use.writes
    reads, fills = _by_place(columns.signature[readers], read - columns.read_offsets[readers], uses)
    never = 2 * len(session) + 2
    first_read, first_filled = (np.full(len(made_by), never, dtype=np.int64) for _ in range(2))
    late = updates[columns.signature[readers]]
    np.minimum.at(first_read, columns.read_ids[read[reads]], (2 * readers + ~late)[reads])
    np.minimum.at(first_filled, columns.read_ids[read[fills]], (2 * readers)[fills])
    filling, late = (flags[columns.signature[writers]] for flags in (writes, updates))
    np.minimum.at(first_filled, columns.written_ids[written[filling]], (2 * writers + late)[filling])
    first_read[consumed] = np.minimum(first_read[consumed], never - 2)
    for storage in np.flatnonzero(first_read < first_filled).tolist():
        yield storage, int(first_read[storage]) // 2


def _touches(ids: Int32, offsets: Int64, made_by: Int64) -> tuple[Int64, Int64]:
    touching = owners(offsets)
    chosen = np.flatnonzero((made_by[ids] != _NOWHERE) & (made_by[ids] != touching))
    return chosen, touching[chosen]


def _by_place(
    signatures: Int32, places: Int64, uses: Mapping[int, _Use]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    width = int(places.max(initial=0)) + 1
    pairs, inverse = np.unique(signatures.astype(np.int64) * width + places, return_inverse=True)
    found = np.zeros((2, len(pairs)), dtype=np.bool_)
    for number, pair in enumerate(pairs.tolist()):
        use, place = uses[pair // width], pair % width
        for row, flags in enumerate((use.reads, use.fills)):
            found[row, number] = flags[place] if place < len(flags) else any(flags)
    reads, fills = found[:, inverse.reshape(-1)]
    return reads, fills


def _use_of(op: OpSignature) -> _Use:
    name = op.name.removesuffix("_")
    every = (True,) * len(op.inputs)
    if name in _ALLOCATES or name in _RESIZES or traits_of(op.name).view:
        return _Use(writes=False)
    kind = kind_of(op.name)
    if kind is not None:  # c10d's schemas do not say what they write
        taken = _SOURCES | {"tensors", "tensor"} if kind in _READ_IN_PLACE else _SOURCES
        reads = tuple(argument in taken for argument in op.input_names)
        return _Use(reads=reads, fills=tuple(not read for read in reads), updates=kind in _READ_IN_PLACE)
    if op.name.startswith("higher_order::") or not (op.outputs or op.name.startswith("aten::")):
        return _Use(fills=every)
    cost = cost_of(op)
    fusion = op_fusion_of(op, cost)
    if not isinstance(cost, OpCost) or fusion is None:
        return _Use(reads=every)
    reads = tuple(size > 0 for size in fusion.read)
    in_place = op.name.endswith("_") and traits_of(op.name).fusable
    return _Use(
        reads=reads,
        writes=cost.bytes_moved > 0,
        updates=in_place and not any(part in name for part in _FILLS),
    )


def _tensor_of(session: Session, storage: int, maker: int, reader: int) -> TensorSpec:
    columns = session.columns
    tensor = session.signatures[columns.signature[maker]].outputs[0]
    for record in range(maker + 1, 0 if tensor.numel else reader):
        op = session.signatures[columns.signature[record]]
        written = columns.written_ids[columns.written_offsets[record] : columns.written_offsets[record + 1]]
        if op.name.removesuffix("_") in _RESIZES and storage in written:
            tensor = op.outputs[0]
    return TensorSpec(tensor.shape, tensor.dtype)
