"""Rooflight: how far a PyTorch program is from the speed of light, why, and what to do about it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooflight import devices as devices
    from rooflight.capture.measure import measure as measure
    from rooflight.capture.phases import phase as phase
    from rooflight.capture.phases import sol_nvtx_range as sol_nvtx_range
    from rooflight.capture.recorder import record as record
    from rooflight.costs.cost import OpCost as OpCost
    from rooflight.costs.cost import Uncosted as Uncosted
    from rooflight.costs.registry import formula as formula
    from rooflight.front.device import calibrate as calibrate
    from rooflight.front.device import current_device as current_device
    from rooflight.front.sessions import analyze as analyze
    from rooflight.records.archive import load as load
    from rooflight.records.session import Session as Session
    from rooflight.records.signature import OpSignature as OpSignature
    from rooflight.roofline.analysis import Analysis as Analysis
    from rooflight.tracking.functions import FunctionalPatcher as FunctionalPatcher
    from rooflight.tracking.layers import LayerSOLHooks as LayerSOLHooks
    from rooflight.tracking.layers import sol_profile as sol_profile
    from rooflight.tracking.loop import initialize_sol as initialize_sol
    from rooflight.tracking.loop import log_training_sol as log_training_sol

# Imported when first used: a saved session is analysed without torch, and --help needs none of them.
_HOMES = {
    "Analysis": "rooflight.roofline.analysis",
    "FunctionalPatcher": "rooflight.tracking.functions",
    "LayerSOLHooks": "rooflight.tracking.layers",
    "OpCost": "rooflight.costs.cost",
    "OpSignature": "rooflight.records.signature",
    "Session": "rooflight.records.session",
    "Uncosted": "rooflight.costs.cost",
    "analyze": "rooflight.front.sessions",
    "calibrate": "rooflight.front.device",
    "current_device": "rooflight.front.device",
    "formula": "rooflight.costs.registry",
    "initialize_sol": "rooflight.tracking.loop",
    "load": "rooflight.records.archive",
    "log_training_sol": "rooflight.tracking.loop",
    "measure": "rooflight.capture.measure",
    "phase": "rooflight.capture.phases",
    "record": "rooflight.capture.recorder",
    "sol_nvtx_range": "rooflight.capture.phases",
    "sol_profile": "rooflight.tracking.layers",
}

__all__ = [*_HOMES, "devices"]  # noqa: PLE0604 - names of the table above


def __getattr__(name: str) -> Any:
    if name == "devices":
        return import_module("rooflight.devices")
    if name not in _HOMES:
        raise AttributeError(f"module 'rooflight' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)  # the next use does not come here
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
