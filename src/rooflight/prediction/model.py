"""Model: how much longer than its bound a kind of work takes. Learned with gradient boosting, kept as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from rooflight.prediction.features import Floats, names_of

SCHEMA: Final = "rooflight.model/1"
FOLDS: Final = 5
LEAST_ROWS: Final = 30
"""Measurements of which a model can be made: fewer say little of how wrong it is."""
_TREES: Final = 400
_SETTINGS: Final[Mapping[str, Any]] = {
    "objective": "l2",
    "learning_rate": 0.06,
    "min_data_in_leaf": 3,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.9,
    "bagging_freq": 1,
    "lambda_l2": 0.5,
    "verbose": -1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
}
_LEAST_LEAVES, _MOST_LEAVES, _ROWS_A_LEAF = 15, 255, 60
"""A tree has a leaf for so many rows: of few, more leaves only learn the noise."""
_INTERVAL: Final = (0.05, 0.95)
_LARGEST_SHARE: Final = 0.2


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    schema: str
    key: str
    devices: list[str]
    rows: int
    low: list[float]
    high: list[float]
    inside: tuple[float, float]
    outside: tuple[float, float]
    error: float
    trees: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """``low`` and ``high`` [features] are the ranges it was shown, ``inside`` and ``outside`` the 5 % and 95 %
    quantiles of log(true / predicted) for held-out work like that and for work larger than any shown. ``error`` is the
    mean absolute percentage error, held out, as a fraction.
    """

    key: str
    devices: tuple[str, ...]
    rows: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    inside: tuple[float, float]
    outside: tuple[float, float]
    error: float
    trees: str
    booster: Any

    def predict(self, values: Floats) -> Floats:
        """log(time / bound) of rows of features [rows, features], never below 0."""
        return np.maximum(0.0, np.asarray(self.booster.predict(values), dtype=np.float64))

    def knows(self, values: Sequence[float], device: str) -> bool:
        """Whether work like this, on this device, was shown to it."""
        inside = all(
            low - 1e-9 <= value <= high + 1e-9 for low, value, high in zip(self.low, values, self.high, strict=True)
        )
        return inside and device in self.devices

    def encode(self) -> bytes:
        """The model as JSON."""
        return msgspec.json.encode(
            _File(
                schema=SCHEMA,
                key=self.key,
                devices=list(self.devices),
                rows=self.rows,
                low=list(self.low),
                high=list(self.high),
                inside=self.inside,
                outside=self.outside,
                error=self.error,
                trees=self.trees,
            )
        )


def learn(key: str, values: Floats, slowdown: Floats, devices: Sequence[str]) -> Model:
    """A model of ``slowdown`` [rows], log(time / bound), from features [rows, features].

    Its intervals come from rows held out: five random parts in turn, and the largest fifth by bound. Raises ValueError
    for fewer than 30 rows.
    """
    if len(values) < LEAST_ROWS:
        raise ValueError(f"{key}: {len(values)} rows are too few to learn from, sample at least {LEAST_ROWS}")
    held_out = np.empty(len(values))
    part = np.random.default_rng(0).permutation(len(values)) % FOLDS
    for fold in range(FOLDS):
        test = part == fold
        held_out[test] = _fit(values[~test], slowdown[~test]).predict(values[test])
    missed = slowdown - np.maximum(0.0, held_out)
    large = values[:, 0] > np.quantile(values[:, 0], 1 - _LARGEST_SHARE)
    beyond = missed
    if large.any() and not large.all():
        beyond = slowdown[large] - np.maximum(0.0, _fit(values[~large], slowdown[~large]).predict(values[large]))
    booster = _fit(values, slowdown)
    inside, further = _quantiles(missed), _quantiles(beyond)
    return Model(
        key=key,
        devices=tuple(sorted(set(devices))),
        rows=len(values),
        low=tuple(values.min(axis=0).tolist()),
        high=tuple(values.max(axis=0).tolist()),
        inside=inside,
        outside=(min(inside[0], further[0]), max(inside[1], further[1])),
        error=float(np.mean(np.abs(np.expm1(-missed)))),
        trees=booster.model_to_string(),
        booster=booster,
    )


def decode(text: bytes) -> Model:
    """A model from ``Model.encode``. Raises ValueError for anything else: it is parsed and checked, never executed."""
    import lightgbm

    try:
        file = msgspec.json.decode(text, type=_File)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a model of rooflight fit: {error}") from None
    if file.schema != SCHEMA:
        raise ValueError(f"a model of another version ({file.schema}): fit it again")
    count = len(names_of(file.key))
    if len(file.low) != count or len(file.high) != count:
        raise ValueError(f"a model of {file.key} with {len(file.low)} features instead of {count}: fit it again")
    figures = (*file.low, *file.high, *file.inside, *file.outside, file.error)
    if not np.isfinite(figures).all() or file.inside[0] > file.inside[1] or file.outside[0] > file.outside[1]:
        raise ValueError(f"the model of {file.key} holds impossible numbers: fit it again")
    check_trees(file.trees, count)
    return Model(
        key=file.key,
        devices=tuple(file.devices),
        rows=file.rows,
        low=tuple(file.low),
        high=tuple(file.high),
        inside=file.inside,
        outside=file.outside,
        error=file.error,
        trees=file.trees,
        booster=lightgbm.Booster(model_str=file.trees),
    )


_PER_NODE: Final = ("split_feature", "threshold", "decision_type", "left_child", "right_child")


def check_trees(text: str, features: int) -> None:
    """Refuse trees whose numbers would lead LightGBM's C++ code outside its arrays. Raises ValueError."""
    head, *trees = re.split(r"^Tree=\d+$", text.partition("end of trees")[0], flags=re.MULTILINE)
    fields = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    if fields.get("max_feature_idx") != str(features - 1) or fields.get("num_class") != "1" or not trees:
        raise ValueError("the model's trees are of other features: fit it again")
    for number, tree in enumerate(trees):
        lines = dict(line.split("=", 1) for line in tree.splitlines() if "=" in line)
        try:
            _check_tree(lines, features)
        except (ValueError, KeyError, IndexError):
            raise ValueError(f"tree {number} of the model makes no sense: fit it again") from None


def _check_tree(lines: Mapping[str, str], features: int) -> None:
    leaves = int(lines["num_leaves"])
    if leaves < 1 or int(lines["num_cat"]) != 0 or lines.get("is_linear", "0") != "0":
        raise ValueError
    if len([float(value) for value in lines["leaf_value"].split()]) != leaves:
        raise ValueError
    if leaves == 1:
        return
    columns = {name: lines[name].split() for name in _PER_NODE}
    if any(len(column) != leaves - 1 for column in columns.values()):
        raise ValueError
    if not all(0 <= int(feature) < features for feature in columns["split_feature"]):
        raise ValueError
    if any(int(kind) & 1 for kind in columns["decision_type"]) or any(
        np.isnan(float(value)) for value in columns["threshold"]
    ):
        raise ValueError
    children = [int(child) for side in ("left_child", "right_child") for child in columns[side]]
    # every node but the root, and every leaf, is reached exactly once
    if sorted(children) != [*range(-leaves, 0), *range(1, leaves - 1)]:
        raise ValueError


def _fit(values: Floats, slowdown: Floats) -> Any:
    import lightgbm

    leaves = min(_MOST_LEAVES, max(_LEAST_LEAVES, len(values) // _ROWS_A_LEAF))
    return lightgbm.train({**_SETTINGS, "num_leaves": leaves}, lightgbm.Dataset(values, slowdown), _TREES)


def _quantiles(missed: Floats) -> tuple[float, float]:
    low, high = np.quantile(missed, _INTERVAL)
    return min(0.0, float(low)), max(0.0, float(high))
