"""Predictions for a device from which no expert learned, from the experts of similar devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.facts import Floats
from rooflight.prediction.features import names_of

_SCALES: Final[Mapping[str, float]] = {"bandwidth": 1.0, "peak": 1.0, "unit": 0.7, "capability": 1.0}
"""How far apart, in each trait, devices are that count as different: a factor of e, or one compute capability."""

_TELLING: Final = ("log item", "log ranks a node", "log nodes")
"""Features beyond whose learned range an expert is not used."""
DEVICE_TRAITS: Final = (*_SCALES, "watts")
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
    hungry = power * computing(key, values)
    weights, answered = [], []
    for expert, answer in zip(experts, answers, strict=True):
        weights.append(likeness(traits, expert.traits) * np.where(_knows(key, expert, values), 1.0, 1e-6))
        answered.append(np.maximum(0.0, answer + hungry * fewer_watts(expert.traits, traits)))
    return np.asarray((np.stack(weights) * np.stack(answered)).sum(axis=0) / np.sum(weights, axis=0))


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


def _knows(key: str, expert: Known, values: Floats) -> NDArray[np.bool_]:
    """Which rows of features [rows, features] are of a kind that an expert learned from at all."""
    found = np.ones(len(values), dtype=bool)
    for place in (_place(key, name) for name in _TELLING):
        if place is None:
            continue
        found &= (values[:, place] >= expert.low[place] - 0.1) & (values[:, place] <= expert.high[place] + 0.1)
    return found


def _place(key: str, name: str) -> int | None:
    """Where a feature is, None where work of this kind does not have it."""
    names = names_of(key)
    return names.index(name) if name in names else None


def device_traits(device: DeviceSpec) -> dict[str, float]:
    """What makes devices similar, each as a logarithm: bandwidth, vector peak, the peak of a unit; and the capability.
    Beside them the watts for each FLOP/s: parts with few clock down.
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
            traits["watts"] = float(np.log(device.tdp_w / peak))
    with suppress(ValueError):  # not numbered, as other makers' are not
        traits["capability"] = float(device.compute_capability)
    return traits


def likeness(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """1 for devices that are the same in all traits that both have, near 0 for very different ones."""
    apart = [(one[name] - other[name]) / scale for name, scale in _SCALES.items() if name in one and name in other]
    return float(np.exp(-sum(min(distance**2, 9.0) for distance in apart)))
