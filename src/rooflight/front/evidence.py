"""A run that passes a measured roof raises it: what one program reached, another can reach."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.devices import calibrations
from rooflight.devices.spec import Roofs
from rooflight.records.dtypes import precision_of
from rooflight.records.quantity import Quantity
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.bound import unit_times
from rooflight.roofline.program import warm_bound_s

_MOST: Final = 2.0
"""A roof that is passed by more was not measured too low: a cost or the clock is wrong, which the report must show."""
_LEAST_S: Final = 50e-6  # clocks are right to a microsecond or two
_MEMORY: Final = "memory"
_RAISED: Final = "; raised by a program to "


def with_evidence(analysis: Analysis) -> Analysis:
    """The analysis for roofs that no op of its measured step passed. They are kept where the CPU's calibration is kept;
    the name of their source says what was raised. Itself where nothing passed them.
    """
    passed = _passed(analysis)
    roofs = analysis.device.calibrated
    if not passed or roofs is None:
        return analysis
    higher = _raised(roofs, passed)
    _keep(analysis.session.environment.get("fingerprint", ""), roofs, higher)
    device = analysis.device.with_calibration(higher)
    return Analysis(analysis.session, device, analysis.target)


def _passed(analysis: Analysis) -> Mapping[tuple[str, str], float]:
    """By unit and precision: how many times its roof the fastest op reached."""
    device, measurement, columns = analysis.device, analysis.measurement, analysis.session.columns
    if device.kind != "cpu" or device.part or measurement is None or not measurement.of_the_session:
        return {}
    if not len(measurement.op_samples_s):
        return {}
    fastest = np.full(len(analysis.session.signatures), np.inf)
    timed = analysis.session.counted & (measurement.op_s > _LEAST_S)
    np.minimum.at(fastest, columns.signature[timed], measurement.op_s[timed])
    found: dict[tuple[str, str], float] = {}
    for number in np.flatnonzero(np.isfinite(fastest)).tolist():
        cost, bound = analysis.costs[number], analysis.bounds[number]
        if isinstance(cost, Uncosted) or bound is None:
            continue
        least_s = warm_bound_s(cost, bound, device)
        if fastest[number] < least_s <= _MOST * fastest[number]:
            unit = _unit(analysis, number, cost, least_s)
            found[unit] = max(found.get(unit, 1.0), least_s / float(fastest[number]) * (1 + 1e-9))
    return found


def _unit(analysis: Analysis, number: int, cost: OpCost, least_s: float) -> tuple[str, str]:
    precision = analysis.float32.precision_of(analysis.session.signatures[number])
    times = unit_times(cost, analysis.device, precision)
    if times.matrix_s >= least_s:
        return "matrix", precision_of(cost.matrix_dtype or "") or "float32"
    return (
        ("vector", precision_of(cost.vector_dtype or "") or "float32") if times.vector_s >= least_s else (_MEMORY, "")
    )


def _raised(roofs: Roofs, passed: Mapping[tuple[str, str], float]) -> Roofs:
    texts, peaks = [], {"matrix": dict(roofs.matrix_flops_per_s), "vector": dict(roofs.vector_flops_per_s)}
    memory = roofs.memory
    for (unit, precision), factor in passed.items():
        if unit != _MEMORY:
            known = peaks[unit].get(precision, peaks["vector"].get("float32", 0.0))
            peaks[unit][precision] = known * factor
            texts.append(f"{unit} {precision} {Quantity(known * factor, 'FLOP/s')}")
        elif memory and memory[-1].bytes_per_s is not None:
            reached = memory[-1].bytes_per_s * factor
            # what is nearer is no slower
            memory = tuple(
                level if level.bytes_per_s is None else replace(level, bytes_per_s=max(level.bytes_per_s, reached))
                for level in memory
            )
            texts.append(f"{memory[-1].name} {Quantity(reached, 'B/s')}")
    return replace(
        roofs,
        source=roofs.source.split(_RAISED)[0] + _RAISED + ", ".join(texts),
        matrix_flops_per_s=peaks["matrix"],
        vector_flops_per_s=peaks["vector"],
        memory=memory,
    )


def _keep(fingerprint: str, before: Roofs, raised: Roofs) -> None:
    try:
        known = calibrations.load(fingerprint) if fingerprint else None
        if known is not None and known.roofs == before:
            calibrations.save(replace(known, roofs=raised))
    except (OSError, ValueError) as error:
        logging.getLogger("rooflight").warning("rooflight: raised roofs are not kept: %s", error)
