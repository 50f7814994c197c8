"""What a report says of what-if roofs: which work they bound, and what they leave as it is."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.costs.cost import Uncosted
from rooflight.devices.spec import DeviceSpec, clock_text
from rooflight.devices.what_if import without_effect
from rooflight.records.dtypes import SHORT_PRECISIONS, precision_of
from rooflight.records.report import Cell
from rooflight.roofline.analysis import Analysis


def what_if_facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    """One line for each what-if roof of the device."""
    supposed = analysis.device.what_if_precision
    if supposed is not None:
        dtypes = _lowered(analysis)
        if dtypes:
            named = " and ".join(dtypes)
            option = f"--precision {SHORT_PRECISIONS[supposed]}"
            yield (
                "what if",
                f"{named} work bounded as if done in {supposed} ({option}): the program says {named}; its bytes count "
                "as they are stored",
            )
        else:
            yield "what if", without_effect(supposed)
    yield from device_facts(analysis.device)


def device_facts(device: DeviceSpec) -> Iterable[tuple[str, Cell]]:
    """What a locked clock changes of a device."""
    if device.what_if_clock_hz is not None:
        clock = clock_text(device.what_if_clock_hz)
        yield "what if", f"the clock is locked at {clock} (--clock): peaks of arithmetic scale, bandwidths do not"


def what_if_notes(analysis: Analysis) -> Iterable[str]:
    """What predictions and measurements have to do with roofs that are supposed."""
    device = analysis.device
    if device.name == device.part_name:
        return
    if analysis.predicts:
        yield (
            f"Models learned from {device.part_name} with its own clock and precisions. Work that another clock or "
            "precision changes is predicted as on a device that nobody measured."
        )
    if device.what_if_clock_hz is not None and analysis.measurement is not None:
        yield (
            f"The step was timed at the clock that {device.part_name} had: lock it too (nvidia-smi --lock-gpu-clocks) "
            "before you compare."
        )


def _lowered(analysis: Analysis) -> list[str]:
    """The formats of which products are bounded at the what-if precision."""
    found = set()
    for operation in analysis.operations:
        cost = operation.cost
        if isinstance(cost, Uncosted) or not cost.matrix_flops or not cost.matrix_dtype:
            continue
        own = analysis.float32.matrix_precision(operation.signature, cost.matrix_dtype)
        if analysis.device.computed_as(own) != own:
            found.add(precision_of(cost.matrix_dtype) or cost.matrix_dtype)
    return sorted(found)
