"""The same work at other sizes: facts of it, from its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rooflight.prediction.facts import FACTS, Floats, WorkKind, kind_of

SIZES: Final[Mapping[WorkKind, tuple[str, ...]]] = {
    WorkKind.PRODUCT: ("b", "m", "n", "k"),
    WorkKind.ATTENTION: ("heads", "queries", "keys", "width"),
    WorkKind.ROWS: ("rows", "width"),
}
"""Facts that are sizes, by kind of work. Time grows with each of them."""
_OTHER_SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "other b": ("b",),
    "other m": ("m", "n", "k"),
    "other n": ("n", "m", "k"),
}
"""Facts of the second product, and which size of the first each may be."""
_WEIGHTED, _WITH_STATISTICS = ("layer_norm", "rms_norm"), "layer_norm"
"""Parts of the names of norms that have weights, and that return what they normalized by."""


def sizes_of(key: str, facts: Floats) -> Floats:
    """Sizes [works, sizes] of works of facts [works, facts]; none of kinds that have no such sizes."""
    kind = kind_of(key)
    return facts[:, [FACTS[kind].index(name) for name in SIZES.get(kind, ())]]


def resized(key: str, facts: Floats, sizes: Floats) -> Floats:
    """Facts [works, facts] of works like these with other sizes [works, sizes]. What is counted (bytes, FLOPs) grows
    as in one plain op of that kind: exact of such an op, close to it where there is something beside it.
    """
    kind = kind_of(key)
    place = {name: at for at, name in enumerate(FACTS[kind])}
    was, now = dict(zip(SIZES[kind], sizes_of(key, facts).T, strict=True)), dict(zip(SIZES[kind], sizes.T, strict=True))
    fact = {name: facts[:, at] for name, at in place.items()}
    all_grown = np.prod(sizes, axis=1) / np.prod(sizes_of(key, facts), axis=1)
    moved = _moved(key, fact, now) / _moved(key, fact, was)
    written = _written(kind, now) / _written(kind, was)
    new = facts.copy()
    for name, grown in (("matrix", all_grown), ("vector", written), ("bytes", moved), ("memory_s", moved)):
        new[:, place[name]] *= grown
    products = fact["matrix"] > 0
    new[:, place["compute_s"]] *= np.where(products, all_grown, written)
    roof = np.maximum(fact["compute_s"], fact["memory_s"])
    new[:, 0] = fact["bound_s"] * np.maximum(new[:, place["compute_s"]], new[:, place["memory_s"]]) / roof
    for name, size in now.items():
        new[:, place[name]] = size
    if kind is WorkKind.PRODUCT:
        for name, candidates in _OTHER_SIZES.items():
            is_one = [fact[name] == was[each] for each in candidates]
            new[:, place[name]] = np.select(is_one, [now[each] for each in candidates], fact[name])
    if kind is WorkKind.ROWS:
        new[:, place["fresh"]] *= _returned(key, fact, now) / _returned(key, fact, was)
    return new


def _moved(key: str, fact: Mapping[str, Floats], size: Mapping[str, Floats]) -> Floats:
    """Elements that an op of such sizes reads and writes, but for a factor that does not change with them."""
    kind = kind_of(key)
    if kind is WorkKind.PRODUCT:
        b, m, n, k = (size[name] for name in "bmnk")
        # whether all of a batch share the right operand, as in a linear layer
        elements = fact["bytes"] / fact["item"]
        own = {name: fact[name] for name in "bmnk"}
        apart = own["b"] * (own["m"] * own["k"] + own["n"] * own["k"] + own["m"] * own["n"])
        shared = apart - (own["b"] - 1) * own["n"] * own["k"]
        shares = np.abs(np.log(elements / shared)) < np.abs(np.log(elements / apart))
        return np.asarray(b * (m * k + m * n) + np.where(shares, 1.0, b) * n * k)
    if kind is WorkKind.ATTENTION:
        heads, queries, keys, width = (size[name] for name in SIZES[kind])
        return np.asarray(heads * width * (queries + keys / np.maximum(1.0, fact["group"])))
    elements = size["rows"] * size["width"]
    if any(name in key for name in _WEIGHTED):
        # beside the rows: weights, as long as a row each, about as many as there are tensors of rows
        elements = elements + size["width"]
    if _WITH_STATISTICS in key:
        elements = (
            elements + size["rows"] * 4 / fact["item"]
        )  # a mean and a deviation of 4 bytes, of two tensors of rows
    return np.asarray(elements)


def _written(kind: WorkKind, size: Mapping[str, Floats]) -> Floats:
    """Elements of the result, to which vector FLOPs are proportional; of attention those of the scores."""
    if kind is WorkKind.PRODUCT:
        return np.asarray(size["b"] * size["m"] * size["n"])
    if kind is WorkKind.ATTENTION:
        return np.asarray(size["heads"] * size["queries"] * size["keys"])
    return np.asarray(size["rows"] * size["width"])


def _returned(key: str, fact: Mapping[str, Floats], size: Mapping[str, Floats]) -> Floats:
    """Elements of all results of an op on rows: of a layer norm with a mean and a deviation of 4 bytes for each."""
    elements = size["rows"] * size["width"]
    return np.asarray(elements + size["rows"] * 8 / fact["item"] if _WITH_STATISTICS in key else elements)
