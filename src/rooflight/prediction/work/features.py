"""What a model sees of work: its bound on a device, the sizes of its main ops, and how these fill the device.

Features are computed from the facts (``facts``) of many pieces of work at once. The target is the time over the bound,
as a logarithm: 0 is the bound, and no prediction is faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.work.facts import FACTS, Floats, WorkKind, kind_of
from rooflight.prediction.work.floors import cache_bytes

_TILES: Final = ((128, 256), (256, 128), (128, 128), (64, 64))
"""Blocks of the result that one unit of a GPU computes at a time; libraries do not report which of them they take."""
_ALIGNED: Final = 512
ALIGNED: Final = 4.0  # log2 of the 16 bytes that one access of a thread loads
ALIGNED_BYTES: Final = "align bytes"
_LARGEST_WHOLE: Final = float(1 << 62)  # sizes are floats: larger ones fit no integer
_PADDED: Final = 32  # attention kernels round a head up to such a width
_CHANNELS, _DEPTH = 64, 32  # of a block of a convolution's result that a unit computes at a time
FAR_FROM_RIDGE: Final = 1.4
"""How far from the ridge, as a logarithm, it no longer matters how far: otherwise an op that always waits for memory
would look like another kind of work on a device with another balance."""
_LEAST: Final = 1e-12
OPS: Final = 5
"""The place of the number of ops among the features, of all but collectives."""
MATRIX_UNITS: Final = "on matrix units"
"""The feature that tells float32 on the vector lanes from TF32: 1 where the peak is that of matrix units."""
CHANNELS_LAST: Final = "laid channels last"
"""The feature that tells a convolution of channels-last images: 1."""
_FASTER: Final = 1.5  # than the vector lanes are matrix units, on all devices that have any


def features_of(key: str, facts: Floats, device: DeviceSpec) -> Floats:
    """Features [works, names] of facts [works, facts] with this key, as named by ``names_of``."""
    kind = kind_of(key)
    fact = dict(zip(FACTS[kind], facts.T, strict=True))
    if kind is WorkKind.NETWORK:
        return np.stack(_network(fact, device.link_bytes_per_s or 1.0), axis=1)
    units = float(device.unit_count or 1)
    ridge = np.log(np.maximum(fact["compute_s"], _LEAST) / np.maximum(fact["memory_s"], _LEAST))
    columns = [
        _log(fact["bound_s"]),
        np.clip(ridge, -FAR_FROM_RIDGE, FAR_FROM_RIDGE),
        _log(fact["bytes"]),
        _log(fact["matrix"]),
        _log(fact["vector"]),
        fact["ops"],
        fact["products"],
        _log(fact["item"]),
    ]
    match kind:
        case WorkKind.PRODUCT:
            columns += [*_product(fact, units), _on_matrix_units(fact, device)]
        case WorkKind.ATTENTION:
            columns += _attention(fact, units)
        case WorkKind.CONVOLUTION:
            columns += [*_convolution(fact, units), _on_matrix_units(fact, device)]
        case WorkKind.ROWS:
            columns += _row(fact, units, float(cache_bytes(device)))
    return np.stack(columns, axis=1)


@cache
def names_of(key: str) -> tuple[str, ...]:
    """Names of the features that go with a key."""
    common = ("log bound", "log ridge", "log bytes", "log matrix", "log vector", "ops", "products", "log item")
    match kind_of(key):
        case WorkKind.PRODUCT:
            sizes = ("log b", "log m", "log n", "log k", "log m n", "log m k", "log n k")
            aligned = ("align m", "align n", "align k", ALIGNED_BYTES)
            fills = tuple(f"filled {which}{a}x{b}" for a, b in _TILES for which in ("", "other "))
            return (*common, *sizes, *aligned, "left", "right", "log waves", "log other waves", *fills, MATRIX_UNITS)
        case WorkKind.ATTENTION:
            shape = ("log heads", "log queries", "log keys", "log width", "group", "causal", "padded")
            return (*common, *shape, "log waves", "filled")
        case WorkKind.CONVOLUTION:
            shape = ("log positions", "log out", "log in", "log taps", "log groups", "transposed", "log dims")
            how = ("log stride", "log dilation", "log depth", "log waste", "log waves", "filled")
            return (*common, *shape, *how, CHANNELS_LAST, MATRIX_UNITS)
        case WorkKind.NETWORK:
            return ("log link", "log sent", "log ranks", "log nodes", "log ranks a node")
        case WorkKind.ROWS:
            rows = ("log rows", "log width", "align width", "log rows a unit", "log bytes over cache")
            return (*common, *rows, "log fresh", "fresh share", "log tensors", "laid strided", "laid reordered")


def over_bound(key: str, values: Floats, floor_s: float) -> Floats:
    """log((bound + ops x floor) / bound) of rows of features [rows, features]; 0 of collectives."""
    if not floor_s or kind_of(key) is WorkKind.NETWORK:
        return np.zeros(len(values))
    return np.asarray(np.log1p(floor_s * values[:, OPS] * np.exp(-values[:, 0])))


_NO_SIZES: Final = (
    *("align", "filled", "laid", "padded", "fresh share", "ops", "products"),
    *("log vector", "log fresh", "log tensors", "log waste"),
)


@cache
def size_features(key: str) -> tuple[int, ...]:
    """Places of the features in whose ranges work must lie to be like what was shown: the sizes, not how they align,
    but to how many bytes their rows do.
    """
    names = names_of(key)
    return tuple(at for at, name in enumerate(names) if name == ALIGNED_BYTES or not name.startswith(_NO_SIZES))


@cache
def steady_features(key: str) -> tuple[int, ...]:
    """Places of the features of products that say how work looks rather than how large it is: what still tells
    something of work larger than any that was measured. Sums of sizes, which there lie outside of all that was seen,
    are left out. None of other work: small ops are slow for reasons that large ones outgrow.
    """
    if kind_of(key) is not WorkKind.PRODUCT:
        return ()
    wanted = ("ops", "products", "log item", "log b", "log m", "log n", "log k", "left", "right")
    names = names_of(key)
    return tuple(place for place, name in enumerate(names) if name in wanted or name.startswith(("align", "filled")))


def _product(fact: Mapping[str, Floats], units: float) -> list[Floats]:
    b, m, n, k = (fact[name] for name in "bmnk")
    log_m, log_n, log_k = _log(m), _log(n), _log(k)
    columns = [_log(b), log_m, log_n, log_k, log_m + log_n, log_m + log_k, log_n + log_k]
    aligned = _align(m), _align(n), _align(k)
    columns += [*aligned, _aligned_bytes(fact, *aligned), fact["left"], fact["right"]]
    both = ((b, m, n), (fact["other b"], fact["other m"], fact["other n"]))
    columns += [_log(_waves(*sizes, (128, 128), units)) for sizes in both]
    for tile in _TILES:
        columns += [_filled(_waves(*sizes, tile, units)) for sizes in both]
    return columns


def _aligned_bytes(fact: Mapping[str, Floats], m: Floats, n: Floats, k: Floats) -> Floats:
    """log2 of the bytes to which rows of both operands and the result are aligned, up to what one access loads: with
    fewer, libraries take kernels that are several times slower (of 50,257 columns in bf16, on an H200, eight times).
    """
    left, right = np.where(fact["left"] > 0, m, k), np.where(fact["right"] > 0, k, n)
    return np.asarray(np.minimum(np.minimum(np.minimum(left, right), n) + _log(fact["item"]) / np.log(2), ALIGNED))


def _on_matrix_units(fact: Mapping[str, Floats], device: DeviceSpec) -> Floats:
    lanes = device.vector_peak("float32")
    if not lanes:
        return np.ones(len(fact["matrix"]))
    return np.asarray((fact["matrix"] > _FASTER * lanes * fact["compute_s"]).astype(np.float64))


def _attention(fact: Mapping[str, Floats], units: float) -> list[Floats]:
    heads, queries, keys, width = (fact[name] for name in ("heads", "queries", "keys", "width"))
    waves = heads * np.ceil(queries / 128) / units
    padded = width / (_PADDED * np.ceil(width / _PADDED))
    sizes = [_log(heads), _log(queries), _log(keys), _log(width), fact["group"], fact["causal"], padded]
    return [*sizes, _log(waves), _filled(waves)]


def _convolution(fact: Mapping[str, Floats], units: float) -> list[Floats]:
    """The product that kernels make of it, positions x channels out, as deep as channels in x taps, less zeros."""
    positions, out, groups = fact["positions"], fact["out"], fact["groups"]
    depth = np.maximum(1.0, fact["matrix"] / np.maximum(1.0, 2 * positions * out * groups))
    waste = np.ceil(out / _CHANNELS) * _CHANNELS / out * np.ceil(depth / _DEPTH) * _DEPTH / depth
    waves = groups * np.ceil(positions / 128) * np.ceil(out / _CHANNELS) / units
    sizes = [_log(positions), _log(out), _log(fact["in"]), _log(fact["taps"]), _log(groups), fact["transposed"]]
    settings = [_log(fact["dims"]), _log(fact["stride"]), _log(fact["dilation"])]
    return [*sizes, *settings, _log(depth), _log(waste), _log(waves), _filled(waves), fact["channels last"]]


def _network(fact: Mapping[str, Floats], link_bytes_per_s: float) -> list[Floats]:
    """A link does not care what bytes mean. No bound: it jumps from one node to two, and would not tell sizes apart."""
    ranks, nodes, sent = _log(fact["ranks"]), _log(fact["nodes"]), _log(fact["sent"])
    return [sent - np.log(link_bytes_per_s), sent, ranks, nodes, ranks - nodes]


def _row(fact: Mapping[str, Floats], units: float, cache_bytes: float) -> list[Floats]:
    rows, width = fact["rows"], fact["width"]
    over = _log(fact["bytes"]) - np.log(cache_bytes)
    new = [_log(fact["fresh"]), fact["fresh"] / np.maximum(1.0, fact["bytes"]), _log(fact["tensors"])]
    laid = [fact["strided"], fact["reordered"]]
    return [_log(rows), _log(width), _align(width), _log(rows) - np.log(units), over, *new, *laid]


def _waves(b: Floats, m: Floats, n: Floats, tile: tuple[int, int], units: float) -> Floats:
    """How many times over blocks of a result fill all units."""
    return b * np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / units


def _filled(waves: Floats) -> Floats:
    return waves / np.maximum(1.0, np.ceil(waves))


def _align(size: Floats) -> Floats:
    """log2 of the largest power of 2, up to 512, that divides a size."""
    whole = np.clip(size, 1, _LARGEST_WHOLE).astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, _ALIGNED)))


def _log(value: Floats) -> Floats:
    if (value > 0).all():
        return np.asarray(np.log(value))
    return np.where(value > 0, np.log(np.maximum(value, 1e-300)), -1.0)
