"""What measured programs correct of a physical gain: small trees over its features, and an interval, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rooflight.prediction.gain.kernels import CompiledWork, Kind
from rooflight.prediction.gain.walls import MODES, REPLAYED, Walls, copying_s
from rooflight.prediction.model.files import check, read_manifest
from rooflight.prediction.model.packing import archive, arrays_in, arrays_of, trees_from
from rooflight.prediction.model.trees import Trees, grow_with
from rooflight.prediction.work.facts import Floats
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


FOLDER: Final = Path(__file__).parents[1] / "gains"
FILE: Final = "torch_compile.gain.npz"
SCHEMA: Final = "rooflight.gain/1"
_MOST: Final = 3.0  # of a correction's logarithm


_TREES: Final = 200
_SETTINGS: Final = {
    "objective": "l1",
    "num_leaves": 15,
    "learning_rate": 0.1,
    "min_data_in_leaf": 10,
    "feature_fraction": 0.5,
}


class _About(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    schema: str
    features: tuple[str, ...]
    intervals: dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """``trees``: log(measured / physical gain) from the features ``gain_features.NAMES``. ``intervals`` by mode: by how
    much, as logarithms, nine measured gains in ten lie below and above on programs that were not learned.
    """

    trees: Trees
    intervals: Mapping[str, tuple[float, float]]

    def of(self, features: Floats, mode: str) -> tuple[float, float, float]:
        """Factors of the physical gain of one step: the best, the low and the high one."""
        best = float(np.clip(self.trees.predict(features[None, :])[0], -_MOST, _MOST))
        low, high = self.intervals[mode]
        return float(np.exp(best)), float(np.exp(best + low)), float(np.exp(best + high))

    def encode(self) -> bytes:
        """As a numpy archive (.npz): JSON, and the arrays of the trees."""
        about = _About(schema=SCHEMA, features=NAMES, intervals=dict(self.intervals))
        arrays = {f"trees.{name}": array for name, array in arrays_of(self.trees).items()}
        return archive(msgspec.json.encode(about), arrays)


def learn(features: Floats, target: Floats) -> Trees:
    """Trees of log(measured / physical gain) [rows] from features [rows, features]."""
    return grow_with(features, target, _TREES, _SETTINGS)


def decode(content: bytes) -> Correction:
    """A correction from ``Correction.encode``. Raises ValueError for anything else; nothing is executed."""
    try:
        arrays = arrays_in(content)
        about = msgspec.json.decode(arrays["about"].tobytes(), type=_About)
    except Exception as error:  # whatever bytes that make no sense get out of zipfile, numpy and msgspec
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"no corrections of predicted gains ({why}): install Rooflight again") from None
    ends = [end for interval in about.intervals.values() for end in interval]
    if about.schema != SCHEMA or about.features != NAMES or set(about.intervals) != set(MODES):
        raise ValueError("corrections of predicted gains of another version: install Rooflight again")
    if not all(map(isfinite, ends)) or any(not low <= 0 <= high for low, high in about.intervals.values()):
        raise ValueError("corrections of predicted gains with impossible numbers: install Rooflight again")
    return Correction(trees=trees_from("trees", len(NAMES), arrays), intervals=about.intervals)


@cache
def shipped() -> Correction:
    """The correction that comes with Rooflight. Raises ValueError where it is missing or not the one that came."""
    path = FOLDER / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: install Rooflight again") from None
    check(read_manifest(FOLDER), path, content)
    return decode(content)
