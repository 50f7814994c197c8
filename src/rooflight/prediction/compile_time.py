"""What compiling costs: tracing and lowering each op, and building each kernel."""

from __future__ import annotations

from typing import Final

from rooflight.prediction.compiled_work import CompiledWork

_START_S, _GRAPH_S, _OP_S = 1.6, 0.7, 0.02
"""Imports and guards of the first graph; more of each graph; of each op, traced, decomposed and lowered."""
_FIRST_BUILD_S, _BUILD_S = 5.0, 1.6
"""C++: the first kernel, with the headers that are compiled once; each further one, two at a time."""
_TRITON_S: Final = 0.3
_TUNED_S: Final = 3.0
"""Of each product and convolution that max-autotune tries kernels for, on a GPU. Neither was measured."""


def compile_s(work: CompiledWork, mode: str, *, on_cpu: bool) -> float:
    """Seconds that compiling adds to the first iterations, from an empty cache of Inductor's."""
    if not work.launches:
        return 0.0
    ops = sum(sum(launch.ops.values()) for launch in work.launches)
    traced_s = _START_S + _GRAPH_S * work.graphs + _OP_S * ops
    if on_cpu:
        built_s = _FIRST_BUILD_S + _BUILD_S * (work.generated - 1) if work.generated else 0.0
        return traced_s + built_s
    tuned_s = _TUNED_S * work.library_calls if "max-autotune" in mode else 0.0
    return traced_s + _TRITON_S * work.generated + tuned_s
