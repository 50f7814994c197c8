"""Measures, explains and predicts what torch.compile brings, and compiles hot loops where it pays."""

from typing import TYPE_CHECKING

from rooflight.records.package import lazy_exports

if TYPE_CHECKING:
    from .bench.benchmark import benchmark as benchmark
    from .bench.benchmark import benchmark_workload as benchmark_workload
    from .bench.result import Compiled as Compiled
    from .hot.detection import HotPathDetection as HotPathDetection
    from .hot.detection import enable_hot_path_detection as enable_hot_path_detection
    from .hot.detection import hot_report as hot_report
    from .hot.detector import HotPath as HotPath
    from .hot.detector import HotPathDetector as HotPathDetector

_HOMES = {
    "Compiled": f"{__name__}.bench.result",
    "HotPath": f"{__name__}.hot.detector",
    "HotPathDetection": f"{__name__}.hot.detection",
    "HotPathDetector": f"{__name__}.hot.detector",
    "enable_hot_path_detection": f"{__name__}.hot.detection",
    "hot_report": f"{__name__}.hot.detection",
    "benchmark": f"{__name__}.bench.benchmark",
    "benchmark_workload": f"{__name__}.bench.benchmark",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - names of the table above
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
