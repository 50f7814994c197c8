"""How the calls of one signature fuse with others, and which bytes they move tensor by tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import traits_of
from rooflight.records.session import NOWHERE, Int64, Session, owners
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, distinct_bytes
from rooflight.roofline.fusion.parts import Part, part_of

_INDICES: Final = ("index", "indices", "target", "src")
"""Arguments that are read whole where others are read in part."""

_BATCH: Final = 1 << 16  # records

_COPIES: Final = ("aten::copy_", "aten::_foreach_copy_")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFusion:
    """What calls of one signature move and how they fuse: with the ops that make their inputs, with those that read
    their outputs.

    ===========  ===========  ============
    kind         with makers  with readers
    ===========  ===========  ============
    chain        True         True
    chain's end  True         False         a scatter
    anchor       False        True          a product: its inputs must be there
    barrier      False        False
    ===========  ===========  ============

    ``read`` and ``written`` are bytes by place: one entry an input, one an output. ``known``: the op has a cost.
    ``product``: a matrix product; ``softmax``: a softmax or its backward, which makes attention of the products before
    and after it. ``aliased``: some inputs share memory. ``feeds`` names the places of the inputs that an output depends
    on: one entry for all outputs, or one for each.
    """

    with_makers: bool
    with_readers: bool
    known: bool = True
    product: bool = False
    softmax: bool = False
    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    aliased: bool = False
    feeds: tuple[tuple[int, ...], ...] = ((),)

    @property
    def is_chain(self) -> bool:
        """Whether it fuses with both: another kernel could then compute its outputs again."""
        return self.with_makers and self.with_readers

    def of_call(self, num_reads: int, num_writes: int) -> OpFusion:
        """That of a call which touched so many storages although its signature has another number of tensors: their
        bytes in even shares. Results come first among the outputs; others, as a dropout's mask, may lack a storage.
        """
        return replace(
            self,
            read=_even_shares(self.read, num_reads),
            written=self.written[:num_writes]
            if num_writes < len(self.written)
            else _even_shares(self.written, num_writes),
            aliased=True,
            feeds=(tuple(range(num_reads)),),
        )


def op_fusion_of(op: OpSignature, cost: OpCost | Uncosted) -> OpFusion | None:
    """As the op's formula declares it; None for a view and a copy onto itself, which run no kernel."""
    if isinstance(cost, Uncosted):
        return OpFusion(with_makers=False, with_readers=False, known=False)
    traits = traits_of(op)
    if traits.view or (op.name in _COPIES and not cost.bytes_moved):
        return None
    is_product = cost.matrix_flops > 0 and not (traits.product and _is_thin(op, cost))
    is_chain = traits.fusable and not is_product
    read = _shares(op.inputs, cost.bytes_read, op.outputs, op.input_names)
    for place, name in enumerate(op.input_names if traits.mask_input else ()):
        if name == traits.mask_input:
            read[place] = min(read[place], op.inputs[place].numel)
    return OpFusion(
        with_makers=is_chain,
        with_readers=traits.epilogue if is_product else is_chain and not traits.ends_chain,
        product=is_product and traits.product,
        softmax=is_chain and traits.softmax,
        read=tuple(read),
        written=tuple(_shares(op.outputs, cost.bytes_written)),
        aliased=any(tensor.storage != UNSHARED for tensor in op.inputs),
        feeds=_feeds(op, read),
    )


def _is_thin(op: OpSignature, cost: OpCost) -> bool:
    """A product with a dimension of 1 uses each element of its largest tensor once: a compiler may do without it."""
    largest = max((tensor.numel for tensor in (*op.inputs, *op.outputs)), default=0)
    return cost.matrix_flops <= 2 * largest


def _feeds(op: OpSignature, read: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Each output depends on all that is read, those of ``_foreach_add([a, b], [c, d])`` on a and c, b and d."""
    everything = tuple(place for place, size in enumerate(read) if size)
    lists = Counter(op.input_names)
    entries = len(op.outputs)
    if entries < 2 or not traits_of(op).over_lists or entries not in lists.values():
        return (everything,)
    feeds: list[list[int]] = [[] for _ in range(entries)]
    for place in everything:
        name = op.input_names[place]
        entry = place - op.input_names.index(name)
        for feed in [feeds[entry]] if lists[name] == entries else feeds:
            feed.append(place)
    return tuple(map(tuple, feeds))


def _shares(
    tensors: Sequence[TensorSpec], total: int, mutated: Sequence[TensorSpec] = (), names: Sequence[str] = ()
) -> list[int]:
    """How many of an op's ``total`` bytes belong to each tensor, memory shared between them counted at the first.

    An op that touches fewer bytes than its tensors have leaves one out (what ``copy_`` overwrites, what only lends its
    shape) or touches part of the largest, but for indices (a gather). ``names`` are those of the tensors' arguments.
    """
    sizes: list[int] = []
    aliases: dict[int, list[TensorSpec]] = {}
    for tensor in tensors:
        earlier = [] if tensor.storage == UNSHARED else aliases.setdefault(tensor.storage, [])
        sizes.append(distinct_bytes([*earlier, tensor]) - distinct_bytes(earlier) if earlier else tensor.nbytes)
        earlier.append(tensor)
    overwritten = {tensor.storage for tensor in mutated} - {UNSHARED}
    excess = sum(sizes) - total
    picks = [name not in _INDICES for name in names] if len(names) == len(sizes) else [True] * len(sizes)
    while excess > 0:
        ranks = [
            (size > 0 and tensor.storage in overwritten, size > 0 and picked, size == excess, size)
            for tensor, size, picked in zip(tensors, sizes, picks, strict=True)
        ]
        largest = ranks.index(max(ranks))
        taken = min(excess, sizes[largest])
        sizes[largest] -= taken
        excess -= taken
    return sizes


def _even_shares(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(sizes) if len(sizes) == count else (sum(sizes) // max(1, count),) * count


def touched_by(session: Session, records: Int64) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """Each of the records, with its signature's number and the storages that it read and wrote."""
    for start in range(0, len(records), _BATCH):
        batch = records[start : start + _BATCH]
        first, end = int(batch.min()), int(batch.max()) + 1
        columns, signatures = session.columns, session.columns.signature[first:end].tolist()
        read_ids, read_offsets = _lists(columns.read_ids, columns.read_offsets[first : end + 1])
        written_ids, written_offsets = _lists(columns.written_ids, columns.written_offsets[first : end + 1])
        for record in batch.tolist():
            row = record - first
            reads = read_ids[read_offsets[row] : read_offsets[row + 1]]
            yield record, signatures[row], reads, written_ids[written_offsets[row] : written_offsets[row + 1]]


def _lists(ids: NDArray[np.int32], offsets: Int64) -> tuple[list[int], list[int]]:
    """The ids between the first and the last offset, and the offsets into these: lists of millions take gigabytes."""
    return ids[offsets[0] : offsets[-1]].tolist(), (offsets - offsets[0]).tolist()


PartialTouches = dict[int, tuple[dict[int, Part], dict[int, Part]]]
"""By record, parts that it reads and parts that it writes, by place."""


def partial_touches(session: Session) -> PartialTouches:
    """By record, the parts that it reads and that it writes of storages that its tensors do not fill, by place."""
    columns, found = session.columns, PartialTouches()
    read = columns.read_ids, columns.read_offsets, columns.read_starts
    written = columns.written_ids, columns.written_offsets, columns.written_starts
    sides = [(*read, [op.inputs for op in session.signatures]), (*written, [op.outputs for op in session.signatures])]
    for side, (ids, offsets, starts, tensors) in enumerate(sides):
        records = owners(offsets)
        signature, places = columns.signature[records], np.arange(len(ids)) - offsets[records]
        counts = np.array([len(each) for each in tensors], dtype=np.int64)
        # a call that touched other than its signature's tensors has none with a known place
        fits = (np.diff(offsets)[records] == counts[signature]) & (starts != NOWHERE)
        sizes = np.array([0 if t.packing else t.nbytes for each in tensors for t in each] or [0], dtype=np.int64)
        taken = sizes[np.where(fits, (np.cumsum(counts) - counts)[signature] + places, 0)]
        for row in np.flatnonzero(fits & (taken > 0) & (taken < session.storage_bytes[ids])).tolist():
            part = part_of(int(starts[row]), tensors[signature[row]][places[row]])
            if part is not None:
                found.setdefault(int(records[row]), ({}, {}))[side][int(places[row])] = part
    return found
