"""Predictions for a device from which no expert learned, from the experts of similar devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.devices import catalog
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.model.corrections import ExpertFigures
from rooflight.prediction.work.facts import FACTS, Floats, WorkKind, kind_of
from rooflight.prediction.work.features import FAR_FROM_RIDGE, MATRIX_UNITS, names_of

_SCALES: Final[Mapping[str, float]] = {"bandwidth": 1.0, "peak": 1.0, "unit": 0.7, "capability": 1.0}
"""How far apart, in each trait, devices are that count as different: a factor of e, or one compute capability."""
_SCALES_OF_PRODUCTS: Final[Mapping[str, float]] = {**_SCALES, "watts": 0.3}
_TWIN: Final = 9.0
"""How many distant devices one counts for that is nearly the same."""
_FAR: Final = 9.0
"""The squared distance from which devices are no less alike; that of a trait which one of the two lacks."""
_CDNA: Final[Mapping[str, float]] = {"gfx908": 101.0, "gfx90a": 102.0, "gfx942": 103.0, "gfx950": 104.0}
"""Generations of AMD's matrix parts as capabilities, far from those of any other maker."""
_OVERLAP: Final = 1.2
"""How waiting for memory and all else add up, as the order of a norm: 1 is one after the other, infinity at once."""
_ROOFS: Final = 2.0
"""The same of products, of waiting for the matrix units and for memory."""
_BALANCE: Final = 0.3
"""By which power of units x clock over bandwidth the rest scales: 1 if only those counted, 0 if it were a share of the
bound as any other. Chosen on the devices left out, as the three below."""
_DISTANT: Final = 0.5
_DISTANT_OF_PRODUCTS: Final = 0.1
"""What a squared distance counts for. Of products all devices have a say: their libraries' choices of kernels differ
in other ways than the devices do, and the middle of many is off by less than the nearest."""
_ENOUGH_LARGE: Final = 10
_MOSTLY, _FASTER, _ENOUGH_PRODUCTS = 0.7, 0.25, 50
"""Compute time over that and memory time from which products teach what a matrix peak is worth, the quantile of their
times over bounds that does, and how many are enough."""
_TELLING: Final = ("log item", MATRIX_UNITS, "log ranks a node", "log nodes")
"""Features beyond whose learned range an expert is not used."""
REACHED: Final = "reached"
"""The trait that is the share of its bandwidth that a device reaches, as a logarithm: a fact of its file or, where that
is unknown, learned from its times."""
PRODUCTS: Final[Mapping[int, str]] = {4: "products 4", 2: "products 2"}
"""Traits by bytes of an element: the share of its matrix peak that a device reaches in large products, as a logarithm.
Of a device that was measured it is learned, of another a fact of its file."""
_PRECISIONS: Final[Mapping[int, tuple[str, ...]]] = {4: ("float32",), 2: ("float16", "bfloat16")}
_LEAST_SHARE: Final = 1 / (1 + np.exp(FAR_FROM_RIDGE))
"""What is found as arithmetic of work that is none, since features limit how far from the ridge it is."""
_MOST_BALANCE: Final = 3.0  # as a logarithm: devices further apart are no GPUs of one kind
_SAME: Final = 0.1
_SAME_CHIP: Final = 0.02  # as a logarithm
_UNKNOWN: Final = 20.0  # e to the power of minus it is next to nothing
_SIZES: Final = ("log b", "log m", "log n", "log k", "log heads", "log queries", "log keys", "log width", "log rows")
DEVICE_TRAITS: Final = (*_SCALES, "watts", "pace", REACHED, *PRODUCTS.values())
"""All that is kept of a device."""


def blended(
    key: str,
    experts: Sequence[ExpertFigures],
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
    products = kind_of(key) is WorkKind.PRODUCT
    if products:
        traits = {**_products_by(experts, alike, traits, power), **traits}
        traits |= {} if reached is None else {REACHED: reached}
    weights, answered = [], []
    for expert, answer, similar in zip(experts, answers, alike, strict=True):
        weights.append(similar * familiarity(key, expert, values))
        hungry = answer + power * share * fewer_watts(expert.traits, traits)
        moved = _elsewhere(key, hungry, share, expert.traits, traits, reached)
        if products and (apart := _roofs_apart(key, values, expert.traits, traits)) is not None:
            moved = np.where(np.isnan(apart), moved, answer + apart)
        answered.append(np.maximum(0.0, moved))
    average = _middle if products else _mean
    return average(np.stack(answered), np.stack(weights))


def _mean(answers: Floats, weights: Floats) -> Floats:
    return np.asarray((weights * answers).sum(axis=0) / weights.sum(axis=0))


def _middle(answers: Floats, weights: Floats) -> Floats:
    """The weighted median of answers [experts, rows], between two of them where the middle lies between."""
    order = np.argsort(answers, axis=0)
    answers, weights = (np.take_along_axis(each, order, axis=0) for each in (answers, weights))
    at = (np.cumsum(weights, axis=0) - weights / 2) / weights.sum(axis=0)
    above = np.clip((at < 0.5).sum(axis=0), 1, max(1, len(at) - 1))
    if len(at) == 1:
        return np.asarray(answers[0])
    low, high = (np.take_along_axis(each, np.stack([above - 1, above]), axis=0) for each in (at, answers))
    part = np.clip((0.5 - low[0]) / np.maximum(1e-12, low[1] - low[0]), 0, 1)
    return np.asarray(high[0] + part * (high[1] - high[0]))


def _roofs_apart(key: str, values: Floats, known: Mapping[str, float], other: Mapping[str, float]) -> Floats | None:
    """A logarithm [rows]: how much longer products wait for what the other device reaches of its roofs."""
    place, items = _place(key, "log ridge"), _place(key, "log item")
    if place is None or items is None or REACHED not in known or REACHED not in other:
        return None
    apart = np.full(len(values), np.nan)
    compute, memory = np.exp(np.minimum(0.0, values[:, place])), np.exp(np.minimum(0.0, -values[:, place]))
    for item, trait in PRODUCTS.items():
        rows = np.abs(values[:, items] - np.log(item)) < _SAME
        if trait in known and trait in other and rows.any():
            times = [
                (compute[rows] / np.exp(each[trait])) ** _ROOFS + (memory[rows] / np.exp(each[REACHED])) ** _ROOFS
                for each in (other, known)
            ]
            apart[rows] = np.log(times[0] / times[1]) / _ROOFS
    return apart


def averaged(
    key: str, experts: Sequence[ExpertFigures], answers: Sequence[Floats], values: Floats, traits: Mapping[str, float]
) -> Floats:
    """What experts answer of rows of features [rows, features] for a device with these traits, on average: those of
    similar devices, and that know such work, weigh more.
    """
    weights = [likeness(traits, each.traits, key) * familiarity(key, each, values) for each in experts]
    return _mean(np.stack(answers), np.stack(weights))


def _reached_by(experts: Sequence[ExpertFigures], alike: Sequence[float]) -> float | None:
    known = [
        (expert.traits[REACHED], weight)
        for expert, weight in zip(experts, alike, strict=True)
        if REACHED in expert.traits
    ]
    if not known:
        return None
    shares, weights = np.array(known).T
    return float(np.average(shares, weights=weights + 1e-12))


def _products_by(
    experts: Sequence[ExpertFigures], alike: Sequence[float], traits: Mapping[str, float], power: float
) -> dict[str, float]:
    """By trait, the middle of what the others reach, less what fewer watts a FLOP/s cost."""
    found = {}
    for trait in PRODUCTS.values():
        known = [
            (expert.traits[trait] - power * fewer_watts(expert.traits, traits), weight)
            for expert, weight in zip(experts, alike, strict=True)
            if trait in expert.traits
        ]
        if known:
            shares, weights = (np.array(each)[:, None] for each in zip(*known, strict=True))
            found[trait] = min(0.0, float(_middle(shares, weights)[0]))
    return found


def _elsewhere(
    key: str,
    slowdown: Floats,
    share: Floats,
    known: Mapping[str, float],
    other: Mapping[str, float],
    reached: float | None,
) -> Floats:
    """Of the time, in units of the bound, as much as the bandwidth that is reached explains scales with the other's.
    The rest waits for neither memory nor the matrix units: it scales in part with units x clock.
    """
    if kind_of(key) is WorkKind.NETWORK or not {"pace", "bandwidth"} <= known.keys() & other.keys():
        return slowdown
    here = known.get(REACHED, reached)
    if here is None or reached is None:
        return slowdown
    waits, roof = _waiting(share), np.exp(-here)
    taken = np.exp(slowdown)
    rest = np.maximum(0.0, taken**_OVERLAP - roof**_OVERLAP) ** (1 / _OVERLAP)
    balance = (known["pace"] - known["bandwidth"]) - (other["pace"] - other["bandwidth"])
    rest *= np.exp(waits * _BALANCE * np.clip(balance, -_MOST_BALANCE, _MOST_BALANCE))
    at_roof = np.minimum(taken, roof) * np.exp(waits * (here - reached))
    return np.asarray(np.log(at_roof**_OVERLAP + rest**_OVERLAP) / _OVERLAP)


def bound_elsewhere(key: str, values: Floats, here: Mapping[str, float], there: Mapping[str, float]) -> Floats:
    """The bound of rows of features [rows, features] on another device over that on this one: by bandwidth and FP32
    peak, each for its share of the work. 1 where either device lacks one.
    """
    if not {"bandwidth", "peak"} <= here.keys() & there.keys():
        return np.ones(len(values))
    waits = _waiting(computing(key, values))
    slower = waits * (here["bandwidth"] - there["bandwidth"]) + (1 - waits) * (here["peak"] - there["peak"])
    return np.asarray(np.exp(np.clip(slower, -_MOST_BALANCE, _MOST_BALANCE)))


def _waiting(share: Floats) -> Floats:
    return np.asarray(np.clip((1 - share - _LEAST_SHARE) / (1 - 2 * _LEAST_SHARE), 0, 1))


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


def familiarity(key: str, expert: ExpertFigures, values: Floats) -> Floats:
    """How far rows of features [rows, features] are work that an expert learned from: 1 of work like it, less the
    smaller its sizes are than any seen, next to nothing of another item size, or over other ranks and nodes. Larger
    work is not strange: experts have an answer to it.
    """
    strange = np.zeros(len(values))
    for place, name in enumerate(names_of(key)):
        if name in _TELLING:
            smaller, larger = expert.low[place] - values[:, place], values[:, place] - expert.high[place]
            strange += np.where(np.maximum(smaller, larger) > _SAME, _UNKNOWN, 0.0)
        elif name in _SIZES:
            strange += 2 * np.maximum(0.0, expert.low[place] - values[:, place])
    return np.asarray(np.exp(-np.minimum(strange, _UNKNOWN)))


def _place(key: str, name: str) -> int | None:
    names = names_of(key)
    return names.index(name) if name in names else None


def device_traits(device: DeviceSpec) -> dict[str, float]:
    """What makes devices similar, each as a logarithm: bandwidth, vector peak, the peak of a unit, units x clock; and
    the capability. Beside them the watts for each FLOP/s of float32 products: parts with few clock down; and what the
    device reaches of its roofs, where that is known.
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
    if bandwidth and (reached := device.reached_bandwidth):
        traits[REACHED] = float(np.log(reached))
    for item, precisions in _PRECISIONS.items():
        shares = [share for precision in precisions if (share := device.reached_products(precision))]
        if shares:
            traits[PRODUCTS[item]] = float(np.log(shares[0]))
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
    products = kind_of(key) is WorkKind.PRODUCT
    scales, distant = (_SCALES_OF_PRODUCTS, _DISTANT_OF_PRODUCTS) if products else (_SCALES, _DISTANT)
    apart = (
        ((one[name] - other[name]) / scale) ** 2 if name in one and name in other else _FAR
        for name, scale in scales.items()
    )
    distance = sum(min(each, _FAR) for each in apart)
    return float(np.exp(-distant * distance) + _TWIN * np.exp(-2 * distance)) / (1 + _TWIN)


def reached_bandwidth(key: str, slowdown: Floats, large: NDArray[np.bool_]) -> float | None:
    """The share of its bandwidth, as a logarithm, that a device reaches in the large rows of one kind of work; None of
    work that is several kernels, or too little of it.
    """
    if "+" in key or large.sum() < _ENOUGH_LARGE:
        return None
    return -max(0.0, float(np.median(slowdown[large])))


def reached_products(key: str, values: Floats, slowdown: Floats) -> dict[str, float]:
    """What a device reaches of its matrix peaks, by trait: in the faster rows among the large ones that are arithmetic,
    of features [rows, features] and log(time / bound) [rows].
    """
    found: dict[str, float] = {}
    if kind_of(key) is not WorkKind.PRODUCT or (place := _place(key, "log item")) is None:
        return found
    arithmetic = computing(key, values) > _MOSTLY
    for item, trait in PRODUCTS.items():
        rows = arithmetic & (np.abs(values[:, place] - np.log(item)) < _SAME)
        if rows.sum() >= _ENOUGH_PRODUCTS:
            large = rows & (values[:, 0] >= np.median(values[rows, 0]))
            found[trait] = -max(0.0, float(np.quantile(slowdown[large], _FASTER)))
    return found


def lesser_of_chip(device: DeviceSpec) -> tuple[DeviceSpec, ...]:
    """Devices of the catalog with the same chip, as many units and FLOP/s; less bandwidth or fewer watts, no more."""
    return tuple(each for each in _of_chip(device) if _is_lesser(each, device))


def better_of_chip(device: DeviceSpec) -> tuple[DeviceSpec, ...]:
    """Devices of the catalog of which this one is a lesser one of the chip."""
    return tuple(each for each in _of_chip(device) if _is_lesser(device, each))


def _of_chip(device: DeviceSpec) -> Iterator[DeviceSpec]:
    own = device_traits(device)
    for each in catalog.datasheets():
        its = device_traits(each)
        if all(abs(own.get(name, 0.0) - its.get(name, 1.0)) < _SAME_CHIP for name in ("peak", "unit", "capability")):
            yield each


def _is_lesser(one: DeviceSpec, other: DeviceSpec) -> bool:
    its, others = ((each.dram_bytes_per_s or 0.0, each.tdp_w or 0.0) for each in (one, other))
    return its != others and its[0] <= others[0] and its[1] <= others[1]


def outdone_by(device: DeviceSpec) -> list[DeviceSpec]:
    """GPUs of the same vendor with no more units, watts and FLOP/s of any format, and less bandwidth: the ones with
    most bandwidth first. What they were measured at takes no longer on ``device``.
    """

    def roofs(spec: DeviceSpec) -> list[float]:
        peaks = [spec.matrix_peak(name) for name in ("float32", "float16", "bfloat16")]
        return [each or 0.0 for each in (*peaks, spec.vector_peak("float32"), spec.unit_count, spec.tdp_w)]

    own, bandwidth = roofs(device), device.dram_bytes_per_s or 0.0
    found = [
        each
        for each in catalog.datasheets()
        if (each.vendor, each.kind) == (device.vendor, "cuda")
        and 0 < (each.dram_bytes_per_s or 0.0) < bandwidth
        and all(its <= mine for its, mine in zip(roofs(each), own, strict=True))
    ]
    return sorted(found, key=lambda each: -(each.dram_bytes_per_s or 0.0))


def most_reached(experts: Iterable[ExpertFigures], device: DeviceSpec, item: int) -> float:
    """The share of its matrix peak, as a logarithm, that a device's large products of this item size have reached, or,
    where none was measured, those of any device; 0 where nothing is known.
    """
    trait, own = PRODUCTS.get(item, ""), device_traits(device)
    found = {expert.device: expert.traits[trait] for expert in experts if trait in expert.traits}
    return own.get(trait, found.get(device.name, max(found.values(), default=0.0)))


def reached_s(facts: Floats, device: DeviceSpec, experts: Iterable[ExpertFigures]) -> Floats:
    """Seconds [works] of products at the share of the matrix peak that measured ones have reached."""
    items, compute_s = (facts[:, FACTS[WorkKind.PRODUCT].index(name)] for name in ("item", "compute_s"))
    distinct, which = np.unique(items, return_inverse=True)
    most = np.array([most_reached(list(experts), device, int(item)) for item in distinct])
    return np.asarray(compute_s / np.exp(most[which.reshape(-1)]))
