"""Wall time of a step on a CPU, eager and compiled: each op has its dispatch, each generated kernel its call."""

from __future__ import annotations

from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost
from rooflight.prediction.compiled_walls import Walls, bytes_of
from rooflight.prediction.compiled_work import CompiledWork
from rooflight.records.session import Float64
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.bound import bound_of

_DISPATCH_S: Final = 3e-6
_ENTER_S: Final = 25e-6
_CALL_S: Final = 2e-6
_SLOWDOWN: Final = 1.5


def cpu_op_s(analysis: Analysis) -> Float64:
    """Seconds of each counted op's kernel, without its dispatch."""
    session = analysis.session
    bounds = [
        bound_of(cost, analysis.device, analysis.float32.precision_of(op)) if isinstance(cost, OpCost) else None
        for op, cost in zip(session.signatures, analysis.costs, strict=True)
    ]
    of_call = np.array([_SLOWDOWN * bound.time_s if bound else 0.0 for bound in bounds])
    return np.asarray(of_call[session.columns.signature[session.counted]])


def cpu_walls(analysis: Analysis, work: CompiledWork) -> tuple[Walls, Walls]:
    """Those of the eager and of the compiled step."""
    seconds, units = cpu_op_s(analysis), analysis.queue.units
    dispatch = float(units.sum()) * _DISPATCH_S
    eager = Walls(
        wall_s=dispatch + float(seconds.sum()),
        host_s=dispatch,
        device_s=float(seconds.sum()),
        launches=int((seconds > 0).sum()),
        bytes_moved=bytes_of(analysis, np.ones(len(seconds), dtype=bool)),
    )
    enter_s = _ENTER_S * work.graphs
    host = float(units[work.eager].sum()) * _DISPATCH_S + enter_s + _CALL_S * len(work.launches)
    device = float(seconds[work.eager].sum()) + sum(launch.seconds for launch in work.launches)
    launches = int((seconds[work.eager] > 0).sum()) + len(work.launches)
    moved = bytes_of(analysis, work.eager) + work.bytes_moved
    return eager, Walls(
        wall_s=host + device, host_s=host, device_s=device, launches=launches, bytes_moved=moved, enter_s=enter_s
    )
