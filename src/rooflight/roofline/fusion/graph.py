"""Which ops one kernel could do together: a session's ops, the values between them, and regions of ops."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.records.session import Flags, Int64, Session, touches_of
from rooflight.roofline.fusion.narrowing import Narrowed
from rooflight.roofline.fusion.ops import OpFusion, PartialTouches, touched_by
from rooflight.roofline.fusion.parts import Part, add_part, union_bytes

_INT64: Final = "q"

_WHOLE: Final[tuple[dict[int, Part], dict[int, Part]]] = ({}, {})
_MOST_BENEATH: Final = 64
"""Parts of one storage that are compared with each other when an op reads them all."""


Touch = tuple[int, Part | None]
"""How many bytes a call touched of a storage, and their part where that is known."""


@dataclass(slots=True)
class Region:
    """Ops that one kernel could do. Bytes are by storage."""

    records: list[int] = field(default_factory=list)
    reads: dict[int, int] = field(default_factory=dict)
    writes: dict[int, int] = field(default_factory=dict)

    @property
    def bytes_read(self) -> int:
        """Bytes that must enter the kernel."""
        return sum(self.reads.values())

    @property
    def bytes_written(self) -> int:
        """Bytes that must leave the kernel."""
        return sum(self.writes.values())


class Alone(Sequence[Region]):
    """Regions of one record each that touches no storage, without an object for each."""

    def __init__(self, records: Int64) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Alone(self.records[place])
        return Region(records=[int(self.records[place])])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """Of a value that chains computed from a product: the product, whether by a softmax, and what the last of them read
    (a value and the same of it), nothing of the product's own result.
    """

    product: int
    softmax: bool = False
    read: tuple[int, _Scores] | None = None


class OpGraph:
    """Ops, the values between them and which ops share a region, made in one pass through a session.

    A value is what a storage holds from one write to the next; of a write to a part of it, that part. Ops and values
    are numbers into lists, for speed.
    """

    def __init__(
        self,
        session: Session,
        fusions: Sequence[OpFusion | None],
        calls: NDArray[np.bool_],
        partial: PartialTouches,
        narrowed: Mapping[int, Narrowed],
        equal: Mapping[int, int],
    ) -> None:
        """``fusions`` go with the session's signatures; ``calls`` are the records whose ops are in the graph,
        ``narrowed`` those of which only a part is needed, ``equal`` those whose results an earlier record has made.
        """
        self.records = array(_INT64)  # by op, like what follows
        self._again: dict[int, list[int]] = {}  # op -> records that make its results again
        self.fusions: list[OpFusion] = []
        self.first_made = array(_INT64)  # number of the op's first value
        self._first_input = array(_INT64, [0])
        self._inputs = array(_INT64)  # values, op by op and place by place
        self._stages = array(_INT64)
        self._joined = array(_INT64)  # an earlier op of the same region, or itself
        self.storages = array(_INT64)  # by value, like what follows
        self.makers = array(_INT64)  # op that wrote it, -1 if none of the step did
        self.sizes = array(_INT64)
        self.is_read = bytearray()
        self._value_stages = array(_INT64)
        self._readers = array(_INT64)  # a fusable op that reads it, -1 if none does
        self._later_readers: dict[tuple[int, int], int] = {}  # value, stage -> the same for further stages
        self.held: dict[int, int] = {}  # storage -> the value it holds now, the latest of those written in parts
        self._beneath: dict[int, dict[int, None]] = {}  # storage -> earlier values of which parts may still be there
        self._latest: dict[tuple[int, Part], int] = {}  # storage and part -> the value that was written there last
        self._unread: dict[int, list[int]] = {}  # of these, those that no op has read yet
        self._parts: dict[int, Part] = {}  # value -> the part that was written
        self.parts_read: dict[tuple[int, int], Part] = {}  # op, place -> the part that it reads, all of it
        self.from_before: dict[tuple[int, int], tuple[int, int]] = {}
        """Op, place -> the value that stood before the step, and how much of what the op reads must be of it, although
        the storage was written in parts since."""
        self.taken: dict[int, int] = {}  # value beneath -> bytes of it that an op reads which computes nothing again
        self._early: dict[int, set[Part]] = {}  # stood value -> what is read of it
        self._written_since: dict[int, int] = {}  # storage that stood -> the most that was written in parts since
        self._read_since: dict[int, set[Touch]] = {}  # and what was read since
        self.stood: dict[int, int] = {}  # storage -> the value it held before the step
        self.attending: set[int] = set()  # products that a softmax makes attention of
        self.between: set[int] = set()  # values between those, which a kernel of attention never stores
        self._scores: dict[int, _Scores] = {}  # by value that chains computed from a product
        self.inside = _made_inside(session)
        self._made = _made_first(session)
        self._storage_bytes = array(_INT64, session.storage_bytes.tobytes())
        for record, fusion, reads, writes in calls_of(session, fusions, calls):
            parts_read, parts_written = partial.get(record, _WHOLE)
            less = narrowed.get(record)
            if record in equal:
                op = bisect_left(self.records, equal[record])
                self._again.setdefault(op, []).append(record)
                for value in [self.held[storage] for storage in reads if storage in self.held]:
                    self.is_read[value] = True
                self.held.update(zip(writes, count(self.first_made[op])))
            elif less is None:
                self._add(record, fusion, reads, writes, parts_read, parts_written)
            else:
                fused = replace(fusion, read=less.read, written=less.written)
                self._add(record, fused, reads, writes, less.parts_read, parts_written)
        for value, parts in self._early.items():
            self.sizes[value] = max(self.sizes[value], union_bytes(parts))

    def records_of(self, op: int) -> Sequence[int]:
        """The record of an op, and those that make its results again."""
        return [self.records[op], *self._again.get(op, ())]

    def inputs_of(self, op: int) -> Sequence[int]:
        """The values an op reads, by place."""
        return self._inputs[self._first_input[op] : self._first_input[op + 1]]

    def sources_of(self, value: int) -> dict[int, int]:
        """The values that one was computed from, and how many bytes the op that made it needs of each."""
        maker, found = self.makers[value], dict[int, int]()
        first, fusion = self._first_input[maker], self.fusions[maker]
        for place in fusion.feeds[value - self.first_made[maker] if len(fusion.feeds) > 1 else 0]:
            source = self._inputs[first + place]
            found[source] = found.get(source, 0) + fusion.read[place]
        return found

    def first_ops(self) -> list[int]:
        """By op, the first one of its region."""
        first: list[int] = []
        for op, earlier in enumerate(self._joined):
            first.append(op if earlier == op else first[earlier])
        return first

    def in_storage(self, storage: int) -> list[tuple[int, int]]:
        """The values that were written and of which something is left in a storage, with the bytes left."""
        values = [*self._beneath.get(storage, ()), self.held[storage]]
        if len(values) == 1:
            return [(value, self.sizes[value]) for value in values if self.makers[value] >= 0]
        left = visible_bytes([(self.sizes[value], self._parts.get(value)) for value in values])
        return [(value, size) for value, size in zip(values, left, strict=True) if size]

    def bytes_in(self, of: Flags | None = None) -> int:
        """Bytes that were there before the step and that it reads, each once, wherever ops read them; with ``of``, only
        those in storages that it marks.
        """
        total = 0
        for storage, value in self.stood.items():
            if of is not None and not of[storage]:
                continue
            size = self.sizes[value]
            if storage in self._written_since:  # of what was read later, what was not written may be from before
                early = {(part.nbytes, part) for part in self._early.get(value, ())}
                read = least_bytes({(size, None), *early, *self._read_since.get(storage, ())})
                size = max(size, read - self._written_since[storage])
            total += size
        return total

    def leave_out_between(self, results: Iterable[int]) -> None:
        """Let nothing of attention be stored between its products but what is a result too."""
        self.between -= set(results)
        for value in self.between:
            self.sizes[value] = 0

    def _add(
        self,
        record: int,
        fusion: OpFusion,
        reads: Sequence[int],
        writes: Sequence[int],
        parts_read: Mapping[int, Part],
        parts_written: Mapping[int, Part],
    ) -> None:
        op, held = len(self.fusions), self.held
        inputs = [held[storage] if storage in held else self._stand(storage) for storage in reads]
        self.records.append(record)
        self.fusions.append(fusion)
        self._inputs.extend(inputs)
        self._first_input.append(len(self._inputs))
        unread = [held[storage] for storage in writes if storage in held and not self.is_read[held[storage]]]
        stage = self._read(fusion, inputs, parts_read)
        for value in unread:  # to be written over is not to be read
            if fusion.known and not any(size for each, size in zip(inputs, fusion.read, strict=True) if each == value):
                self.is_read[value] = False
        if self._beneath:
            self._read_beneath(op, reads, parts_read)
        self._stages.append(stage)
        self._joined.append(op)
        if fusion.with_makers:
            self._join(op, self._neighbours(op, fusion, inputs))
        scores = self._attend(op, fusion, inputs, stage)
        if scores is not None:
            self._scores.update(dict.fromkeys(range(len(self.makers), len(self.makers) + len(writes)), scores))
        self._write(op, fusion.written, writes, stage if fusion.is_chain else stage + 1)
        for place, storage in enumerate(writes):
            self._hold(storage, len(self.makers) - len(writes) + place, parts_written.get(place), fusion)

    def _read(self, fusion: OpFusion, inputs: Sequence[int], parts: Mapping[int, Part]) -> int:
        """Note what a call reads. Returns its stage."""
        stages, makers, sizes, is_read = self._value_stages, self.makers, self.sizes, self.is_read
        stage = 0
        for value, size in zip(inputs, fusion.read, strict=True):
            is_read[value] = True
            if size or not fusion.known:
                stage = max(stage, stages[value])
                if makers[value] < 0 and sizes[value] < size:
                    sizes[value] = size
        for place, part in parts.items():
            value = inputs[place]
            if part.nbytes == fusion.read[place]:
                self.parts_read[len(self.fusions) - 1, place] = part
                if makers[value] < 0:
                    self._early.setdefault(value, set()).add(part)
        return stage

    def _read_beneath(self, op: int, reads: Sequence[int], parts: Mapping[int, Part]) -> None:
        """Note what a call reads of storages that were written in parts, beside the latest."""
        fusion = self.fusions[op]
        for place, (storage, size) in enumerate(zip(reads, fusion.read, strict=True)):
            if not size or storage not in self._beneath:
                continue
            part = parts.get(place)
            if storage in self._written_since:
                self._read_since.setdefault(storage, set()).add((size, part))
                if fusion.with_makers and size > self._written_since[storage]:
                    self.from_before[op, place] = self.stood[storage], size - self._written_since[storage]
            waiting = self._unread.get(storage)
            if not waiting:
                continue
            met = [value for value in waiting if part is None or part.meets(self._parts.get(value))]
            self._unread[storage] = [value for value in waiting if value not in met]
            for value in met:
                self.is_read[value] = True
            reads_all = size == (self._storage_bytes[storage] if part is None else part.nbytes)
            if not fusion.with_makers and reads_all and len(self._beneath[storage]) <= _MOST_BENEATH:
                left = dict(self.in_storage(storage))
                for value in met:
                    if part is None or part.has(self._parts.get(value)):
                        self.taken[value] = left.get(value, 0)

    def _hold(self, storage: int, value: int, part: Part | None, fusion: OpFusion) -> None:
        """Let a storage hold a value that was just written: beside what it held, if that was written over in part."""
        before = self.held.get(storage)
        scattered = part is None and fusion.with_makers and not fusion.with_readers
        if part is None and not (scattered and self.sizes[value] < self._storage_bytes[storage]):
            self._beneath.pop(storage, None)
            self._unread.pop(storage, None)
            if storage in self._written_since:
                self._written_since[storage] += self._storage_bytes[storage]
        else:
            beneath = self._beneath.setdefault(storage, {})
            again = False
            if part is not None:
                self._parts[value] = part
                earlier = self._latest.get((storage, part), -1)
                again = earlier >= 0 and self.sizes[earlier] == part.nbytes
                beneath.pop(earlier, None)
                self._latest[storage, part] = value
            if before is not None and self.makers[before] >= 0 and (part is None or self._parts.get(before) != part):
                beneath[before] = None
                if not self.is_read[before]:
                    self._unread.setdefault(storage, []).append(before)
            if storage in self.stood:
                written = self._written_since.get(storage, 0)
                self._written_since[storage] = written if again else written + self.sizes[value]
        self.held[storage] = value

    def _neighbours(self, op: int, fusion: OpFusion, inputs: Sequence[int]) -> list[int]:
        """Earlier ops that a fusable one shares a kernel with: of its stage, makers and readers of what it reads."""
        stages, makers, readers, fusions = self._stages, self.makers, self._readers, self.fusions
        stage = stages[op]
        found: list[int] = []
        for value, size in zip(inputs, fusion.read, strict=True):
            if not size:
                continue
            maker, reader = makers[value], readers[value]
            if maker >= 0 and self._value_stages[value] == stage and fusions[maker].with_readers:
                found.append(maker)
            if reader < 0:
                readers[value] = op
            elif stages[reader] == stage:
                found.append(reader)
            else:
                found.append(self._later_readers.setdefault((value, stage), op))
        return found

    def _join(self, op: int, neighbours: Iterable[int]) -> None:
        joined, first = self._joined, op
        for neighbour in neighbours:
            other = neighbour
            while joined[other] != other:  # up to the first op of its region
                joined[other] = other = joined[joined[other]]
            if other != first:
                joined[max(first, other)] = min(first, other)
                first = min(first, other)

    def _attend(self, op: int, fusion: OpFusion, inputs: Sequence[int], stage: int) -> _Scores | None:
        """Find attention: a product, chains with a softmax, and the product that reads what they make. Returns what is
        known of the op's own results.
        """
        known = [(value, self._scores[value]) for value in inputs if value in self._scores]
        if fusion.product:
            for value, scores in known:
                if not scores.softmax:
                    continue
                self.attending |= {scores.product, op}
                if self._value_stages[value] == stage:
                    self._join(op, [self.makers[value]])
                way: tuple[int, _Scores] | None = (value, scores)
                while way is not None and way[0] not in self.between:
                    self.between.add(way[0])
                    way = way[1].read
            return _Scores(product=op)
        if not (known and fusion.is_chain):
            return None
        value, scores = known[0]
        return _Scores(product=scores.product, softmax=scores.softmax or fusion.softmax, read=(value, scores))

    def _write(self, op: int, sizes: Sequence[int], writes: Sequence[int], stage: int) -> None:
        first, count = len(self.makers), len(writes)
        self.first_made.append(first)
        self.storages.extend(writes)
        self.sizes.extend(sizes)
        self.makers.extend([op] * count)
        self._value_stages.extend([stage] * count)
        self._readers.extend([-1] * count)
        self.is_read += b"\x01" * count
        if count:
            self.is_read[first] = False  # a compiler leaves out other results that no op reads

    def _stand(self, storage: int) -> int:
        """What a storage held that no counted op wrote: it was there before, or a part of a composite made it."""
        value = self.held[storage] = len(self.makers)
        if not self.inside[storage] and not self._made[storage]:
            self.stood[storage] = value
        self.storages.append(storage)
        self.makers.append(-1)
        self.sizes.append(0)
        self._value_stages.append(0)
        self._readers.append(-1)
        self.is_read.append(True)
        return value


def least_bytes(touches: Collection[Touch]) -> int:
    """Bytes that several touches of one storage cover together: the least it can be."""
    known = [part for size, part in touches if part is not None and part.nbytes == size]
    return max([union_bytes(known), *(size for size, _ in touches)])


def visible_bytes(writes: Sequence[Touch]) -> list[int]:
    """Of each of several writes to one storage, oldest first, how many bytes the later ones surely left there."""
    found, later, unplaced = list[int](), dict[Part, None](), 0
    for size, part in reversed(writes):
        covered = union_bytes(later)
        is_placed = part is not None and size == part.nbytes
        if part is not None and is_placed:
            add_part(later, part)
        found.append(max(0, (union_bytes(later) - covered if is_placed else size - covered) - unplaced))
        unplaced += 0 if is_placed else size
    return found[::-1]


def _made_first(session: Session) -> bytes:
    """By storage, 1 where some record of the session made it before any read it: an allocation runs no kernel."""
    touches = touches_of(session)
    return (touches.first_written < touches.first_read).tobytes()


def _made_inside(session: Session) -> bytes:
    """By storage, 1 where a part of a composite wrote it."""
    found = np.zeros(len(session.storage_bytes), dtype=np.bool_)
    found[session.columns.written_ids[np.repeat(~session.counted, np.diff(session.columns.written_offsets))]] = True
    return found.tobytes()


def calls_of(
    session: Session, fusions: Sequence[OpFusion | None], calls: NDArray[np.bool_]
) -> Iterator[tuple[int, OpFusion, list[int], list[int]]]:
    """Record, fusion, storages read and written of each of ``calls`` that runs a kernel."""
    for record, signature, reads, writes in touched_by(session, np.flatnonzero(calls)):
        fusion = fusions[signature]
        if fusion is not None:
            if len(reads) != len(fusion.read) or len(writes) != len(fusion.written):
                fusion = fusion.of_call(len(reads), len(writes))
            yield record, fusion, reads, writes
