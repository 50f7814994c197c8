"""Trees as arrays of a file: what is unpacked answers as what was packed, however its leaves were numbered."""

from __future__ import annotations

import numpy as np
from handmade_models import trees
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.prediction.model.packing import arrays_of, trees_from
from rooflight.prediction.model.trees import Trees, grow


def again(found: Trees) -> Trees:
    return trees_from("x", found.features, {f"x.{name}": array for name, array in arrays_of(found).items()})


def test_branches_follow_from_the_leaves_that_nodes_take_the_place_of():
    """Node 0 splits leaf 0 into 0 and 1, node 1 splits leaf 1 into 1 and 2, node 2 splits leaf 0 into 0 and 3."""
    one = trees([4], [10, 20, 30, 40], [0, 1, 2], [0.5, 0.5, 0.5], [2, -2, -1], [1, -3, -4])
    packed = arrays_of(one)
    assert packed["split"].tolist() == [0, 1, 0]
    assert packed["value"].tolist() == [10, 20, 30, 40]
    found = again(one)
    assert (found.left.tolist(), found.right.tolist()) == ([2, -2, -1], [1, -3, -4])


def test_a_threshold_that_many_nodes_have_is_kept_once():
    grown = grow(np.random.default_rng(0).integers(0, 9, (2000, 3)).astype(float), np.arange(2000.0) % 7)
    packed = arrays_of(grown)
    assert packed["counts"].sum() == len(packed["threshold"]) <= 3 * 8 < len(packed["code"])


@st.composite
def any_trees(draw: st.DrawFn) -> Trees:
    """Trees grown by splitting leaves at random, the leaves numbered at random."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    leaves, feature, threshold, left, right, value = [], [], [], [], [], []
    for count in draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)):
        number = rng.permutation(count)
        open_ends = [(-1, 0)]  # whose child, left or right
        branches = np.zeros((2, count - 1), dtype=int)
        for node in range(count - 1):
            parent, side = open_ends.pop(rng.integers(len(open_ends)))
            if parent >= 0:
                branches[side, parent] = node
            open_ends += [(node, 0), (node, 1)]
        for (parent, side), leaf in zip(open_ends, number, strict=True):
            if parent >= 0:
                branches[side, parent] = -1 - leaf
        leaves.append(count)
        left += branches[0].tolist()
        right += branches[1].tolist()
        feature += rng.integers(0, 3, count - 1).tolist()
        threshold += rng.integers(-2, 3, count - 1).tolist()
        value += rng.integers(-8, 8, count).tolist()
    return trees(leaves, value, feature, threshold, left, right)


@settings(max_examples=200, deadline=None)
@given(any_trees())
def test_what_is_unpacked_answers_as_what_was_packed(made: Trees):
    values = np.random.default_rng(1).uniform(-3, 3, (50, 3))
    assert np.array_equal(again(made).predict(values), made.predict(values))
    assert all(
        np.array_equal(a, b) for a, b in zip(arrays_of(made).values(), arrays_of(again(made)).values(), strict=True)
    )
