"""Trees, experts and models written by hand, and the files that hold them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rooflight.devices import get
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.devices import device_traits
from rooflight.prediction.model.model import Expert, Interval, Model
from rooflight.prediction.model.trees import Trees
from rooflight.prediction.work.facts import (
    PRODUCT_KEY,
    Floats,
    product_facts,
)
from rooflight.prediction.work.features import names_of, steady_features

A100 = get("A100-SXM4-80GB")
H100 = get("H100-SXM5-80GB")
LARGEST_LOG_S = -7.0
"""log(bound) of the largest work that an expert by hand counts as shown."""
INSIDE, OUTSIDE, UNSEEN = (-0.05, 0.06), (-0.2, 0.3), (-0.7, 0.8)


def trees(
    leaves: Sequence[int],
    value: Sequence[float],
    feature: Sequence[int] = (),
    threshold: Sequence[float] = (),
    left: Sequence[int] = (),
    right: Sequence[int] = (),
    *,
    features: int = 3,
) -> Trees:
    return Trees(
        features=features,
        leaves=np.array(leaves, dtype=np.int32),
        feature=np.array(feature, dtype=np.int32),
        threshold=np.array(threshold, dtype=np.float32),
        left=np.array(left, dtype=np.int32),
        right=np.array(right, dtype=np.int32),
        value=np.array(value, dtype=np.float32),
    )


def lone(value: float, features: int) -> Trees:
    """One tree of one leaf: always the same answer."""
    return trees([1], [value], features=features)


def stump(threshold: float, low: float, high: float, *, feature: int, features: int) -> Trees:
    """``low`` where the feature is not above the threshold, ``high`` where it is."""
    return trees([2], [low, high], [feature], [threshold], [-1], [-2], features=features)


def expert(device: DeviceSpec, slowdown: float, beyond: float, *, key: str = PRODUCT_KEY, **changes: Any) -> Expert:
    """Says the same of all work up to the largest bound that it was shown, another thing of larger work."""
    count, steady = len(names_of(key)), len(steady_features(key))
    return Expert(
        **{
            "device": device.name,
            "traits": device_traits(device),
            "rows": 100,
            # log bound: up to e^-9 s; with 2 % of the range on top, which counts as shown, e^-7 s
            "low": np.array([-109.0, *[-100.0] * (count - 1)]),
            "high": np.array([-9.0, *[100.0] * (count - 1)]),
            "inside": INSIDE,
            "outside": OUTSIDE,
            "error": 0.03,
            "main": lone(slowdown, count),
            "beyond": lone(beyond, steady),
            **changes,
        }
    )


def model(*experts: Expert, key: str = PRODUCT_KEY, unseen: Interval = UNSEEN) -> Model:
    return Model(key=key, experts=experts, unseen=unseen)


def small_model() -> Model:
    """Two devices, a tree with a branch each, for files to be damaged."""
    count = len(names_of(PRODUCT_KEY))
    split = stump(-9.0, 0.25, 0.5, feature=0, features=count)
    return model(expert(A100, 0.0, 0.75, main=split), expert(H100, 1.0, 1.5))


def products(rows: int = 60, *, seed: int = 0, largest: int = 4096, device: DeviceSpec = A100) -> Floats:
    """Facts of half-precision products of random sizes, as often small as large."""
    rng = np.random.default_rng(seed)
    m, n, k = np.round(np.exp(rng.uniform(np.log(16), np.log(largest), (3, rows))))
    return product_facts(m, n, k, "float16", device)


def shown(slowdown: Floats | float, facts: Floats | None = None, device: DeviceSpec = A100) -> Shown:
    """Products that took e to the ``slowdown`` times their bounds."""
    facts = products(device=device) if facts is None else facts
    each = np.broadcast_to(np.asarray(slowdown, dtype=np.float64), len(facts))
    return Shown(key=PRODUCT_KEY, device=device, facts=facts, slowdown=each)


Arrays = Mapping[str, np.ndarray[Any, Any]]


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """What a model's file says of itself, and its other arrays."""
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file}
    return json.loads(arrays.pop("about").tobytes()), arrays


def packed(about: Any, arrays: Arrays) -> bytes:
    """The file of a model, whether it makes sense or not."""
    text = about if isinstance(about, bytes) else json.dumps(about).encode()
    buffer = io.BytesIO()
    np.savez(buffer, about=np.frombuffer(text, dtype=np.uint8), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def with_member(content: bytes, name: str, data: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    """The same zip with the bytes of one member replaced, or one member more."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for member in old.infolist():
            if member.filename != name:
                new.writestr(member.filename, old.read(member))
        new.writestr(name, data, compression)
    return buffer.getvalue()
