"""What a learned correction of a predicted gain is asked by: physical features of the step, eager and compiled."""

from __future__ import annotations

from typing import Final

import numpy as np

from rooflight.prediction.compiled_walls import MODES, REPLAYED, Walls, copying_s
from rooflight.prediction.compiled_work import CompiledWork, Kind
from rooflight.prediction.facts import Floats
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.host import Host

_LEAST_S: Final = 1e-9

NAMES: Final = (
    "gain", *(f"mode:{mode}" for mode in MODES), "replayed", "tuned",
    "eager host / device", "eager device / launch", "compiled / launch", "eager / launch", "compiled / eager device",
    "launches", "generated", "library", "compiled / eager launches", "channels last",
    "copy / device", "copy / launch", "compiled / op bytes", "op / fused bound", "device / op bound", "left eager",
    "bandwidth",
    *(f"share:{kind.value}" for kind in Kind), *(f"ops:{kind.value}" for kind in Kind),
)  # fmt: skip
"""``gain``: the physical one. Times, launches, bytes and ratios are logarithms, shares are of the eager device time."""


def gain_features(
    analysis: Analysis, work: CompiledWork, mode: str, host: Host, eager: Walls, compiled: Walls
) -> Floats:
    """One number for each of ``NAMES``: of a step in a mode on a GPU, and its eager and compiled walls."""
    device_s, launch_s = max(eager.device_s, _LEAST_S), max(host.launch_s, _LEAST_S)
    copy_s = copying_s(analysis, work)
    compiled_s = max(sum(launch.seconds for launch in work.launches), _LEAST_S)
    memory = analysis.device.memory
    eager_launches = float(analysis.queue.launches.sum())
    fused_s = max(analysis.program.fused_bound_s, _LEAST_S)
    op_s = max(analysis.totals.op_bound_s, _LEAST_S)
    ops = {kind: sum(launch.ops.get(kind, 0) for launch in work.launches) for kind in Kind}
    found = [
        np.log(eager.wall_s / compiled.wall_s),
        *(float(mode == each) for each in MODES),
        float(mode in REPLAYED),
        float("max-autotune" in mode),
        np.log(max(float(analysis.queue.units.sum()) * launch_s, _LEAST_S) / device_s),
        np.log(device_s / launch_s),
        np.log(compiled.wall_s / launch_s),
        np.log(eager.wall_s / launch_s),
        np.log(compiled_s / device_s),
        np.log1p(eager_launches),
        np.log1p(work.generated),
        np.log1p(work.library_calls),
        np.log((len(work.launches) + 0.5) / (eager_launches + 0.5)),
        float(work.channels_last),
        copy_s / device_s,
        np.log1p(copy_s / launch_s),
        np.log((work.bytes_moved + 1) / (work.op_bytes + 1)),
        np.log(op_s / fused_s),
        np.log(device_s / op_s),
        float(work.eager.mean()) if len(work.eager) else 0.0,
        np.log(memory[-1].bytes_per_s or 1.0) if memory else 0.0,
        *(work.op_s.get(kind, 0.0) / device_s for kind in Kind),
        *(np.log1p(ops[kind]) for kind in Kind),
    ]
    return np.array(found, dtype=np.float64)
