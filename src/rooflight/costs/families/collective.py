"""Collectives: c10d's eager ops and the functional ones.

What a rank sends is in ``network.collectives``, as payloads are. Bytes read and written are the rank's own buffers,
once each. Reductions add S (n - 1) / n elements per rank on the vector unit.
"""

from __future__ import annotations

from dataclasses import replace

from rooflight.costs.cost import OpCost, Traffic, Uncosted
from rooflight.costs.rules import Family, nothing
from rooflight.hardware.network.collectives import (
    CollectiveKind,
    in_switches,
    kind_of,
    ops_of,
    payload_bytes,
    sent_and_kept,
)
from rooflight.hardware.network.groups import RankGroup
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import distinct_bytes

collective_ops = Family("collective")

UNKNOWN_GROUP = Uncosted("group size unknown")
_REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE)
_ONE_WAY = (CollectiveKind.SEND, CollectiveKind.RECEIVE, CollectiveKind.BARRIER)


def collective(op: OpSignature) -> OpCost | Uncosted:
    """The rank's source read, its destination written; what a reduction adds is what comes from the other ranks."""
    kind, group = kind_of(op.name), RankGroup.of(op)
    assert kind is not None
    ranks = group.size
    if not ranks:
        return UNKNOWN_GROUP
    source, destination = sent_and_kept(op)
    elements = sum(tensor.numel for tensor in source) if kind in _REDUCING else 0
    traffic = Traffic(kind=kind, payload_bytes=payload_bytes(op, ranks), group=group)
    return OpCost(
        vector_flops=elements * (ranks - 1) // ranks,
        bytes_read=distinct_bytes(source),
        bytes_written=distinct_bytes(destination),
        bytes_sent=traffic.bytes_sent,
        traffic=traffic,
    )


def all_reduce_in_switches(op: OpSignature) -> OpCost | Uncosted:
    """An all-reduce that NVLink's switches add up: a rank sends each byte once, as in a reduction to one rank."""
    cost = collective(op)
    if isinstance(cost, Uncosted) or cost.traffic is None:
        return cost
    traffic = replace(cost.traffic, kind=CollectiveKind.REDUCE)
    return replace(cost, vector_flops=0, bytes_sent=traffic.bytes_sent, traffic=traffic)


for kind in CollectiveKind:
    for name in () if kind in _ONE_WAY else ops_of(kind):
        collective_ops(name)(all_reduce_in_switches if in_switches(name) else collective)


@collective_ops(*ops_of(CollectiveKind.SEND))
def send(op: OpSignature) -> OpCost:
    """A tensor read and sent to one other rank, whatever is known of the group."""
    group = RankGroup.of(op)
    group = group if group.size > 1 else group.taking_part(CollectiveKind.SEND)
    traffic = Traffic(kind=CollectiveKind.SEND, payload_bytes=payload_bytes(op, 2), group=group)
    return OpCost(bytes_read=traffic.payload_bytes, bytes_sent=traffic.bytes_sent, traffic=traffic)


collective_ops.rows(
    {
        lambda op: OpCost(bytes_written=payload_bytes(op, 2)): " ".join(ops_of(CollectiveKind.RECEIVE)),
        # one comparison per element
        lambda op: OpCost(vector_flops=op.inputs[0].numel, bytes_read=op.input_bytes): "c10d::check_for_nan",
        nothing: "c10d::barrier c10d::monitored_barrier_ _c10d_functional::wait_tensor "
        "_c10d_functional::_wrap_tensor_autograd",
    }
)
