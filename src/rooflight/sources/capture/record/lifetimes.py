"""LifetimeTape: a tape that also notes when each storage is freed, and its kind.

It has a weak reference to each storage object. Torch keeps that object for as long as the memory is allocated, whether
a variable, a view or the autograd graph holds it. Nothing is kept alive, and recordings without lifetimes pay nothing.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch._C import DisableTorchFunction, _current_graph_task_id, is_grad_enabled
from torch.optim import optimizer as torch_optimizer

from rooflight.records.record import NO_OWNER, Direction, Owner, StorageKind
from rooflight.records.session import (
    KEPT,
    NOWHERE,
    STOOD,
    Flags,
    Int8,
    Int32,
    Lifetimes,
    Returned,
    Session,
    owners,
    touches_of,
)
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.sources.capture.holders import Holders, holders, plain_parts
from rooflight.sources.capture.record.schemas import OpSchema, known_int
from rooflight.sources.capture.record.signatures import spec_of, start_of, storage_of, tensors_in
from rooflight.sources.capture.record.tape import Tape

_TOO_MANY: Final = "There are over 100,000 objects: the holders of some memory are not known."
Standing = Callable[[], Holders]
"""Which storages are there, and whose they are, where that is known."""


class _Reference(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage that still has the storage's number when that is freed."""

    __slots__ = ("address", "number")

    address: int
    number: int


class LifetimeTape(Tape):
    """A tape whose sessions have lifetimes. Call ``install`` before and ``remove`` after the recording, ``forget``
    last.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made = array("i")  # by storage: how many records there were when it was first met
        self._freed = array("i")
        self._certain: set[int] = set()  # storages for which ``_made`` is when they were allocated
        self._references: dict[int, _Reference] = {}  # by storage
        self._gone: list[_Reference] = []  # filled by list.append: Python code in its place would swallow a Ctrl-C
        self._parameters: set[int] = set()
        self._buffers: set[int] = set()
        self._caches: set[int] = set()
        self._gradients: set[int] = set()
        self._resized: set[int] = set()  # storages that count as freed because they got another size
        self._first_of_call = 0
        self._local = array("i")
        self._returned: dict[Returned, None] = {}  # in order
        self._roots: Callable[[], Iterable[nn.Module]] = tuple
        self._stood: dict[int, Owner] = {}  # by storage that was there when the recording began
        self._names_known = self._all_seen = True
        self._follows_all = False
        self._with_grad = False
        self._switches = array("i")  # the records before which gradients were switched on, off, on, ...
        self._in_backward = False
        self._sums_of_views = array("i")  # records

    def install(self, roots: Callable[[], Iterable[nn.Module]], standing: Standing | None = None) -> None:
        """Begin to follow storages. ``roots`` returns the outermost modules met so far: their tensors exist already, as
        does what is ``standing``.
        """
        self._roots = roots
        torch_optimizer.register_optimizer_step_pre_hook(self._before_step)
        self._note_modules(STOOD)
        self._follows_all = standing is not None
        held = standing() if standing is not None else Holders()
        self._names_known, self._all_seen = bool(held.names), held.whole
        for storage in held.storages:
            address = storage._cdata
            number = self.storage_ids.get(address)
            owner = Owner(holder=held.names.get(address, ""), where=held.places.get(address, NO_OWNER.where))
            self._stood[self._begin(storage, STOOD) if number is None else number] = owner

    def remove(self) -> None:
        """Take the hooks out. They are searched for, since an interrupt may have lost their handles."""
        hooks = torch_optimizer._global_optimizer_pre_hooks
        for number in [number for number, hook in hooks.items() if hook == self._before_step]:
            hooks.pop(number, None)

    def forget(self) -> None:
        """Drop the references to the model and to the storages that are not freed."""
        self._roots = tuple
        self._references.clear()
        self._gone.clear()

    def new_storage(self, address: int, nbytes: int, holder: object) -> int:
        """Give the storage that is now at ``address`` an id of its own, and follow it."""
        storage = storage_of(holder) if isinstance(holder, torch.Tensor) else None
        if storage is None:
            return self._add(super().new_storage(address, nbytes, holder))
        number = self.storage_ids.get(address, -1)
        reference = self._references.get(number)
        if reference is not None and reference() is storage:
            return number  # an op returned a tensor that is neither new nor one of its arguments
        return self._begin(storage)

    def around(self, reader: Callable[..., None], schema: OpSchema) -> Callable[..., None]:
        """The reader, with the steps that must precede the record of an op that has just run."""
        resizes = "out" in schema.names or schema.name.startswith("aten::resize")
        gone = self._gone

        def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
            if gone:
                self._settle()
            if is_grad_enabled() is not self._with_grad:
                self._with_grad = not self._with_grad
                self._switches.append(len(self))
            if _current_graph_task_id() != -1:
                self._in_backward = True
            elif self._in_backward:
                self._in_backward = False
                self._note_modules()
            reader(args, kwargs, out, context)

        def read_resized(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
            read(args, kwargs, out, context)
            for tensor in tensors_in((args, kwargs)):
                storage = storage_of(tensor)
                if storage is not None:
                    self.resized(storage, len(self) - 1)

        def read_sum(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
            if args[0]._is_view():
                self._sums_of_views.append(len(self))
            read(args, kwargs, out, context)

        return read_resized if resizes else read_sum if schema.name == "aten::add" else read

    def call_begins(self) -> None:
        """Begin a call of an outermost module: storages made from now on are made in it."""
        self._first_of_call = len(self.storage_bytes)

    def call_ends(self, output: object) -> None:
        """End that call. Storages that it made and that are freed by now were local: nothing else has read them."""
        self._settle()
        freed, resized = self._freed, self._resized
        made = range(self._first_of_call, len(freed))
        self._local.extend(number for number in made if freed[number] != KEPT and number not in resized)
        if not is_plain(output):
            for number in made:
                if freed[number] == KEPT:
                    self._returned[Returned(number, 0, _all_of(self.storage_bytes[number]))] = None
        with DisableTorchFunction():
            for tensor in tensors_in(output):
                for part in plain_parts(tensor):
                    self._note_returned(part)

    def resized(self, storage: torch.UntypedStorage, record: int, before: int | None = None) -> None:
        """Note that a storage may have another size from ``record`` on: it is then another storage. One that was empty
        ``before``, as FSDP leaves what it gathers between steps, is made by it.
        """
        number = self.storage_ids.get(storage._cdata, -1)
        reference = self._references.get(number)
        if reference is None or reference() is not storage:
            if before == 0 and storage.nbytes():
                self._begin(storage, record)
            return
        if known_int(storage.nbytes()) == self.storage_bytes[number]:
            return
        self._freed[number] = record
        self._resized.add(number)
        del self._references[number]
        successor = self._begin(storage, record)
        for numbers in (self._parameters, self._gradients):
            if number in numbers:
                numbers.add(successor)

    def append(
        self,
        op: OpSignature,
        context: int,
        reads: Sequence[int],
        writes: Sequence[int],
        starts: Sequence[int] = (),
    ) -> int:
        """Add a record; returns its index. Storages freed since the last record were freed before this one."""
        self._settle()
        return super().append(op, context, reads, writes, starts)

    def sink(self, place: int) -> int:
        """Move the newest record in front of record ``place``; what was made or freed by those between is so by them
        where they are now.
        """
        last = len(self) - 1
        for column in (self._made, self._freed, self._sums_of_views):
            records = np.frombuffer(column, dtype=column.typecode)
            later = (records >= place) & (records <= last)
            by_itself = later & (records == last) & (column is self._made)
            records += later
            records[by_itself] = place
        return super().sink(place)

    def session(self, environment: Mapping[str, str], notes: Sequence[str] = ()) -> Session:
        """The columns so far as an immutable session, with the lifetimes so far."""
        self._note_modules()
        session = super().session(environment, notes)
        made, freed = self._made_and_freed(session)
        # in a backward pass gradients are on while a checkpoint recomputes, or throughout (create_graph)
        switches = np.array(self._switches, dtype=np.int64)
        with_grad = np.searchsorted(switches, np.arange(len(session)), side="right") % 2 == 1
        owner, owners = self._owners(len(made))
        kind = self._kinds(session, made, freed, with_grad)
        held_as_cache = np.array([_is_cache(each.holder) for each in owners])[owner]
        kind[held_as_cache & (kind == StorageKind.DATA)] = StorageKind.CACHE
        _add_in_place(session, made, freed, with_grad, self._sums_of_views)
        local = np.zeros(len(made), dtype=np.bool_)
        local[self._local] = True
        lifetimes = Lifetimes(
            kind=kind, made=made, freed=freed, local=local, owner=owner, owners=owners, returned=tuple(self._returned)
        )
        notes = session.notes if self._all_seen else (*session.notes, _TOO_MANY)
        return replace(session, lifetimes=lifetimes, notes=notes)

    def left(self) -> list[tuple[int, weakref.ref[torch.UntypedStorage]]]:
        """Storages that were made since the recording began, and are still there."""
        there = ((number, each) for number, each in self._references.items() if each() is not None)
        return [(number, each) for number, each in there if self._made[number] != STOOD]

    def _owners(self, count: int) -> tuple[Int32, tuple[Owner, ...]]:
        """Who holds each storage, as far as the program's own names tell: when the recording began or, where none were
        asked for then, now.
        """
        numbers = {NO_OWNER: 0}
        owner = np.zeros(count, dtype=np.int32)
        if not self._follows_all:
            return owner, tuple(numbers)
        for number, known in self._stood.items():
            owner[number] = numbers.setdefault(known, len(numbers))
        if self._names_known:
            return owner, tuple(numbers)
        held = holders()
        self._all_seen = held.whole
        for number, reference in self._references.items():
            if reference() is not None and (name := held.names.get(reference.address)):
                where = self._stood.get(number, NO_OWNER).where
                owner[number] = numbers.setdefault(Owner(holder=name, where=where), len(numbers))
        return owner, tuple(numbers)

    # -- births and deaths -------------------------------------------------------------------------------------------

    def _begin(self, storage: torch.UntypedStorage, made: int | None = None) -> int:
        """Follow a storage from now on. ``made`` is None for an operand: it is not known when that was made."""
        number = self._add(super().new_storage(storage._cdata, storage.nbytes(), storage))
        if made is not None:
            self._made[number] = made
            self._certain.add(number)
        reference = self._references[number] = _Reference(storage, self._gone.append)
        reference.number, reference.address = number, storage._cdata
        return number

    def _add(self, number: int) -> int:
        for column, value in ((self._made, len(self)), (self._freed, KEPT)):
            column.extend([value] * (number + 1 - len(column)))  # more than one after an interrupt
        return number

    def _settle(self) -> None:
        gone, ids = self._gone, self.storage_ids
        while gone:
            reference = gone.pop()
            number = reference.number
            self._freed[number] = len(self)
            self._references.pop(number, None)
            if ids.get(reference.address) == number:
                del ids[reference.address]

    # -- kinds of storages -------------------------------------------------------------------------------------------

    def _note_modules(self, made: int | None = None) -> None:
        self._settle()
        with DisableTorchFunction():
            for root in self._roots():
                for parameter in root.parameters():
                    self._note(parameter, self._parameters, STOOD)
                    if parameter.is_leaf and parameter.grad is not None:
                        self._note(parameter.grad, self._gradients, len(self) if made is None else made)
                for name, buffer in root.named_buffers():
                    self._note(buffer, self._caches if _is_cache(name) else self._buffers, made)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Storages that no op has touched are left out: they may belong to another thread."""
        self._settle()
        with DisableTorchFunction():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._note(parameter, self._parameters)
                    if parameter.is_leaf and parameter.grad is not None:
                        self._note(parameter.grad, self._gradients)

    def _note(self, tensor: torch.Tensor, numbers: set[int], made: int | None = None) -> None:
        for part in plain_parts(tensor):
            storage = storage_of(part)
            number = None if storage is None else self.storage_ids.get(storage._cdata)
            if storage is not None and number is None and made is not None:
                number = self._begin(storage, made)
            if number is not None:
                numbers.add(number)

    def _note_returned(self, tensor: torch.Tensor) -> None:
        storage, start = storage_of(tensor), start_of(tensor)
        number = None if storage is None else self.storage_ids.get(storage._cdata)
        if number is not None:
            whole = start == NOWHERE
            spec = _all_of(self.storage_bytes[number]) if whole else spec_of(tensor)
            self._returned[Returned(number, 0 if whole else start, spec)] = None

    def _made_and_freed(self, session: Session) -> tuple[Int32, Int32]:
        count = len(session)
        self._add(len(self.storage_bytes) - 1)  # an interrupt may have come before the last was noted here
        made, freed = np.array(self._made, dtype=np.int64), np.array(self._freed, dtype=np.int64)
        certain = np.zeros(len(made), dtype=np.bool_)
        certain[list(self._certain)] = True
        touches = touches_of(session)
        # storages that were first met as an operand were allocated before the recording
        stood = ~certain & (touches.first_read <= touches.first_written) & (touches.first_read == made)
        made[stood] = STOOD
        return np.minimum(made, count).astype(np.int32), np.minimum(freed, count).astype(np.int32)

    def _kinds(self, session: Session, made: Int32, freed: Int32, with_grad: Flags) -> Int8:
        kind = np.full(len(made), StorageKind.TEMPORARY, dtype=np.int8)
        if len(session):
            kind[_activations(session, made, freed, with_grad)] = StorageKind.ACTIVATION
        kind[made == STOOD] = StorageKind.DATA
        kind[_optimizer_state(session, made, freed)] = StorageKind.OPTIMIZER_STATE
        kind[list(self._gradients)] = StorageKind.GRADIENT
        kind[list(self._parameters)] = StorageKind.PARAMETER
        buffers = np.array([*self._buffers], dtype=np.int64)
        kind[buffers[made[buffers] == STOOD]] = StorageKind.BUFFER
        kind[[*self._caches]] = StorageKind.CACHE
        touched = np.zeros(len(kind), dtype=np.bool_)
        touched[session.columns.read_ids] = touched[session.columns.written_ids] = True
        kind[~touched & (kind == StorageKind.DATA)] = StorageKind.OTHER
        return kind


def _activations(session: Session, made: Int32, freed: Int32, with_grad: Flags) -> Flags:
    """Storages made by a forward pass or its recomputation, and not freed when the backward pass begins."""
    count, direction = len(session), session.columns.direction
    backward = np.flatnonzero((direction == Direction.BACKWARD) & ~with_grad)
    if not len(backward):
        backward = np.flatnonzero(direction == Direction.BACKWARD)
    maker = np.clip(made, 0, count - 1)
    forward = direction[maker] == Direction.FORWARD
    forward |= (direction[maker] == Direction.BACKWARD) & with_grad[maker]
    forward &= made != STOOD
    if not len(backward):
        return np.asarray(forward & with_grad[maker] & (freed == KEPT))
    following = np.append(backward, count)[np.searchsorted(backward, made, side="right")]
    return np.asarray(forward & (following < count) & ((freed == KEPT) | (freed > following)))


def _add_in_place(session: Session, made: Int32, freed: Int32, with_grad: Flags, of_views: Sequence[int]) -> None:
    """Undo an effect of recording on the autograd engine. It adds gradients of a tensor that was used twice in place,
    except if Python has touched them, as a dispatch mode does, or if the first is a view. So a gradient that is freed
    right after such a sum is replaced by the sum, if it came first (accumulate in input_buffer.cpp).
    """
    columns, sizes = session.columns, session.storage_bytes
    is_sum = np.array([op.name == "aten::add" and len(op.inputs) == 2 for op in session.signatures], dtype=np.bool_)
    chosen = is_sum[columns.signature] & (columns.direction == Direction.BACKWARD) & ~with_grad
    chosen &= (np.diff(columns.read_offsets) == 2) & (np.diff(columns.written_offsets) == 1)
    records = np.flatnonzero(chosen)
    first = columns.read_ids[columns.read_offsets[records]]
    second = columns.read_ids[columns.read_offsets[records] + 1]
    total = columns.written_ids[columns.written_offsets[records]]
    spent = ~np.isin(records, of_views) & (first != second) & (freed[first] == records + 1)
    spent &= (made[first] != STOOD) & (sizes[first] == sizes[total])
    freed[first[spent]] = records[spent]


def _optimizer_state(session: Session, made: Int32, freed: Int32) -> Flags:
    """Storages made by an optimizer's step and kept, or allocated before and touched only by optimizers."""
    columns, storages = session.columns, len(made)
    touched: dict[bool, Any] = {is_optimizer: np.zeros(storages, dtype=np.bool_) for is_optimizer in (True, False)}
    for ids, offsets in (
        (columns.read_ids, columns.read_offsets),
        (columns.written_ids, columns.written_offsets),
    ):
        by_optimizer = columns.direction[owners(offsets)] == Direction.OPTIMIZER
        for is_optimizer, mask in touched.items():
            mask[ids[by_optimizer == is_optimizer]] = True
    only = touched[True] & ~touched[False]
    return np.asarray(only & ((made == STOOD) | (freed == KEPT)))


def _is_cache(name: str) -> bool:
    return "cache" in name or "past_key" in name


def is_plain(value: object) -> bool:
    """Whether ``tensors_in`` finds every tensor of a value: it holds nothing else that might have some."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return value is None or isinstance(value, torch.Tensor | int | float | complex | str | bytes | torch.dtype)


def _all_of(nbytes: int) -> TensorSpec:
    return TensorSpec((nbytes,), "uint8")
