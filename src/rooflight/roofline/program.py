"""The fused and the program bound: what a step could take if kernels were merged, and if everything overlapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.devices.spec import DeviceSpec
from rooflight.records.session import Session
from rooflight.roofline.bound import Bound, bound_of, memory_time
from rooflight.roofline.fusion import Region, regions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBounds:
    """``program_bound_s`` ≤ ``fused_bound_s`` ≤ the op bound.

    *Fused*: the sum over regions (see ``fusion``) of the largest of their arithmetic, the bytes that cross their edges
    and what they send. *Program*: the largest of all arithmetic, the compulsory bytes (inputs, weights and states read
    once, states and results written once) and all that is sent, everything overlapping.
    """

    fused_bound_s: float
    program_bound_s: float
    fused_bytes: int
    compulsory_bytes: int
    regions: int


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds that the units need for some ops: each unit one after the other, the units side by side."""

    matrix_s: float = 0.0
    vector_s: float = 0.0
    network_s: float = 0.0

    def __add__(self, other: _Work) -> _Work:
        return _Work(self.matrix_s + other.matrix_s, self.vector_s + other.vector_s, self.network_s + other.network_s)

    @property
    def time_s(self) -> float:
        return max(self.matrix_s, self.vector_s, self.network_s)


def program_bounds(
    session: Session,
    costs: Sequence[OpCost | Uncosted],
    bounds: Sequence[Bound | None],
    device: DeviceSpec,
    float32_matrix: str,
) -> ProgramBounds:
    """Fused and program bound of a session; ``costs`` and ``bounds`` go with its signatures."""
    work = [_work_of(cost, device, float32_matrix) for cost in costs]
    signature = session.columns.signature.tolist()
    regions = regions_of(session, costs)
    fused_s = 0.0
    everything = _Work()
    for region in regions:
        together, apart_s = _Work(), 0.0
        for record in region.records:
            together += work[signature[record]]
            bound = bounds[signature[record]]
            apart_s += bound.time_s if bound else 0.0
        everything += together
        moved_s = memory_time(region.bytes_read, region.bytes_written, device.memory)
        # what is small enough to come from a cache op by op may not be when merged
        fused_s += min(max(together.time_s, moved_s), apart_s)
    read, written = _compulsory(regions)
    program_s = min(max(everything.time_s, memory_time(read, written, device.memory)), fused_s)
    return ProgramBounds(
        fused_bound_s=fused_s,
        program_bound_s=program_s,
        fused_bytes=sum(region.bytes_read + region.bytes_written for region in regions),
        compulsory_bytes=read + written,
        regions=len(regions),
    )


def _work_of(cost: OpCost | Uncosted, device: DeviceSpec, float32_matrix: str) -> _Work:
    if isinstance(cost, Uncosted):
        return _Work()
    matrix = bound_of(OpCost(matrix_flops=cost.matrix_flops, matrix_dtype=cost.matrix_dtype), device, float32_matrix)
    vector = bound_of(OpCost(vector_flops=cost.vector_flops, vector_dtype=cost.vector_dtype), device)
    network = bound_of(OpCost(bytes_sent=cost.bytes_sent), device)
    return _Work(matrix.compute_s, vector.compute_s, network.network_s)


def _compulsory(regions: Sequence[Region]) -> tuple[int, int]:
    """Bytes that were there before the step and are read, and bytes that are there after it and were written."""
    made: set[int] = set()
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    used: set[int] = set()
    for region in regions:
        for storage, size in region.reads.items():
            used.add(storage)
            if storage not in made:
                read[storage] = max(size, read.get(storage, 0))
        for storage, size in region.writes.items():
            made.add(storage)
            written[storage] = max(size, written.get(storage, 0))
    kept = [size for storage, size in written.items() if storage in read or storage not in used]
    return sum(read.values()), sum(kept)
