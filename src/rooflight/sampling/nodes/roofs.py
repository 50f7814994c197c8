"""The roofs of many nodes beside each other: which of them are slow, and how nodes of one kind differ. No hardware."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.machine.calibration import LATENCY, roofs_by_name
from rooflight.records.document import Fields
from rooflight.records.measurement import Spread
from rooflight.records.quantity import Quantity

SLOW: Final = 0.05
"""The share of the median that a peak or a bandwidth may be short of before its node is called slow."""

SLOW_LATENCY: Final = 0.25
"""The same of launches per second, which the host's other work disturbs more than any other roof."""

# facts of a calibration's environment on which nodes of one kind should agree
_SHOULD_AGREE: Final = ("cores_usable", "torch_threads", "memory", "driver", "cuda", "torch", "gpu_count", "os")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCalibration:
    """One device of one node: its calibration, or the reason why there is none. ``number`` is the GPU's in its node."""

    node: str
    number: int = 0
    calibration: Calibration | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """The node, and which of its GPUs: ``n7``, ``n7 GPU 3``."""
        is_gpu = self.calibration is not None and self.calibration.kind == "cuda"
        return f"{self.node} GPU {self.number}" if is_gpu else self.node


class Roof(Fields, frozen=True, kw_only=True):
    """One roof of one device beside the same roof of the devices of its model.

    ``value`` and ``median`` are in ``unit``: FLOP/s, B/s, or for the launch latency s. ``below`` is the share of the
    median's speed that is missing: 0.1 is a tenth slower, below 0 is faster; ``slow`` says whether that is more than
    measuring again explains. ``devices`` have this roof.
    """

    roof: str
    value: float
    unit: str
    median: float
    below: float
    devices: int
    slow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A device that was measured, with each of its roofs beside the others'."""

    measured: NodeCalibration
    calibration: Calibration
    roofs: tuple[Roof, ...]

    @property
    def slow(self) -> tuple[Roof, ...]:
        """Its roofs that are slow, the slowest first; one figure that is several precisions' once."""
        once = {(roof.value, roof.median): roof for roof in reversed(self.roofs) if roof.slow}
        return tuple(sorted(once.values(), key=lambda roof: -roof.below))

    @property
    def worst(self) -> Roof | None:
        """The roof that is furthest below its median; None where there is no other device to compare with."""
        compared = [roof for roof in self.roofs if roof.devices > 1]
        return max(compared, key=lambda roof: roof.below, default=None)


def compare(nodes: Sequence[NodeCalibration]) -> tuple[Comparison, ...]:
    """Every calibrated device, its roofs beside the median of those with the same device model.

    The median is the higher of the two middle ones where their number is even. A disturbance lowers a roof and nothing
    raises one, so of two nodes the faster one is the measure, and of three one slow node moves nothing.
    """
    by_model: dict[tuple[str, str], list[tuple[NodeCalibration, Calibration]]] = defaultdict(list)
    for each in nodes:
        if each.calibration is not None:
            by_model[each.calibration.kind, each.calibration.device_name].append((each, each.calibration))
    found = {}
    for group in by_model.values():
        roofs = [roofs_by_name(calibration.roofs) for _, calibration in group]
        speeds: dict[str, dict[int, float]] = defaultdict(dict)
        for number, of_one in enumerate(roofs):
            for name, measured in of_one.items():
                speeds[name][number] = _speed(name, measured.value)
        for (each, calibration), of_one in zip(group, roofs, strict=True):
            compared = tuple(_roof(name, measured, Spread(speeds[name])) for name, measured in of_one.items())
            found[id(each)] = Comparison(measured=each, calibration=calibration, roofs=compared)
    return tuple(found[id(each)] for each in nodes if id(each) in found)


def differences(comparisons: Iterable[Comparison]) -> tuple[str, ...]:
    """One sentence for each fact in which devices of one model differ: driver, cores, threads and the like."""
    by_model: dict[str, list[Comparison]] = defaultdict(list)
    for each in comparisons:
        by_model[each.calibration.device_name].append(each)
    found = []
    for model, group in by_model.items():
        for fact in _SHOULD_AGREE:
            nodes: dict[str, list[str]] = defaultdict(list)
            for each in group:
                nodes[each.calibration.environment.get(fact, "unknown")].append(each.measured.name)
            if len(nodes) > 1:
                values = "; ".join(f"{value}: {named(names, 3, ' and')}" for value, names in nodes.items())
                found.append(f"Nodes with {model} differ in {fact}: {values}.")
    return tuple(found)


def named(names: Sequence[str], most: int = 5, last: str = ", and") -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f"{last} {len(names) - most} more" if len(names) > most else "")


def _speed(name: str, value: float) -> float:
    return 1 / value if name == LATENCY else value


def _roof(name: str, measured: Quantity, speeds: Spread[int]) -> Roof:
    below = 1 - _speed(name, measured.value) / speeds.median_high
    return Roof(
        roof=name,
        value=measured.value,
        unit=measured.unit,
        median=_speed(name, speeds.median_high),
        below=below,
        devices=speeds.count,
        slow=below > (SLOW_LATENCY if name == LATENCY else SLOW),
    )
