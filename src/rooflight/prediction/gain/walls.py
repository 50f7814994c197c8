"""Wall time of a step, eager and compiled: on a GPU a host that launches kernels beside a device that runs them; on a
CPU dispatches and calls, kernels one after the other, and fresh pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost
from rooflight.costs.registry import traits_of
from rooflight.prediction.gain.kernels import CompiledWork, Launch
from rooflight.records.measurement import Float64
from rooflight.records.record import Direction
from rooflight.records.session import KEPT, STOOD, Flags, Int64
from rooflight.records.signature import OpSignature
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.bound import bound_of, memory_time
from rooflight.roofline.host import Host
from rooflight.roofline.predicted import Queue

MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "cudagraphs")
"""Modes of torch.compile, and its backend ``cudagraphs``, which replays the eager ops."""
REPLAYED: Final = frozenset({"reduce-overhead", "max-autotune", "cudagraphs"})
"""Modes that replay a CUDA graph, for which inputs are copied to where it reads them."""

_ENTER, _GENERATED, _LIBRARY, _REPLAY, _COPY = 7.5, 1.65, 0.75, 4.3, 0.6
"""Host time in units of an eager pointwise op (``roofline/host.py``): to check guards and enter compiled code; of a
generated kernel; of a library's call, in units of the same op eagerly; to replay a graph; of a copied input. Those with
the least mean error of KernelBench's compiled programs (docs/lab/predicted_gains.md)."""
_COPY_REACHES: Final = 0.85  # of the bandwidth
_COPY_S: Final = 2e-6


_Piece = tuple[int, float, float]
"""A place among the counted ops, host time in units, and device time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """A step, eager or in a mode: seconds of wall time, and of it what host and device take, each by itself; kernels
    launched and bytes that they move.

    Of ``host_s``, ``enter_s`` are guards, entering compiled code and replaying a graph; of ``device_s``, ``copy_s`` are
    inputs brought to where a graph reads them, and ``fresh_s`` first touches of memory that the system gives again.
    """

    wall_s: float
    host_s: float
    device_s: float
    launches: int
    bytes_moved: int
    enter_s: float = 0.0
    copy_s: float = 0.0
    fresh_s: float = 0.0


def eager_walls(analysis: Analysis, host: Host) -> Walls:
    """Those of the eager step. Raises ValueError for an analysis without predicted times."""
    queue, device_s = analysis.queue, analysis.predicted_op_s
    return Walls(
        wall_s=queue.wall_s(device_s, host),
        host_s=host.first_s + float(queue.units.sum()) * host.launch_s,
        device_s=float(device_s[queue.launches].sum()),
        launches=int(queue.launches.sum()),
        bytes_moved=bytes_of(analysis, np.ones(len(queue.units), dtype=bool)),
    )


def bytes_of(analysis: Analysis, which: Flags) -> int:
    """Bytes that some of the counted ops move, one by one."""
    moved = [cost.bytes_moved if isinstance(cost, OpCost) else 0 for cost in analysis.costs]
    signature = analysis.session.columns.signature[analysis.session.counted]
    return int(np.array(moved, dtype=np.int64)[signature[which]].sum())


def compiled_walls(analysis: Analysis, work: CompiledWork, mode: str, host: Host) -> Walls:
    """Those of the compiled step in a mode of ``MODES``."""
    ops, op_s = analysis.queue, analysis.predicted_op_s
    pieces = [
        (int(place), float(ops.units[place]), float(op_s[place]) if ops.launches[place] else 0.0)
        for place in np.flatnonzero(work.eager)
    ]
    enter_units, copy_s = _ENTER * work.graphs, 0.0
    if mode in REPLAYED and work.graphs:
        enter_units += _REPLAY * work.graphs + _COPY * work.copies
        copy_s = _COPY_S * work.copies + copying_s(analysis, work)
        pieces = [*_replayed(work, mode, copy_s), *pieces]
    else:
        pieces += [
            (launch.place, _GENERATED if launch.generated else _LIBRARY * launch.host_units, launch.seconds)
            for launch in work.launches
        ]
        pieces.sort(key=lambda piece: piece[0])
        pieces = [(-1, _ENTER * work.graphs, 0.0), *pieces]
    queue, device_s = _queue_of(pieces)
    return Walls(
        wall_s=queue.wall_s(device_s, host),
        host_s=host.first_s + float(queue.units.sum()) * host.launch_s,
        device_s=float(device_s.sum()),
        launches=int(queue.launches.sum()),
        bytes_moved=bytes_of(analysis, work.eager)
        + (work.op_bytes if mode == "cudagraphs" else work.bytes_moved)
        + (2 * work.copied_bytes if copy_s else 0),
        enter_s=enter_units * host.launch_s,
        copy_s=copy_s,
    )


def _replayed(work: CompiledWork, mode: str, copy_s: float) -> list[_Piece]:
    graph_s = sum(launch.op_s if mode == "cudagraphs" else launch.seconds for launch in work.launches)
    return [(-1, _ENTER * work.graphs + _COPY * work.copies, copy_s), (-1, _REPLAY * work.graphs, graph_s)]


def copying_s(analysis: Analysis, work: CompiledWork) -> float:
    """Device time of moving the inputs of a graph, each byte read and written."""
    memory = analysis.device.memory
    bandwidth = memory[-1].bytes_per_s if memory else None
    return 2 * work.copied_bytes / (_COPY_REACHES * bandwidth) if bandwidth else 0.0


def _queue_of(pieces: Sequence[_Piece]) -> tuple[Queue, Float64]:
    _, units, device_s = np.array(pieces, dtype=np.float64).reshape(-1, 3).T.copy()
    none, first = np.zeros(len(pieces), dtype=bool), np.full(len(pieces), -1, dtype=np.int64)
    return Queue(units=units, launches=device_s > 0, sends=none, waits_for=first, syncs=none), device_s


DISPATCH_S: Final = 1.3e-6
"""Of an eager pointwise op, its allocation included; other ops in proportion (``roofline/host.py``)."""
_ENTER_S, _MODULE_S, _BACKWARD_S, _CALL_S = 9e-6, 12e-6, 60e-6, 0.7e-6
"""To check guards and enter a graph's code; more for a module's; more where autograd calls it; of each kernel."""
_CALLED_S: Final = 3e-6
"""Of a module's call, in Python, with what looks for hooks."""
_REACHES: Final = 1.6
"""Calibrated roofs over what products reach, and what ops reach of caches: the roofs are the best of regular work."""
_FEW_TERMS: Final = 100.0
_STREAMS: Final = 3.5
"""The same of memory, for what is too large to stay in a cache from one op to the next."""
_CACHED_BYTES, _STREAMED_BYTES = 2 << 20, 16 << 20
_SLOTS: Final[Mapping[str, tuple[float, float]]] = {
    "aten::exp": (108, 33), "aten::log": (134, 60), "aten::tanh": (375, 300), "aten::sigmoid": (35, 36),
    "aten::erf": (176, 120), "aten::gelu": (60, 60), "aten::silu": (36, 36), "aten::mish": (535, 300),
    "aten::softplus": (183, 100), "aten::sin": (180, 70), "aten::cos": (200, 70), "aten::pow": (12, 3),
    "aten::sqrt": (60, 15), "aten::rsqrt": (33, 15), "aten::div": (12, 6), "aten::where": (590, 490),
    "aten::masked_fill": (590, 490), "aten::var": (880, 30), "aten::std": (130, 60),
    "aten::native_layer_norm": (107, 60), "aten::native_group_norm": (65, 50), "aten::native_batch_norm": (60, 40),
    "aten::_softmax": (80, 80), "aten::_log_softmax": (70, 80), "aten::logsumexp": (150, 80),
    "aten::mean": (10, 15), "aten::sum": (8, 12), "aten::amax": (20, 20), "aten::cumsum": (120, 130),
    "aten::sort": (4800, 4800), "aten::topk": (215, 215), "aten::clone": (40, 30),
    "aten::linalg_vector_norm": (10, 6), "aten::scaled_dot_product_attention": (0, 0),
}  # fmt: skip
"""Arithmetic of an element of the largest tensor, in FLOPs at the vector unit's calibrated peak: eager, and in a
generated kernel. Measured on a CPU with AVX-512 (docs/lab/predicted_gains.md). Ops that are not listed cost ``_PLAIN``.
"""
_PLAIN: Final = (7.0, 1.5)
_LARGE_BYTES: Final = 128 << 10
_MOST_LARGE: Final = 35
_LEAST_TRIM_BYTES: Final = 2 << 20
_TRIMS_AT: Final = (2, 3)  # largest tensors; a compiled step frees buffers as soon as it can
PAGE_BYTES: Final = 4096
FRESH_PAGE_S: Final = 0.25e-6
"""Of the first touch of a page that the system gives, on a quiet machine."""
_TOUCHED: Final = 0.65
_LEAST_S: Final = 1e-9  # of a step with no op: compiled code may run none
_KERNELS_OFF: Final = 1.4
"""The factor by which predicted gains of steps without fresh pages are off, nine times in ten."""


def cpu_op_s(analysis: Analysis, *, generated: bool = False) -> Float64:
    """Seconds of each counted op's kernel, without its dispatch and without fresh pages: eager, or as its arithmetic
    would be in a ``generated`` kernel, without what moves.
    """
    session, device = analysis.session, analysis.device
    peak = device.vector_peak("float32") or 1e11
    seconds = []
    for op, cost in zip(session.signatures, analysis.costs, strict=True):
        if not isinstance(cost, OpCost) or cost.does_nothing:
            seconds.append(0.0)
            continue
        arithmetic_s = _slots(op, generated=generated) * _elements(op) / peak
        bound = bound_of(cost, device, analysis.float32.products_at(op, cost))
        work_s = bound.compute_s if cost.matrix_flops else 0.0
        work_s *= 1.0 if traits_of(op).convolution else _product_reaches(op, cost)
        moving_s = 0.0 if generated else _reaches(cost.bytes_moved) * bound.memory_s
        seconds.append(max(arithmetic_s, work_s, moving_s))
    return np.array(seconds, dtype=np.float64)[session.columns.signature[session.counted]]


def _product_reaches(op: OpSignature, cost: OpCost) -> float:
    elements = max((tensor.numel for tensor in op.outputs), default=0)
    terms = cost.matrix_flops / (2 * max(elements, 1))
    return _REACHES * (1 + (_FEW_TERMS / max(terms, 16.0)) ** 2)


def _reaches(moved: int) -> float:
    between = np.interp(np.log(max(moved, 1)), np.log([_CACHED_BYTES, _STREAMED_BYTES]), [0.0, 1.0])
    return float(_REACHES * (_STREAMS / _REACHES) ** between)


def _slots(op: OpSignature, *, generated: bool) -> float:
    name = op.name.removesuffix("_") if op.name.removesuffix("_") in _SLOTS else op.name
    traits = traits_of(op)
    if traits.product or traits.convolution or traits.view:
        return 0.0
    return _SLOTS.get(name, _PLAIN)[generated]


def _elements(op: OpSignature) -> int:
    return max((tensor.numel for tensor in (*op.inputs, *op.outputs)), default=0)


def cpu_walls(analysis: Analysis, work: CompiledWork, page_s: float = FRESH_PAGE_S) -> tuple[Walls, Walls]:
    """Those of the eager and of the compiled step; ``page_s``: seconds of the first touch of a page."""
    seconds, units = cpu_op_s(analysis), analysis.queue.units
    host_s = float(units.sum()) * DISPATCH_S + _CALLED_S * sum(bool(module.path) for module in analysis.session.modules)
    fresh_s = page_s * fresh_pages(analysis)
    eager = Walls(
        wall_s=max(host_s + float(seconds.sum()) + fresh_s, _LEAST_S),
        host_s=host_s,
        device_s=float(seconds.sum()) + fresh_s,
        launches=int((seconds > 0).sum()),
        bytes_moved=bytes_of(analysis, np.ones(len(seconds), dtype=bool)),
        fresh_s=fresh_s,
    )
    enter_s = _enter_s(analysis, work)
    host_s = float(units[work.eager].sum()) * DISPATCH_S + enter_s
    host_s += sum(_CALL_S if launch.generated else DISPATCH_S * launch.host_units for launch in work.launches)
    fresh_s = page_s * fresh_pages(analysis, work)
    device_s = float(seconds[work.eager].sum()) + sum(_launch_s(analysis, launch) for launch in work.launches) + fresh_s
    return eager, Walls(
        wall_s=max(host_s + device_s, _LEAST_S),
        host_s=host_s,
        device_s=device_s,
        launches=int((seconds[work.eager] > 0).sum()) + len(work.launches),
        bytes_moved=bytes_of(analysis, work.eager) + work.bytes_moved,
        enter_s=enter_s,
        fresh_s=fresh_s,
    )


def _enter_s(analysis: Analysis, work: CompiledWork) -> float:
    if not work.graphs:
        return 0.0
    session = analysis.session
    modules = any(module.path or module.class_name for module in session.modules)
    backward = bool((session.columns.direction[session.counted] == Direction.BACKWARD).any())
    return _ENTER_S * work.graphs + _MODULE_S * modules + _BACKWARD_S * backward


def _launch_s(analysis: Analysis, launch: Launch) -> float:
    if not launch.generated:
        return launch.op_s
    moving_s = memory_time(launch.bytes_read, launch.bytes_moved - launch.bytes_read, analysis.device.memory)
    return max(launch.arithmetic_s, _reaches(launch.bytes_moved) * float(moving_s))


def fresh_pages(analysis: Analysis, work: CompiledWork | None = None) -> float:
    """Pages that the system likely gives again in every step, of the eager step or of the compiled ``work``.

    glibc returns what is free at the end of its heap to the system where that exceeds twice the largest block that was
    mapped by itself. So a step whose large tensors (128 KiB and more) together take more than that touches most of
    them for the first time. Steps with many of them were not seen to: small blocks at the end of the heap hold it.
    """
    large = _large(analysis, None if work is None else work.stored)
    if not len(large) or len(large) > _MOST_LARGE:
        return 0.0
    lifetimes, sizes = analysis.session.lifetimes, analysis.session.storage_bytes
    assert lifetimes is not None
    count = len(analysis.session)
    ends = np.where(lifetimes.freed[large] == KEPT, count, lifetimes.freed[large])
    change = np.zeros(count + 2)
    np.add.at(change, np.minimum(lifetimes.made[large], count), sizes[large])
    np.add.at(change, np.minimum(ends, count) + 1, -sizes[large])
    trims_at = max(_LEAST_TRIM_BYTES, _TRIMS_AT[work is not None] * int(sizes[large].max()))
    return _TOUCHED * most_fresh_pages(analysis, work) if np.cumsum(change).max() > trims_at else 0.0


def most_fresh_pages(analysis: Analysis, work: CompiledWork | None = None) -> float:
    """Pages of all large tensors that a step makes: whether the system gives them again also depends on what the
    process did before the step.
    """
    large = _large(analysis, None if work is None else work.stored)
    return float(analysis.session.storage_bytes[large].sum() / PAGE_BYTES) if len(large) <= _MOST_LARGE else 0.0


def _large(analysis: Analysis, stored: Collection[int] | None) -> Int64:
    lifetimes, sizes = analysis.session.lifetimes, analysis.session.storage_bytes
    if lifetimes is None:
        return np.zeros(0, dtype=np.int64)
    large = np.flatnonzero((lifetimes.made != STOOD) & (sizes >= _LARGE_BYTES))
    return large if stored is None else np.array([each for each in large.tolist() if each in stored], dtype=np.int64)


def cpu_factors(analysis: Analysis, eager: Walls, compiled: Walls, page_s: float) -> tuple[float, float, float]:
    """Factors of the gain of two walls: 1, and the low and high one, without fresh pages and with all of them in the
    eager step, and what kernels were off.
    """
    without_s = eager.wall_s - eager.fresh_s
    all_s = without_s + page_s * most_fresh_pages(analysis)
    low = without_s / eager.wall_s
    high = all_s / eager.wall_s * compiled.wall_s / max(compiled.wall_s - compiled.fresh_s, 1e-9)
    return 1.0, min(1.0, low) / _KERNELS_OFF, max(1.0, high) * _KERNELS_OFF
