"""Measures, explains and predicts what torch.compile brings, and compiles hot loops where it pays."""

from typing import TYPE_CHECKING

from rooflight.records.package import lazy_exports

if TYPE_CHECKING:
    from rooflight.compiling.bench.benchmark import benchmark as benchmark
    from rooflight.compiling.bench.benchmark import benchmark_workload as benchmark_workload
    from rooflight.compiling.bench.result import Compiled as Compiled
    from rooflight.compiling.hot.detection import HotPathDetection as HotPathDetection
    from rooflight.compiling.hot.detection import enable_hot_path_detection as enable_hot_path_detection
    from rooflight.compiling.hot.detection import hot_report as hot_report
    from rooflight.compiling.hot.detector import HotPath as HotPath
    from rooflight.compiling.hot.detector import HotPathDetector as HotPathDetector

_HOMES = {
    "Compiled": "rooflight.compiling.bench.result",
    "HotPath": "rooflight.compiling.hot.detector",
    "HotPathDetection": "rooflight.compiling.hot.detection",
    "HotPathDetector": "rooflight.compiling.hot.detector",
    "enable_hot_path_detection": "rooflight.compiling.hot.detection",
    "hot_report": "rooflight.compiling.hot.detection",
    "benchmark": "rooflight.compiling.bench.benchmark",
    "benchmark_workload": "rooflight.compiling.bench.benchmark",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - names of the table above
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
