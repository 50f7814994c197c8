"""Signatures of the collectives in a trace, in the form of a live recording.

The profiler describes a collective by an event ``record_param_comms`` around its kernel, since torch 2.2 with dtype,
elements and group. Before, an annotation ``nccl:...`` has the shape and dtype of its first tensor; the group is that of
the whole world then.

An op of gloo only queues its collective, and a thread of gloo's own does the work. The thread writes an annotation such
as ``gloo:all_reduce``, in the order of the queue. A trace does not show which group a call or a thread is of, so calls
are joined to annotations where there is one group of several ranks only.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from rooflight.hardware.network.collectives import CollectiveKind, in_switches, kind_of, of_engine
from rooflight.hardware.network.groups import RankGroup
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.sources.capture.record.schemas import MOST_RANKS
from rooflight.sources.capture.time.collectives import SPAN, SPAN_NAMES
from rooflight.sources.traces.file.trace import COLLECTIVE, UNKNOWN, CollectiveArgs, Trace
from rooflight.sources.traces.ops.arguments import COLLECTIVE_DTYPES, tensors_of, tensors_of_op
from rooflight.sources.traces.ownership import Ownership

_ANNOTATED: Final = ("nccl:", "gloo:")
"""What names of annotations of a collective begin with."""

RUNS_COLLECTIVE: Final = re.compile(
    r"nccl(?:Dev)?Kernel|^[nr]ccl|^msccl|cross_device_reduce|multimem_|(?:one|two)_shot_all_?reduce|allreduce_prototype",
    re.IGNORECASE,
)
"""Kernels of collectives: those of NCCL, RCCL and MSCCL, and all-reduces of vLLM, SGLang and symmetric memory."""

_OPS: Final[Mapping[str, str]] = {
    **{
        name: f"{name}_"
        for name in (
            *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "reduce_scatter", "_reduce_scatter_base"),
            *("reduce_scatter_tensor_coalesced", "allgather", "_allgather_base", "allgather_into_tensor_coalesced"),
            *("alltoall", "gather", "scatter", "recv"),
        )
    },
    **{"all_reduce": "allreduce_", "_broadcast_oop": "broadcast_", "_reduce_oop": "reduce_"},
    **{"all_gather": "allgather_", "_all_gather_base": "_allgather_base_"},
    **{"all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced_"},
    **{"all_to_all": "alltoall_base_", "all_to_allv": "alltoall_base_", "send": "send", "barrier": "barrier"},
}
"""The op of ``c10d`` for the names that its backends give collectives."""

_GATHERS: Final = ("allgather_", "_allgather_base_", "allgather_into_tensor_coalesced_")
_SCATTERS: Final = ("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_")
_EXCHANGES: Final = ("alltoall_base_", "alltoall_")
_PARTED: Final = ("gather_", "scatter_")
_OF_ENGINES: Final = {
    CollectiveKind.ALL_REDUCE: "allreduce_",
    CollectiveKind.ALL_GATHER: "_allgather_base_",
    CollectiveKind.REDUCE_SCATTER: "_reduce_scatter_base_",
    CollectiveKind.ALL_TO_ALL: "alltoall_base_",
    CollectiveKind.BROADCAST: "broadcast_",
    CollectiveKind.REDUCE: "reduce_",
}
"""The op of ``c10d`` that does what an engine's collective of a kind does."""
_OF_WHOLE_TENSORS: Final = frozenset({"c10d::_allgather_base_", "c10d::_reduce_scatter_base_"})
"""Collectives with one tensor for all ranks, and one for this rank."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups of a trace, by name, from its ``distributedInfo``."""

    world_size: int
    by_name: Mapping[str, RankGroup]

    @staticmethod
    def of(head: Mapping[str, Any]) -> Groups:
        """Those in what a trace says of itself. What it lacks is unknown."""
        info = head.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        world, listed = info.get("world_size"), info.get("pg_config")
        found = {}
        for each in listed if isinstance(listed, list) else ():
            if isinstance(each, dict) and isinstance(each.get("pg_size"), int) and each["pg_size"] > 0:
                name = str(each.get("pg_name", ""))
                found[name] = _group(each["pg_size"], each.get("ranks"), name, str(each.get("pg_desc", "")))
        return Groups(world if isinstance(world, int) and world > 0 else 0, found)

    @property
    def only(self) -> RankGroup | None:
        """The group of a collective that names none: of several ranks there is but one set, or nothing but the world
        is known.
        """
        several = {(group.size, group.ranks) for group in self.by_name.values() if group.size > 1}
        if len(several) == 1:
            (size, ranks) = several.pop()
            return RankGroup(size=size, ranks=ranks)
        return RankGroup(size=self.world_size) if self.world_size and not self.by_name else None


def assumed_group(trace: Trace) -> str:
    """Which group is supposed of a trace's collectives, in a sentence; empty where the trace has it."""
    groups = Groups.of(trace.head)
    annotated = any(trace.names[name].startswith("nccl:") for name in np.unique(trace.ranges.name).tolist())
    if groups.by_name or groups.world_size < 2 or trace.collectives or not annotated:
        return ""
    return (
        f"The trace does not name the groups of its collectives: each counts as one of all {groups.world_size} ranks, "
        "unless the sizes of its tensors show another number. One of fewer ranks sends less than that."
    )


def described_collective(args: CollectiveArgs, groups: Groups) -> OpSignature | None:
    """The op of what a ``record_param_comms`` describes; None for what moves nothing, and for a description that
    lacks something."""
    op, dtype = _OPS.get(args.name), COLLECTIVE_DTYPES.get(args.dtype)
    if op is None or dtype is None or min(args.elements) < 0 or args.elements == (0, 0):
        return None
    group = groups.by_name.get(args.group)
    if args.group_size != UNKNOWN or group is None:
        group = _group(max(args.group_size, 0), _json(args.ranks), args.group, group.description if group else "")
    sent, received = (TensorSpec((elements,), dtype) for elements in args.elements)
    return _signature(op, sent, received, group)


def annotated_collective(
    name: str, shape: tuple[int, ...], dtype: str, groups: Groups, ranks: int = 0
) -> OpSignature | None:
    """The op of an annotation such as ``nccl:all_reduce``, whose tensor has this shape; None for what is none. Where
    the group is known to have so many ``ranks``, and is not the only one, it is another.
    """
    op, group = _OPS.get(name.partition(":")[2].partition(" ")[0]), groups.only
    if op is None:
        return None
    if ranks and (group is None or group.size != ranks):
        group = RankGroup(size=ranks)
    group = group or RankGroup(size=0)
    elements, ranks = prod(shape), max(group.size, 1)
    received = elements * ranks if op in _GATHERS else elements // ranks if op in _SCATTERS else elements
    return _signature(op, TensorSpec((elements,), dtype), TensorSpec((received,), dtype), group)


def _engine_collective(name: str, tensors: Sequence[TensorSpec], groups: Groups) -> OpSignature | None:
    """A collective of an engine or of symmetric memory, by the tensors that it is given: no argument that a trace has
    names its group, which is the only one. The part of a rank is the smallest of its tensors.
    """
    kind, group = kind_of(name), groups.only or RankGroup(size=0)
    if not tensors or kind not in _OF_ENGINES:
        return None
    flat = [TensorSpec((tensor.numel,), tensor.dtype) for tensor in tensors]
    if in_switches(name):
        return _in_place(name, "input", flat[-1], group)
    by_size, ranks = sorted(flat, key=lambda tensor: tensor.numel), max(group.size, 1)
    sent, elements = flat[-1], flat[-1].numel
    if kind is CollectiveKind.ALL_GATHER:
        sent, elements = by_size[0], by_size[0].numel * ranks
    elif kind is CollectiveKind.REDUCE_SCATTER:
        sent, elements = by_size[-1], by_size[-1].numel // ranks
    return _signature(_OF_ENGINES[kind], sent, TensorSpec((elements,), sent.dtype), group)


def _signature(op: str, sent: TensorSpec, received: TensorSpec, group: RankGroup) -> OpSignature:
    name = f"c10d::{op}"
    if op in (*_GATHERS, *_SCATTERS, *_EXCHANGES, *_PARTED):
        plural = op in ("allgather_", "reduce_scatter_", "alltoall_", *_PARTED)
        names = ("output_tensors", "input_tensors") if plural else ("output_tensor", "input_tensor")
        if op == "alltoall_base_":
            names = ("output", "input")
        received = TensorSpec(received.shape, received.dtype, storage=0)
        both = (received, sent)
        return OpSignature(name=name, inputs=both, input_names=names, outputs=both[:1], attributes=group.attributes)
    if op == "send":
        return OpSignature(name=name, inputs=(sent,), input_names=("tensors",), attributes=group.attributes)
    return _in_place(name, "tensors", received if op == "recv_" else sent, group)


def _in_place(name: str, argument: str, tensor: TensorSpec, group: RankGroup) -> OpSignature:
    shared = TensorSpec(tensor.shape, tensor.dtype, storage=0)
    return OpSignature(
        name=name, inputs=(shared,), input_names=(argument,), outputs=(shared,), attributes=group.attributes
    )


def _group(size: int, ranks: Any, name: str, description: str) -> RankGroup:
    listed = ranks if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks) else []
    return RankGroup(
        size=size,
        ranks=tuple(sorted(listed)) if len(listed) == size <= MOST_RANKS else (),
        name=name,
        description="" if description in ("undefined", "default_pg") else description,
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def gloo_spans(trace: Trace) -> dict[int, int]:
    """By op of ``c10d`` the range in which its collective ran. Left out are collectives of which the trace has another
    number of calls than of ranges, as where it begins or ends between the two.
    """
    if Groups.of(trace.head).only is None or not any(name.startswith(SPAN) for name in trace.names):
        return {}
    queued: dict[str, list[int]] = defaultdict(list)
    for op in np.argsort(trace.ops.start, kind="stable").tolist():
        kind = kind_of(name) if (name := trace.op_name(op)).startswith("c10d::") else None
        if kind in SPAN_NAMES:
            queued[SPAN_NAMES[kind]].append(op)
    ran: dict[str, list[int]] = defaultdict(list)
    for index in np.argsort(trace.ranges.start, kind="stable").tolist():
        ran[trace.names[trace.ranges.name[index]]].append(index)
    return {
        op: index
        for name, ops in queued.items()
        if len(ops) == len(ran[name])
        for op, index in zip(ops, ran[name], strict=True)
        if trace.ranges.start[index] >= trace.ops.start[op]
    }


class Collectives:
    """Finds the signature of the collective that an op is, or that ran inside it."""

    def __init__(self, owned: Ownership) -> None:
        trace = self._trace = owned.trace
        self._groups, self._on_threads = Groups.of(trace.head), gloo_spans(trace)
        running = owned.accounted[trace.named(trace.work, RUNS_COLLECTIVE.search)]
        self._running = set(running.tolist())
        self._described: dict[int, OpSignature] = {}
        for op in np.flatnonzero(trace.ops.collective != UNKNOWN).tolist():
            found = described_collective(trace.collectives[trace.ops.collective[op]], self._groups)
            if found is None:
                continue
            for around in owned.nesting.around(op):
                self._described.setdefault(around, found)
        self._annotations: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by thread: begin and number
        annotated = trace.named(trace.ranges, lambda name: name.startswith(_ANNOTATED))
        for index in np.flatnonzero(annotated).tolist():
            self._annotations[int(trace.ranges.thread[index])].append((int(trace.ranges.start[index]), index))
        for listed in self._annotations.values():
            listed.sort()

    def signature(self, op: int) -> OpSignature | None:
        """The signature of an op's collective, None if it is none."""
        name = self._trace.op_name(op)
        if op in self._running and of_engine(name):
            return _engine_collective(name, tensors_of_op(self._trace, op), self._groups)
        if not (name == COLLECTIVE or name.startswith("c10d::")):
            return None
        return self._described.get(op) or self._annotated(op)

    def _annotated(self, op: int) -> OpSignature | None:
        ops = self._trace.ops
        if op in self._on_threads:
            return self._of_range(self._on_threads[op])
        listed = self._annotations.get(int(ops.thread[op]), [])
        for start, index in listed[bisect_left(listed, (int(ops.start[op]), 0)) :]:
            if start >= ops.stop[op]:
                break
            if (found := self._of_range(index, self._ranks(op))) is not None:
                return found
        return None

    def _ranks(self, op: int) -> int:
        """How many ranks gather or scatter in an op, by the sizes of its tensors; 0 where those do not show it."""
        tensors = tensors_of_op(self._trace, op) if self._trace.op_name(op) in _OF_WHOLE_TENSORS else ()
        if len(tensors) < 2:
            return 0
        small, large = sorted(tensor.numel for tensor in tensors[:2])
        return large // small if small and large % small == 0 else 0

    def _of_range(self, index: int, ranks: int = 0) -> OpSignature | None:
        trace = self._trace
        tensors = tensors_of(trace.arguments[trace.ranges.args[index]])
        if not tensors:
            return None
        name = trace.names[trace.ranges.name[index]]
        return annotated_collective(name, tensors[0].shape, tensors[0].dtype, self._groups, ranks)
