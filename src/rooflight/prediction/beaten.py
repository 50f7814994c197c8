"""By how much measured work may be faster than its bound: what caches hold, and what FFT and Winograd save."""

from __future__ import annotations

from typing import Final

import numpy as np

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.facts import FACTS, Floats, WorkKind, kind_of
from rooflight.roofline.bound import UNLISTED_CACHE_BYTES

FEWEST_PRODUCTS: Final = 1.5
"""Multiplications for each number of a convolution's result and each of its input channels where FFT does it over a
large image: half a spectrum of complex numbers, three real ones each. Winograd's tiles need more (2.25 of 3x3's 9)."""
FASTEST: Final = -1.0
"""The least log(time / bound) that a row teaches, and that is ever expected: a cache makes work faster than its bound,
but not e times."""


def least_slowdown(key: str, facts: Floats, device: DeviceSpec) -> Floats:
    """The least log(time / bound) of rows of facts [rows, facts], 0 of most.

    Below 0 where the last cache can have held what an op reads, and can keep what it writes, as far as both fit; and of
    convolutions, which need fewer products than they have FLOPs. A bound assumes neither.
    """
    kind = kind_of(key)
    if kind is WorkKind.NETWORK:
        return np.zeros(len(facts))
    fact = dict(zip(FACTS[kind], facts.T, strict=True))
    moved = np.maximum(1.0, fact["bytes"])
    uncached = np.maximum(0.0, moved - 2 * fact["ops"] * cache_bytes(device)) / moved
    needed = np.minimum(1.0, FEWEST_PRODUCTS / fact["taps"]) if kind is WorkKind.CONVOLUTION else 1.0
    least_s = np.maximum(fact["compute_s"] * needed, fact["memory_s"] * uncached)
    return np.asarray(np.log(np.clip(least_s / fact["bound_s"], np.exp(FASTEST), 1.0)))


def cache_bytes(device: DeviceSpec) -> int:
    """What the last cache holds; on a part of which none is listed, what it may hold."""
    return max((level.capacity_bytes or 0 for level in device.memory[:-1]), default=0) or UNLISTED_CACHE_BYTES
