"""Attention written out, whose scores a mask hides in part: no kernel needs the products of what is hidden.

A product makes scores, chains with a softmax make weights of them, and another product reads these. What a mask on the
way hides (``HIDDEN``, where the recording saw how it was made) has a weight of 0, and none of the ops needs it, in the
backward pass neither. Of several masks each may hide what the others do not. A key that is hidden from all queries is
not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rooflight.costs.registry import traits_of
from rooflight.costs.rules import names
from rooflight.records.session import Flags, Session
from rooflight.records.signature import HIDDEN, ZEROED, OpSignature
from rooflight.roofline.fusion.narrowing import Narrowed
from rooflight.roofline.fusion.ops import OpFusion, PartialTouches, touched_by
from rooflight.roofline.fusion.parts import Part

_SUMS: Final = frozenset(names("add sub add_ sub_"))
_WHOLE: Final[tuple[dict[int, Part], dict[int, Part]]] = ({}, {})
_CHOICES: Final = frozenset(names("masked_fill masked_fill_ where"))

Hidden = tuple[int, ...]
"""Pairs hidden, all pairs, keys hidden from all queries, all keys: of a mask. The last tells masks apart."""


class _Kind:
    """Ops of one signature: the masks that they apply to scores and to weights, whether one that is not known."""

    def __init__(self, op: OpSignature) -> None:
        self.op = op
        self.hidden, self.zeroed = (_counts(op, name) for name in (HIDDEN, ZEROED))
        self.sums = op.name in _SUMS
        # a number hides nothing, nor does a bias of one dimension
        added = self.sums and len(op.inputs) > 1 and min(len(tensor.shape) for tensor in op.inputs) > 1
        self.unknown = not (self.hidden or self.zeroed) and (op.name in _CHOICES or added)
        self.product = traits_of(op).product
        self.left = int("add" in op.name)  # place of a product's left operand


def _counts(op: OpSignature, name: str) -> Hidden | None:
    found = op.attribute(name)
    return found if isinstance(found, tuple) and all(found[1:4:2]) else None


@dataclass(slots=True, eq=False)
class _Scores:
    """What a product made, or chains of its result, by ``record``. ``keys``: place of the operand with a row or column
    for each key, of a product.
    """

    record: int
    read: tuple[_Scores, ...] = ()
    keys: int = 0
    softmax: bool = False
    masks: frozenset[Hidden] = frozenset()
    unknown: bool = False

    @property
    def shares(self) -> tuple[float, float]:
        """The least of the pairs that is visible, and of the keys that some query sees."""
        pairs = sum(hidden / every for hidden, every, *_ in self.masks)
        return max(0.0, 1 - pairs), max(0.0, 1 - sum(hidden / keys for _, _, hidden, keys, _ in self.masks))


@dataclass(frozen=True, slots=True)
class MaskedAttention:
    """By record, the share of its FLOPs that visible pairs take (``work``), and of inputs, by place, the share that
    some query sees (``keys``). ``unknown``: products that make scores, of which the recording could not see what is
    hidden.
    """

    work: dict[int, float] = field(default_factory=dict)
    keys: dict[int, dict[int, float]] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)

    def note(self, record: int, visible: float, seen: float, *places: int) -> None:
        """Of what a record does only these shares are needed, the second of inputs with keys."""
        if visible < 1:
            self.work[record] = min(visible, self.work.get(record, 1.0))
        if seen < 1 and places:
            self.keys[record] = dict.fromkeys(places, seen)

    def attend(self, weights: _Scores) -> None:
        """A product reads these weights: note what made them."""
        (visible, seen), waiting, met = weights.shares, [weights], set[int]()
        while waiting and (visible < 1 or weights.unknown):
            scores = waiting.pop()
            if scores.record not in met:
                met.add(scores.record)
                waiting += scores.read
                self.note(scores.record, visible, seen, *(() if scores.read else (scores.keys,)))
                if weights.unknown and not scores.read:
                    self.unknown.add(scores.record)

    def narrowing(
        self,
        narrowed: Mapping[int, Narrowed],
        session: Session,
        fusions: Sequence[OpFusion | None],
        partial: PartialTouches,
    ) -> dict[int, Narrowed]:
        """What calls of products take whose keys are not all seen."""
        found = dict(narrowed)
        for record, signature, reads, _ in touched_by(session, np.array([*self.keys], dtype=np.int64)):
            fusion, places = fusions[signature], self.keys[record]
            if fusion is not None and len(reads) == len(fusion.read):
                less = narrowed.get(record, Narrowed(fusion.read, partial.get(record, _WHOLE)[0], fusion.written, 1.0))
                read = tuple(int(size * places.get(place, 1.0)) for place, size in enumerate(less.read))
                parts = {place: part for place, part in less.parts_read.items() if place not in places}
                found[record] = less._replace(read=read, parts_read=parts)
        return found


def masked_attention(session: Session, fusions: Sequence[OpFusion | None], calls: Flags) -> MaskedAttention:
    """Attention among ``calls``; ``fusions`` go with the session's signatures."""
    found, made = MaskedAttention(), dict[int, _Scores]()
    kinds = [_Kind(op) for op in session.signatures]
    if not any(kind.hidden or kind.zeroed or kind.unknown for kind in kinds):
        return found
    for record, signature, reads, writes in touched_by(session, np.flatnonzero(calls)):
        kind, fusion = kinds[signature], fusions[signature]
        if fusion is None:
            continue
        read = tuple(made[storage] for storage in reads if storage in made)
        result = None
        if kind.product:
            for place, weights in enumerate(made.get(storage) for storage in reads):
                if weights is not None and weights.softmax:
                    in_order = (
                        place == kind.left and kind.op.inputs[place : place + 1] and not kind.op.inputs[place].strides
                    )
                    found.attend(weights)
                    found.note(record, *weights.shares, *((kind.left + 1,) if in_order else ()))
            result = _Scores(record, keys=kind.left + 1)
        elif fusion.is_chain and read:
            result = _chained(record, kind, fusion, read, all_known=len(read) == len(reads))
        for storage in writes:
            made.pop(storage, None)
            if result is not None:
                made[storage] = result
    return found


def _chained(record: int, kind: _Kind, fusion: OpFusion, read: tuple[_Scores, ...], *, all_known: bool) -> _Scores:
    weighted = any(each.softmax for each in read)
    masks = [each.masks for each in read]
    own = kind.zeroed if weighted else kind.hidden
    if weighted and kind.sums:  # a sum is 0 where all are
        masks = [frozenset.intersection(*masks)] if all_known else []
    return _Scores(
        record,
        read,
        softmax=weighted or fusion.softmax,
        masks=frozenset({own} if own else ()).union(*masks),
        unknown=any(each.unknown for each in read) or (kind.unknown and not weighted),
    )
