"""Precisions by which predictions are asked for: dtypes of tensors, and TF32, at which float32 products run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.devices.what_if import refuse_without_peak, without_precision
from rooflight.prediction.work.facts import facts_of
from rooflight.records.dtypes import dtype_name, tensor_dtype
from rooflight.roofline.bound import as_it_ran

_TF32: Final = "tfloat32"


def dtype_and_device(precision: str, device: DeviceSpec) -> tuple[str, DeviceSpec]:
    """The dtype of the tensors, and the device with the peak at which products of a precision run there: of ``tf32``,
    float32 tensors and the TF32 peak. Raises ValueError for an unknown precision, one that is no dtype of tensors, and
    for ``tf32`` where the device lists no peak of it.
    """
    if dtype_name(precision) != _TF32:
        return tensor_dtype(precision), device
    refuse_without_peak(device, _TF32)
    return "float32", as_it_ran(device, _TF32)


def in_effect(function: str, shape: Mapping[str, int], precision: str, device: DeviceSpec) -> DeviceSpec:
    """The device without a what-if precision that changes nothing of an operator at a shape, in any direction."""
    from rooflight.costs.operators import registry

    own = without_precision(device)
    if own is device:
        return device
    operator = registry.find(function)
    (dtype, asked), (_, plain) = (dtype_and_device(precision, each) for each in (device, own))
    works = [operator.ops(operator.shape(shape), dtype, direction) for direction in operator.directions]
    return own if all(facts_of(ops, asked) == facts_of(ops, plain) for ops in works) else device


def as_measured(devices: Sequence[DeviceSpec], facts_on: Callable[[DeviceSpec], Any]) -> DeviceSpec:
    """Of the ``candidates`` of a device, the one that models know for work whose facts are ``facts_on`` a device:
    without a what-if precision that leaves the facts as they are, or that is TF32 for float32 products. With any other
    it is a device that nobody measured.
    """
    *known, supposed = devices
    if not known:
        return supposed
    asked = facts_on(supposed)
    return next((each for each in known if facts_on(each) == asked), supposed)


def candidates(device: DeviceSpec) -> tuple[DeviceSpec, ...]:
    """What ``as_measured`` may give for a device: itself is the last."""
    if device.what_if_precision is None:
        return (device,)
    own = without_precision(device)
    return own, as_it_ran(own, _TF32), device
