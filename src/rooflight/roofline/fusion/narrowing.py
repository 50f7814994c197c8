"""Of which ops only a part of the results is read, and what that part takes: a compiler computes no more of them.

One pass from the last record to the first keeps, of each storage, which parts later ops or the caller read. An op must
compute what of its results is among these, and for that read what ``needs`` has. Where it is not known what is needed,
less counts, never more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from rooflight.costs.cost import Needs, OpCost, Uncosted
from rooflight.costs.registry import traits_of
from rooflight.records.session import KEPT, STOOD, Flags, Lifetimes, Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.fusion.needs import Demand, Wanted, all_of, line_picked, needed, work_needed
from rooflight.roofline.fusion.ops import OpFusion, PartialTouches, touched_by
from rooflight.roofline.fusion.parts import Part, add_part, axis_of, part_of, strides_of, union_bytes

_MOST_PARTS: Final = 64  # of one storage that are followed one by one
_NO_PARTS: Final[tuple[dict[int, Part], dict[int, Part]]] = ({}, {})


class Narrowed(NamedTuple):
    """What a call takes of which only a part is needed: bytes by place as ``OpFusion`` has them, parts read by place
    where each is one, and the share of the op's FLOPs.
    """

    read: tuple[int, ...]
    parts_read: Mapping[int, Part]
    written: tuple[int, ...]
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
    storages, found = _Storages(session, session.lifetimes), dict[int, Narrowed]()
    each = zip(session.signatures, costs, fusions, strict=True)
    kinds = [None if fusion is None else _Kind(op, cost, fusion) for op, cost, fusion in each]
    for record, signature, reads, writes in touched_by(session, np.flatnonzero(calls)[::-1]):
        kind = kinds[signature]
        if kind is None:
            continue
        # some results may have no storage
        if not kind.known or len(reads) != len(kind.op.inputs) or len(writes) > len(kind.op.outputs):
            storages.touch_unknown(reads, writes)
            continue
        parts_read, parts_written = partial.get(record, _NO_PARTS)
        wanted, written = storages.overwrite(kind, writes, parts_written)
        if kind.needs_all(wanted):
            storages.want(kind, reads, parts_read, kind.everything)
        else:
            asked, work = kind.demanded(wanted)
            found[record] = Narrowed(*storages.want(kind, reads, parts_read, asked), written, work)
    return found


class _Kind:
    """Calls of one signature. ``everything``: what all of the results needs of each input, None of one not read."""

    def __init__(self, op: OpSignature, cost: OpCost | Uncosted, fusion: OpFusion) -> None:
        self.op, self.fusion = op, fusion
        traits = traits_of(op)
        self.needs = traits.part_needs
        # whether it is known which elements they touch
        self.known = isinstance(cost, OpCost) and not any(tensor.packing for tensor in (*op.inputs, *op.outputs))
        self.keeps_rest = op.name.endswith("_") and isinstance(cost, OpCost) and cost.upper
        self._divisible = isinstance(cost, OpCost) and not cost.bytes_sent and self.needs is not Needs.ALL
        self._separate = traits.over_lists or self.needs is Needs.DIVIDED  # results are computed one by one
        self.reads_all: list[bool] = []
        self.everything: list[Wanted | None] = []
        for place, (tensor, size) in enumerate(zip(op.inputs, fusion.read, strict=self.known)):
            is_mask = op.input_names[place : place + 1] == (traits.mask_input,) and size == tensor.numel
            reads_all = size >= tensor.nbytes or is_mask
            picked = Wanted(None, size // tensor.item_bytes, line_picked(op, place))
            self.reads_all.append(reads_all)
            self.everything.append(None if not size else all_of(tensor) if reads_all else picked)
        self.demanded, self.located = cache(self._demand), cache(self._locate)  # calls of a loop mostly need alike

    def needs_all(self, wanted: Sequence[Wanted | None]) -> bool:
        whole = [each is None for each in wanted]
        return not self._divisible or not whole or (all(whole) if self._separate else any(whole))

    def _demand(self, wanted: tuple[Wanted | None, ...]) -> tuple[list[Wanted | None], float]:
        """Also the share of the FLOPs that parts of the results take."""
        op, fusion = self.op, self.fusion
        reads = tuple(each.elements if each else 0 for each in self.everything)
        asked: list[list[Wanted]] = [[] for _ in op.inputs]
        shares: list[tuple[float, int]] = []
        for place, (part, out) in enumerate(zip(wanted, op.outputs, strict=False)):
            demand = Demand(op, self.needs, place, part or Wanted(elements=out.numel), reads)
            shares.append((1.0 if part is None else work_needed(demand), out.numel))
            feeds = fusion.feeds[place if len(fusion.feeds) > 1 else 0]
            for source, ask in enumerate(needed(demand) if demand.wanted.elements else ()):
                if source in feeds and fusion.read[source]:
                    asked[source].append(ask)
        work = max(share for share, _ in shares)
        if self._separate:
            work = sum(share * size for share, size in shares) / max(1, sum(size for _, size in shares))
        most = [max(asks, key=lambda ask: (ask.elements, ask.axis is not None), default=None) for asks in asked]
        return most, min(1.0, work)

    def _locate(self, place: int, ask: Wanted, base: Part | None) -> tuple[Part | None, int]:
        """Where in a storage calls need what is asked of an input, which is ``base`` of it, and how many bytes."""
        tensor = self.op.inputs[place]
        part = ask.axis.part(base, tensor) if base and ask.axis and self.reads_all[place] else None
        repeats = -(-tensor.numel // max(1, tensor.distinct))  # an expanded element stands for so many
        nbytes = min(-(-ask.elements // max(1, repeats)), tensor.distinct) * tensor.item_bytes
        return part, max(part.nbytes if part else 0, nbytes)


class _Wants:
    """What is wanted of a storage from a record on: parts and at least so many bytes, or the ``whole`` but parts. Of a
    part with the layout in ``line``, some element of every line along a dimension.
    """

    __slots__ = ("least", "line", "parts", "size", "whole")

    def __init__(self, size: int) -> None:
        self.size, self.whole, self.least = size, False, 0
        self.parts: dict[Part, None] = {}
        self.line: tuple[int, Part, tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def is_all(self) -> bool:
        return self.whole and not self.parts

    def add(self, part: Part | None, nbytes: int) -> None:
        if nbytes >= self.size:
            self.become(whole=True)
        elif self.whole:
            self.parts = {each: None for each in self.parts if part is None or not part.has(each)}
        else:
            self.least = max(self.least, nbytes)
            if part is not None:
                add_part(self.parts, part)

    def become(self, *, whole: bool, least: int = 0) -> None:
        self.whole, self.least, self.parts, self.line = whole, least, {}, None

    def of(self, part: Part | None, tensor: TensorSpec) -> Wanted | None:
        """Of a tensor in a part, or anywhere if that is not known; None where that is all of it."""
        if self.is_all or (self.whole and part is None):
            return None
        if part is None:
            nbytes = max(union_bytes(self.parts), self.least) + tensor.nbytes - self.size
            return Wanted(elements=max(0, nbytes) // tensor.item_bytes)
        met = [each for each in self.parts if each.meets(part)]
        inside = union_bytes(met) + part.nbytes - union_bytes([*met, part])
        nbytes = part.nbytes - inside if self.whole else max(inside, self.least + part.nbytes - self.size)
        if nbytes >= part.nbytes:
            return None
        known = [] if self.whole or len(met) > _MOST_PARTS else met
        axes = (axis for each in known if (axis := axis_of(each, part, tensor)))
        axis = max(axes, key=lambda axis: axis.elements(tensor), default=None)
        line = self.line[0] if self.line and self.line[1:] == (part, tensor.shape, strides_of(tensor)) else None
        return Wanted(axis, max(0, nbytes) // tensor.item_bytes, line)

    def overwrite(self, part: Part) -> None:
        if part.nbytes >= self.size:
            self.become(whole=False)
        elif self.whole:
            add_part(self.parts, part)
            if len(self.parts) > _MOST_PARTS:
                self.become(whole=False, least=self.size - union_bytes(self.parts))
        else:
            self.line = None
            self.least = max(0, self.least - part.nbytes)
            for each in [each for each in self.parts if each.meets(part)]:
                del self.parts[each]
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
        """Where this is its last touch, what the caller may still read."""
        wants = self._wants.get(storage)
        if wants is None:
            wants = self._wants[storage] = _Wants(self._sizes[storage])
            last_unread = written and not self._local[storage] and storage not in self._returned
            wants.whole = bool(self._stays[storage]) or last_unread
            for part, nbytes in self._returned.get(storage, ()):
                wants.add(part, nbytes)
        return wants

    def touch_unknown(self, reads: Iterable[int], writes: Iterable[int]) -> None:
        for storage in writes:
            self._of(storage, written=True)
        for storage in reads:
            self._of(storage).become(whole=True)

    def overwrite(
        self, kind: _Kind, writes: Sequence[int], parts: Mapping[int, Part]
    ) -> tuple[tuple[Wanted | None, ...], tuple[int, ...]]:
        """What is wanted of each result, None of one that is wanted whole, and the bytes written of each."""
        found, written = list[Wanted | None](), list(kind.fusion.written[: len(writes)])
        for place, (storage, tensor) in enumerate(zip(writes, kind.op.outputs, strict=False)):
            # a compiler leaves out further results that no op reads
            wants = self._of(storage, written=place == 0)
            part = parts.get(place) or _filling(tensor, wants.size)
            wanted = wants.of(part, tensor)
            found.append(wanted)
            if wanted is not None and not wants.whole:
                written[place] = min(written[place], wanted.elements * tensor.item_bytes)
            if part is not None and kind.fusion.written[place] == tensor.nbytes and not kind.keeps_rest:
                wants.overwrite(part)
        return tuple(found), tuple(written)

    def want(
        self, kind: _Kind, reads: Sequence[int], parts: Mapping[int, Part], asked: Sequence[Wanted | None]
    ) -> tuple[tuple[int, ...], dict[int, Part]]:
        """The bytes of what is asked of each input, and where they are a part, that."""
        read, parts_read = [0] * len(reads), dict[int, Part]()
        for place, (ask, tensor) in enumerate(zip(asked, kind.op.inputs, strict=True)):
            if ask is None or ((wants := self._of(reads[place])).is_all and asked is kind.everything):
                continue
            base = parts.get(place) or _filling(tensor, wants.size)
            part, nbytes = kind.located(place, ask, base)
            wants.add(part, nbytes)
            if base is not None and ask.line is not None and not wants.whole:
                wants.line = ask.line, base, tensor.shape, strides_of(tensor)
            size = kind.fusion.read[place]
            if size < tensor.nbytes and kind.reads_all[place]:  # a mask: one byte an element
                nbytes //= tensor.item_bytes
            read[place] = min(size, nbytes)
            if part is not None and part.nbytes == read[place] < wants.size:
                parts_read[place] = part
        return tuple(read), parts_read


def _filling(tensor: TensorSpec, storage_bytes: int) -> Part | None:
    return part_of(0, tensor) if tensor.nbytes == storage_bytes else None
