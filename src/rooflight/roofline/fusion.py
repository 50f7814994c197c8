"""Which ops one kernel could do together, and what must then still move: the ground of the fused bound.

Chains of pointwise, norm, softmax and reduction ops, and of copies between them, become one *region*; a product,
convolution or attention takes what follows it into its epilogue. Ops that read the same tensor at the same stage share
a region too, so that it is read once, as inductor's horizontal fusion does.

Two ops can share a kernel only if no op between them must run outside it. Each op has a *stage*: the number of anchors
(products and everything else that is no chain) on the longest path that leads to it. Ops of one stage that touch each
other never need an anchor between them, so they form legal regions.

Inside a region nothing moves. An anchor reads its inputs whole, so they must have been written; so must results and
whatever was there before the step and is updated. What a chain needs from another region it may read, or compute again
from something smaller, as inductor's partitioner does between forward and backward. The least that this moves is a
minimum cut; here it is bounded from below by a flow, which never exceeds a cut: each value lets its size through once
for every region that reads it, and once more, for all of them together, to be written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.record import StorageKind
from rooflight.records.session import KEPT, STOOD, Session
from rooflight.roofline.dead import dead_calls
from rooflight.roofline.least_traffic import regions_of
from rooflight.roofline.narrowing import narrowed_calls
from rooflight.roofline.op_fusion import op_fusion_of
from rooflight.roofline.parts import partial_touches
from rooflight.roofline.regions import OpGraph, Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """The regions of a session, in the order in which they begin, and its compulsory bytes: ``bytes_in`` of what was
    there before the step and is read, ``bytes_out`` of what is there after it and was written. ``attending``: records
    of products that a softmax makes attention of. ``work``: by record of an op of whose results only a part is read,
    the share of its FLOPs that this part takes.
    """

    regions: tuple[Region, ...]
    bytes_in: int
    bytes_out: int
    attending: frozenset[int] = frozenset()
    work: Mapping[int, float] = field(default_factory=dict)


def fuse(session: Session, costs: Sequence[OpCost | Uncosted]) -> Fusion:
    """The regions of a session's counted ops but the dead ones. ``costs`` go with its signatures."""
    fusions = [op_fusion_of(op, cost) for op, cost in zip(session.signatures, costs, strict=True)]
    calls = session.counted & ~dead_calls(session, costs)
    partial = partial_touches(session)
    narrowed = narrowed_calls(session, fusions, costs, calls, partial)
    graph = OpGraph(session, fusions, calls, partial, narrowed)
    results = _results(graph, _kept(session), _local(session))
    graph.leave_out_between(results)
    regions = regions_of(graph, results)
    return Fusion(
        regions=regions,
        bytes_in=min(graph.bytes_in(), sum(region.bytes_read for region in regions)),
        bytes_out=sum(results.values()),
        attending=frozenset(graph.records[op] for op in graph.attending),
        work={record: less.work for record, less in narrowed.items() if less.work < 1},
    )


def _results(graph: OpGraph, kept: frozenset[int], local: frozenset[int]) -> dict[int, int]:
    """Values that must be there after the step, and bytes: updates of what stood before it, what was kept, and what
    nothing reads unless its maker's caller never had it.
    """
    found: dict[int, int] = {}
    for storage in graph.held:
        needed = storage in graph.stood or storage in kept
        if needed or storage not in local:
            found |= {value: size for value, size in graph.in_storage(storage) if needed or not graph.is_read[value]}
    return found


def _local(session: Session) -> frozenset[int]:
    return frozenset() if session.lifetimes is None else frozenset(np.flatnonzero(session.lifetimes.local).tolist())


def _kept(session: Session) -> frozenset[int]:
    """Gradients and optimizer states that the step made and its caller kept. What else is left may be held by a cycle,
    a local variable or a backward pass still to come: a compiler need not write it.
    """
    lifetimes = session.lifetimes
    if lifetimes is None:
        return frozenset()
    certain = np.isin(lifetimes.kind, (StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE))
    kept = (lifetimes.freed == KEPT) & (lifetimes.made != STOOD) & certain
    return frozenset(np.flatnonzero(kept).tolist())
