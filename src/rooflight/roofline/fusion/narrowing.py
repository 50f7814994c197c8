"""Of which ops only a part of the results is read, and what that part takes: a compiler computes no more of them.

One pass from the last record to the first keeps, of each storage, which parts later ops or the caller read. An op must
compute what of its results is among these, and for that read what ``needs`` has. Where it is not known what is needed,
less counts, never more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.costs.cost import Needs, OpCost, Uncosted
from rooflight.costs.registry import traits_of
from rooflight.records.session import KEPT, STOOD, Flags, Lifetimes, Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.fusion.boxes import NOTHING, Demand, Run, Wanted, box_of, canonical, part_of
from rooflight.roofline.fusion.needs import line_picked, needed, work_needed
from rooflight.roofline.fusion.ops import OpFusion
from rooflight.roofline.fusion.parts import Part, PartialTouches, is_inside, may_meet, strides_of, union_bytes

_MOST_PARTS: Final = 64
"""Parts of one storage that are followed one by one."""
_NO_PARTS: Final[tuple[dict[int, Part], dict[int, Part]]] = ({}, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """What a call takes of which only a part is needed: bytes by place as ``OpFusion`` has them, parts read by place
    where each is one, and the share of the op's FLOPs.
    """

    read: tuple[int, ...]
    written: tuple[int, ...]
    parts_read: Mapping[int, Part]
    work: float


def narrowed_calls(
    session: Session,
    fusions: Sequence[OpFusion | None],
    costs: Sequence[OpCost | Uncosted],
    calls: Flags,
    partial: PartialTouches,
) -> dict[int, Narrowed]:
    """By record, what those of ``calls`` take of which only a part is needed. ``fusions`` and ``costs`` go with the
    session's signatures, ``partial`` is the session's. Without lifetimes it is not known what the caller reads: none.
    """
    lifetimes = session.lifetimes
    if lifetimes is None or not _may_narrow(session, lifetimes, fusions, calls, partial):
        return {}
    return _Pass(session, lifetimes, fusions, costs, partial).run(calls)


def _may_narrow(
    session: Session,
    lifetimes: Lifetimes,
    fusions: Sequence[OpFusion | None],
    calls: Flags,
    partial: PartialTouches,
) -> bool:
    """Whether some call reads, or the caller has, a part of what another call made. Most sessions need no pass."""
    columns = session.columns
    made = np.zeros(len(session.storage_bytes), dtype=np.bool_)
    made[columns.written_ids[np.repeat(calls, np.diff(columns.written_offsets))]] = True
    if any(
        made[each.storage] and each.tensor.nbytes < session.storage_bytes[each.storage] for each in lifetimes.returned
    ):
        return True
    if any(traits_of(op).part_needs is Needs.DIVIDED for op in session.signatures):
        return True
    picks = [
        fusion is not None
        and fusion.known
        and any(0 < size < tensor.nbytes for size, tensor in zip(fusion.read, op.inputs, strict=False))
        for op, fusion in zip(session.signatures, fusions, strict=True)
    ]
    picking = np.repeat(calls & np.array(picks, dtype=np.bool_)[columns.signature], np.diff(columns.read_offsets))
    if made[columns.read_ids[picking]].any():
        return True
    ids, offsets = columns.read_ids, columns.read_offsets
    return any(
        calls[record] and any(made[ids[offsets[record] + place]] for place in reads)
        for record, (reads, _) in partial.items()
        if reads and fusions[columns.signature[record]] is not None
    )


class _Wants:
    """What is wanted of a storage from a record on: all but what is ``gone``, or parts and so many bytes anywhere."""

    __slots__ = ("gone", "least", "lines", "parts", "whole")

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole
        self.gone: list[Part] = []
        self.parts: dict[Part, None] = {}
        self.lines: set[tuple[Part, Run]] = set()  # some element of every line of this size and stride
        self.least = 0

    def add(self, part: Part | None, nbytes: int) -> None:
        """Want a part too, or so many bytes of it."""
        if self.whole:
            if part is not None and self.gone:
                self.gone = [each for each in self.gone if not is_inside(each, part)]
        elif part is None:
            self.least = max(self.least, nbytes)
        else:
            self.parts[canonical(part)] = None

    def add_lines(self, part: Part, dim: int) -> None:
        """Want some element of every line along a dimension."""
        self.lines.add((canonical(part), (part.tensor.shape[dim], strides_of(part.tensor)[dim])))

    def add_all(self) -> None:
        """Want everything."""
        self.whole = True
        self.lines.clear()
        self.gone.clear()
        self.parts.clear()

    def of(self, part: Part, storage_bytes: int) -> Wanted | None:
        """What is wanted of a part; None where that is all of it."""
        if self.whole and not self.gone:
            return None
        covers = part.nbytes >= storage_bytes
        if self.whole:
            left = union_bytes([*self.gone, part]) - union_bytes(self.gone)
            return None if left >= part.nbytes else Wanted(elements=max(0, left) // part.tensor.item_bytes)
        meeting = list(self.parts) if covers else [each for each in self.parts if may_meet(each, part)]
        inside = _met_bytes(meeting, part, covers=covers)
        if meeting and inside >= part.nbytes:
            return None
        inside = max(inside, self.least + part.nbytes - max(storage_bytes, part.nbytes))
        if inside >= part.nbytes:
            return None
        boxes = [box_of(each, part) for each in meeting] if len(meeting) <= _MOST_PARTS else []
        return Wanted(
            boxes=tuple(box for box in boxes if box is not None),
            elements=inside // part.tensor.item_bytes,
            lines=self._lines_of(part),
        )

    def _lines_of(self, part: Part) -> frozenset[int]:
        if not self.lines:
            return frozenset()
        runs = list(zip(part.tensor.shape, strides_of(part.tensor), strict=True))
        here = canonical(part)
        return frozenset(runs.index(run) for lines, run in self.lines if lines == here and run in runs)

    def overwrite(self, part: Part, storage_bytes: int) -> None:
        """What stood in a part is not wanted."""
        if part.nbytes >= storage_bytes:
            self.whole, self.least = False, 0
            self.lines.clear()
            self.gone.clear()
            self.parts.clear()
        elif self.whole:
            if len(self.gone) < _MOST_PARTS:
                self.gone.append(canonical(part))
        else:
            self.lines.clear()
            self.least = max(0, self.least - part.nbytes)
            for each in [each for each in self.parts if may_meet(each, part)]:
                if not is_inside(each, part) and box_of(each, part) is None:
                    self.least = max(self.least, union_bytes([each, part]) - part.nbytes)
                del self.parts[each]


def _met_bytes(parts: Sequence[Part], part: Part, *, covers: bool) -> int:
    """Bytes that parts have in common with another one."""
    if not parts:
        return 0
    together = union_bytes(parts)
    return together if covers else together + part.nbytes - union_bytes([*parts, part])


class _Pass:
    """From the last record to the first."""

    def __init__(
        self,
        session: Session,
        lifetimes: Lifetimes,
        fusions: Sequence[OpFusion | None],
        costs: Sequence[OpCost | Uncosted],
        partial: PartialTouches,
    ) -> None:
        self._session = session
        self._fusions, self._partial = fusions, partial
        self._demands: dict[tuple[int, tuple[Wanted | None, ...]], tuple[list[Wanted | None], float]] = {}
        self._answers: dict[tuple[int, int, Part | None, Wanted], _Answer] = {}
        self._wants: dict[int, _Wants] = {}  # by storage, once a call that touches it was met
        self._storage_bytes: list[int] = session.storage_bytes.tolist()
        self._returned: dict[int, list[Part]] = {}
        for storage, start, tensor in lifetimes.returned:
            self._returned.setdefault(storage, []).append(Part(start, tensor))
        stays = (lifetimes.made == STOOD) | (lifetimes.freed == KEPT)
        stays[[storage for storage in self._returned if lifetimes.made[storage] != STOOD]] = False
        self._stays = bytearray(stays.tobytes())
        self._local = bytearray(lifetimes.local.tobytes())
        self._facts = [
            None if fusion is None or not fusion.known else _facts_of(op, fusion, cost)
            for op, fusion, cost in zip(session.signatures, fusions, costs, strict=True)
        ]

    def run(self, calls: Flags) -> dict[int, Narrowed]:
        """The calls of which a part is needed."""
        session = self._session
        columns = session.columns
        signatures = columns.signature.tolist()
        read_ids, read_offsets = columns.read_ids.tolist(), columns.read_offsets.tolist()
        written_ids, written_offsets = columns.written_ids.tolist(), columns.written_offsets.tolist()
        found: dict[int, Narrowed] = {}
        for record in reversed(calls.nonzero()[0].tolist()):
            number = signatures[record]
            fusion = self._fusions[number]
            if fusion is None:
                continue
            op = session.signatures[number]
            reads = read_ids[read_offsets[record] : read_offsets[record + 1]]
            writes = written_ids[written_offsets[record] : written_offsets[record + 1]]
            odd = len(reads) != len(op.inputs) or len(writes) > len(op.outputs)  # some results may have no storage
            if odd or not fusion.known:
                self._touch_unknown(reads, writes)
                continue
            parts_read, parts_written = self._partial.get(record, _NO_PARTS)
            wanted, written = self._written(number, writes, parts_written)
            facts = self._facts[number]
            if wanted is None or facts is None or not facts.divisible:
                self._read(number, reads, parts_read)
            else:
                found[record] = self._narrow(number, reads, parts_read, wanted, written)
        return found

    def _touch_unknown(self, reads: Iterable[int], writes: Iterable[int]) -> None:
        """A call touched other than its signature's tensors, or has no cost: it is taken to read all that it touched,
        and to overwrite none of it.
        """
        for storage in writes:
            self._of(storage, written=True)
        for storage in reads:
            self._of(storage).add_all()

    def _of(self, storage: int, *, written: bool = False) -> _Wants:
        """What is wanted of a storage; where this is its last touch, what the caller may still read."""
        wants = self._wants.get(storage)
        if wants is None:
            last_unread = written and not self._local[storage] and storage not in self._returned
            wants = self._wants[storage] = _Wants(whole=bool(self._stays[storage]) or last_unread)
            for part in self._returned.get(storage, ()) if not wants.whole else ():
                if part.nbytes >= self._storage_bytes[storage]:
                    wants.add_all()
                else:
                    wants.add(part, part.nbytes)
        return wants

    def _written(
        self, number: int, writes: Sequence[int], parts: Mapping[int, Part]
    ) -> tuple[list[Wanted | None] | None, tuple[int, ...]]:
        """What is wanted of each result, None of one that is wanted whole, or None where all of the op is needed; and
        the bytes written of each, where what is written over later counts.
        """
        op, fusion, facts = self._session.signatures[number], self._fusions[number], self._facts[number]
        assert fusion is not None
        assert facts is not None
        found: list[Wanted | None] = []
        written = list(fusion.written[: len(writes)])
        for place, storage in enumerate(writes):
            size = self._storage_bytes[storage]
            tensor = op.outputs[place]
            # a compiler leaves out further results that no op reads
            wants = self._of(storage, written=place == 0)
            nbytes = facts.result_bytes[place]
            part = parts.get(place) or (Part(0, tensor) if nbytes == size else None)
            wanted = _somewhere(wants, tensor, size) if part is None else wants.of(part, size)
            found.append(wanted)
            if wanted is not None and not wants.whole:
                written[place] = min(written[place], wanted.elements * tensor.item_bytes)
            if part is not None and fusion.written[place] == nbytes and not facts.keeps_rest:
                wants.overwrite(part, size)
        needs_all = all if facts.separate else any
        is_whole = not found or needs_all(each is None for each in found)
        return None if is_whole else found, tuple(written)

    def _read(self, number: int, reads: Sequence[int], parts: Mapping[int, Part]) -> None:
        """Want all that a call reads."""
        fusion, facts = self._fusions[number], self._facts[number]
        assert fusion is not None
        assert facts is not None
        for place, storage in enumerate(reads):
            size, part = fusion.read[place], parts.get(place)
            if not size:
                continue
            wants = self._of(storage)
            if facts.packed:
                wants.add_all()
            elif not facts.reads_all[place]:
                wants.add(None, size)
                op = self._session.signatures[number]
                dim, base = line_picked(op, place), part or _base(op.inputs[place], self._storage_bytes[storage])
                if dim is not None and base is not None:
                    wants.add_lines(base, dim)
            elif part is not None:
                wants.add(part, 0)
            elif facts.input_bytes[place] >= self._storage_bytes[storage]:
                wants.add_all()
            else:
                wants.add(None, facts.input_bytes[place])

    def _narrow(
        self,
        number: int,
        reads: Sequence[int],
        parts: Mapping[int, Part],
        wanted: Sequence[Wanted | None],
        written: tuple[int, ...],
    ) -> Narrowed:
        """Want what a part of the results needs, and note what that is."""
        op = self._session.signatures[number]
        key = number, tuple(wanted)
        if key not in self._demands:  # calls of a loop mostly need alike
            self._demands[key] = self._demanded(number, wanted)
        asked, work = self._demands[key]
        read: list[int] = []
        parts_read: dict[int, Part] = {}
        for place, ask in enumerate(asked):
            if ask is None:
                read.append(0)
                continue
            storage_bytes = self._storage_bytes[reads[place]]
            base = parts.get(place) or _base(op.inputs[place], storage_bytes)
            about = number, place, base, ask
            if about not in self._answers:
                self._answers[about] = self._answer(number, place, base, ask)
            answer = self._answers[about]
            wants = self._of(reads[place])
            for part in answer.parts:
                if part.nbytes >= storage_bytes:
                    wants.add_all()
                else:
                    wants.add(part, part.nbytes)
            if answer.anywhere:
                wants.add(None, answer.anywhere)
            if base is not None:
                for dim in ask.lines:
                    wants.add_lines(base, dim)
            read.append(answer.read)
            if answer.only is not None and answer.read < storage_bytes:
                parts_read[place] = answer.only
        return Narrowed(read=tuple(read), written=written, parts_read=parts_read, work=work)

    def _demanded(self, number: int, wanted: Sequence[Wanted | None]) -> tuple[list[Wanted | None], float]:
        """By input, what parts of the results need of it, None of one that is not read; and the share of the FLOPs."""
        op, fusion = self._session.signatures[number], self._fusions[number]
        assert fusion is not None
        separate = _has_separate_results(op)
        asked = [list[Wanted]() for _ in op.inputs]
        elements = _elements_read(op, fusion)
        work = total = 0.0
        for place, part in enumerate(wanted):
            out = op.outputs[place]
            demand = Demand(op=op, place=place, wanted=part or Wanted(elements=out.numel), reads=elements)
            share = 1.0 if part is None else work_needed(demand)
            work = work + share * out.numel if separate else max(work, share)
            total += out.numel
            if demand.wanted.elements:
                feeds = fusion.feeds[place if len(fusion.feeds) > 1 else 0]
                for source, ask in enumerate(needed(demand)):
                    if source in feeds:
                        asked[source].append(ask)
        share = work / max(1.0, total) if separate else work
        return [_together(asks) if asks and size else None for asks, size in zip(asked, fusion.read, strict=True)], min(
            1.0, share
        )

    def _answer(self, number: int, place: int, base: Part | None, ask: Wanted) -> _Answer:
        op, fusion = self._session.signatures[number], self._fusions[number]
        assert fusion is not None
        tensor, most = op.inputs[place], fusion.read[place]
        whole = _reads_all(op, place, fusion)
        found = {part_of(box, base) for box in ask.boxes} if base is not None and whole else set()
        covered = union_bytes(found)
        repeats = -(-tensor.numel // max(1, tensor.distinct))  # an expanded element stands for so many
        nbytes = max(covered, min(-(-ask.elements // max(1, repeats)), tensor.distinct) * tensor.item_bytes)
        anywhere = nbytes if nbytes > covered else 0
        if most < tensor.nbytes and whole:  # one byte per element is enough
            return _Answer(parts=tuple(found), anywhere=anywhere, read=min(most, nbytes // tensor.item_bytes))
        size = min(most, nbytes)
        only = next(iter(found)) if len(found) == 1 else None
        if only is not None and only.nbytes != size:
            only = None
        return _Answer(parts=tuple(found), anywhere=anywhere, read=size, only=only)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What is needed of an input: parts, and so many bytes anywhere if these are more; bytes read, and their part."""

    parts: tuple[Part, ...]
    anywhere: int
    read: int
    only: Part | None = None


def _together(asks: Sequence[Wanted]) -> Wanted:
    if len(asks) == 1:
        return asks[0]
    return Wanted(
        boxes=tuple(dict.fromkeys(box for ask in asks for box in ask.boxes)),
        elements=max(ask.elements for ask in asks),
        lines=frozenset().union(*(ask.lines for ask in asks)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Of a signature: whether a part of its results may take less than all of it, whether its results are computed one
    by one, whether in place it leaves what it does not write, whether it reads every element of each input, and sizes.
    """

    divisible: bool
    separate: bool
    packed: bool
    keeps_rest: bool
    reads_all: tuple[bool, ...]
    input_bytes: tuple[int, ...]
    result_bytes: tuple[int, ...]


def _has_separate_results(op: OpSignature) -> bool:
    traits = traits_of(op)
    return traits.over_lists or traits.part_needs is Needs.DIVIDED


def _facts_of(op: OpSignature, fusion: OpFusion, cost: OpCost | Uncosted) -> _Facts:
    packed = any(tensor.packing is not None for tensor in (*op.inputs, *op.outputs))
    is_costed = isinstance(cost, OpCost) and not cost.bytes_sent
    return _Facts(
        divisible=is_costed and not packed and traits_of(op).part_needs is not Needs.ALL,
        separate=_has_separate_results(op),
        packed=packed,
        keeps_rest=op.name.endswith("_") and isinstance(cost, OpCost) and cost.upper,
        reads_all=tuple(_reads_all(op, place, fusion) for place in range(len(op.inputs))),
        input_bytes=tuple(tensor.nbytes for tensor in op.inputs),
        result_bytes=tuple(tensor.nbytes for tensor in op.outputs),
    )


def _reads_all(op: OpSignature, place: int, fusion: OpFusion) -> bool:
    """Whether an op needs every element of an input that it reads, or picks some."""
    tensor, size = op.inputs[place], fusion.read[place]
    if size >= tensor.nbytes:
        return True
    names = op.input_names
    return place < len(names) and names[place] == traits_of(op).mask_input and size == tensor.numel


def _elements_read(op: OpSignature, fusion: OpFusion) -> list[int]:
    return [
        tensor.numel if _reads_all(op, place, fusion) else fusion.read[place] // tensor.item_bytes
        for place, tensor in enumerate(op.inputs)
    ]


def _base(tensor: TensorSpec, storage_bytes: int) -> Part | None:
    """Where a tensor lies that fills its storage."""
    return Part(0, tensor) if tensor.nbytes == storage_bytes else None


def _somewhere(wants: _Wants, tensor: TensorSpec, storage_bytes: int) -> Wanted | None:
    """What is wanted of a result of which it is not known where it lies."""
    if wants.whole:
        return None
    wanted = max(union_bytes(list(wants.parts)), wants.least) + tensor.nbytes - storage_bytes
    return NOTHING if wanted <= 0 else Wanted(elements=wanted // tensor.item_bytes)
