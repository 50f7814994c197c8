"""Collectives: c10d's eager ops and the functional ones.

Conventions: ``bytes_sent`` is what one rank puts on its links, one direction, with the fewest bytes an algorithm on
the ranks' own links can send (a ring): n ranks, S bytes, rounded down to whole bytes.

    all-reduce 2 S (n - 1) / n; all-gather S (n - 1) / n with S gathered; reduce-scatter the same with S unscattered;
    all-to-all S (n - 1) / n; broadcast, send and reduce S; receive 0; barrier 0;
    gather and scatter S, the rank's own part (a root that only keeps or deals out sends no less on another rank).

Bytes read and written are the rank's own buffers, once each. Reductions add S (n - 1) / n elements per rank on the
vector unit. In-switch reduction can send about half: such networks are the roofline's matter, not the op's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.families.rules import names, nothing, register
from rooflight.costs.registry import Formula
from rooflight.network.collectives import sent_and_kept
from rooflight.network.groups import RankGroup
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import distinct_bytes

formula = partial(registry.formula, error_group="collective")

UNKNOWN_GROUP = Uncosted("group size unknown")


def collective(sent: Callable[[int, int, int], int], *, reduces: bool = False) -> Formula:
    """A formula: ``sent`` bytes from the source's, the destination's and the group's size.

    One that ``reduces`` adds the share of the larger side that comes from the other ranks.
    """

    def cost(op: OpSignature) -> OpCost | Uncosted:
        ranks = RankGroup.of(op).size
        if not ranks:
            return UNKNOWN_GROUP
        source, destination = sent_and_kept(op)
        read, written = distinct_bytes(source), distinct_bytes(destination)
        elements = sum(tensor.numel for tensor in source) if reduces else 0
        return OpCost(
            vector_flops=elements * (ranks - 1) // ranks,
            bytes_read=read,
            bytes_written=written,
            bytes_sent=sent(read, written, ranks),
        )

    return cost


def all_reduce(source: int, _: int, ranks: int) -> int:
    """Reduce-scatter, then all-gather: each passes on all but one share."""
    return 2 * source * (ranks - 1) // ranks


def all_gather(_: int, destination: int, ranks: int) -> int:
    """Passes on all shares but one of what is gathered."""
    return destination * (ranks - 1) // ranks


def reduce_scatter(source: int, _: int, ranks: int) -> int:
    """Passes on all shares but one of what is scattered."""
    return source * (ranks - 1) // ranks


def whole(source: int, _: int, ranks: int) -> int:
    """The tensor, once; nothing where there is nobody else."""
    return source if ranks > 1 else 0


def part(source: int, destination: int, ranks: int) -> int:
    """A rank's own part of what is gathered or dealt out."""
    return min(source, destination) if ranks > 1 else 0


formula(
    *names("allreduce_ allreduce_coalesced_", "c10d"),
    *names("all_reduce all_reduce_coalesced", "_c10d_functional"),
)(collective(all_reduce, reduces=True))
formula(
    *names("allgather_ _allgather_base_ allgather_into_tensor_coalesced_ allgather_coalesced_", "c10d"),
    *names("all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_into_tensor_out", "_c10d_functional"),
    "_c10d_functional_autograd::all_gather_into_tensor",
)(collective(all_gather))
formula(
    *names("reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_", "c10d"),
    *names("reduce_scatter_tensor reduce_scatter_tensor_coalesced reduce_scatter_tensor_out", "_c10d_functional"),
    "_c10d_functional_autograd::reduce_scatter_tensor",
)(collective(reduce_scatter, reduces=True))
formula(
    *names("alltoall_ alltoall_base_", "c10d"),
    "_c10d_functional::all_to_all_single",
    "_c10d_functional_autograd::all_to_all_single",
    "_dtensor::shard_dim_alltoall",
)(collective(reduce_scatter))
formula("c10d::broadcast_", "_c10d_functional::broadcast")(collective(whole))
formula("c10d::reduce_")(collective(whole, reduces=True))
formula("c10d::gather_", "c10d::scatter_")(collective(part))


@formula("c10d::send", "_c10d_functional::isend")
def send(op: OpSignature) -> OpCost:
    """A tensor read and sent to one other rank."""
    source = op.named("tensors") or op.named("tensor") or op.inputs
    size = distinct_bytes(source)
    return OpCost(bytes_read=size, bytes_sent=size)


@formula("c10d::recv_", "c10d::recv_any_source_", "_c10d_functional::irecv")
def receive(op: OpSignature) -> OpCost:
    """A tensor written with what another rank sends."""
    destination = op.named("tensors") or op.named("tensor") or op.inputs
    return OpCost(bytes_written=distinct_bytes(destination))


@formula("c10d::check_for_nan")
def check_for_nan(op: OpSignature) -> OpCost:
    """One comparison per element."""
    return OpCost(vector_flops=op.inputs[0].numel, bytes_read=op.input_bytes)


register(formula, {nothing: "barrier monitored_barrier_"}, "c10d")
register(formula, {nothing: "wait_tensor _wrap_tensor_autograd"}, "_c10d_functional")
