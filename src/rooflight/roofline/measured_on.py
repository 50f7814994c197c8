"""On which device a session was measured, beside the one that its bounds are of."""

from __future__ import annotations

from rooflight.devices import find_by_torch_name
from rooflight.devices.spec import DeviceSpec
from rooflight.records.session import Session


def measured_elsewhere(session: Session, device: DeviceSpec) -> str:
    """The name of the device that a session was measured on, empty where that is ``device`` or unknown. A GPU stands
    for one that is not in the catalog.
    """
    environment = session.environment
    if session.measurement is None or "device_kind" not in environment:
        return ""
    if environment["device_kind"] == "cuda":
        name = environment.get("gpu", "")
        known = find_by_torch_name(name)
        if known is None and device.kind == "cuda":
            return ""
        return "" if device.part_name in (name, known.name if known else "") else name
    return "" if device.kind == "cpu" else environment.get("cpu", "a CPU")


def unknown_gpu(session: Session, device: DeviceSpec) -> str:
    """The name of the GPU that a session was measured on if the catalog does not have it, so that ``device`` stands for
    it; empty otherwise.
    """
    name = session.environment.get("gpu", "") if session.environment.get("device_kind") == "cuda" else ""
    stands = session.measurement is not None and device.kind == "cuda" and name not in ("", device.part_name)
    return name if stands and find_by_torch_name(name) is None else ""
