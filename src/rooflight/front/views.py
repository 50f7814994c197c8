"""The views of models on shapes to be sampled on the device at hand."""

from __future__ import annotations

from collections.abc import Callable

from rooflight import devices
from rooflight.costs.operators.operator import Operator
from rooflight.devices import calibrations
from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.predictor import Predictor
from rooflight.sampling.smart_sweep import Views


def views_here(predictor: Predictor, kind: str, threads: int | None) -> Callable[[Operator, str], Views] | None:
    """For an operator and a dtype, what experts answer of shapes. ``kind`` is "cpu" or
    "cuda". None for a device that is neither calibrated nor in the catalog: its bounds are not known.
    """
    device = _known(kind, threads)
    if device is None:
        return None
    return lambda operator, dtype: lambda shapes: predictor.views(operator, shapes, dtype, device)


def _known(kind: str, threads: int | None) -> DeviceSpec | None:
    from rooflight.machine.environment import fingerprint
    from rooflight.machine.hardware import cuda_name

    kept = calibrations.load(fingerprint("cuda" if kind == "cuda" else "cpu", threads))
    if kept is not None:
        return calibrations.device_of(kept)
    if kind != "cuda":
        return None
    try:
        return devices.get(cuda_name() or "no GPU")
    except ValueError:
        return None
