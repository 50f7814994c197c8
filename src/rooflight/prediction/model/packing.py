"""Learners as the arrays of a file, and back: what is read is checked, and nothing of it is executed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.model.smooth import Smooth
from rooflight.prediction.model.trees import Trees

MOST_LOG: Final = 250.0  # of an answer, and of an interval around it: e^500 times a bound is still a number
Learner = Trees | Smooth
Made = TypeVar("Made", Trees, Smooth)
Arrays = Mapping[str, NDArray[Any]]
Integers = NDArray[np.int64]

_NARROW: Final = (np.dtype(np.uint8), np.dtype("<u2"))
_TREES: Final[Mapping[str, tuple[np.dtype[Any], ...]]] = {
    "leaves": (np.dtype("<i4"),),
    "feature": (np.dtype(np.uint8),),
    "split": _NARROW,
    "code": _NARROW,
    "counts": (np.dtype("<i4"),),
    "threshold": (np.dtype("<f4"),),
    "value": (np.dtype("<f2"),),
}
"""Trees of n leaves have n - 1 inner nodes. ``split`` [inner nodes] is the leaf that a node takes the place of: the
left one of its two leaves keeps the number, the right one gets the next, so that branches need not be kept. A threshold
is one of few of its feature: ``counts`` [features] of them lie one after the other in ``threshold``, ``code`` [inner
nodes] is its place there.
"""
_SMOOTH: Final[Mapping[str, tuple[np.dtype[Any], ...]]] = {
    "scale": (np.dtype("<f4"),),
    "points": (np.dtype("<f4"),),
    "weight": (np.dtype("<f4"),),
    "limits": (np.dtype("<f8"),),
}


def arrays_of(learner: Learner) -> dict[str, NDArray[Any]]:
    """What is kept of a learner, each array of one dimension."""
    if isinstance(learner, Trees):
        return _packed(learner)
    limits = np.array([learner.mean, learner.floor, learner.ceiling])
    return {"scale": learner.scale, "points": learner.points.reshape(-1), "weight": learner.weight, "limits": limits}


def learner_from(name: str, features: int, arrays: Arrays) -> Learner:
    """The learner whose arrays begin with ``name``. Raises ValueError, one line, for arrays that make none."""
    return (process_from if f"{name}.points" in arrays else trees_from)(name, features, arrays)


def trees_from(name: str, features: int, arrays: Arrays) -> Trees:
    """The trees whose arrays begin with ``name``. Raises ValueError, one line, for arrays that make none."""
    return _made(name, _TREES, arrays, partial(_unpacked, features))


def process_from(name: str, features: int, arrays: Arrays) -> Smooth:
    """The process whose arrays begin with ``name``. Raises ValueError, one line, for arrays that make none."""

    def process(found: Arrays) -> Smooth:
        mean, floor, ceiling = map(float, found["limits"])
        points = found["points"].reshape(-1, features)
        scale, weight = found["scale"], found["weight"]
        return Smooth(scale=scale, points=points, weight=weight, mean=mean, floor=floor, ceiling=ceiling)

    return _made(name, _SMOOTH, arrays, process)


def _made(
    name: str, dtypes: Mapping[str, tuple[np.dtype[Any], ...]], arrays: Arrays, make: Callable[[Arrays], Made]
) -> Made:
    fields = {field: arrays.get(f"{name}.{field}") for field in dtypes}
    found = {field: array for field, array in fields.items() if array is not None and array.dtype in dtypes[field]}
    if len(found) < len(fields):
        missing = ", ".join(field for field in fields if field not in found)
        raise ValueError(f"no whole model of rooflight fit ({name} without {missing}): fit it again")
    try:
        learner = make(found)
        if learner.reach > MOST_LOG:
            raise ValueError("it leads to no time")
    except ValueError as error:
        raise ValueError(f"no model of rooflight fit ({name}: {error}): fit it again") from None
    return learner


def _packed(trees: Trees) -> dict[str, NDArray[Any]]:
    split, value = _splits(trees)
    code, thresholds = np.zeros(len(trees.feature), dtype=np.int64), []
    for feature in range(trees.features):
        mine = trees.feature == feature
        distinct, code[mine] = np.unique(trees.threshold[mine], return_inverse=True)
        thresholds.append(distinct.astype(np.float32))
    return {
        "leaves": trees.leaves.astype("<i4"),
        "feature": trees.feature.astype(np.uint8),
        "split": _narrow(split),
        "code": _narrow(code),
        "counts": np.array([len(each) for each in thresholds], dtype="<i4"),
        "threshold": np.concatenate([*thresholds, np.array([], dtype=np.float32)]).astype("<f4"),
        "value": value.astype("<f2"),
    }


def _splits(trees: Trees) -> tuple[Integers, NDArray[np.float32]]:
    """Which leaf each inner node takes the place of, and the values in the order that follows."""
    leaves = trees.leaves.astype(np.int64)
    first_leaf = np.cumsum(leaves) - leaves
    first_node = np.cumsum(leaves - 1) - (leaves - 1)
    split, value = np.zeros(len(trees.feature), dtype=np.int64), trees.value.copy()
    for place in range(int(leaves.max()) - 1):
        tree = np.flatnonzero(leaves > place + 1)
        at = first_node[tree] + place
        for child, number in ((trees.left[at], split[at]), (trees.right[at], np.full(len(at), place + 1))):
            inner = child >= 0
            split[first_node[tree[inner]] + child[inner]] = number[inner]
            value[first_leaf[tree[~inner]] + number[~inner]] = trees.value[first_leaf[tree[~inner]] - 1 - child[~inner]]
    return split, value


def _unpacked(features: int, found: Mapping[str, NDArray[Any]]) -> Trees:
    feature, code, split = (found[name].astype(np.int64) for name in ("feature", "code", "split"))
    counts, leaves = found["counts"].astype(np.int64), found["leaves"].astype(np.int64)
    if counts.shape != (features,) or (counts < 0).any() or counts.sum() != len(found["threshold"]):
        raise ValueError("thresholds of other features")
    if feature.shape != code.shape or (feature >= features).any() or (code >= counts[feature]).any():
        raise ValueError("nodes without a threshold")
    if not len(leaves) or (leaves < 1).any() or leaves.sum() > 1 << 26 or split.shape != ((leaves - 1).sum(),):
        raise ValueError("trees whose arrays are of different lengths")
    left, right = _branches(leaves, split)
    return Trees(
        features=features,
        leaves=found["leaves"].astype(np.int32),
        feature=feature.astype(np.int32),
        threshold=found["threshold"][(np.cumsum(counts) - counts)[feature] + code],
        left=left.astype(np.int32),
        right=right.astype(np.int32),
        value=found["value"].astype(np.float32),
    )


def _branches(leaves: Integers, split: Integers) -> tuple[Integers, Integers]:
    """The two children of each inner node: the next nodes that take the place of its leaves, or these leaves."""
    tree = np.repeat(np.arange(len(leaves)), leaves - 1)
    place = np.arange(len(split)) - (np.cumsum(leaves - 1) - (leaves - 1))[tree]
    if (split > place).any():
        raise ValueError("trees whose branches lead nowhere")
    first_leaf = (np.cumsum(leaves) - leaves)[tree]
    whose = first_leaf + split
    order = np.argsort(whose, kind="stable")
    again = whose[order[1:]] == whose[order[:-1]]
    left = -1 - split
    left[order[:-1][again]] = place[order[1:][again]]
    first = np.full(int(leaves.sum()), -1, dtype=np.int64)
    begins = np.concatenate([[True], ~again]) if len(order) else np.zeros(0, dtype=bool)
    first[whose[order[begins]]] = place[order[begins]]
    number = place + 1
    found = first[first_leaf + number]
    return left, np.where(found >= 0, found, -1 - number)


def _narrow(numbers: Integers) -> NDArray[Any]:
    return numbers.astype(np.uint8 if numbers.max(initial=0) < 256 else "<u2")


_MOST_BYTES: Final = 1 << 28


def archive(about: bytes, arrays: Arrays) -> bytes:
    """An .npz file of JSON and arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=np.frombuffer(about, dtype=np.uint8), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def arrays_in(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, unpacked no further than their headers allow and than a model can be."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > _MOST_BYTES:
            raise ValueError("it is larger than any model")
        # others unpack whatever they hold before anyone can stop them
        if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
            raise ValueError("its compression is unknown")
        return {member.filename.removesuffix(".npy"): _row_of_numbers(archive.read(member)) for member in members}


def _row_of_numbers(data: bytes) -> NDArray[Any]:
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of another format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "iuf" or len(shape) != 1 or shape[0] * dtype.itemsize != len(data) - file.tell():
        raise ValueError("an array whose header does not fit its data")
    return np.frombuffer(data, dtype, offset=file.tell())
