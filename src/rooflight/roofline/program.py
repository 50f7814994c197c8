"""The fused and the program bound: what a step could take if kernels were merged, and if everything overlapped.

The waterfall: how the time of a step builds up from its program bound to the measured time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel
from rooflight.records.document import Fields
from rooflight.records.measurement import Float64
from rooflight.records.session import Session
from rooflight.roofline.bound import (
    Bound,
    Float32Rules,
    Limiter,
    fits_unknown_cache,
    memory_time,
    uncached_memory_time,
    unit_times,
)
from rooflight.roofline.fusion.regions import Fusion


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmBounds:
    """The bounds, were all that a cache can hold in it when an op, region or program begins, and left in it when
    that ends. The cache is as fast as its vendor's peak, infinitely fast where none is printed or no cache is listed.
    Where every cache was measured, equal to the bounds themselves.
    """

    op_bound_s: float
    fused_bound_s: float
    program_bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBounds:
    """``program_bound_s`` ≤ ``fused_bound_s`` ≤ the op bound of the session's totals.

    Both count a product of the same values once. *Fused*: the sum over regions (see ``fusion``) of the largest of their
    arithmetic, the bytes that cross their edges and what they send. *Program*: the largest of all arithmetic, the
    compulsory bytes (inputs, weights and states read once, states and results written once) and all that is sent,
    everything overlapping; ``limiter`` is the largest, ``everything`` has all. ``warm``: the bounds where a cache
    serves the data.

    A cache of C bytes serves a step once, not each op anew. Of the R distinct bytes that stood before the step and are
    read, at most C lie in it when the step begins; of the W bytes that are written and live on, at most C when it
    ends. The others cross to or from the level behind: max(0, R - C) + max(0, W - C) bytes, whatever is evicted when.
    Ops and regions take no less one by one than all at once, so this holds the fused and the op bound up too.
    """

    fused_bound_s: float
    program_bound_s: float
    fused_bytes: int
    compulsory_bytes: int
    limiter: Limiter
    everything: Bound
    regions: int
    warm: WarmBounds


def program_bounds(
    session: Session,
    costs: Sequence[OpCost | Uncosted],
    bounds: Sequence[Bound | None],
    device: DeviceSpec,
    float32: Float32Rules,
    fusion: Fusion,
) -> ProgramBounds:
    """Fused and program bound of a session; ``costs`` and ``bounds`` go with its signatures, ``fusion`` is its own."""
    records, sizes, read, written = fusion.columns()
    signature = session.columns.signature[records]
    label = np.repeat(np.arange(len(sizes)), sizes)

    def by_region(seconds: Float64) -> Float64:
        """Sums of seconds that go with the records."""
        return np.asarray(np.bincount(label, seconds, len(sizes)), dtype=np.float64)

    units = _unit_times(session, costs, device, float32)[:, signature]
    in_attention = np.isin(records, list(fusion.attending))
    if in_attention.any():
        units[0, in_attention] = _unit_times(session, costs, device, float32.as_attention)[0, signature[in_attention]]
    if fusion.work:
        shares = np.array([fusion.work.get(record, 1.0) for record in records.tolist()])
        units[:2] *= shares
    units[0, np.isin(records, list(fusion.repeated))] = 0
    work = [by_region(seconds) for seconds in units]
    once = units[0] * np.array([_not_recomputed(cost) for cost in costs])[signature]

    def bounds_with(
        alone: Sequence[float], moving: Callable[..., Any], nearest: Sequence[MemoryLevel]
    ) -> tuple[float, float, Bound]:
        """Sums over ops and over regions, and everything at once. All bytes cross the ``nearest`` level."""
        ops = by_region(np.array(alone, dtype=np.float64)[signature])
        # what is small enough to come from a cache op by op may not be when merged
        fused_s = float(np.minimum(np.max([*work, moving(read, written, device.memory)], axis=0), ops).sum())
        vector_s, network_s = (float(seconds.sum()) for seconds in work[1:])
        everything = Bound(
            compute_s=max(float(once.sum()), vector_s),
            memory_s=max(
                float(moving(fusion.stood_bytes, fusion.kept_bytes, device.memory)),
                memory_time(fusion.bytes_in, fusion.bytes_out, nearest),
            ),
            network_s=network_s,
            cache_resident=fits_unknown_cache(fusion.bytes_in + fusion.bytes_out, device.memory),
        )
        return float(ops.sum()), fused_s, everything

    measured = [level for level in device.memory if level.bytes_per_s is not None]
    op_s, fused_s, everything = bounds_with(
        [bound.time_s if bound else 0.0 for bound in bounds], memory_time, measured[:1]
    )
    warm_op_s, warm_fused_s, warm_everything = bounds_with(
        [warm_bound_s(*each, device) for each in zip(costs, bounds, strict=True)],
        uncached_memory_time,
        device.memory[:-1][:1],  # of memory alone, where no cache is listed, one may be there
    )
    # a cache can hold the data of each op or region, but not of all: one by one they take no less than all at once
    program_s, warm_program_s = everything.time_s, warm_everything.time_s
    fused_s, warm_fused_s = max(fused_s, program_s), max(warm_fused_s, warm_program_s)
    op_s, warm_op_s = max(op_s, fused_s), max(warm_op_s, warm_fused_s)
    return ProgramBounds(
        fused_bound_s=fused_s,
        program_bound_s=program_s,
        fused_bytes=int(read.sum() + written.sum()),
        compulsory_bytes=fusion.bytes_in + fusion.bytes_out,
        limiter=everything.limiter,
        everything=everything,
        regions=len(fusion.regions),
        warm=WarmBounds(
            op_bound_s=min(warm_op_s, op_s),
            fused_bound_s=min(warm_fused_s, fused_s),
            program_bound_s=min(warm_program_s, program_s),
        ),
    )


def warm_bound_s(cost: OpCost | Uncosted, bound: Bound | None, device: DeviceSpec) -> float:
    """The bound of an op of which a cache holds all that it can."""
    if isinstance(cost, Uncosted) or bound is None:
        return 0.0
    moving_s = uncached_memory_time(cost.bytes_read, cost.bytes_written, device.memory)
    return max(bound.compute_s, bound.network_s, moving_s)


def _not_recomputed(cost: OpCost | Uncosted) -> float:
    """The share of an op's products that no other op of its program computes."""
    if isinstance(cost, Uncosted) or not cost.recomputed_flops:
        return 1.0
    return 1 - cost.recomputed_flops / (cost.matrix_flops - cost.avoidable_flops)


def _unit_times(
    session: Session, costs: Sequence[OpCost | Uncosted], device: DeviceSpec, float32: Float32Rules
) -> Float64:
    """Seconds [units, ops] of matrix unit, vector unit and links: one op after the other, the units side by side."""
    known = (
        unit_times(OpCost() if isinstance(cost, Uncosted) else cost, device, float32.precision_of(op))
        for op, cost in zip(session.signatures, costs, strict=True)
    )
    seconds = [(each.matrix_s, each.vector_s, each.network_s) for each in known]
    return np.array(seconds, dtype=np.float64).reshape(-1, 3).T


_KERNELS: Final = "kernels slower than their bound"
_OVERHEAD: Final = "overhead and idle"
_UNKNOWN: Final = "work of the device that belongs to no op"


class Gap(Fields, frozen=True, kw_only=True):
    """One step of the waterfall: ``seconds`` more than before, ``until_s`` in all. What shrinks it is a finding's.

    Seconds are negative where a later figure is the smaller one; the name then states what that is.
    """

    name: str
    seconds: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Seconds of a step's collectives: their times in sum, the part of the step that they alone filled, and the sum of
    their op bounds, which is part of the op bound already.
    """

    measured_s: float
    exposed_s: float
    op_bound_s: float


def waterfall_of(
    *,
    program_bound_s: float,
    fused_bound_s: float,
    op_bound_s: float,
    ops_measured_s: float | None = None,
    measured_s: float | None = None,
    exchange: Exchange | None = None,
    warm_program_bound_s: float | None = None,
    warm_op_bound_s: float | None = None,
    unknown_work_s: float = 0.0,
    all_timed: bool = True,
) -> tuple[Gap, ...]:
    """The gaps between the figures that are known, in order; their seconds sum to the last figure.

    Where the profiled ops took longer in sum than a whole step (the profiler slowed them, or they overlap), the two
    cannot be told apart and become one gap. With an ``exchange``, kernels and collectives have a gap each: what
    computing ops took beyond their bound, and what was exposed of collectives beyond theirs. The latter is negative
    where computing hid them. ``unknown_work_s`` is work of the device of which no op is known.

    A step may be faster than its ops one by one, when it runs fused or overlapped, and faster than its bounds down to
    the ``warm`` ones, when a cache serves its data: the gap is then negative and called so. What
    is faster than its warm bound (None: there is no such cache) is a contradiction: the gap is negative too, nothing is
    clipped, and its name says it. Unless ``all_timed``, ops that work have no time, and that the others took less than
    all must proves nothing.
    """
    busy_s = ops_measured_s
    if exchange is not None and ops_measured_s is not None:
        computing_s = ops_measured_s - exchange.measured_s
        ops_measured_s, busy_s = computing_s + exchange.op_bound_s, computing_s + exchange.exposed_s
    else:
        exchange = None
    worked_s = busy_s + unknown_work_s if busy_s is not None and unknown_work_s else None
    if busy_s is not None and measured_s is not None and max(busy_s, worked_s or 0.0) > measured_s:
        ops_measured_s = busy_s = worked_s = exchange = None
    levels: list[tuple[str, float | None]] = [
        ("program bound", program_bound_s),
        ("no overlap, no reuse between kernels", fused_bound_s),
        ("data movement that fusion would save", op_bound_s),
        (_KERNELS, ops_measured_s),
        *_communication(exchange, busy_s),
        (_UNKNOWN, worked_s),
        (_OVERHEAD, measured_s),
    ]
    gaps: list[Gap] = []
    before = 0.0
    for name, until_s in levels:
        if until_s is None:
            continue
        called = "kernels and overhead" if name == _OVERHEAD and ops_measured_s is None else name
        if until_s < before and name in (_OVERHEAD, _KERNELS):
            warm_s = warm_op_bound_s if name == _KERNELS else warm_program_bound_s
            bound_s = op_bound_s if name == _KERNELS else program_bound_s
            called = _below(name, until_s, bound_s, bound_s if warm_s is None else warm_s, all_timed=all_timed)
        gaps.append(Gap(name=called, seconds=until_s - before, until_s=until_s))
        before = until_s
    return tuple(gaps)


def _below(name: str, until_s: float, bound_s: float, warm_s: float, *, all_timed: bool) -> str:
    if name == _KERNELS and not all_timed:
        return "kernels, some of them without a time"
    if until_s < warm_s:
        what = "kernels faster than their bound" if name == _KERNELS else "step faster than its program bound"
        return f"contradiction: {what}"
    return "saved by a warm cache" if until_s < bound_s else "saved by fusion and overlap"


def _communication(exchange: Exchange | None, busy_s: float | None) -> list[tuple[str, float | None]]:
    if exchange is None:
        return []
    hidden = exchange.exposed_s < exchange.op_bound_s
    return [("communication hidden behind computing" if hidden else "exposed communication beyond its bound", busy_s)]
