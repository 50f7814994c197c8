"""What compiling costs: tracing and lowering each op, and building each kernel."""

from __future__ import annotations

from typing import Final

from rooflight.prediction.compiled_work import CompiledWork

_FIRST_S, _GRAPH_S, _OP_S, _KERNEL_S = 3.0, 0.5, 0.02, 1.5
_TRITON_S: Final = 0.3
_TUNED_S: Final = 3.0  # of each product that max-autotune tries kernels for


def compile_s(work: CompiledWork, mode: str, *, on_cpu: bool) -> float:
    """Seconds that compiling adds to the first iterations, from an empty cache of Inductor's."""
    ops = sum(sum(launch.ops.values()) for launch in work.launches)
    build = _KERNEL_S if on_cpu else _TRITON_S
    tuned = 0.0 if "max-autotune" not in mode else _TUNED_S * work.library_calls
    return _FIRST_S + _GRAPH_S * work.graphs + _OP_S * ops + build * work.generated + tuned
