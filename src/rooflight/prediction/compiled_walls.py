"""Wall time of a step on a GPU, eager and compiled: a host that launches kernels, and a device that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rooflight.costs.cost import OpCost
from rooflight.prediction.compiled_work import CompiledWork
from rooflight.records.measurement import Float64
from rooflight.records.session import Flags
from rooflight.roofline.analysis import Analysis
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


class _Piece(NamedTuple):
    place: int
    units: float
    device_s: float


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
    pieces = _eager_pieces(analysis, work)
    enter_units, copy_s = _ENTER * work.graphs, 0.0
    if mode in REPLAYED and work.graphs:
        enter_units += _REPLAY * work.graphs + _COPY * work.copies
        copy_s = _COPY_S * work.copies + copying_s(analysis, work)
        pieces = [*_replayed(work, mode, copy_s), *pieces]
    else:
        pieces += [
            _Piece(launch.place, _GENERATED if launch.generated else _LIBRARY * launch.host_units, launch.seconds)
            for launch in work.launches
        ]
        pieces.sort(key=lambda piece: piece.place)
        pieces = [_Piece(-1, _ENTER * work.graphs, 0.0), *pieces]
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


def _eager_pieces(analysis: Analysis, work: CompiledWork) -> list[_Piece]:
    queue, device_s = analysis.queue, analysis.predicted_op_s
    return [
        _Piece(int(place), float(queue.units[place]), float(device_s[place]) if queue.launches[place] else 0.0)
        for place in np.flatnonzero(work.eager)
    ]


def _replayed(work: CompiledWork, mode: str, copy_s: float) -> list[_Piece]:
    """Copies of the inputs, then the graph; nothing is launched in between."""
    graph_s = sum(launch.op_s if mode == "cudagraphs" else launch.seconds for launch in work.launches)
    return [
        _Piece(-1, _ENTER * work.graphs + _COPY * work.copies, copy_s),
        _Piece(-1, _REPLAY * work.graphs, graph_s),
    ]


def copying_s(analysis: Analysis, work: CompiledWork) -> float:
    """Device time of moving the inputs of a graph, each byte read and written."""
    memory = analysis.device.memory
    bandwidth = memory[-1].bytes_per_s if memory else None
    return 2 * work.copied_bytes / (_COPY_REACHES * bandwidth) if bandwidth else 0.0


def _queue_of(pieces: Sequence[_Piece]) -> tuple[Queue, Float64]:
    count = len(pieces)
    device_s = np.array([piece.device_s for piece in pieces], dtype=np.float64)
    none = np.zeros(count, dtype=bool)
    queue = Queue(
        units=np.array([piece.units for piece in pieces], dtype=np.float64),
        launches=device_s > 0,
        sends=none,
        waits_for=np.full(count, -1, dtype=np.int64),
        syncs=none,
    )
    return queue, device_s
