"""Trees: boosted regression trees as plain arrays. LightGBM grows them; numpy alone can walk them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.work.facts import Floats

_FEW_ROWS: Final = 10_000
_TREES, _FEWER_TREES = 160, 110
_SETTINGS: Final[Mapping[str, Any]] = {
    "min_data_in_leaf": 3,
    "verbose": -1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,  # threads that wait for one another cost more than they bring
    "seed": 0,
}
_RATE: Final = 23.4  # learning rate times trees: 0.13 of 180
_FINE: Final[Mapping[str, Any]] = {"max_bin": 255, "feature_fraction": 0.8}
_COARSE: Final[Mapping[str, Any]] = {"max_bin": 127, "feature_fraction": 0.6}
"""Thresholds tried a feature, and features tried a tree. Quantised gradients would save as much again, but LightGBM 4.7
fails with them on some tables: "Check failed: (best_split_info.right_count) > (0)"."""
_SMALL_TREES: Final = 24
_SMALL: Final[Mapping[str, Any]] = {
    "objective": "l2",
    "num_leaves": 8,
    "learning_rate": 0.15,
    "min_data_in_leaf": 30,
    "max_bin": 63,
    "feature_fraction": 0.6,
}
_STEP: Final = 2.0**-12  # 160 trees rounded so are off by 0.1 %
_BLOCK: Final = 40
"""Trees that LightGBM walks at a time: few enough to stay in a core's cache."""
_BATCH: Final = 2048
"""Rows, asked at once or one after the other, from which LightGBM, where it is installed, is worth its import and the
time to give it the trees. Leaves are on a grid, so that both find the same sums to the last digit.
"""
_THREADED: Final = 20_000
"""Rows from which a second thread is worth what it spends on waiting, some milliseconds."""
_FIELDS: Final = ("split_feature", "threshold", "left_child", "right_child", "leaf_value")


@dataclass(frozen=True)
class Trees:
    """The sum of a leaf of each tree. All trees lie one after the other.

    ``leaves`` [trees]: how many each has; a tree of n leaves has n - 1 inner nodes, the first of which is its root.
    ``feature`` and ``threshold`` [inner nodes]: a row goes left where its feature is not above the threshold. ``left``
    and ``right`` [inner nodes]: a node of the same tree, or -1 - leaf. ``value`` [leaves]. Raises ValueError unless
    every node but the root, and every leaf, is reached exactly once.
    """

    features: int
    leaves: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float32]
    _engine: list[Any] = field(default_factory=list, repr=False, compare=False)
    _walked: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    def __post_init__(self) -> None:
        leaves = self.leaves.astype(np.int64)
        if leaves.ndim != 1 or not len(leaves) or (leaves < 1).any() or leaves.sum() > 1 << 26:
            raise ValueError("trees without leaves")
        nodes = int((leaves - 1).sum())
        inner = (self.feature, self.threshold, self.left, self.right)
        if any(array.shape != (nodes,) for array in inner) or self.value.shape != (int(leaves.sum()),):
            raise ValueError("trees whose arrays are of different lengths")
        if not (np.isfinite(self.threshold).all() and np.isfinite(self.value).all()):
            raise ValueError("trees with numbers that are not finite")
        if nodes and not (int(self.feature.min()) >= 0 and int(self.feature.max()) < self.features):
            raise ValueError("trees of other features")
        self._check_children(leaves)

    @cached_property
    def _roots(self) -> NDArray[np.int64]:
        """Where each tree's inner nodes begin; its leaves begin as many places further as trees come before it."""
        return np.concatenate(([0], np.cumsum(self.leaves.astype(np.int64) - 1)[:-1]))

    @property
    def reach(self) -> float:
        """The most that an answer can be away from 0."""
        first_leaf = np.concatenate(([0], np.cumsum(self.leaves.astype(np.int64))[:-1]))
        return float(np.maximum.reduceat(np.abs(self.value.astype(np.float64)), first_leaf).sum())

    def _check_children(self, leaves: NDArray[np.int64]) -> None:
        owner = np.repeat(np.arange(len(leaves)), leaves - 1)
        roots = np.concatenate(([0], np.cumsum(leaves - 1)))
        first_leaf = np.concatenate(([0], np.cumsum(leaves)))
        seen_nodes = np.zeros(len(self.feature), dtype=np.int64)
        seen_leaves = np.zeros(len(self.value), dtype=np.int64)
        place = np.arange(len(self.feature)) - roots[owner]
        for child in (self.left.astype(np.int64), self.right.astype(np.int64)):
            inside = np.where(child >= 0, child < leaves[owner] - 1, child >= -leaves[owner])
            # a child after its parent: there is no way round in a circle
            if not (inside & ((child < 0) | (child > place))).all():
                raise ValueError("trees whose branches lead nowhere")
            is_leaf = child < 0
            np.add.at(seen_nodes, (roots[owner] + child)[~is_leaf], 1)
            np.add.at(seen_leaves, (first_leaf[owner] - 1 - child)[is_leaf], 1)
        is_root = np.zeros(len(self.feature), dtype=bool)
        is_root[roots[:-1][leaves > 1]] = True
        of_a_node = np.repeat(leaves > 1, leaves)  # the only leaf of a tree is no node's
        if (seen_nodes != ~is_root).any() or (seen_leaves != of_a_node).any():
            raise ValueError("trees whose branches lead nowhere")

    def predict(self, values: Floats) -> Floats:
        """The sum over trees for rows of features [rows, features]."""
        if not self._engine:
            self._walked[0] += len(values)
        if self._walked[0] >= _BATCH and len(self.feature) and self._booster() is not None:
            return self._walk_fast(values)
        out = np.empty(len(values))
        step = max(1, (1 << 18) // len(self.leaves))
        for start in range(0, len(values), step):
            out[start : start + step] = self._walk(values[start : start + step])
        return out

    def _walk_fast(self, values: Floats) -> Floats:
        booster = self._booster()
        threads = (os.cpu_count() or 1) if len(values) >= _THREADED else 1
        total = np.zeros(len(values))
        for start in range(0, len(self.leaves), _BLOCK):
            some = min(_BLOCK, len(self.leaves) - start)
            total += booster.predict(values, start_iteration=start, num_iteration=some, num_threads=threads)
        return total

    @cached_property
    def _children(self) -> NDArray[np.int64]:
        """Left and right child of each inner node, by place among all nodes, or -1 less the place among all leaves."""
        owner = np.repeat(np.arange(len(self.leaves)), self.leaves.astype(np.int64) - 1)
        first_leaf = self._roots + np.arange(len(self.leaves))
        children = np.stack([self.left, self.right], axis=1).astype(np.int64)
        absolute = np.where(children >= 0, children + self._roots[owner, None], children - first_leaf[owner, None])
        return np.asarray(absolute.reshape(-1))

    def _walk(self, values: Floats) -> Floats:
        roots, trees = self._roots, len(self.leaves)
        leaf = np.tile(roots + np.arange(trees), len(values))  # of a tree without inner nodes its only one
        going = np.flatnonzero(np.tile(self.leaves > 1, len(values)))
        at, row, flat = roots[going % trees], going // trees * values.shape[1], values.reshape(-1)
        while len(going):
            goes_left = flat[row + self.feature[at]] <= self.threshold[at]
            at = self._children[2 * at + ~goes_left]
            deeper = at >= 0
            done = ~deeper
            leaf[going[done]] = -1 - at[done]
            going, at, row = going[deeper], at[deeper], row[deeper]
        return np.asarray(self.value[leaf].astype(np.float64).reshape(len(values), trees).sum(axis=1))

    def _booster(self) -> Any:
        if not self._engine:
            try:
                import lightgbm
            except (ImportError, OSError):  # OSError: installed, but not the OpenMP library that it needs
                self._engine.append(None)
            else:
                self._engine.append(lightgbm.Booster(model_str=_text_of(self)))
        return self._engine[0]


class Leaves(Enum):
    """How many leaves a tree has at most, and how many rows there are for each."""

    FEW = 15, 80
    MANY = 127, 80
    MOST = 511, 60

    def of(self, rows: int) -> int:
        """Of a tree that learns from so many rows."""
        most, rows_a_leaf = self.value
        return min(most, max(7, rows // rows_a_leaf))


@dataclass(frozen=True, slots=True)
class Way:
    """How trees are grown: which loss, and few leaves (for noise) or many (for detail)."""

    loss: str  # "l1" heeds outliers less, "l2" learns faster
    leaves: Leaves


WAYS: Final = tuple(Way(loss, leaves) for loss in ("l2", "l1") for leaves in (Leaves.MANY, Leaves.FEW, Leaves.MOST))


def grow(values: Floats, target: Floats, way: Way = WAYS[0], *, coarse: bool = False) -> Trees:
    """Trees that predict ``target`` [rows] from features [rows, features]; ``coarse`` ones in two thirds of the time,
    a little worse.
    """
    return _read(_grown(values, target, way, _COARSE if coarse else _FINE).model_to_string(), values.shape[1])


def grow_small(values: Floats, target: Floats) -> Trees:
    """A few small trees: what ``target`` [rows] is on average, roughly, of rows of features [rows, features]."""
    return grow_with(values, target, _SMALL_TREES, _SMALL)


def grow_with(values: Floats, target: Floats, trees: int, settings: Mapping[str, Any]) -> Trees:
    """So many trees that predict ``target`` [rows], grown with settings of LightGBM's."""
    return _read(_trained(values, target, trees, settings).model_to_string(), values.shape[1])


def lone(value: float) -> Trees:
    """One leaf, which gives the same answer for all rows."""
    none = np.array([], dtype=np.int32)
    return Trees(
        features=0,
        leaves=np.array([1], dtype=np.int32),
        feature=none,
        threshold=none.astype(np.float32),
        left=none,
        right=none,
        value=np.array([value], dtype=np.float16).astype(np.float32),
    )


def answers_of_grown(values: Floats, target: Floats, way: Way, asked: Floats) -> Floats:
    """Answers of coarse trees for ``asked`` [rows, features]; no trees are kept."""
    return np.asarray(_grown(values, target, way, _COARSE).predict(asked, num_threads=1))


def _grown(values: Floats, target: Floats, way: Way, detail: Mapping[str, Any]) -> Any:
    leaves = way.leaves.of(len(values))
    trees = _TREES if len(values) >= _FEW_ROWS else _FEWER_TREES
    settings = {**detail, "objective": way.loss, "num_leaves": leaves, "learning_rate": _RATE / trees}
    return _trained(values, target, trees, settings)


def _trained(values: Floats, target: Floats, trees: int, settings: Mapping[str, Any]) -> Any:
    import lightgbm

    data = lightgbm.Dataset(values, target, params={"verbose": -1})
    return lightgbm.train({**_SETTINGS, **settings}, data, trees)


def _read(text: str, features: int) -> Trees:
    columns: dict[str, list[list[str]]] = {name: [] for name in _FIELDS}
    leaves: list[int] = []
    for tree in re.split(r"^Tree=\d+$", text.partition("end of trees")[0], flags=re.MULTILINE)[1:]:
        lines = dict(line.split("=", 1) for line in tree.splitlines() if "=" in line)
        leaves.append(int(lines["num_leaves"]))
        for name in _FIELDS:
            columns[name].append(lines.get(name, "").split() if leaves[-1] > 1 or name == "leaf_value" else [])
    flat = {name: [each for tree in trees for each in tree] for name, trees in columns.items()}
    return Trees(
        features=features,
        leaves=np.array(leaves, dtype=np.int32),
        feature=np.array(flat["split_feature"], dtype=np.int32),
        threshold=np.array(flat["threshold"], dtype=np.float64).astype(np.float32),
        left=np.array(flat["left_child"], dtype=np.int32),
        right=np.array(flat["right_child"], dtype=np.int32),
        value=_on_grid(np.array(flat["leaf_value"], dtype=np.float64)),
    )


def _on_grid(values: Floats) -> NDArray[np.float32]:
    """Values as precise as a file has them: multiples of ``_STEP``, which pack to half of what all 16 bits take."""
    return (np.round(values / _STEP) * _STEP).astype(np.float16).astype(np.float32)


def _text_of(trees: Trees) -> str:
    head = [
        "tree", "version=v4", "num_class=1", "num_tree_per_iteration=1", "label_index=0",
        f"max_feature_idx={trees.features - 1}", "objective=regression",
        "feature_names=" + " ".join(f"f{number}" for number in range(trees.features)),
        "feature_infos=" + " ".join(["[-1e300:1e300]"] * trees.features), "",
    ]  # fmt: skip
    parts = []
    node = leaf = 0
    for number, leaves in enumerate(trees.leaves.tolist()):
        inner = slice(node, node + leaves - 1)
        lines = [f"Tree={number}", f"num_leaves={leaves}", "num_cat=0"]
        if leaves > 1:
            zeros = " ".join(["0"] * (leaves - 1))
            lines += [
                _line("split_feature", trees.feature[inner]),
                f"split_gain={zeros}",
                _line("threshold", trees.threshold[inner].astype(np.float64)),
                f"decision_type={' '.join(['2'] * (leaves - 1))}",
                _line("left_child", trees.left[inner]),
                _line("right_child", trees.right[inner]),
            ]
        values = trees.value[leaf : leaf + leaves].astype(np.float64)
        lines += [_line("leaf_value", values), _line("leaf_weight", np.ones(leaves))]
        lines += [_line("leaf_count", np.ones(leaves, dtype=np.int32))]
        if leaves > 1:
            lines += [f"internal_value={zeros}", f"internal_weight={zeros}", f"internal_count={zeros}"]
        lines += ["is_linear=0", "shrinkage=1", "", ""]
        parts.append("\n".join(lines))
        node, leaf = node + leaves - 1, leaf + leaves
    sizes = "tree_sizes=" + " ".join(str(len(part) + 1) for part in parts)
    head.insert(-1, sizes)
    return "\n".join(head) + "\n" + "\n".join(parts) + "\nend of trees\n\nparameters:\nend of parameters\n"


def _line(name: str, values: NDArray[Any]) -> str:
    return f"{name}={' '.join(map(repr, values.tolist()))}"
