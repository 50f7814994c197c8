"""The fused and the program bound: what a step could take if kernels were merged, and if everything overlapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel
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

    ``fused_op_s`` [records]: the bound of a region shared out among its ops by their own bounds.
    """

    fused_bound_s: float
    program_bound_s: float
    fused_bytes: int
    compulsory_bytes: int
    limiter: Limiter
    everything: Bound
    regions: int
    warm: WarmBounds
    fused_op_s: Float64 = field(compare=False)


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
    ) -> tuple[Float64, Float64, Bound]:
        """Of each op and of each region, and everything at once. All bytes cross the ``nearest`` level."""
        by_op = np.array(alone, dtype=np.float64)[signature]
        # what is small enough to come from a cache op by op may not be when merged
        fused = np.minimum(np.max([*work, moving(read, written, device.memory)], axis=0), by_region(by_op))
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
        return by_op, fused, everything

    measured = [level for level in device.memory if level.bytes_per_s is not None]
    by_op, fused, everything = bounds_with(
        [bound.time_s if bound else 0.0 for bound in bounds], memory_time, measured[:1]
    )
    warm_by_op, warm_fused, warm_everything = bounds_with(
        [warm_bound_s(*each, device) for each in zip(costs, bounds, strict=True)],
        uncached_memory_time,
        device.memory[:-1][:1],  # of memory alone, where no cache is listed, one may be there
    )
    # a cache can hold the data of each op or region, but not of all: one by one they take no less than all at once
    program_s, warm_program_s = everything.time_s, warm_everything.time_s
    fused_s, warm_fused_s = max(float(fused.sum()), program_s), max(float(warm_fused.sum()), warm_program_s)
    op_s, warm_op_s = max(float(by_op.sum()), fused_s), max(float(warm_by_op.sum()), warm_fused_s)
    ops_of_region = by_region(by_op)[label]
    fused_op_s = np.zeros(len(session))
    fused_op_s[records] = np.divide(by_op * fused[label], ops_of_region, np.zeros(len(by_op)), where=ops_of_region > 0)
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
        fused_op_s=fused_op_s,
    )


def warm_bound_s(cost: OpCost | Uncosted, bound: Bound | None, device: DeviceSpec) -> float:
    """The bound of an op of which a cache holds all that it can."""
    if isinstance(cost, Uncosted) or bound is None:
        return 0.0
    moving_s = uncached_memory_time(cost.least_read, cost.least_written, device.memory)
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
        unit_times(OpCost() if isinstance(cost, Uncosted) else cost, device, float32.products_at(op, cost))
        for op, cost in zip(session.signatures, costs, strict=True)
    )
    seconds = [(each.matrix_s, each.vector_s, each.network_s) for each in known]
    return np.array(seconds, dtype=np.float64).reshape(-1, 3).T
