"""The fused and the program bound: what a step could take if kernels were merged, and if everything overlapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.devices.spec import DeviceSpec
from rooflight.records.session import Float64, Session
from rooflight.roofline.bound import (
    Bound,
    Limiter,
    fits_unknown_cache,
    memory_time,
    uncached_memory_time,
    unit_times,
)
from rooflight.roofline.float32 import Float32Rules
from rooflight.roofline.fusion import Fusion


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmBounds:
    """The bounds, were all that a cache can hold in it when an op, region or program begins, and left in it when
    that ends. The cache is as fast as its vendor's peak, infinitely fast where none is printed or no cache is listed.
    Where every cache was measured, equal to the bounds themselves.
    """

    op_bound_s: float
    fused_bound_s: float
    program_bound_s: float
    compulsory_bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBounds:
    """``program_bound_s`` ≤ ``fused_bound_s`` ≤ the op bound.

    *Fused*: the sum over regions (see ``fusion``) of the largest of their arithmetic, the bytes that cross their edges
    and what they send. *Program*: the largest of all arithmetic, the compulsory bytes (inputs, weights and states read
    once, states and results written once) and all that is sent, everything overlapping. ``warm``: what they are where a
    cache serves the data.

    *Compulsory*: the program bound without being held below the fused one. Where a calibration measured a cache, each
    region may find as much of its data there as the cache holds, all of them together may not: so it may be more than
    all three, and nothing that runs the whole program is faster. Else it is the program bound. ``compulsory_limiter``
    is what it is due to.
    """

    fused_bound_s: float
    program_bound_s: float
    fused_bytes: int
    compulsory_bytes: int
    compulsory_bound_s: float
    compulsory_limiter: Limiter
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
    sizes = [len(region.records) for region in fusion.regions]
    records = np.array([record for region in fusion.regions for record in region.records], dtype=np.int64)
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
    work = [by_region(seconds) for seconds in units]
    read = np.array([region.bytes_read for region in fusion.regions], dtype=np.float64)
    written = np.array([region.bytes_written for region in fusion.regions], dtype=np.float64)

    def bounds_with(alone: Sequence[float], moving: Callable[..., Any]) -> tuple[float, float, Bound]:
        """Sums over ops and over regions, and everything at once."""
        ops = by_region(np.array(alone, dtype=np.float64)[signature])
        # what is small enough to come from a cache op by op may not be when merged
        fused_s = float(np.minimum(np.max([*work, moving(read, written, device.memory)], axis=0), ops).sum())
        matrix_s, vector_s, network_s = (float(seconds.sum()) for seconds in work)
        everything = Bound(
            compute_s=max(matrix_s, vector_s),
            memory_s=float(moving(fusion.bytes_in, fusion.bytes_out, device.memory)),
            network_s=network_s,
            cache_resident=fits_unknown_cache(fusion.bytes_in + fusion.bytes_out, device.memory),
        )
        return float(ops.sum()), fused_s, everything

    op_s, fused_s, everything = bounds_with([bound.time_s if bound else 0.0 for bound in bounds], memory_time)
    warm_op_s, warm_fused_s, warm_everything = bounds_with(
        [warm_bound_s(*each, device) for each in zip(costs, bounds, strict=True)], uncached_memory_time
    )
    program_s, warm_program_s = min(everything.time_s, fused_s), warm_everything.time_s
    # a cache can hold the data of each op or region, but not of all: one by one they take no less than all at once
    warm_fused_s = max(warm_fused_s, warm_program_s)
    warm_op_s = max(warm_op_s, warm_fused_s)
    return ProgramBounds(
        fused_bound_s=fused_s,
        program_bound_s=program_s,
        fused_bytes=sum(region.bytes_read + region.bytes_written for region in fusion.regions),
        compulsory_bytes=fusion.bytes_in + fusion.bytes_out,
        compulsory_bound_s=everything.time_s,
        compulsory_limiter=everything.limiter,
        regions=len(fusion.regions),
        warm=WarmBounds(
            op_bound_s=min(warm_op_s, op_s),
            fused_bound_s=min(warm_fused_s, fused_s),
            program_bound_s=min(warm_program_s, program_s),
            compulsory_bound_s=min(warm_program_s, everything.time_s),
        ),
    )


def warm_bound_s(cost: OpCost | Uncosted, bound: Bound | None, device: DeviceSpec) -> float:
    """The bound of an op of which a cache holds all that it can."""
    if isinstance(cost, Uncosted) or bound is None:
        return 0.0
    moving_s = uncached_memory_time(cost.bytes_read, cost.bytes_written, device.memory)
    return max(bound.compute_s, bound.network_s, moving_s)


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
