"""Boxes: which elements of a tensor a part of its storage are, dimension by dimension, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.fusion.parts import Part, strides_of

Run = tuple[int, int]
"""So many indices, and how far each is from the one before."""


class Axis(NamedTuple):
    """Indices along one dimension: the first, and the sums of one step of each run with it."""

    first: int
    runs: tuple[Run, ...] = ()

    @property
    def size(self) -> int:
        """How many indices."""
        found = 1
        for count, _ in self.runs:
            found *= count
        return found

    @property
    def last(self) -> int:
        """The largest index."""
        return self.first + sum((count - 1) * step for count, step in self.runs)


Box = tuple[Axis, ...]
"""The product of one axis per dimension."""

FIRST: Final = Axis(0)


def up_to(size: int) -> Axis:
    """The first ``size`` indices, all of a dimension of that size."""
    return Axis(0, ((size, 1),)) if size > 1 else FIRST


def whole_box(shape: tuple[int, ...]) -> Box:
    """All elements of a tensor of this shape."""
    return tuple(map(up_to, shape))


def within(axis: Axis, first: int, end: int) -> Axis | None:
    """The indices from ``first`` until before ``end``, counted from there: None if none is. Raises ValueError where
    they are no axis.
    """
    if axis.first >= end or axis.last < first:
        return None
    if axis.first >= first and axis.last < end:
        return Axis(axis.first - first, axis.runs)
    if len(axis.runs) != 1:
        raise ValueError("not an axis")
    ((_, step),) = axis.runs
    inside = range(axis.first, axis.last + 1, step)
    inside = inside[max(0, -(-(first - axis.first) // step)) :]
    inside = inside[: -(-(end - inside.start) // step)] if inside else inside
    if not inside:
        return None
    return Axis(inside.start - first, ((len(inside), step),) if len(inside) > 1 else ())


@lru_cache(maxsize=1 << 12)
def runs_of(tensor: TensorSpec) -> tuple[Run, ...]:
    """Sizes and strides of a tensor's elements in memory, the largest stride first, as few as describe them."""
    merged: list[Run] = []
    for stride, size in sorted(zip(strides_of(tensor), tensor.shape, strict=True), reverse=True):
        if size == 1 or stride == 0:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return tuple(merged)


@lru_cache(maxsize=1 << 14)
def box_of(part: Part, whole: Part) -> Box | None:
    """Which elements of ``whole`` a part of the same storage are; None where they are no box, or lie outside."""
    tensor = whole.tensor
    if part.tensor.item_bytes != tensor.item_bytes or 0 in part.tensor.shape or 0 in tensor.shape:
        return None
    dims = sorted(
        ((stride, dim) for dim, stride in enumerate(strides_of(tensor)) if tensor.shape[dim] > 1), reverse=True
    )
    sizes = [tensor.shape[dim] for _, dim in dims]
    if not _is_nested([stride for stride, _ in dims], sizes):
        return None
    offset = part.start - whole.start
    firsts: list[int] = []
    for stride, _ in dims:
        index, offset = divmod(offset, stride)
        firsts.append(index)
    if offset:
        return None
    runs: list[list[Run]] = [[] for _ in dims]
    for count, stride in runs_of(part.tensor):
        if not _place(count, stride, [stride for stride, _ in dims], sizes, firsts, runs):
            return None
    box = [FIRST] * len(tensor.shape)
    for (_, dim), size, first, along in zip(dims, sizes, firsts, runs, strict=True):
        box[dim] = Axis(first, tuple(along))
        if first < 0 or box[dim].last >= size:
            return None
    return tuple(box)


def part_of(box: Box, whole: Part) -> Part:
    """The part of a storage that a box of the elements of ``whole`` is."""
    start = whole.start
    runs: list[Run] = []
    for axis, stride in zip(box, strides_of(whole.tensor), strict=True):
        start += axis.first * stride
        runs += [(count, step * stride) for count, step in axis.runs]
    return _canonical(start, tuple(runs), whole.tensor.dtype)


def canonical(part: Part) -> Part:
    """The same part, described as all others of its elements are."""
    return _canonical(part.start, runs_of(part.tensor), part.tensor.dtype)


@lru_cache(maxsize=1 << 14)
def _canonical(start: int, runs: tuple[Run, ...], dtype: str) -> Part:
    shape, strides = tuple(count for count, _ in runs), tuple(stride for _, stride in runs)
    found = runs_of(TensorSpec(shape, dtype, strides))
    shape, strides = tuple(count for count, _ in found), tuple(stride for _, stride in found)
    return Part(start, TensorSpec(shape, dtype, None if strides in ((), (1,)) else strides))


def _place(
    count: int, stride: int, strides: list[int], sizes: list[int], firsts: list[int], runs: list[list[Run]]
) -> bool:
    """Give a run of a part to the dimensions that it goes along, innermost first. False where it fits none."""
    place = next((place for place, step in enumerate(strides) if step <= stride), None)
    if place is None or stride % strides[place]:
        return False
    step = stride // strides[place]
    while True:
        if firsts[place] + (count - 1) * step < sizes[place]:
            runs[place].append((count, step))
            return True
        inside = sizes[place] // step  # it goes on in the next outer dimension, if that begins where this one ends
        if (
            firsts[place] >= step
            or sizes[place] % step
            or count % inside
            or place == 0
            or strides[place - 1] != sizes[place] * strides[place]
        ):
            return False
        if inside > 1:
            runs[place].append((inside, step))
        count //= inside
        place, step = place - 1, 1
        if count == 1:
            return True


def _is_nested(strides: list[int], sizes: list[int]) -> bool:
    """Whether each stride, the largest first, steps over all that the smaller ones reach."""
    reach = 1
    for stride, size in zip(reversed(strides), reversed(sizes), strict=True):
        if stride < reach:
            return False
        reach = stride * size
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Elements of a tensor: the boxes where some are known to lie, and how many there are at least, these included.
    Of every line along a dimension of ``lines``, at least one element is among them, it is not known which.
    """

    boxes: tuple[Box, ...] = ()
    elements: int = 0
    lines: frozenset[int] = frozenset()

    def mapped(self, of_box: Callable[[Box], Box | None], elements: int) -> Wanted:
        """Each box as ``of_box`` has it, or left out where that is None."""
        boxes = (of_box(box) for box in self.boxes)
        return Wanted(boxes=tuple(box for box in boxes if box is not None), elements=elements)


NOTHING: Final = Wanted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A part of one of an op's results: ``place`` of the result, ``wanted`` of it, and ``reads``, how many elements of
    each input the op reads for all of it.
    """

    op: OpSignature
    place: int
    wanted: Wanted
    reads: Sequence[int]

    @property
    def out(self) -> TensorSpec:
        """The result."""
        return self.op.outputs[self.place]

    @property
    def share(self) -> float:
        """What share of the result it is."""
        return min(1.0, self.wanted.elements / max(1, self.out.numel))
