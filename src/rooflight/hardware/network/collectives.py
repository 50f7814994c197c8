"""Collectives: what kind an op is, what it works on, and what a rank sends.

Sizes follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): of n ranks, S is what an all-reduce, reduce
or broadcast works on, what an all-gather or gather has gathered in the end, what a reduce-scatter, all-to-all or
scatter starts from. Algorithm bandwidth is S / t. Bus bandwidth is that times ``bus_factor``: what a link carries, so
that it can be held against the link's speed whatever n is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec, distinct_bytes

if TYPE_CHECKING:  # formulas cost a session where there is no numpy
    import numpy as np
    from numpy.typing import NDArray

    Number = float | NDArray[np.floating[Any]] | NDArray[np.integer[Any]]
    """One figure, or an array of them: of as many groups, or as many payloads."""


class CollectiveKind(StrEnum):
    """What a collective does."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND = "send"
    RECEIVE = "receive"
    BARRIER = "barrier"


_OPS = {  # the one list of them: formulas, live recordings, traces and timing read it
    CollectiveKind.ALL_REDUCE: "c10d::allreduce_ c10d::allreduce_coalesced_ _c10d_functional::all_reduce "
    "_c10d_functional::all_reduce_ _c10d_functional::all_reduce_coalesced _c10d_functional::all_reduce_coalesced_ "
    "symm_mem::multimem_all_reduce_ symm_mem::multimem_one_shot_all_reduce symm_mem::multimem_one_shot_all_reduce_out "
    "symm_mem::one_shot_all_reduce symm_mem::one_shot_all_reduce_out symm_mem::one_shot_all_reduce_copy "
    "symm_mem::one_shot_all_reduce_copy_out symm_mem::two_shot_all_reduce_ symm_mem::two_shot_all_reduce_out "
    "vllm::all_reduce vllm::outplace_all_reduce vllm::inplace_all_reduce sglang::inplace_all_reduce "
    "sglang::outplace_all_reduce sgl_kernel::all_reduce sgl_kernel::mscclpp_allreduce _C_custom_ar::all_reduce "
    "_C_custom_ar::qr_all_reduce _quickreduce::all_reduce",
    CollectiveKind.ALL_GATHER: "c10d::allgather_ c10d::_allgather_base_ c10d::allgather_into_tensor_coalesced_ "
    "c10d::allgather_coalesced_ _c10d_functional::all_gather_into_tensor "
    "_c10d_functional::all_gather_into_tensor_coalesced _c10d_functional::all_gather_into_tensor_out "
    "_c10d_functional_autograd::all_gather_into_tensor symm_mem::multimem_all_gather_out "
    "symm_mem::_low_contention_all_gather vllm::all_gather sglang::reg_all_gather_into_tensor",
    CollectiveKind.REDUCE_SCATTER: "c10d::reduce_scatter_ c10d::_reduce_scatter_base_ "
    "c10d::reduce_scatter_tensor_coalesced_ _c10d_functional::reduce_scatter_tensor "
    "_c10d_functional::reduce_scatter_tensor_coalesced "
    "_c10d_functional::reduce_scatter_tensor_out _c10d_functional_autograd::reduce_scatter_tensor "
    "symm_mem::_low_contention_reduce_scatter symm_mem::reduce_scatter_out vllm::reduce_scatter",
    CollectiveKind.ALL_TO_ALL: "c10d::alltoall_ c10d::alltoall_base_ _c10d_functional::all_to_all_single "
    "_c10d_functional_autograd::all_to_all_single _dtensor::shard_dim_alltoall "
    "symm_mem::nvshmem_all_to_all",
    CollectiveKind.BROADCAST: "c10d::broadcast_ _c10d_functional::broadcast _c10d_functional::broadcast_ "
    "symm_mem::nvshmem_broadcast",
    CollectiveKind.REDUCE: "c10d::reduce_ symm_mem::multimem_one_shot_reduce_out",
    CollectiveKind.GATHER: "c10d::gather_",
    CollectiveKind.SCATTER: "c10d::scatter_",
    CollectiveKind.SEND: "c10d::send _c10d_functional::isend",
    CollectiveKind.RECEIVE: "c10d::recv_ c10d::recv_any_source_ _c10d_functional::irecv",
    CollectiveKind.BARRIER: "c10d::barrier c10d::monitored_barrier_",
}
_KINDS = {name: kind for kind, names in _OPS.items() for name in names.split()}
_FROM_DESTINATION = (CollectiveKind.ALL_GATHER, CollectiveKind.RECEIVE)
_PARTS = (CollectiveKind.GATHER, CollectiveKind.SCATTER)
_SHARED_OUT = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
)
_SENDS_NOTHING = (CollectiveKind.RECEIVE, CollectiveKind.BARRIER)

_DESTINATIONS = ("output_tensors", "output_tensor", "output_lists", "outputs", "output", "out")
_SOURCES = ("tensors", "input_tensors", "input_tensor", "input_list", "local_input", "inputs", "input", "inp", "tensor")
_OF_DISTRIBUTED = ("c10d::", "_c10d_functional", "_dtensor::")


def kind_of(name: str) -> CollectiveKind | None:
    """The kind of collective that an op is, by its name; None for all other ops."""
    return _KINDS.get(name)


def ops_of(kind: CollectiveKind) -> tuple[str, ...]:
    """The names of the ops of a kind."""
    return tuple(_OPS[kind].split())


def of_engine(name: str) -> bool:
    """Whether an op is a collective of an engine or of symmetric memory, not of ``torch.distributed``'s own."""
    return name in _KINDS and not name.startswith(_OF_DISTRIBUTED)


def in_switches(name: str) -> bool:
    """Whether an op is an all-reduce that NVLink's switches add up."""
    return "multimem" in name and kind_of(name) is CollectiveKind.ALL_REDUCE


def waits(name: str) -> bool:
    """Whether an op only waits for a collective: that is no work."""
    return name == "_c10d_functional::wait_tensor"


def sent_and_kept(op: OpSignature) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The rank's source and destination tensors; c10d's in-place ops have one list for both."""
    source = next((found for name in _SOURCES if (found := op.named(name))), op.inputs)
    destination = next((found for name in _DESTINATIONS if (found := op.named(name))), op.outputs)
    return source, destination or source


def payload_bytes(op: OpSignature, ranks: int) -> int:
    """S of one call, as nccl-tests counts it (see above)."""
    kind = kind_of(op.name)
    if kind is None or kind is CollectiveKind.BARRIER:
        return 0
    source, destination = sent_and_kept(op)
    if kind in _PARTS:  # a root has all parts on one side, other ranks have theirs
        return ranks * min(distinct_bytes(source), distinct_bytes(destination))
    return distinct_bytes(destination if kind in _FROM_DESTINATION else source)


def bus_factor(kind: CollectiveKind, ranks: Number) -> Number:
    """Bus over algorithm bandwidth, as nccl-tests has it: 2(n−1)/n, (n−1)/n or 1."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in _SHARED_OUT else 1.0


def sent_share(kind: CollectiveKind, ranks: Number) -> Number:
    """What one rank sends over its links, one direction, as a share of S: the least of all algorithms in which only
    ranks add and copy. Of n ≥ 2 ranks

        all-reduce 2(n−1)/n; all-gather, reduce-scatter, all-to-all (n−1)/n; broadcast, reduce, send 1;
        gather, scatter 1/n, the rank's own part; receive, barrier 0

    and of one rank 0. Lower bound of all-reduce: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters
    of workstations", 2009.
    """
    share: Number = _parts_sent(kind, ranks) / ranks
    return share


def bytes_sent(kind: CollectiveKind, payload_bytes: int, ranks: int) -> int:
    """``sent_share`` of a payload, rounded down to whole bytes."""
    sent: int = payload_bytes * _parts_sent(kind, ranks) // ranks
    return sent


def _parts_sent(kind: CollectiveKind, ranks: Any) -> Any:
    if kind in _SENDS_NOTHING:
        return 0
    if kind in _PARTS:
        return ranks > 1
    if kind in _SHARED_OUT:
        return ranks - 1
    return 2 * (ranks - 1) if kind is CollectiveKind.ALL_REDUCE else ranks * (ranks > 1)
