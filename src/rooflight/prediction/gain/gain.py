"""Gain: what torch.compile would bring to a recorded step, and cost, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf, isfinite
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from rooflight.costs.cost import Uncosted
from rooflight.prediction.gain.half import gain_in_half
from rooflight.prediction.gain.kernels import CompiledWork, Kind, compiled_work
from rooflight.prediction.gain.walls import (
    FRESH_PAGE_S,
    MODES,
    REPLAYED,
    Walls,
    compiled_walls,
    copying_s,
    cpu_factors,
    cpu_op_s,
    cpu_walls,
    eager_walls,
)
from rooflight.prediction.model.files import check, read_manifest
from rooflight.prediction.model.packing import archive, arrays_in, arrays_of, trees_from
from rooflight.prediction.model.trees import Trees, grow_with
from rooflight.prediction.work.facts import Floats
from rooflight.records.quantity import count_of, percent
from rooflight.records.record import Direction
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


_MOST_TYPICAL: Final = 0.5


def doubts_of(analysis: Analysis, work: CompiledWork, mode: str, *, of_half: bool = False) -> Iterator[str]:
    """Sentences without a full stop; none where the step is like those that were measured, ``of_half`` in 16 bits."""
    session, device = analysis.session, analysis.device
    costs = zip(session.signatures, analysis.costs, strict=True)
    uncosted = [op.name for op, cost in costs if isinstance(cost, Uncosted)]
    if uncosted:
        named = ", ".join(sorted(set(uncosted))[:3])
        yield f"the time of {count_of(len(uncosted), 'op')} is left out, because no cost is known ({named})"
    if not work.launches:
        yield "nothing of the step is compiled"
    if session.lifetimes is None and not session.environment.get("target"):  # a trace names its file
        yield "recorded without memory=True, which shows what a compiler reads of the step's inputs and need not write"
    if device.kind == "cpu":
        if mode != "default":
            yield f"on a CPU, compiled programs were measured in the mode default alone, not in {mode}"
        return
    if device.vendor != "NVIDIA":
        yield f"compiled programs were measured on NVIDIA's GPUs alone, not on {device.vendor}'s"
    if _is_trained(analysis):
        yield "compiled programs were measured in forward passes alone, not in training"
    predicted = analysis.totals.predicted
    if predicted is not None and predicted.time_s and predicted.typical_s > _MOST_TYPICAL * predicted.time_s:
        share = percent(predicted.typical_s / predicted.time_s)
        yield f"no measured op is like those of {share} of the device time"
    if _is_in_16_bits(analysis) and not of_half:
        yield "compiled programs were measured in float32 alone"


def _is_trained(analysis: Analysis) -> bool:
    session = analysis.session
    return bool((session.columns.direction[session.counted] != Direction.FORWARD).any())


def _is_in_16_bits(analysis: Analysis) -> bool:
    return any(tensor.dtype in ("bfloat16", "float16") for op in analysis.session.signatures for tensor in op.outputs)


Verdict = Literal["pays", "neutral", "hurts"]
NEUTRAL: Final = 0.05
"""A steady-state speed-up within so much of 1 is neither a gain nor a loss."""


def verdict_of(speedup: float) -> Verdict:
    """Whether a steady-state speed-up pays."""
    return "pays" if speedup > 1 + NEUTRAL else "hurts" if speedup < 1 - NEUTRAL else "neutral"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A step in a ``mode`` of torch.compile, predicted: seconds of a steady iteration eager and compiled, and what
    compiling costs from an empty cache. The speed-up lies nine times in ten between ``speedup_low`` and
    ``speedup_high``. ``eager`` and ``compiled`` have the physics behind both times, which measured programs then
    correct; ``work`` has the kernels. ``doubts``: why the model may say nothing of this step. ``of_networks``: the
    speed-up is that of whole networks which were measured (``half.py``), whatever the physics says.
    """

    mode: str
    eager_s: float
    compiled_s: float
    compile_s: float
    speedup_low: float
    speedup_high: float
    eager: Walls
    compiled: Walls
    work: CompiledWork
    doubts: tuple[str, ...] = ()
    of_networks: bool = False

    @property
    def steady_speedup(self) -> float:
        """Eager's time of a steady iteration over the compiled step's."""
        return self.eager_s / self.compiled_s

    @property
    def verdict(self) -> Verdict:
        """Whether compiling pays in the steady state."""
        return verdict_of(self.steady_speedup)

    @property
    def sure(self) -> bool:
        """Whether both ends of the interval have the same verdict, and there are no doubts."""
        return not self.doubts and verdict_of(self.speedup_low) == verdict_of(self.speedup_high)

    @property
    def break_even_iterations(self) -> int | None:
        """After so many iterations compiling has paid back what it costs; None for never."""
        saved = self.eager_s - self.compiled_s
        return None if saved <= 0 else max(1, ceil(self.compile_s / saved))

    def total_speedup(self, iterations: int) -> float:
        """Eager's time of so many iterations over the compiled step's, compiling included."""
        return iterations * self.eager_s / (iterations * self.compiled_s + self.compile_s)

    def pays_within(self, iterations: int) -> bool:
        """Whether so many iterations are faster compiled, compiling included."""
        return self.total_speedup(iterations) > 1

    def given_eager(self, eager_s: float) -> Gain:
        """The same speed-up of a step whose eager time was measured. Raises ValueError unless that is positive."""
        if not (isfinite(eager_s) and eager_s > 0):
            raise ValueError(f"an eager time of {eager_s} s: give the seconds of one iteration")
        return replace(self, eager_s=eager_s, compiled_s=eager_s / self.steady_speedup)


def predicted_gain(
    analysis: Analysis, mode: str = "default", host: Host | None = None, *, page_s: float = FRESH_PAGE_S
) -> Gain:
    """What ``torch.compile(mode=mode)`` would bring to the step of an analysis.

    On a GPU the analysis needs predicted times (``rl.analyze(session, device, predictor=rl.Predictor())``); on a CPU
    it needs none, and the roofs should be calibrated. ``host`` is that of the analysis by default. Where the session
    has a recorded model, its forward and backward are compiled, as ``rooflight compile-bench`` does; else the whole
    step but the optimizer. Nothing runs, and neither torch nor a GPU is needed. Where a step's eager time was measured,
    ``.given_eager(seconds)`` has the same speed-up of that. ``page_s``, of a CPU: seconds of the first touch of a page
    (``rooflight.hardware.machine.memory.fresh_page_s()`` measures it), by default those of a quiet machine.

    The learned correction is of forward passes in float32: of a step that trains half of it is taken (as a logarithm),
    and a third where it has 16 bits. Forward passes in 16 bits on GPUs like an RTX 4090 have multiples of bounds in its
    place (``half.py``).

    Raises ValueError for another mode than those of ``MODES``, and for an analysis for a GPU without predicted times.
    """
    if mode not in MODES:
        raise ValueError(f'no gain is predicted for the mode "{mode}": take {", ".join(MODES)}')
    on_cpu = analysis.device.kind == "cpu"
    if on_cpu:
        work = compiled_work(analysis, cpu_op_s(analysis), cpu_op_s(analysis, generated=True))
        eager, compiled = cpu_walls(analysis, work, page_s)
        factors = cpu_factors(analysis, eager, compiled, page_s)
    else:
        work = compiled_work(analysis, analysis.predicted_op_s)
        given = host or analysis.host
        eager, compiled = eager_walls(analysis, given), compiled_walls(analysis, work, mode, given)
        learned = shipped().of(gain_features(analysis, work, mode, given, eager, compiled), mode)
        best = learned[0] ** (1 / 3 if _is_in_16_bits(analysis) else 1 / 2 if _is_trained(analysis) else 1)
        factors = best, best * learned[1] / learned[0], best * learned[2] / learned[0]
    most = most_speedup(analysis, eager)
    half = None if on_cpu or mode != "default" else gain_in_half(analysis, eager.host_s)
    found = half or [factor * eager.wall_s / compiled.wall_s for factor in factors]
    best, low, high = (min(most, each) for each in found)
    return Gain(
        mode=mode,
        eager_s=eager.wall_s,
        compiled_s=eager.wall_s / best,
        compile_s=compile_s(work, mode, on_cpu=on_cpu),
        speedup_low=low,
        speedup_high=high,
        eager=eager,
        compiled=compiled,
        work=work,
        doubts=tuple(doubts_of(analysis, work, mode, of_half=half is not None)),
        of_networks=half is not None,
    )


def most_speedup(analysis: Analysis, eager: Walls) -> float:
    """The speed-up of a step that reaches the program bound: no prediction is above it."""
    bound_s = analysis.program.program_bound_s
    return eager.wall_s / bound_s if bound_s else inf
