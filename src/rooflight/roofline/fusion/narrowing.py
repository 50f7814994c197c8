"""Of which ops only a part of the results is read, and what that part takes: a compiler computes no more of them.

One pass from the last record to the first keeps, of each storage, which parts later ops or the caller read. An op must
compute what of its results is among these, and for that read what ``needs`` has. Where it is not known what is needed,
less counts, never more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from rooflight.costs.cost import Needs, OpCost, Uncosted
from rooflight.costs.registry import traits_of
from rooflight.records.session import KEPT, STOOD, Flags, Lifetimes, Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.fusion.needs import Demand, Wanted, line_picked, needed, work_needed
from rooflight.roofline.fusion.ops import OpFusion
from rooflight.roofline.fusion.parts import Part, PartialTouches, add_part, axis_of, part_of, strides_of, union_bytes

_MOST_PARTS: Final = 64
"""Parts of one storage that are followed one by one."""


class Narrowed(NamedTuple):
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
    if session.lifetimes is None:
        return {}
    wants, columns, found = _Storages(session, session.lifetimes), session.columns, dict[int, Narrowed]()
    signatures = columns.signature.tolist()
    read_ids, read_offsets = columns.read_ids.tolist(), columns.read_offsets.tolist()
    written_ids, written_offsets = columns.written_ids.tolist(), columns.written_offsets.tolist()
    for record in reversed(calls.nonzero()[0].tolist()):
        op, fusion, cost = (each[signatures[record]] for each in (session.signatures, fusions, costs))
        if fusion is None:
            continue
        reads = read_ids[read_offsets[record] : read_offsets[record + 1]]
        writes = written_ids[written_offsets[record] : written_offsets[record + 1]]
        odd = len(reads) != len(op.inputs) or len(writes) > len(op.outputs)  # some results may have no storage
        if odd or isinstance(cost, Uncosted) or any(tensor.packing for tensor in (*op.inputs, *op.outputs)):
            wants.touch_unknown(reads, writes)
            continue
        parts_read, parts_written = partial.get(record, ({}, {}))
        wanted, written = wants.write(
            op, fusion, writes, parts_written, keeps_rest=op.name.endswith("_") and cost.upper
        )
        all_of_it = all if _has_separate_results(op) else any
        divisible = not cost.bytes_sent and traits_of(op).part_needs is not Needs.ALL
        if not divisible or not wanted or all_of_it(each is None for each in wanted):
            wants.read(op, fusion, reads, parts_read)
        else:
            found[record] = wants.read_part(op, fusion, reads, parts_read, wanted, written)
    return found


class _Wants:
    """What is wanted of a storage from a record on: all but what is ``gone``, or parts and so many bytes anywhere. Of
    each of ``lines``, a part with size and stride of a dimension, some element of every line along it.
    """

    __slots__ = ("gone", "least", "lines", "parts", "size", "whole")

    def __init__(self, size: int) -> None:
        self.size, self.whole, self.least = size, False, 0
        self.gone: list[Part] = []
        self.parts: list[Part] = []
        self.lines: set[tuple[Part, tuple[int, int]]] = set()

    def add(self, part: Part | None, nbytes: int) -> None:
        """Want a part too, or so many bytes anywhere, without a part."""
        if self.whole:
            self.gone = [each for each in self.gone if part is None or not part.has(each)]
        elif nbytes >= self.size:
            self.become(whole=True)
        elif part is None or len(self.parts) > _MOST_PARTS:
            self.least = max(self.least, nbytes)
        else:
            add_part(self.parts, part)

    def become(self, *, whole: bool, least: int = 0) -> None:
        """Want everything, or so many bytes anywhere."""
        self.whole, self.least = whole, least
        for each in (self.gone, self.parts, self.lines):
            each.clear()

    def of(self, part: Part | None, tensor: TensorSpec) -> Wanted | None:
        """What is wanted of a tensor in a part, or anywhere if that is not known; None where that is all of it."""
        if self.whole and not (self.gone and part):
            return None
        if part is None:
            nbytes = max(union_bytes(self.parts), self.least) + tensor.nbytes - self.size
            return Wanted(elements=max(0, nbytes) // tensor.item_bytes)
        met = self.gone if self.whole else [each for each in self.parts if each.meets(part)]
        both, nbytes = union_bytes([*met, part]), part.nbytes
        if self.whole:
            nbytes = both - union_bytes(met)
        else:
            nbytes = max(union_bytes(met) + nbytes - both, self.least + nbytes - max(self.size, nbytes))
        if nbytes >= part.nbytes:
            return None
        axes = (axis_of(each, part, tensor) for each in met) if not self.whole else ()
        runs = list(zip(tensor.shape, strides_of(tensor), strict=True))
        lines = frozenset(runs.index(run) for lines, run in self.lines if lines == part and run in runs)
        return Wanted(tuple(axis for axis in axes if axis), max(0, nbytes) // tensor.item_bytes, lines)

    def overwrite(self, part: Part) -> None:
        """What stood in a part is not wanted."""
        if part.nbytes >= self.size:
            self.become(whole=False)
        elif self.whole:
            add_part(self.gone, part)
            if len(self.gone) > _MOST_PARTS:
                self.become(whole=False, least=self.size - union_bytes(self.gone))
        else:
            self.lines.clear()
            self.least = max(0, self.least - part.nbytes)
            for each in [each for each in self.parts if each.meets(part)]:
                self.parts.remove(each)
                self.least = max(self.least, union_bytes([each, part]) - part.nbytes)


class _Storages:
    """What is wanted of each storage, from the last record to the first."""

    def __init__(self, session: Session, lifetimes: Lifetimes) -> None:
        self._wants: dict[int, _Wants] = {}  # once a call that touches it was met
        self._sizes: list[int] = session.storage_bytes.tolist()
        self._returned: dict[int, list[tuple[Part | None, int]]] = {}
        for storage, start, tensor in lifetimes.returned:
            self._returned.setdefault(storage, []).append((part_of(start, tensor), tensor.nbytes))
        stays = (lifetimes.made == STOOD) | (lifetimes.freed == KEPT)
        stays[[storage for storage in self._returned if lifetimes.made[storage] != STOOD]] = False
        self._stays, self._local = bytearray(stays.tobytes()), bytearray(lifetimes.local.tobytes())

    def _of(self, storage: int, *, written: bool = False) -> _Wants:
        """What is wanted of a storage; where this is its last touch, what the caller may still read."""
        wants = self._wants.get(storage)
        if wants is None:
            wants = self._wants[storage] = _Wants(self._sizes[storage])
            last_unread = written and not self._local[storage] and storage not in self._returned
            wants.whole = bool(self._stays[storage]) or last_unread
            for part, nbytes in self._returned.get(storage, ()):
                wants.add(part, nbytes)
        return wants

    def touch_unknown(self, reads: Iterable[int], writes: Iterable[int]) -> None:
        """A call touched other than its signature's tensors, or has no cost: it is taken to read all that it touched,
        and to overwrite none of it.
        """
        for storage in writes:
            self._of(storage, written=True)
        for storage in reads:
            self._of(storage).become(whole=True)

    def write(
        self, op: OpSignature, fusion: OpFusion, writes: Sequence[int], parts: Mapping[int, Part], *, keeps_rest: bool
    ) -> tuple[tuple[Wanted | None, ...], tuple[int, ...]]:
        """What is wanted of each result, None of one that is wanted whole; and the bytes written of each, where what is
        written over later counts.
        """
        found, written = list[Wanted | None](), list(fusion.written[: len(writes)])
        for place, (storage, tensor) in enumerate(zip(writes, op.outputs, strict=False)):
            # a compiler leaves out further results that no op reads
            wants = self._of(storage, written=place == 0)
            part = parts.get(place) or _filling(tensor, wants.size)
            wanted = wants.of(part, tensor)
            found.append(wanted)
            if wanted is not None and not wants.whole:
                written[place] = min(written[place], wanted.elements * tensor.item_bytes)
            if part is not None and fusion.written[place] == tensor.nbytes and not keeps_rest:
                wants.overwrite(part)
        return tuple(found), tuple(written)

    def read(self, op: OpSignature, fusion: OpFusion, reads: Sequence[int], parts: Mapping[int, Part]) -> None:
        """Want all that a call reads."""
        for place, (storage, tensor) in enumerate(zip(reads, op.inputs, strict=True)):
            if not fusion.read[place]:
                continue
            wants = self._of(storage)
            if _reads_all(op, place, fusion):
                wants.add(parts.get(place) or _filling(tensor, wants.size), tensor.nbytes)
                continue
            wants.add(None, fusion.read[place])
            self._add_lines(wants, parts.get(place), tensor, line_picked(op, place))

    def _add_lines(self, wants: _Wants, part: Part | None, tensor: TensorSpec, dim: int | None) -> None:
        part = part or _filling(tensor, wants.size)
        if dim is not None and part is not None and not wants.whole:
            wants.lines.add((part, (tensor.shape[dim], strides_of(tensor)[dim])))

    def read_part(
        self,
        op: OpSignature,
        fusion: OpFusion,
        reads: Sequence[int],
        parts: Mapping[int, Part],
        wanted: tuple[Wanted | None, ...],
        written: tuple[int, ...],
    ) -> Narrowed:
        """Want what a part of the results needs, and note what that is."""
        asked, work = _demanded(op, fusion, wanted)
        read, parts_read = list[int](), dict[int, Part]()
        for place, (ask, tensor) in enumerate(zip(asked, op.inputs, strict=True)):
            if ask is None:
                read.append(0)
                continue
            wants = self._of(reads[place])
            base = parts.get(place) or _filling(tensor, wants.size)
            found, nbytes = _answer(op, place, fusion, ask, base)
            covered = union_bytes(found)
            for part in found:
                wants.add(part, part.nbytes)
            if nbytes > covered:
                wants.add(None, nbytes)
            for dim in ask.lines:
                self._add_lines(wants, parts.get(place), tensor, dim)
            if fusion.read[place] < tensor.nbytes and _reads_all(op, place, fusion):  # a mask: one byte an element
                nbytes //= tensor.item_bytes
            read.append(min(fusion.read[place], nbytes))
            if len(found) == 1 and found[0].nbytes == read[-1] < wants.size:
                parts_read[place] = found[0]
        return Narrowed(tuple(read), written, parts_read, work)


@lru_cache(maxsize=1 << 12)  # calls of a loop mostly need alike
def _demanded(
    op: OpSignature, fusion: OpFusion, wanted: tuple[Wanted | None, ...]
) -> tuple[list[Wanted | None], float]:
    """By input, what parts of the results need of it, None of one that is not read; and the share of the FLOPs."""
    separate = _has_separate_results(op)
    asked = [list[Wanted]() for _ in op.inputs]
    reads = tuple(
        tensor.numel if _reads_all(op, place, fusion) else fusion.read[place] // tensor.item_bytes
        for place, tensor in enumerate(op.inputs)
    )
    work = total = 0.0
    for place, part in enumerate(wanted):
        out = op.outputs[place]
        demand = Demand(op, place, part or Wanted(elements=out.numel), reads)
        share = 1.0 if part is None else work_needed(demand)
        work = work + share * out.numel if separate else max(work, share)
        total += out.numel
        feeds = fusion.feeds[place if len(fusion.feeds) > 1 else 0]
        for source, ask in enumerate(needed(demand) if demand.wanted.elements else ()):
            if source in feeds:
                asked[source].append(ask)
    together = [_together(asks) if asks and size else None for asks, size in zip(asked, fusion.read, strict=True)]
    return together, min(1.0, work / max(1.0, total) if separate else work)


def _together(asks: Sequence[Wanted]) -> Wanted:
    return Wanted(
        tuple(dict.fromkeys(axis for ask in asks for axis in ask.axes)),
        max(ask.elements for ask in asks),
        frozenset().union(*(ask.lines for ask in asks)),
    )


@lru_cache(maxsize=1 << 12)
def _answer(
    op: OpSignature, place: int, fusion: OpFusion, ask: Wanted, base: Part | None
) -> tuple[tuple[Part, ...], int]:
    """The parts of a storage where an op needs its input, which is ``base`` of it, and how many bytes it needs."""
    tensor, found = op.inputs[place], list[Part]()
    if base is not None and _reads_all(op, place, fusion):
        parts = (axis.part(base, tensor) for axis in ask.axes)
        found = list(dict.fromkeys(part for part in parts if part is not None))
    repeats = -(-tensor.numel // max(1, tensor.distinct))  # an expanded element stands for so many
    nbytes = min(-(-ask.elements // max(1, repeats)), tensor.distinct) * tensor.item_bytes
    return tuple(found), max(union_bytes(found), nbytes)


def _has_separate_results(op: OpSignature) -> bool:
    """Whether an op computes its results one by one."""
    traits = traits_of(op)
    return traits.over_lists or traits.part_needs is Needs.DIVIDED


def _reads_all(op: OpSignature, place: int, fusion: OpFusion) -> bool:
    """Whether an op needs every element of an input that it reads, or picks some."""
    tensor, size = op.inputs[place], fusion.read[place]
    is_mask = op.input_names[place : place + 1] == (traits_of(op).mask_input,)
    return size >= tensor.nbytes or (is_mask and size == tensor.numel)


def _filling(tensor: TensorSpec, storage_bytes: int) -> Part | None:
    """Where a tensor lies that fills its storage."""
    return part_of(0, tensor) if tensor.nbytes == storage_bytes else None
