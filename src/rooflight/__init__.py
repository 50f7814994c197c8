"""Rooflight: how far a PyTorch program is from the speed of light, why, and what to do about it.

What most programs need is here. Each study has a namespace of its own with the rest: ``rooflight.tracking`` for the
speed of light inside a training loop, whose names can be imported from ``rooflight`` too, and ``rooflight.inference``
for the steps of an inference engine.
"""

import sys
from typing import TYPE_CHECKING

from rooflight.records.package import Doors, Drawing, announce, lazy_exports

if TYPE_CHECKING:
    from rooflight.costs.cost import OpCost as OpCost
    from rooflight.costs.cost import Uncosted as Uncosted
    from rooflight.costs.modules import module_formula as module_formula
    from rooflight.costs.registry import formula as formula
    from rooflight.diagnosis.diagnose import diagnose as diagnose
    from rooflight.front.device import calibrate as calibrate
    from rooflight.front.device import current_device as current_device
    from rooflight.front.device import find_device as find_device
    from rooflight.front.elsewhere import run as run
    from rooflight.front.sessions import analyze as analyze
    from rooflight.hardware import devices as devices
    from rooflight.prediction.fit.wall_times import fit_host as fit_host
    from rooflight.prediction.predictor import Predictor as Predictor
    from rooflight.records.archive import load as load
    from rooflight.records.report import Report
    from rooflight.records.session import Session as Session
    from rooflight.records.signature import OpSignature as OpSignature
    from rooflight.roofline.analysis import Analysis as Analysis
    from rooflight.roofline.host import Host as Host
    from rooflight.sources.capture.phases import phase as phase
    from rooflight.sources.capture.record.autocast import as_on_gpu as as_on_gpu
    from rooflight.sources.capture.record.recorder import record as record
    from rooflight.sources.traces.live import measure as measure
    from rooflight.sources.traces.session import read_trace as read_trace
    from rooflight.studies import inference as inference
    from rooflight.studies import tracking as tracking
    from rooflight.studies.compiling.explain.explain import explain as explain
    from rooflight.studies.compiling.hot.detection import hot as hot
    from rooflight.studies.compiling.hot.detection import hot_report as hot_report
    from rooflight.studies.tracking import FunctionalPatcher as FunctionalPatcher
    from rooflight.studies.tracking import LayerSOLHooks as LayerSOLHooks
    from rooflight.studies.tracking import OpRecord as OpRecord
    from rooflight.studies.tracking import OpType as OpType
    from rooflight.studies.tracking import TensorShape as TensorShape
    from rooflight.studies.tracking import get_current_device_spec as get_current_device_spec
    from rooflight.studies.tracking import initialize_sol as initialize_sol
    from rooflight.studies.tracking import log_training_sol as log_training_sol
    from rooflight.studies.tracking import sol_nvtx_range as sol_nvtx_range
    from rooflight.studies.tracking import sol_profile as sol_profile

    __version__: str

_HOMES = {
    "Analysis": "rooflight.roofline.analysis",
    "Host": "rooflight.roofline.host",
    "OpCost": "rooflight.costs.cost",
    "OpSignature": "rooflight.records.signature",
    "Predictor": "rooflight.prediction.predictor",
    "Session": "rooflight.records.session",
    "Uncosted": "rooflight.costs.cost",
    "as_on_gpu": "rooflight.sources.capture.record.autocast",
    "analyze": "rooflight.front.sessions",
    "calibrate": "rooflight.front.device",
    "current_device": "rooflight.front.device",
    "diagnose": "rooflight.diagnosis.diagnose",
    "explain": "rooflight.studies.compiling.explain.explain",
    "find_device": "rooflight.front.device",
    "fit_host": "rooflight.prediction.fit.wall_times",
    "formula": "rooflight.costs.registry",
    "hot": "rooflight.studies.compiling.hot.detection",
    "hot_report": "rooflight.studies.compiling.hot.detection",
    "load": "rooflight.records.archive",
    "measure": "rooflight.sources.traces.live",
    "module_formula": "rooflight.costs.modules",
    "phase": "rooflight.sources.capture.phases",
    "read_trace": "rooflight.sources.traces.session",
    "record": "rooflight.sources.capture.record.recorder",
    "run": "rooflight.front.elsewhere",
}
_WINGS = {
    "compiling": "studies",
    "devices": "hardware",
    "inference": "studies",
    "machine": "hardware",
    "network": "hardware",
    "scoring": "studies",
    "tracking": "studies",
}
sys.meta_path.insert(0, Doors(_WINGS))  # before the finder of files, which would load what is in a room again

_NAMESPACES = ("devices", "inference", "tracking")

# Listed in rooflight.tracking, and importable from here as well: programs written for the SOL estimator do so.
_OF_TRACKING = (
    "FunctionalPatcher",
    "LayerSOLHooks",
    "OpRecord",
    "OpType",
    "TensorShape",
    "get_current_device_spec",
    "initialize_sol",
    "log_training_sol",
    "sol_nvtx_range",
    "sol_profile",
)


def _on_terminal(report: "Report") -> None:
    from rooflight.reporting.console import print_report

    print_report(report)


def _in_notebook(report: "Report") -> str:
    from rooflight.reporting.html import html_fragment

    return html_fragment(report)


announce(Drawing(on_terminal=_on_terminal, in_notebook=_in_notebook))

__all__ = [*_HOMES, *_NAMESPACES]  # noqa: PLE0604 - names of the tables above
__getattr__, __dir__ = lazy_exports(
    __name__,
    _HOMES | dict.fromkeys(_OF_TRACKING, "rooflight.studies.tracking") | {"__version__": "rooflight.records.package"},
    _NAMESPACES,
    needs={"explain": "torch", "measure": "torch"},
)
