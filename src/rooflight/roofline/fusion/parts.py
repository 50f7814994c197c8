"""Parts of a storage that tensors cover, and how many bytes several of them cover together.

A part is the contiguous runs of memory that a tensor's elements lie in. Unions are exact, overlaps and gaps included,
for as many runs as can be counted quickly; beyond that they are the largest part, which is no more than the union.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from rooflight.records.session import NOWHERE, Int64, Session, owners
from rooflight.records.tensor import TensorSpec

_MOST_RUNS: Final = 1 << 20


class Part(NamedTuple):
    """The memory of a tensor of this layout that begins so many elements into its storage."""

    start: int
    tensor: TensorSpec

    @property
    def nbytes(self) -> int:
        """Distinct bytes of it."""
        return self.tensor.nbytes

    @property
    def span(self) -> tuple[int, int]:
        """The bytes of the storage from its first to its last, gaps included."""
        size = self.tensor.item_bytes
        return self.start * size, (self.start + self.tensor.extent) * size

    @property
    def is_solid(self) -> bool:
        """Whether it has no gaps."""
        first, end = self.span
        return end - first == self.nbytes


def may_meet(part: Part, other: Part | None) -> bool:
    """Whether two parts may have bytes in common; None is a part that may be anywhere."""
    if other is None:
        return True
    (first, end), (other_first, other_end) = part.span, other.span
    return first < other_end and other_first < end


def is_inside(part: Part | None, other: Part) -> bool:
    """Whether all of one part surely lies in another."""
    if part is None or not other.is_solid:
        return part == other
    (first, end), (other_first, other_end) = part.span, other.span
    return other_first <= first and end <= other_end


def union_bytes(parts: Collection[Part]) -> int:
    """Bytes that parts of one storage cover together; never more, in the case of very many runs fewer."""
    distinct = frozenset(parts)
    if len(distinct) < 2:
        return sum(part.nbytes for part in distinct)
    return _union_bytes(distinct)


@lru_cache(maxsize=1 << 10)
def _union_bytes(distinct: frozenset[Part]) -> int:
    repeated, distinct = _one_repeat(distinct)
    if repeated > 1:
        return repeated * union_bytes(distinct)
    if sum(_count(part.tensor) for part in distinct) > _MOST_RUNS:
        return max(part.nbytes for part in distinct)
    starts, ends = zip(*map(_runs_of, distinct), strict=True)
    first, last = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    fresh = last - np.maximum(first, np.concatenate([first[:1], last[:-1]]))
    return int(np.maximum(fresh, 0).sum())


def _one_repeat(parts: frozenset[Part]) -> tuple[int, frozenset[Part]]:
    """How often the same pattern of parts repeats, and the pattern: queries, keys and values, side by side in each row.
    Once, and the parts, where none does.
    """
    outer = {max(_dims(part.tensor), default=(0, 0)) for part in parts}
    if len(outer) != 1 or len({part.tensor.item_bytes for part in parts}) != 1:
        return 1, parts
    ((stride, size),) = outer
    if size < 2:
        return 1, parts
    inner = frozenset(Part(part.start, _without(part.tensor, stride, size)) for part in parts)
    if max(p.start + p.tensor.extent for p in inner) - min(p.start for p in inner) > stride:
        return 1, parts
    return size, inner


def _dims(tensor: TensorSpec) -> list[tuple[int, int]]:
    return [(step, size) for step, size in zip(strides_of(tensor), tensor.shape, strict=True) if size != 1]


def strides_of(tensor: TensorSpec) -> tuple[int, ...]:
    """A tensor's strides, in elements, those of a contiguous one too."""
    if tensor.strides is not None:
        return tensor.strides
    strides: list[int] = []
    step = 1
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _without(tensor: TensorSpec, stride: int, size: int) -> TensorSpec:
    """A tensor without one dimension of this stride and size."""
    dims = _dims(tensor)
    dims.remove((stride, size))
    return TensorSpec(tuple(size for _, size in dims), tensor.dtype, tuple(stride for stride, _ in dims))


def _runs_of(part: Part) -> tuple[Int64, Int64]:
    """First byte of each run, and the byte after its last."""
    offsets, length = _runs(part.tensor)
    starts = offsets + part.start * part.tensor.item_bytes
    return starts, starts + length


@lru_cache(maxsize=1 << 10)
def _runs(tensor: TensorSpec) -> tuple[Int64, int]:
    """Where the runs of a tensor at the start of a storage begin, and how long they are, in bytes."""
    length, dims = _layout(tensor)
    offsets = np.zeros(1, dtype=np.int64)
    for size, stride in dims:
        offsets = (offsets[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return offsets * tensor.item_bytes, length * tensor.item_bytes


def _count(tensor: TensorSpec) -> int:
    count = 1
    for size, _ in _layout(tensor)[1]:
        count *= size
    return count


@lru_cache(maxsize=1 << 12)
def _layout(tensor: TensorSpec) -> tuple[int, list[tuple[int, int]]]:
    """Elements of a run, and the sizes and strides of the dimensions along which runs repeat."""
    if 0 in tensor.shape:
        return 0, []
    if tensor.strides is None:
        return tensor.numel, []
    length = 1
    dims: list[tuple[int, int]] = []
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size == 1 or stride == 0:
            continue
        if stride <= length and not dims:
            length = (size - 1) * stride + length  # runs that touch or overlap are one
        else:
            dims.append((size, stride))
    return length, dims


class Touched:
    """What was touched of one storage: parts, and bytes of which it is not known where they lie. ``at_most`` is the
    most that all can be together.
    """

    __slots__ = ("_most", "_parts", "at_most")

    def __init__(self) -> None:
        self._parts: set[Part] = set()
        self._most = 0
        self.at_most = 0

    def add(self, size: int, part: Part | None) -> None:
        """So many bytes were touched, of this part if it is known."""
        if part is None or size != part.nbytes:
            self._most = max(self._most, size)
            self.at_most += size
        elif part not in self._parts:
            self._parts.add(part)
            self.at_most += size

    @property
    def at_least(self) -> int:
        """Bytes touched, the least it can be."""
        return max(self._most, union_bytes(self._parts))

    def at_least_with(self, other: Touched | None, size: int) -> int:
        """Bytes touched here and there together, ``size`` of them there: the least it can be."""
        parts = self._parts if other is None else self._parts | other._parts
        return max(self._most, size, union_bytes(parts))


def visible_bytes(writes: Sequence[tuple[int, Part | None]]) -> list[int]:
    """Of each of several writes to one storage, oldest first, how many of its bytes the later ones surely left there.
    A write is its size, and its part if that is known. All but the oldest count as nothing where they overlap.
    """
    sizes = [size for size, _ in writes]
    later = [part for size, part in writes[1:] if part is not None and size == part.nbytes]
    covered = union_bytes(later)
    if covered < sum(part.nbytes for part in later):
        return [0] * (len(sizes) - 1) + sizes[-1:]
    oldest = writes[0][1]
    if oldest is not None and sizes[0] == oldest.nbytes:
        sizes[0] = max(0, union_bytes([oldest, *later]) - covered)
    else:
        sizes[0] = max(0, sizes[0] - covered)
    unplaced = 0
    for number in range(len(sizes) - 1, -1, -1):  # what lies anywhere may lie on all that is older
        size, part = writes[number]
        sizes[number] = max(0, sizes[number] - unplaced)
        if number and (part is None or size != part.nbytes):
            unplaced += size
    return sizes


PartialTouches = dict[int, tuple[dict[int, Part], dict[int, Part]]]
"""By record, parts that it reads and parts that it writes, by place."""


def partial_touches(session: Session) -> PartialTouches:
    """By record, the parts that it reads and that it writes of storages that its tensors do not fill, by place."""
    columns = session.columns
    found: dict[int, tuple[dict[int, Part], dict[int, Part]]] = {}
    sides = (
        (columns.read_ids, columns.read_offsets, columns.read_starts, [op.inputs for op in session.signatures]),
        (
            columns.written_ids,
            columns.written_offsets,
            columns.written_starts,
            [op.outputs for op in session.signatures],
        ),
    )
    for side, (ids, offsets, starts, tensors) in enumerate(sides):
        records = owners(offsets)
        places = np.arange(len(ids)) - offsets[records]
        counts = np.array([len(each) for each in tensors], dtype=np.int64)
        # a call that touched other than its signature's tensors has none with a known place
        fits = (np.diff(offsets) == counts[columns.signature])[records] & (starts != NOWHERE)
        rows = np.flatnonzero(fits)
        first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        sizes = np.array([0 if t.packing else t.nbytes for each in tensors for t in each], dtype=np.int64)
        taken = sizes[first[columns.signature[records[rows]]] + places[rows]]
        rows = rows[(taken > 0) & (taken < session.storage_bytes[ids[rows]])]
        for row in rows.tolist():
            record, place = int(records[row]), int(places[row])
            tensor = tensors[columns.signature[record]][place]
            found.setdefault(record, ({}, {}))[side][place] = Part(int(starts[row]), tensor)
    return found
