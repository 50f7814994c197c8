"""Parts of a storage that tensors cover, how many bytes several of them cover together, and intervals of indices."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

import numpy as np

from rooflight.records.tensor import TensorSpec, contiguous_strides

_MOST_RUNS: Final = 1 << 20


class Part(NamedTuple):
    """Runs of ``length`` bytes, the first of them ``first`` bytes into the storage. They repeat along each pair of
    ``repeats``, of how often and how many bytes apart, the widest first, and do not overlap.
    """

    first: int
    length: int
    repeats: tuple[tuple[int, int], ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self.length * prod(count for count, _ in self.repeats)

    @property
    def end(self) -> int:
        """The byte after its last."""
        return self.first + self.length + sum((count - 1) * step for count, step in self.repeats)

    def meets(self, other: Part | None) -> bool:
        """Whether both may have bytes in common; None is a part that may be anywhere."""
        return other is None or (self.first < other.end and other.first < self.end)

    def has(self, other: Part | None) -> bool:
        """Whether all of another part surely lies in this one."""
        return self == other or (
            other is not None and not self.repeats and self.first <= other.first and other.end <= self.end
        )


@lru_cache(maxsize=1 << 14)
def part_of(start: int, tensor: TensorSpec) -> Part | None:
    """The memory of a tensor that begins so many elements into its storage; None where its elements overlap oddly."""
    size = tensor.item_bytes
    if 0 in tensor.shape:
        return Part(start * size, 0)
    length, repeats = 1, list[tuple[int, int]]()
    for step, count in sorted(zip(strides_of(tensor), tensor.shape, strict=True)):
        if count == 1 or step == 0:
            continue
        if not repeats and step <= length:  # runs that touch or overlap are one
            length = (count - 1) * step + length
        elif repeats and step == repeats[0][0] * repeats[0][1]:
            repeats[0] = (repeats[0][0] * count, repeats[0][1])
        elif step < length + sum((each - 1) * apart for each, apart in repeats):
            return None
        else:
            repeats.insert(0, (count, step))
    return Part(start * size, length * size, tuple((count, step * size) for count, step in repeats))


class Axis(NamedTuple):
    """Indices along one dimension, of all of the others: ``repeats`` intervals of ``length``, ``step`` apart."""

    dim: int
    first: int
    length: int
    repeats: int = 1
    step: int = 0

    @property
    def size(self) -> int:
        """How many indices."""
        return self.length * self.repeats

    def elements(self, tensor: TensorSpec) -> int:
        """How many elements of a tensor."""
        return self.size * tensor.numel // max(1, prod(tensor.shape[self.dim : self.dim + 1]))

    @property
    def end(self) -> int:
        """The index after the last."""
        return self.first + (self.repeats - 1) * self.step + self.length

    def within(self, first: int, size: int) -> Axis | None:
        """The indices from ``first`` on, as many as ``size``, counted from there: None if none is, or not all of
        several intervals are.
        """
        start, end = max(self.first, first), min(self.end, first + size)
        if (start, end) == (self.first, self.end):
            return self._replace(first=start - first)
        return Axis(self.dim, start - first, end - start) if start < end and self.repeats == 1 else None

    def part(self, whole: Part, tensor: TensorSpec) -> Part | None:
        """The memory of these indices of a tensor that is ``whole``; None where it is not known."""
        if not tensor.shape:
            return whole
        strides = strides_of(tensor)
        along = strides[self.dim]
        shape = (*tensor.shape[: self.dim], self.length, *tensor.shape[self.dim + 1 :], self.repeats)
        layout = TensorSpec(shape, tensor.dtype, (*strides, self.step * along))
        return part_of(whole.first // tensor.item_bytes + self.first * along, layout)


@lru_cache(maxsize=1 << 14)
def axis_of(part: Part, whole: Part, tensor: TensorSpec) -> Axis | None:
    """Indices of a tensor that is ``whole``, without gaps, that surely lie in a part; None where that is not known."""
    first = part.first - whole.first
    is_dense = not whole.repeats and whole.length == tensor.numel * tensor.item_bytes
    if len(part.repeats) > 1 or not is_dense or first < 0 or part.end > whole.end:
        return None
    count, step = part.repeats[0] if part.repeats else (1, whole.length)
    for dim, (size, stride) in enumerate(zip(tensor.shape, strides_of(tensor), strict=True)):
        one, extent = stride * tensor.item_bytes, size * stride * tensor.item_bytes
        repeats = count * step == whole.length and extent % step == 0  # in all that is outside of this dimension
        begin, end = -(-first // one), (first + part.length) // one
        if size > 1 and begin < end and step % one == 0 and (repeats or extent == whole.length):
            return Axis(dim, begin, end - begin, extent // step if repeats else count, step // one)
    return None


def strides_of(tensor: TensorSpec) -> tuple[int, ...]:
    """A tensor's strides, in elements, those of a contiguous one too."""
    return tuple(contiguous_strides(tensor.shape)) if tensor.strides is None else tensor.strides


def union_bytes(parts: Collection[Part]) -> int:
    """Bytes that parts of one storage cover together: exact, but for very many runs, of which it is the largest part,
    no more than the union.
    """
    distinct = frozenset(parts)
    return _union_bytes(distinct) if len(distinct) > 1 else sum(part.nbytes for part in distinct)


@lru_cache(maxsize=1 << 12)
def _union_bytes(parts: frozenset[Part]) -> int:
    repeats = {part.repeats[:1] for part in parts}
    if len(repeats) == 1 and repeats != {()}:
        # a pattern that repeats: queries, keys and values, side by side in each row
        (((count, step),),) = repeats
        inner = frozenset(part._replace(repeats=part.repeats[1:]) for part in parts)
        if max(part.end for part in inner) - min(part.first for part in inner) <= step:
            return count * union_bytes(inner)
    if sum(prod(count for count, _ in part.repeats) for part in parts) > _MOST_RUNS:
        return max(part.nbytes for part in parts)
    runs = []
    for part in parts:
        firsts = np.array([part.first], dtype=np.int64)
        for count, step in part.repeats:
            firsts = (firsts[:, None] + np.arange(count, dtype=np.int64) * step).ravel()
        runs.append((firsts, firsts + part.length))
    first, end = (np.concatenate(side) for side in zip(*runs, strict=True))
    order = np.argsort(first, kind="stable")
    first, end = first[order], np.maximum.accumulate(end[order])
    fresh = end - np.maximum(first, np.concatenate([first[:1], end[:-1]]))
    return int(np.maximum(fresh, 0).sum())


def add_part(parts: dict[Part, None], part: Part) -> None:
    """Add a part to others, as one with the latest if they lie side by side, as the slices do that a loop touches."""
    first, last = sorted((next(reversed(parts), part), part))
    length = max(first.length, last.first - first.first + last.length)
    beside = first.repeats == last.repeats and last.first <= first.first + first.length
    if parts and beside and (not part.repeats or length <= part.repeats[-1][1]):
        parts.popitem()
        part = first._replace(length=length)
    parts[part] = None
