"""Tape: the columns of a session while it is being recorded."""

from __future__ import annotations

import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import starmap
from typing import Final

import numpy as np
import torch

from rooflight.costs.cost import Float32Kind
from rooflight.hardware.network.collectives import kind_of
from rooflight.records.assembly import Scope
from rooflight.records.dtypes import FLOAT16_SUMS, float32_fact
from rooflight.records.measurement import Measurement
from rooflight.records.record import Direction, ModuleEntry
from rooflight.records.session import NO_PARENT, NOWHERE, Columns, Int32, Int64, Session
from rooflight.records.signature import AttributeValue, OpSignature
from rooflight.roofline.bound import LIBRARIES
from rooflight.sources.capture.lines import NO_LINE, CallingLines
from rooflight.sources.capture.record.outside import OutsideBirths, foreign_memory
from rooflight.sources.capture.record.schemas import OpSchema, known_int
from rooflight.sources.capture.record.signatures import storage_of


def _setting(library: str) -> Callable[[], str]:
    backend, _, kind = library.partition(".")
    return partial(torch._C._get_fp32_precision_getter, "cuda" if backend == "cudnn" else backend, kind)


def _float16_sums() -> str:
    return str(torch._C._get_cublas_allow_fp16_accumulation())


_SETTINGS: Final = {
    kind: (*((float32_fact(each), _setting(each)) for each in libraries), (FLOAT16_SUMS, _float16_sums))
    for kind, libraries in LIBRARIES.items()
}


@dataclass(frozen=True, slots=True)
class Touched:
    """Storages that some records read and wrote, each once, in order; ``left``: those written and not read later."""

    read: Sequence[int]
    written: Mapping[int, None]
    left: Sequence[int]


class Tape:
    """Append-only columns. They are plain arrays of ints, because every recorded op pays for each append.

    Module, phase, direction, function and calling line are the same for several ops in a row, so an op stores one
    ``context`` number for the five. The signature has how many storages an op reads and writes; their ids follow each
    other in ``touched``, those read before those written.
    """

    def __init__(self) -> None:
        self.keys: dict[tuple[object, ...], int] = {}  # key made by a reader -> number of the signature
        self._signatures: dict[tuple[int, int, int], tuple[int, OpSignature]] = {}
        self._refined: dict[tuple[int, tuple[tuple[str, AttributeValue], ...]], int] = {}
        self._modules: dict[tuple[str, str], int] = {}  # (path, class) -> number
        self._phases: dict[str, int] = {}
        self._functions: dict[str, int] = {}
        self.lines = CallingLines()
        self._contexts: dict[tuple[int, int, int, int, int], int] = {}
        self._context_rows = array("i")  # the same in the order of their numbers, five ints each
        self.signatures = array("i")
        self.contexts = array("i")
        self.touched = array("i")
        self.places = array("q")  # places in ``touched`` of tensors that do not begin where their storage does
        self.starts = array("q")  # where those begin, in elements
        self.storage_ids: dict[int, int] = {}  # address of a live storage -> its id
        self.storage_bytes = array("q")
        self.on_host = array("i")  # ids of storages in the memory of the CPU
        self._foreign: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # address -> storage, its id
        self._exported: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # by number: memory that is shared
        self.births = OutsideBirths()
        self.settings: dict[str, str] = {}  # torch's for products, those of the first
        self.devices: set[str] = set()  # types of devices of the tensors met; of fake tensors also "fake"
        self._parents: dict[int, int] = {}  # by child
        self.timed = array("i")  # records that were timed while they ran
        self.starts_ns = array("q")
        self.ends_ns = array("q")
        self.context(self.module("", ""), self.phase(""), int(Direction.FORWARD), self.function(""))

    def __len__(self) -> int:
        return len(self.signatures)

    def module(self, path: str, class_name: str) -> int:
        """The number of a module in the session's table."""
        return self._modules.setdefault((path, class_name), len(self._modules))

    def module_path(self, number: int) -> str:
        """The qualified name of a module, by its number."""
        return list(self._modules)[number][0]

    def phase(self, name: str) -> int:
        """The number of a phase in the session's table."""
        return self._phases.setdefault(name, len(self._phases))

    def function(self, name: str) -> int:
        """The number of a torch function in the session's table."""
        return self._functions.setdefault(name, len(self._functions))

    def context(self, module: int, phase: int, direction: int, function: int, line: int = NO_LINE) -> int:
        """The number of a module, phase, direction, function and line together."""
        key = (module, phase, direction, function, line)
        number = self._contexts.get(key)
        if number is None:
            number = len(self._context_rows) // 5
            self._context_rows.extend(key)
            self._contexts[key] = number
        return number

    def signature(self, op: OpSignature, reads: int, writes: int) -> int:
        """The number of a signature whose calls touch that many storages."""
        # by identity, since hashing a signature takes longer than making one; equal ones become one in session()
        known = self._signatures.setdefault((id(op), reads, writes), (len(self._signatures), op))
        return known[0]

    def new_storage(self, address: int, nbytes: int, holder: object) -> int:
        """Give the storage that is now at ``address`` an id of its own; ``holder`` is a tensor in it, or itself."""
        number = len(self.storage_bytes)
        self.storage_bytes.append(nbytes if type(nbytes) is int else known_int(nbytes))
        self.storage_ids[address] = number
        if holder.is_cpu if isinstance(holder, torch.Tensor) else _is_cpu(holder):
            self.on_host.append(number)
        return number

    def number_of(self, tensor: torch.Tensor, context: int, known: Sequence[int] | None = None) -> int | None:
        """The id of a tensor's storage; None for opaque layouts, which have none. ``known`` is given for a result: what
        is none of these was just allocated, whatever was at its address before.
        """
        storage = storage_of(tensor)
        if storage is None:
            return None
        if known is None and not storage.resizable():
            return self.foreign_storage(storage, tensor, context)
        number = self.storage_ids.get(storage._cdata)
        if number is None or (known is not None and number not in known):
            number = self.new_storage(storage._cdata, storage.nbytes(), tensor)
            if not storage.resizable():
                self.remember_foreign(storage, number)
        return number

    def foreign_storage(
        self, memory: torch.UntypedStorage, tensor: torch.Tensor, context: int, *, made: bool = False
    ) -> int:
        """The id of a storage that torch did not allocate, and that an op is given or a module returns. ``made``: it
        has been made just now. Storages are told apart even if one lives where another lived before.
        """
        address = memory._cdata
        known = self._foreign.get(address)
        if known is not None and not made and known[0]() is memory:
            self.births.read(known[1], memory)
            return known[1]
        count, births = len(self.storage_bytes), self.births
        module, phase, direction, function, line = self._context_rows[5 * context : 5 * context + 5]
        shared = self._exported_at(memory.data_ptr()) if self._exported else None
        number = self.new_storage(address, memory.nbytes(), tensor) if shared is None else shared
        self.remember_foreign(memory, number)
        place = Scope(module=module, phase=phase, direction=direction, function=function, place=line)
        if number >= count and births.may_be_one(memory, place, made=made):
            births.add(memory, tensor, storage=number, before=len(self), place=place)
        return number

    def remember_foreign(self, memory: torch.UntypedStorage, number: int) -> None:
        """Note the id of a storage that torch did not allocate."""
        self.storage_ids[memory._cdata] = number
        self._foreign[memory._cdata] = weakref.ref(memory), number

    def exported(self, tensor: torch.Tensor) -> None:
        """The memory of a tensor that torch allocated is about to be shared with somebody else."""
        storage = storage_of(tensor)
        if storage is not None and storage.resizable():
            number = self.storage_ids.get(storage._cdata)
            if number is None:
                number = self.new_storage(storage._cdata, storage.nbytes(), tensor)
            self.remember_foreign(storage, number)
            self._exported[number] = weakref.ref(storage)

    def _exported_at(self, address: int) -> int | None:
        """The number of the exported storage with this memory, as ``from_numpy(x.numpy())`` has that of ``x``."""
        alive = {number: storage for number, ref in self._exported.items() if (storage := ref()) is not None}
        self._exported = {number: self._exported[number] for number in alive}
        inside = (n for n, each in alive.items() if each.data_ptr() <= address < each.data_ptr() + each.nbytes())
        return next(inside, None)

    def new_result(self, address: int, nbytes: int, holder: torch.Tensor) -> int:
        """``new_storage`` for the result of an op that may not be torch's own: its memory may not be, either."""
        number = self.new_storage(address, nbytes, holder)
        memory = foreign_memory(holder)
        if memory is not None:
            self.remember_foreign(memory, number)
        return number

    def resized(self, storage: torch.UntypedStorage, record: int, before: int | None = None) -> None:
        """A storage may have another size from ``record`` on; it had ``before`` bytes, if that is known."""

    def call_begins(self) -> None:
        """An outermost module is called."""

    def call_ends(self, output: object) -> None:
        """The outermost module has returned or raised, with ``output``, and its caller has it."""

    def around(self, reader: Callable[..., None], schema: OpSchema) -> Callable[..., None]:  # noqa: ARG002
        """The function to call instead of a reader of this tape of an op with this schema."""
        return reader

    def append(
        self,
        op: OpSignature,
        context: int,
        reads: Sequence[int],
        writes: Sequence[int],
        starts: Sequence[int] = (),
    ) -> int:
        """Add a record; returns its index. Readers of plain ops do the same by hand. ``starts``: where tensors begin
        in their storages, if that is known.
        """
        try:
            first, count = len(self.touched), len(reads) + len(writes)
            self.places.extend(range(first, first + count))
            self.starts.extend(starts if len(starts) == count else [NOWHERE] * count)
            self.contexts.append(context)
            self.touched.extend(reads)
            self.touched.extend(writes)
            self.signatures.append(self.signature(op, len(reads), len(writes)))
        except BaseException:
            self.mend()
            raise
        return len(self.signatures) - 1

    def sink(self, place: int) -> int:
        """Move the newest record in front of record ``place``, which ran after it; returns ``place``."""
        table = list(self._signatures)
        *behind, new = (sum(table[number][1:]) for number in self.signatures[place:])
        if not behind:
            return place
        for column in (self.signatures, self.contexts):
            column.insert(place, column.pop())
        middle = len(self.touched) - new
        begin = middle - sum(behind)
        self.touched[begin:] = self.touched[middle:] + self.touched[begin:middle]
        first = bisect_left(self.places, begin)
        moved = [(at + begin - middle if at >= middle else at + new, start)
                 for at, start in zip(self.places[first:], self.starts[first:], strict=True)]  # fmt: skip
        for number, (at, start) in enumerate(sorted(moved), first):
            self.places[number], self.starts[number] = at, start
        for record in range(place + len(behind) - 1, place - 1, -1):
            if record in self._parents:
                self._parents[record + 1] = self._parents.pop(record) + 1
        for number in range(bisect_left(self.timed, place), len(self.timed)):
            self.timed[number] += 1
        return place

    def mend(self) -> None:
        """Remove the part of a record that an interrupt left: a record counts once its signature is on the tape."""
        count = len(self.signatures)
        if len(self.contexts) > count:
            table = [reads + writes for _, reads, writes in self._signatures]
            del self.touched[sum(table[number] for number in self.signatures) :]
            del self.contexts[count:]
        while self.places and self.places[-1] >= len(self.touched):
            self.places.pop()
        del self.starts[len(self.places) :]

    def storages_of(self, records: Sequence[int]) -> Touched:
        """The storages that some of the last records read and wrote. ``records`` are in order."""
        table = list(self._signatures)
        wanted = set(records)
        parts: list[tuple[Sequence[int], Sequence[int]]] = []
        end = len(self.touched)
        for index in range(len(self.signatures) - 1, records[0] - 1, -1):
            _, num_reads, num_writes = table[self.signatures[index]]
            middle = end - num_writes
            if index in wanted:
                parts.append((self.touched[middle - num_reads : middle], self.touched[middle:end]))
            end = middle - num_reads
        read: dict[int, None] = {}
        written: dict[int, None] = {}
        left: dict[int, None] = {}
        for reads, writes in reversed(parts):
            read.update(dict.fromkeys(reads))
            written.update(dict.fromkeys(writes))
            for storage in reads:
                left.pop(storage, None)
            left.update(dict.fromkeys(writes))
        return Touched(list(read), written, list(left))

    def ops_since(self, first: int) -> list[OpSignature]:
        """The ops of the records from number ``first`` on, without those that have a parent."""
        table = [op for _, op in self._signatures.values()]
        parents = self._parents
        return [table[self.signatures[index]] for index in range(first, len(self)) if index not in parents]

    def refine(self, attributes: tuple[tuple[str, AttributeValue], ...]) -> None:
        """Give the last record's signature further attributes."""
        key = self.signatures[-1], attributes
        if key not in self._refined:
            (_, *counts), (_, op) = list(self._signatures.items())[key[0]]
            refined = replace(op, attributes=(*op.attributes, *attributes))
            self._refined[key] = self.signature(refined, counts[0], counts[1])
        self.signatures[-1] = self._refined[key]

    def note_settings(self, kind: Float32Kind) -> None:
        """Give the newest record, of products, the settings that it ran under where the first product had others."""
        for name, setting in _SETTINGS[kind]:
            now = "ieee" if (found := setting()) == "none" else found
            if now != self.settings.setdefault(name, now):
                self.refine(((name, now),))

    def add_time(self, record: int, start_ns: int, end_ns: int) -> None:
        """Note when a record's op ran."""
        self.starts_ns.append(start_ns)
        self.ends_ns.append(end_ns)
        self.timed.append(record)

    def adopt(self, children: Iterable[int], parent: int) -> None:
        """Let ``parent`` account for the records ``children``."""
        self._parents.update(dict.fromkeys(children, parent))

    def session(self, environment: Mapping[str, str], notes: Sequence[str] = ()) -> Session:
        """The columns so far as an immutable session."""
        self.mend()
        count = len(self.signatures)
        table = np.array(self._context_rows, dtype=np.int32).reshape(-1, 5).T
        contexts = np.array(self.contexts, dtype=np.int32)
        numbers = np.array(self.signatures, dtype=np.int32)
        touched = np.array(self.touched, dtype=np.int32)
        starts = np.zeros(len(touched), dtype=np.int64)
        starts[np.array(self.places, dtype=np.int64)] = np.array(self.starts, dtype=np.int64)
        per_signature = array("q", [num for _, *nums in self._signatures for num in nums])
        counts = np.array(per_signature, dtype=np.int64).reshape(-1, 2).take(numbers, axis=0)
        reads_first = np.zeros((count, 2), dtype=np.bool_)
        reads_first[:, 0] = True
        is_read = np.repeat(reads_first.ravel(), counts.ravel())
        distinct, unique = self._distinct_signatures(set(self.signatures) if self._refined else None)
        parent = np.full(count, NO_PARENT, dtype=np.int32)
        if self._parents:
            parent[list(self._parents)] = list(self._parents.values())
        return Session(
            signatures=tuple(distinct),
            modules=tuple(starmap(_module_entry, self._modules)),
            phases=tuple(self._phases),
            functions=tuple(self._functions),
            places=self.lines.places,
            columns=Columns(
                signature=unique.take(numbers),
                module=table[0].take(contexts),
                phase=table[1].take(contexts),
                function=table[3].take(contexts),
                place=table[4].take(contexts),
                direction=table[2].astype(np.int8).take(contexts),
                parent=parent,
                read_offsets=_offsets(counts[:, 0]),
                read_ids=touched[is_read],
                read_starts=starts[is_read],
                written_offsets=_offsets(counts[:, 1]),
                written_ids=touched[~is_read],
                written_starts=starts[~is_read],
            ),
            storage_bytes=np.array(self.storage_bytes, dtype=np.int64),
            environment={**environment, **self.settings},
            notes=tuple(notes),
            measurement=self._measurement(parent) if self.timed else None,
        )

    def _distinct_signatures(self, used: set[int] | None) -> tuple[dict[OpSignature, int], Int32]:
        by_id: dict[int, int] = {}
        distinct: dict[OpSignature, int] = {}
        unique = array("i")
        for place, op in self._signatures.values():
            if used is not None and place not in used:  # no record has it any more
                unique.append(-1)
                continue
            number = by_id.get(id(op))
            if number is None:
                number = by_id[id(op)] = distinct.setdefault(op, len(distinct))
            unique.append(number)
        return distinct, np.array(unique, dtype=np.int32)

    def _measurement(self, parent: Int32) -> Measurement:
        """A collective has no time: its op returns once it is queued."""
        timed = np.array(self.timed, dtype=np.int64)
        starts, ends = np.array(self.starts_ns, dtype=np.int64), np.array(self.ends_ns, dtype=np.int64)
        seconds, begins = np.full(len(parent), np.nan), np.full(len(parent), np.nan)
        seconds[timed] = (ends - starts) * 1e-9
        begins[timed] = (starts - starts.min()) * 1e-9
        children = np.flatnonzero((parent != NO_PARENT) & np.isfinite(seconds))
        owners = parent[children]
        seconds[owners], begins[owners] = 0.0, np.inf
        np.add.at(seconds, owners, seconds[children])
        np.minimum.at(begins, owners, begins[children])
        is_collective = np.array([kind_of(op.name) is not None for _, op in self._signatures.values()], dtype=bool)
        only_queued = is_collective[np.array(self.signatures, dtype=np.int32)]
        seconds[only_queued] = begins[only_queued] = np.nan
        return Measurement(
            wall_samples_s=np.empty(0),
            op_samples_s=seconds[None],
            op_starts_s=begins[None],
            clock="ops, while they were recorded",
        )


def _is_cpu(holder: object) -> bool:
    return isinstance(holder, torch.UntypedStorage) and holder.device.type == "cpu"


@lru_cache(maxsize=1 << 14)
def _module_entry(path: str, class_name: str) -> ModuleEntry:
    return ModuleEntry(path, class_name)  # the next recording of a model has the same


def _offsets(counts: Int64) -> Int64:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
