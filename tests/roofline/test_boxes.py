"""Boxes against sets of elements."""

from __future__ import annotations

from itertools import product

import pytest
from builders import spec
from hypothesis import given
from hypothesis import strategies as st

from rooflight.records.tensor import TensorSpec
from rooflight.roofline.fusion.boxes import Axis, Box, box_of, canonical, part_of, up_to, within
from rooflight.roofline.fusion.parts import Part, union_bytes


def places(part: Part) -> set[int]:
    """Elements of the storage."""
    tensor = part.tensor
    strides = tensor.strides
    if strides is None:
        strides = tuple(spec(tensor.shape[place + 1 :]).numel for place in range(len(tensor.shape)))
    return {
        part.start + sum(index * stride for index, stride in zip(indices, strides, strict=True))
        for indices in product(*map(range, tensor.shape))
    }


def indices(axis: Axis) -> list[int]:
    steps = (range(0, count * step, step) for count, step in axis.runs)
    return sorted(axis.first + sum(chosen) for chosen in product(*steps))


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(product(*map(indices, box)))


@st.composite
def views(draw: st.DrawFn) -> tuple[Part, Part, list[int]]:
    """A tensor, dense in some order of its dimensions, and a slice of a reshaped view of it."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(sizes))))
    strides, step = [0] * len(sizes), 1
    for dim in order:
        strides[dim], step = step, step * sizes[dim]
    start = draw(st.integers(0, 3))
    whole = Part(start, TensorSpec(tuple(sizes), "float32", tuple(strides)))
    shape, left = [], step
    while left > 1:
        size = draw(st.sampled_from([size for size in range(2, left + 1) if left % size == 0]))
        shape.append(size)
        left //= size
    cut_shape, cut_strides, at, inner = [], [], start, step
    for size in shape:
        inner //= size
        first = draw(st.integers(0, size - 1))
        by = draw(st.integers(1, 2))
        count = draw(st.integers(1, (size - first - 1) // by + 1))
        at += first * inner
        cut_shape.append(count)
        cut_strides.append(by * inner)
    return whole, Part(at, TensorSpec(tuple(cut_shape), "float32", tuple(cut_strides))), sizes


@given(views())
def test_a_box_has_the_elements_of_its_part(found):
    whole, part, sizes = found
    box = box_of(part, whole)
    assert places(canonical(part)) == places(part)
    if box is None:
        return
    at = {
        indices: whole.start + sum(i * stride for i, stride in zip(indices, whole.tensor.strides, strict=True))
        for indices in product(*map(range, sizes))
    }
    assert {at[indices] for indices in elements(box)} == places(part)
    assert places(part_of(box, whole)) == places(part)
    assert part_of(box, whole) == canonical(part)


@given(st.integers(0, 5), st.integers(1, 5), st.integers(1, 3), st.integers(-3, 12), st.integers(0, 9))
def test_what_lies_within_is_counted_from_there(first, count, step, low, size):
    axis = Axis(first, ((count, step),) if count > 1 else ())
    inside = within(axis, low, low + size)
    assert ([] if inside is None else indices(inside)) == [i - low for i in indices(axis) if low <= i < low + size]


@given(views(), views())
def test_unions_of_parts_are_exact(one, other):
    parts = [one[0], one[1], other[1]]
    assert union_bytes(parts) == 4 * len(set().union(*map(places, parts)))


@pytest.mark.parametrize(
    ("shape", "start", "cut", "strides", "expected"),
    [
        # rows [8 x 6] read as [2, 4, 6][:, 1:3]: rows 1, 2, 5, 6
        ((8, 6), 6, (2, 2, 6), (24, 6, 1), (Axis(1, ((2, 4), (2, 1))), up_to(6))),
        # and as [2, 4, 6][:, 0, ::2]
        ((8, 6), 0, (2, 3), (24, 2), (Axis(0, ((2, 4),)), Axis(0, ((3, 2),)))),
        # [2, 24] read as [2, 4, 6][:, -1]
        ((2, 24), 18, (2, 6), (24, 1), (up_to(2), Axis(18, ((6, 1),)))),
        # a flat piece from within one row into the next is no box
        ((8, 6), 3, (6,), (1,), None),
        # nor is what lies outside
        ((8, 6), 47, (2,), (1,), None),
    ],
)
def test_boxes_of_reshaped_slices(shape, start, cut, strides, expected):
    assert box_of(Part(start, TensorSpec(cut, "float32", strides)), Part(0, spec(shape))) == expected
