"""Trees: three ways to walk them, how they are grown, and how they are packed."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from importlib.abc import MetaPathFinder
from typing import Any

import numpy as np
import pytest
from handmade_models import lone, stump, trees
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rooflight.prediction.model.packing import arrays_of, trees_from
from rooflight.prediction.model.trees import WAYS, Trees, Way, grow

FEATURES = 3
ENOUGH = 2048  # rows from which LightGBM walks
WITHOUT_BATCHES = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def forests(draw: st.DrawFn) -> Trees:
    """Trees grown by splitting leaves at random, the leaves numbered at random."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    leaves, feature, threshold, left, right, value = [], [], [], [], [], []
    for count in draw(st.lists(st.integers(1, 9), min_size=1, max_size=25)):
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
        feature += rng.integers(0, FEATURES, count - 1).tolist()
        threshold += (rng.integers(-4, 5, count - 1) / 2).tolist()
        value += rng.integers(-8, 8, count).tolist()
    return trees(leaves, value, feature, threshold, left, right)


def plain_walk(forest: Trees, row: np.ndarray) -> float:
    total, root, first_leaf = 0.0, 0, 0
    for leaves in forest.leaves.tolist():
        node = 0 if leaves > 1 else -1
        while node >= 0:
            at = root + node
            goes_left = row[forest.feature[at]] <= forest.threshold[at]
            node = int(forest.left[at] if goes_left else forest.right[at])
        total += float(forest.value[first_leaf - 1 - node])
        root, first_leaf = root + leaves - 1, first_leaf + leaves
    return total


def some_rows(seed: int, count: int = 40) -> np.ndarray:
    """Halves from -2 to 2: often exactly a threshold."""
    return np.random.default_rng(seed).integers(-4, 5, (count, FEATURES)) / 2


@WITHOUT_BATCHES
@given(forests(), st.integers(0, 100))
def test_three_ways_to_walk_agree(forest: Trees, seed: int):
    rows = some_rows(seed)
    expected = [plain_walk(forest, row) for row in rows]
    assert forest.predict(rows) == pytest.approx(expected, abs=1e-9)
    many = np.tile(rows, (ENOUGH // len(rows) + 1, 1))[:ENOUGH]
    assert forest.predict(many)[: len(rows)] == pytest.approx(expected, abs=1e-9)


def grown(way: Way, monkeypatch: pytest.MonkeyPatch, rows: int = 300) -> tuple[Trees, Any, np.ndarray]:
    """Trees grown on a grid coarse enough for float32, with LightGBM's own model."""
    import lightgbm

    made, train = [], lightgbm.train
    monkeypatch.setattr(lightgbm, "train", lambda *args: made.append(train(*args)) or made[-1])
    rng = np.random.default_rng(0)
    values = rng.integers(0, 64, (rows, 5)) / 8
    target = np.sin(values[:, 0]) + values[:, 1] * values[:, 2] / 16 + rng.normal(0, 0.1, rows)
    forest = grow(values, target, way)
    return forest, made[0], values


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_was_grown_is_what_lightgbm_grew(way: Way, monkeypatch: pytest.MonkeyPatch):
    forest, booster, values = grown(way, monkeypatch)
    fresh = np.random.default_rng(1).integers(-8, 80, (500, 5)) / 8  # outside of what was shown, too
    first_leaf = np.concatenate(([0], np.cumsum(forest.leaves)[:-1]))
    # a leaf kept in 16 bits is off by at most 2^-11 of itself, or by 2^-25 where it is next to nothing
    rounding = float(np.maximum.reduceat(np.abs(forest.value) * 2.0**-11 + 2.0**-25, first_leaf).sum())
    assert rounding < 0.01
    for rows in (values, fresh):
        assert forest.predict(rows) == pytest.approx(booster.predict(rows), abs=rounding)


def test_growing_twice_gives_the_same(monkeypatch: pytest.MonkeyPatch):
    one, other = (grown(WAYS[0], monkeypatch)[0] for _ in range(2))
    for name in ("leaves", "feature", "threshold", "left", "right", "value"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("rows", [0, 1, 1456, 1457, ENOUGH - 1, ENOUGH, ENOUGH + 1, 3 * ENOUGH])
def test_batches_of_any_size_give_the_same(rows: int, monkeypatch: pytest.MonkeyPatch):
    # numpy walks 2^18 // 180 trees = 1456 rows at a time
    forest, _, values = grown(WAYS[0], monkeypatch)
    few = forest.predict(values)
    times = rows // len(values) + 1
    many = forest.predict(np.tile(values, (times, 1))[:rows])
    assert many.shape == (rows,)
    assert many == pytest.approx(np.tile(few, times)[:rows], abs=1e-9)


def test_many_small_batches_are_walked_as_one_large_one_with_the_same_sums(monkeypatch: pytest.MonkeyPatch):
    forest, _, values = grown(WAYS[0], monkeypatch)
    slow = []
    monkeypatch.setattr(Trees, "_walk", lambda self, rows, walk=Trees._walk: slow.append(len(rows)) or walk(self, rows))
    found = [forest.predict(values).tolist() for _ in range(2 * ENOUGH // len(values))]
    assert all(each == found[0] for each in found)  # leaves are on a grid: no order of sums changes a digit
    assert ENOUGH - len(values) <= sum(slow) < ENOUGH


def test_lone_leaves():
    assert lone(0.5, 2).predict(np.zeros((3, 2))).tolist() == [0.5] * 3
    assert lone(0.5, 2).predict(np.zeros((ENOUGH, 2))).tolist() == [0.5] * ENOUGH
    # a lone leaf, a stump, two lone leaves: 1 + (2 or 4) + 8 + 16
    forest = trees([1, 2, 1, 1], [1, 2, 4, 8, 16], [0], [0.5], [-1], [-2], features=1)
    rows = np.array([[0.5], [np.nextafter(0.5, 1)]])  # not above the threshold, and just above
    assert forest.predict(rows).tolist() == [27, 29]
    assert forest.predict(np.tile(rows, (ENOUGH, 1)))[:2].tolist() == [27, 29]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_of_a_target_that_never_changes_a_leaf_is_left(way: Way):
    values = np.random.default_rng(0).random((60, 2))
    for target in (0.0, 0.7):
        forest = grow(values, np.full(60, target), way)
        assert set(forest.leaves.tolist()) == {1}
        assert forest.predict(values) == pytest.approx(target, abs=1e-3)
    noise = np.random.default_rng(0).normal(0.7, 0.1, 60)  # of rows that are all the same
    assert grow(np.ones((60, 4)), noise).predict(np.ones((1, 4)))[0] == pytest.approx(noise.mean(), abs=1e-3)


# a tree of three leaves over [leaf 0 | [leaf 1 | leaf 2]], then a lone one
GOOD = trees([3, 1], [1, 2, 4, 8], [0, 2], [0, 0], [-1, -2], [1, -3])


@pytest.mark.parametrize(
    "changes",
    [
        {"left": [-1, -9]},  # a leaf that is not there
        {"left": [-1, -4]},  # the next tree's
        {"right": [2, -3]},  # a node that is not there
        {"right": [1 << 30, -3]},
        {"right": [-(1 << 31), -3]},
        {"right": [0, -3]},  # itself
        {"right": [1, 0]},  # round in a circle
        {"right": [1, 1]},
        {"left": [1, -2]},  # a node reached twice
        {"left": [-2, -2]},  # a leaf reached twice, another never
        {"right": [-3, -3]},  # a node never reached
        {"threshold": [0, np.nan]},
        {"threshold": [np.inf, 0]},
        {"value": [1, 2, 4, np.nan]},
        {"value": [1, 2, -np.inf, 8]},
        {"feature": [0, 3]},
        {"feature": [-1, 0]},
        {"features": 2},
        {"value": [1, 2, 4]},
        {"value": [1, 2, 4, 8, 16]},
        {"feature": [0]},
        {"threshold": [0, 0, 0]},
        {"left": [-1]},
        {"right": []},
        {"leaves": []},
        {"leaves": [3]},
        {"leaves": [3, 1, 1]},
        {"leaves": [4, 0]},
        {"leaves": [5, -1]},
        {"leaves": [2, 2]},  # as many, but the first tree's branch leads out of it
        {"leaves": [(1 << 31) - 1] * 4},
        {"leaves": [1] * 4},
        {"left": np.array([[-1], [-2]])},
        {"value": np.array([[1, 2, 4, 8]])},
        {"leaves": np.array([[3, 1]])},
        {"leaves": np.array(3)},
    ],
    ids=str,
)
def test_trees_that_make_no_sense_are_refused(changes: dict[str, Any]):
    kept = {each.name: getattr(GOOD, each.name) for each in fields(Trees) if each.init and each.name[0] != "_"}
    arrays = {
        name: given if name == "features" else np.asarray(given, dtype=getattr(GOOD, name).dtype)
        for name, given in changes.items()
    }
    with pytest.raises(ValueError, match=r"^trees [^\n]+$"):
        Trees(**{**kept, **arrays})


def test_a_lone_tree_has_no_branch_that_leads_to_it():
    # the stump's right child is its leaf 0 again, the lone tree's own leaf stays alone
    for right in (-1, -3):
        with pytest.raises(ValueError, match="lead nowhere"):
            trees([2, 1], [1, 2, 4], [0], [0], [-1], [right])


@WITHOUT_BATCHES
@given(st.data(), forests())
def test_a_changed_number_is_refused_or_leads_somewhere(data: st.DataObject, forest: Trees):
    name = data.draw(st.sampled_from(["leaves", "feature", "left", "right"]))
    array = getattr(forest, name).copy()
    assume(len(array))
    place = data.draw(st.integers(0, len(array) - 1))
    array[place] = data.draw(st.integers(-9, 9) | st.integers(-(1 << 31), (1 << 31) - 1))
    try:
        other = replace(forest, **{name: array})
    except ValueError:
        return
    rows = some_rows(0, 10)
    expected = [plain_walk(other, row) for row in rows]
    assert other.predict(rows) == pytest.approx(expected, abs=1e-9)
    assert other.predict(np.tile(rows, (ENOUGH, 1)))[:10] == pytest.approx(expected, abs=1e-9)


class Missing(MetaPathFinder):
    """LightGBM as it is where it is not installed, or where a library that it needs is not."""

    def __init__(self, error: type[Exception]) -> None:
        self.error, self.asked = error, 0

    def find_spec(self, name: str, *_: object) -> None:
        if name == "lightgbm":
            self.asked += 1
            raise self.error("libgomp.so.1: cannot open shared object file: No such file or directory")


@pytest.mark.parametrize("error", [ModuleNotFoundError, OSError])
def test_numpy_walks_alone_where_lightgbm_is_not(error: type[Exception], monkeypatch: pytest.MonkeyPatch):
    finder = Missing(error)
    monkeypatch.delitem(sys.modules, "lightgbm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    forest = stump(0.5, 1, 2, feature=1, features=2)
    rows = np.tile([[0, 0], [0, 1]], (ENOUGH, 1))
    for _ in range(2):
        assert forest.predict(rows).tolist() == [1, 2] * ENOUGH
    assert finder.asked == 1  # and is not looked for again


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


@settings(max_examples=200, deadline=None)
@given(forests())
def test_what_is_unpacked_answers_as_what_was_packed(made: Trees):
    values = np.random.default_rng(1).uniform(-3, 3, (50, 3))
    assert np.array_equal(again(made).predict(values), made.predict(values))
    assert all(
        np.array_equal(a, b) for a, b in zip(arrays_of(made).values(), arrays_of(again(made)).values(), strict=True)
    )
