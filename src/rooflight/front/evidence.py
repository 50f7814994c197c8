"""A run that passes a measured roof raises it: what one program reached, another can reach."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.hardware.devices import calibrations
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.records.dtypes import precision_of
from rooflight.records.files import alone, cache_folder
from rooflight.records.quantity import Quantity
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.bound import memory_time, unit_times

_MOST: Final = 2.0
"""A roof that is passed by more was not measured too low: a cost or the clock is wrong, which the report must show.
Unless other programs disturbed the calibration: six times too little memory bandwidth has been seen then. So that is
measured once more, and no roof is raised by more than this above what the machine reaches now.
"""
_NO_LIMIT: Final = 1e30  # bytes a second
_RAISED: Final = "; raised by a program to "


def with_evidence(analysis: Analysis) -> Analysis:
    """The analysis for roofs that no op of its measured step passed. They are kept where the CPU's calibration is kept;
    the name of their source says what was raised. Itself where nothing passed them.
    """
    before, roofs = analysis, analysis.device.calibrated
    if roofs is None or not (passed := _passed(analysis)):
        return analysis
    mark, higher = analysis.session.environment.get("fingerprint", ""), roofs
    if max(passed.values()) > _MOST:
        higher = measured_again(mark, roofs) if roofs.disturbed else roofs
        analysis = Analysis(analysis.session, analysis.device.with_calibration(higher), analysis.target)
        passed = _passed(analysis, _MOST)
    higher = _raised(analysis.device, higher, passed) if passed else higher
    if higher == roofs:
        return before
    _keep(mark, before, higher)
    return Analysis(analysis.session, analysis.device.with_calibration(higher), analysis.target)


def measured_again(mark: str, roofs: Roofs) -> Roofs:
    """The best of roofs and of a calibration of two seconds, where they are of this machine, whose ``mark`` they have;
    they alone elsewhere.
    """
    from rooflight.hardware.machine.calibration import calibrate, raised
    from rooflight.hardware.machine.environment import fingerprint

    known = calibrations.load(mark, roofs.threads)
    if known is None or known.roofs != roofs or mark != fingerprint("cpu"):
        return roofs
    return raised(calibrate("cpu", threads=roofs.threads, quick=True), known).roofs


def _passed(analysis: Analysis, most: float = np.inf) -> Mapping[tuple[str, str], float]:
    """By unit and precision, or the level of memory: how many times its roof the fastest op reached, of ops that pass
    no roof by more than ``most``.
    """
    device, measurement, columns = analysis.device, analysis.measurement, analysis.session.columns
    if device.kind != "cpu" or device.part or measurement is None or not measurement.of_the_session:
        return {}
    if not len(measurement.op_samples_s):
        return {}
    fastest = np.full(len(analysis.session.signatures), np.inf)
    timed = analysis.session.counted & (measurement.op_s > 0)
    np.minimum.at(fastest, columns.signature[timed], measurement.op_s[timed])
    found: dict[tuple[str, str], float] = {}
    for number in np.flatnonzero(np.isfinite(fastest)).tolist():
        cost = analysis.costs[number]
        if isinstance(cost, Uncosted):
            continue
        times = {roof: least_s / float(fastest[number]) for roof, least_s in _least_s(analysis, number, cost)}
        if max(times.values()) <= most:
            passed = ((roof, factor) for roof, factor in times.items() if factor > 1)
            found |= {roof: max(found.get(roof, 1.0), factor * (1 + 1e-9)) for roof, factor in passed}
    return found


def _least_s(analysis: Analysis, number: int, cost: OpCost) -> Iterator[tuple[tuple[str, str], float]]:
    """The seconds that each roof alone asks of an op."""
    times = unit_times(cost, analysis.device, analysis.float32.products_at(analysis.session.signatures[number], cost))
    yield ("matrix", precision_of(cost.matrix_dtype or "") or "float32"), times.matrix_s
    yield ("vector", precision_of(cost.vector_dtype or "") or "float32"), times.vector_s
    nearer: tuple[MemoryLevel, ...] = ()
    for level in analysis.device.memory:
        yield ("memory", level.name), memory_time(cost.least_read, cost.least_written, (*nearer, level))
        nearer = (*nearer, level if level.bytes_per_s is None else replace(level, bytes_per_s=_NO_LIMIT))


def _raised(device: DeviceSpec, roofs: Roofs, passed: Mapping[tuple[str, str], float]) -> Roofs:
    texts, peaks = [], {"matrix": dict(roofs.matrix_flops_per_s), "vector": dict(roofs.vector_flops_per_s)}
    memory = roofs.memory
    for (unit, precision), factor in passed.items():
        if unit != "memory":
            # what the bound took: float32 products may run on the vector units, if those were measured faster
            known = (device.matrix_peak if unit == "matrix" else device.vector_peak)(precision) or 0.0
            peaks[unit][precision] = known * factor
            texts.append(f"{unit} {precision} {Quantity(known * factor, 'FLOP/s')}")
        elif passed_level := next((level for level in roofs.memory if level.name == precision), None):
            reached, place = (passed_level.bytes_per_s or 0.0) * factor, roofs.memory.index(passed_level)
            nearer = (  # what is nearer is no slower
                level if level.bytes_per_s is None else replace(level, bytes_per_s=max(level.bytes_per_s, reached))
                for level in memory[: place + 1]
            )
            memory = *nearer, *memory[place + 1 :]
            texts.append(f"{passed_level.name} {Quantity(reached, 'B/s')}")
    return replace(
        roofs,
        source=roofs.source.split(_RAISED)[0] + _RAISED + ", ".join(texts),
        matrix_flops_per_s=peaks["matrix"],
        vector_flops_per_s=peaks["vector"],
        memory=memory,
    )


def _keep(fingerprint: str, before: Analysis, higher: Roofs) -> None:
    try:
        if calibrations.load(fingerprint, higher.threads) is None:
            return
        with alone(cache_folder()):
            known = calibrations.load(fingerprint, higher.threads)
            if known is not None and known.roofs != before.device.calibrated:  # another process raised them meanwhile
                now = Analysis(before.session, before.device.with_calibration(known.roofs), before.target)
                passed = _passed(now, _MOST)
                higher = _raised(now.device, known.roofs, passed) if passed else known.roofs
            if known is not None and known.roofs != higher:
                calibrations.save(replace(known, roofs=higher))
    except (OSError, ValueError) as error:
        logging.getLogger("rooflight").warning("rooflight: raised roofs are not kept: %s", error)
