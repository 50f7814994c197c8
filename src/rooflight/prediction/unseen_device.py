"""Predictions for a device from which no expert learned, from the experts of similar devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.facts import Floats, WorkKind, kind_of
from rooflight.prediction.features import FAR_FROM_RIDGE, names_of

_SCALES: Final[Mapping[str, float]] = {"bandwidth": 1.0, "peak": 1.0, "unit": 0.7, "capability": 1.0}
"""How far apart, in each trait, devices are that count as different: a factor of e, or one compute capability."""
_SCALES_OF_PRODUCTS: Final[Mapping[str, float]] = {**_SCALES, "watts": 0.3}
_FAR: Final = 9.0
"""The squared distance from which devices are no less alike; that of a trait which one of the two lacks."""
_CDNA: Final[Mapping[str, float]] = {"gfx908": 101.0, "gfx90a": 102.0, "gfx942": 103.0, "gfx950": 104.0}
"""Generations of AMD's matrix parts as capabilities, far from those of any other maker."""
_OVERLAP: Final = 1.5
"""How waiting for memory and all else add up, as the order of a norm: 1 is one after the other, infinity at once."""
_ENOUGH_LARGE: Final = 10
_TELLING: Final = ("log item", "log ranks a node", "log nodes")
"""Features beyond whose learned range an expert is not used."""
REACHED: Final = "reached"
"""The trait of a known device that is learned: the share of its bandwidth that it reaches, as a logarithm."""
_LEAST_SHARE: Final = 1 / (1 + np.exp(FAR_FROM_RIDGE))
"""What is found as arithmetic of work that is none, since features limit how far from the ridge it is."""
_MOST_BALANCE: Final = 3.0  # as a logarithm: devices further apart are no GPUs of one kind
_SAME: Final = 0.1
_UNKNOWN: Final = 20.0  # e to the power of minus it is next to nothing
_SIZES: Final = ("log b", "log m", "log n", "log k", "log heads", "log queries", "log keys", "log width", "log rows")
DEVICE_TRAITS: Final = (*_SCALES, "watts", "pace", REACHED)
"""All that is kept of a device."""


class Known(Protocol):
    """The traits of an expert's device, and the ranges [features] of the rows that it learned from."""

    @property
    def traits(self) -> Mapping[str, float]:
        """As ``device_traits`` has them."""
        ...

    @property
    def low(self) -> Floats:
        """Least features."""
        ...

    @property
    def high(self) -> Floats:
        """Greatest features."""
        ...


def blended(
    key: str,
    experts: Sequence[Known],
    answers: Sequence[Floats],
    values: Floats,
    traits: Mapping[str, float],
    power: float,
) -> Floats:
    """log(time / bound) of rows of features [rows, features] on a device with these traits, from what each expert
    answers: first those that know work of this item size at all, as half-precision products say nothing of others, or
    collectives over so many ranks and nodes; then those of similar devices. ``power`` as ``Model`` has it.
    """
    share = computing(key, values)
    alike = [likeness(traits, expert.traits, key) for expert in experts]
    reached = traits.get(REACHED, _reached_by(experts, alike))
    weights, answered = [], []
    for expert, answer, similar in zip(experts, answers, alike, strict=True):
        weights.append(similar * familiarity(key, expert, values))
        hungry = answer + power * share * fewer_watts(expert.traits, traits)
        answered.append(np.maximum(0.0, _elsewhere(key, hungry, share, expert.traits, traits, reached)))
    return np.asarray((np.stack(weights) * np.stack(answered)).sum(axis=0) / np.sum(weights, axis=0))


def _reached_by(experts: Sequence[Known], alike: Sequence[float]) -> float | None:
    """The share of its bandwidth that a new device reaches, as those like it do; None where that is known of none."""
    known = [
        (expert.traits[REACHED], weight)
        for expert, weight in zip(experts, alike, strict=True)
        if REACHED in expert.traits
    ]
    if not known:
        return None
    shares, weights = np.array(known).T
    return float(np.average(shares, weights=weights + 1e-12))


def _elsewhere(
    key: str,
    slowdown: Floats,
    share: Floats,
    known: Mapping[str, float],
    other: Mapping[str, float],
    reached: float | None,
) -> Floats:
    """log(time / bound) [rows] on another device of work that takes ``slowdown`` on a known one. ``share`` [rows] of
    the bound is arithmetic.

    Of the time, in units of the bound, as much as the bandwidth that the known device reaches explains scales with the
    bandwidth that the other reaches. The rest waits for neither memory nor the matrix units: it scales with units x
    clock.
    """
    if kind_of(key) is WorkKind.NETWORK or not {"pace", "bandwidth"} <= known.keys() & other.keys():
        return slowdown
    here = known.get(REACHED, reached)
    if here is None or reached is None:
        return slowdown
    waits, roof = np.clip((1 - share - _LEAST_SHARE) / (1 - 2 * _LEAST_SHARE), 0, 1), np.exp(-here)
    taken = np.exp(slowdown)
    rest = np.maximum(0.0, taken**_OVERLAP - roof**_OVERLAP) ** (1 / _OVERLAP)
    balance = (known["pace"] - known["bandwidth"]) - (other["pace"] - other["bandwidth"])
    rest *= np.exp(waits * np.clip(balance, -_MOST_BALANCE, _MOST_BALANCE))
    at_roof = np.minimum(taken, roof) * np.exp(waits * (here - reached))
    return np.asarray(np.log(at_roof**_OVERLAP + rest**_OVERLAP) / _OVERLAP)


def computing(key: str, values: Floats) -> Floats:
    """How much of rows of features [rows, features] is arithmetic: compute time over that and memory time."""
    if (place := _place(key, "log ridge")) is None:
        return np.zeros(len(values))
    return np.asarray(1 / (1 + np.exp(-values[:, place])))


def fewer_watts(known: Mapping[str, float], other: Mapping[str, float]) -> float:
    """By what factor, as a logarithm of at most 2, a device has fewer watts a FLOP/s than a known one; 0 where either
    is unknown.
    """
    if "watts" not in known or "watts" not in other:
        return 0.0
    return max(-2.0, min(2.0, known["watts"] - other["watts"]))


def familiarity(key: str, expert: Known, values: Floats) -> Floats:
    """How far rows of features [rows, features] are work that an expert learned from: 1 of work like it, less the
    smaller its sizes are than any seen, next to nothing of another item size, or over other ranks and nodes. Larger
    work is not strange: experts have an answer to it.
    """
    strange = np.zeros(len(values))
    for place, name in enumerate(names_of(key)):
        smaller, larger = expert.low[place] - values[:, place], values[:, place] - expert.high[place]
        if name in _TELLING:
            strange += np.where(np.maximum(smaller, larger) > _SAME, _UNKNOWN, 0.0)
        elif name in _SIZES:
            strange += 2 * np.maximum(0.0, smaller)
    return np.asarray(np.exp(-np.minimum(strange, _UNKNOWN)))


def _place(key: str, name: str) -> int | None:
    """Where a feature is, None where work of this kind does not have it."""
    names = names_of(key)
    return names.index(name) if name in names else None


def device_traits(device: DeviceSpec) -> dict[str, float]:
    """What makes devices similar, each as a logarithm: bandwidth, vector peak, the peak of a unit, units x clock; and
    the capability. Beside them the watts for each FLOP/s of float32 products: parts with few clock down.
    """
    peak, bandwidth = device.vector_peak("float32"), device.dram_bytes_per_s
    traits = {}
    if bandwidth:
        traits["bandwidth"] = float(np.log(bandwidth))
    if peak:
        traits["peak"] = float(np.log(peak))
        if device.unit_count:
            traits["unit"] = float(np.log(peak / device.unit_count))
        if device.tdp_w:
            traits["watts"] = float(np.log(device.tdp_w / max(peak, device.matrix_peak("float32") or 0.0)))
    if device.unit_count and device.boost_clock_mhz:
        traits["pace"] = float(np.log(device.unit_count * device.boost_clock_mhz * 1e6))
    capability = _CDNA.get(device.compute_capability)
    with suppress(ValueError):  # not numbered, as other makers' are not
        traits["capability"] = float(device.compute_capability) if capability is None else capability
    return traits


def likeness(one: Mapping[str, float], other: Mapping[str, float], key: str) -> float:
    """1 for devices that are the same in all traits, near 0 for very different ones. A trait that one of them lacks
    counts as very different. For products, which draw the most power, watts are one of the traits.
    """
    scales = _SCALES_OF_PRODUCTS if kind_of(key) is WorkKind.PRODUCT else _SCALES
    apart = (
        ((one[name] - other[name]) / scale) ** 2 if name in one and name in other else _FAR
        for name, scale in scales.items()
    )
    return float(np.exp(-sum(min(distance, _FAR) for distance in apart)))


def reached_bandwidth(key: str, slowdown: Floats, large: NDArray[np.bool_]) -> float | None:
    """The share of its bandwidth, as a logarithm, that a device reaches in the large rows of one kind of work; None of
    work that is several kernels, or too little of it.
    """
    if "+" in key or large.sum() < _ENOUGH_LARGE:
        return None
    return -max(0.0, float(np.median(slowdown[large])))
