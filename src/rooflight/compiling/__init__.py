"""torch.compile measured: does it pay, when, and is its result right; and patterns that repeat."""

from typing import TYPE_CHECKING

from rooflight.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rooflight.compiling.benchmark import benchmark as benchmark
    from rooflight.compiling.benchmark import benchmark_workload as benchmark_workload
    from rooflight.compiling.hot_calls import hot as hot
    from rooflight.compiling.hot_calls import hot_report as hot_report
    from rooflight.compiling.hot_everywhere import HotPathDetection as HotPathDetection
    from rooflight.compiling.hot_everywhere import enable_hot_path_detection as enable_hot_path_detection
    from rooflight.compiling.hot_paths import HotPath as HotPath
    from rooflight.compiling.hot_paths import HotPathDetector as HotPathDetector
    from rooflight.compiling.result import Compiled as Compiled

_HOMES = {
    "Compiled": "rooflight.compiling.result",
    "HotPath": "rooflight.compiling.hot_paths",
    "HotPathDetection": "rooflight.compiling.hot_everywhere",
    "HotPathDetector": "rooflight.compiling.hot_paths",
    "enable_hot_path_detection": "rooflight.compiling.hot_everywhere",
    "hot": "rooflight.compiling.hot_calls",
    "hot_report": "rooflight.compiling.hot_calls",
    "benchmark": "rooflight.compiling.benchmark",
    "benchmark_workload": "rooflight.compiling.benchmark",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - names of the table above
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
