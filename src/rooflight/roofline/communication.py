"""Collectives: how fast a link lets them be, how fast they were, and how much of them nothing hid.

Sizes follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): of n ranks, S is what an all-reduce, reduce
or broadcast works on, what an all-gather or gather has gathered in the end, what a reduce-scatter, all-to-all or
scatter starts from. Algorithm bandwidth is S / t. Bus bandwidth is that times ``bus_factor``: what a link carries, so
that it can be held against the link's speed whatever n is.

Times of the algorithms, latency α a hop and B bytes/s a link and direction (Thakur, Rabenseifner, Gropp, "Optimization
of collective communication operations in MPICH", 2005; Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan", 2009):

    ring  all-reduce 2(n−1)α + 2(n−1)/n·S/B; all-gather, reduce-scatter, all-to-all, gather, scatter
          (n−1)α + (n−1)/n·S/B; broadcast, reduce (n−1)α + S/B; send, receive α + S/B
    tree  all-reduce 2·log2(n)α + 2S/B; broadcast, reduce log2(n)α + S/B; none for the others

The bound is bytes sent / B, as everywhere in Rooflight: the ring without its latency, which no tree undercuts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import log2

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.families.collective import sent_and_kept
from rooflight.records.session import NO_PARENT, Float64, Int64, Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import distinct_bytes
from rooflight.roofline.bound import Bound
from rooflight.roofline.intervals import Intervals


class Kind(Enum):
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


_OPS = {
    Kind.ALL_REDUCE: "c10d::allreduce_ c10d::allreduce_coalesced_ _c10d_functional::all_reduce "
    "_c10d_functional::all_reduce_ _c10d_functional::all_reduce_coalesced _c10d_functional::all_reduce_coalesced_",
    Kind.ALL_GATHER: "c10d::allgather_ c10d::_allgather_base_ c10d::allgather_into_tensor_coalesced_ "
    "c10d::allgather_coalesced_ _c10d_functional::all_gather_into_tensor "
    "_c10d_functional::all_gather_into_tensor_coalesced _c10d_functional::all_gather_into_tensor_out "
    "_c10d_functional_autograd::all_gather_into_tensor",
    Kind.REDUCE_SCATTER: "c10d::reduce_scatter_ c10d::_reduce_scatter_base_ c10d::reduce_scatter_tensor_coalesced_ "
    "_c10d_functional::reduce_scatter_tensor _c10d_functional::reduce_scatter_tensor_coalesced "
    "_c10d_functional::reduce_scatter_tensor_out _c10d_functional_autograd::reduce_scatter_tensor",
    Kind.ALL_TO_ALL: "c10d::alltoall_ c10d::alltoall_base_ _c10d_functional::all_to_all_single "
    "_c10d_functional_autograd::all_to_all_single _dtensor::shard_dim_alltoall",
    Kind.BROADCAST: "c10d::broadcast_ _c10d_functional::broadcast _c10d_functional::broadcast_",
    Kind.REDUCE: "c10d::reduce_",
    Kind.GATHER: "c10d::gather_",
    Kind.SCATTER: "c10d::scatter_",
    Kind.SEND: "c10d::send _c10d_functional::isend",
    Kind.RECEIVE: "c10d::recv_ c10d::recv_any_source_ _c10d_functional::irecv",
    Kind.BARRIER: "c10d::barrier c10d::monitored_barrier_",
}
_KINDS = {name: kind for kind, names in _OPS.items() for name in names.split()}
_FROM_DESTINATION = (Kind.ALL_GATHER, Kind.RECEIVE)
_PARTS = (Kind.GATHER, Kind.SCATTER)
_SHARED_OUT = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.GATHER, Kind.SCATTER)
_FROM_ONE_OR_TO_ONE = (Kind.BROADCAST, Kind.REDUCE)


def kind_of(name: str) -> Kind | None:
    """The kind of collective that an op is, by its name; None for all other ops."""
    return _KINDS.get(name)


def waits(name: str) -> bool:
    """Whether an op only waits for a collective: that is no work."""
    return name == "_c10d_functional::wait_tensor"


@dataclass(frozen=True, slots=True, order=True)
class RankGroup:
    """The ranks that take part: how many, which (empty where unknown), and their user's name for them ("mesh_tp")."""

    size: int
    ranks: tuple[int, ...] = ()
    description: str = ""

    @property
    def label(self) -> str:
        """Such as ``mesh_tp: 0, 4, … 28``."""
        shown = [str(rank) for rank in self.ranks]
        if len(shown) > 5:
            shown = [*shown[:3], f"… {shown[-1]}"]
        ranks = ", ".join(shown).replace(", …", " …") if shown else f"{self.size} ranks"
        return f"{self.description}: {ranks}" if self.description else ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """All calls of one kind of collective in one group of ranks.

    ``bytes_sent`` is per rank and direction, ``payload_bytes`` the sum of S (see above), ``bound_s``, ``ring_s`` and
    ``tree_s`` sums over all calls, None where the link's speed is unknown or nothing is known to go faster.
    ``measured_s`` sums the ``timed_calls`` and ends with the data, the wait for slower ranks included; of it,
    ``exposed_s`` passed while no computing op of this rank ran, ``overlapped_s`` is the rest.
    """

    kind: Kind
    group: RankGroup
    calls: int
    bytes_sent: int
    payload_bytes: int
    bound_s: float | None
    ring_s: float | None
    tree_s: float | None
    timed_calls: int = 0
    timed_payload_bytes: int = 0
    timed_bound_s: float | None = None
    measured_s: float | None = None
    exposed_s: float | None = None
    overlapped_s: float | None = None

    @property
    def algorithm_bytes_per_s(self) -> float | None:
        """S / t of the calls that were timed."""
        return self.timed_payload_bytes / self.measured_s if self.measured_s and self.timed_payload_bytes else None

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Algorithm bandwidth × bus factor: what to hold against the speed of a link."""
        speed = self.algorithm_bytes_per_s
        return None if speed is None else speed * bus_factor(self.kind, self.group.size)

    @property
    def efficiency(self) -> float | None:
        """bound / measured, of the calls that were timed; None where the link's speed is unknown."""
        return self.timed_bound_s / self.measured_s if self.timed_bound_s and self.measured_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """The collectives of a step, those that took or must take longest first.

    ``measured_s``, ``exposed_s`` and ``overlapped_s`` are sums over the collectives; of two at a time both count.
    ``exposed_step_s`` is the part of the step during which some collective and no computing op ran, each moment once.
    ``op_bound_s`` sums the op bounds of the timed calls. None: nothing was timed, or it is not known when ops began.
    """

    collectives: tuple[Collective, ...] = ()
    measured_s: float | None = None
    exposed_s: float | None = None
    overlapped_s: float | None = None
    exposed_step_s: float | None = None
    op_bound_s: float = 0.0
    untimed_calls: int = 0

    @property
    def bytes_sent(self) -> int:
        """What this rank sent, one direction."""
        return sum(collective.bytes_sent for collective in self.collectives)


def payload_bytes(op: OpSignature, ranks: int) -> int:
    """S of one call, as nccl-tests counts it (see above)."""
    kind = kind_of(op.name)
    if kind is None or kind is Kind.BARRIER:
        return 0
    source, destination = sent_and_kept(op)
    if kind in _PARTS:  # a root has all parts on one side, other ranks have theirs
        return ranks * min(distinct_bytes(source), distinct_bytes(destination))
    return distinct_bytes(destination if kind in _FROM_DESTINATION else source)


def bus_factor(kind: Kind, ranks: int) -> float:
    """Bus over algorithm bandwidth, as nccl-tests has it: 2(n−1)/n, (n−1)/n or 1."""
    if kind is Kind.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in _SHARED_OUT else 1.0


def ring_s(kind: Kind, ranks: int, payload: float, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Seconds of a ring (of a pairwise exchange for all-to-all) over ``payload`` bytes. Formulas and source: above."""
    if ranks < 2:
        return 0.0
    hops = 1 if kind in (Kind.SEND, Kind.RECEIVE) else ranks - 1
    if kind is Kind.ALL_REDUCE:
        hops *= 2
    return hops * latency_s + bus_factor(kind, ranks) * payload / bytes_per_s


def tree_s(kind: Kind, ranks: int, payload: float, bytes_per_s: float, latency_s: float = 0.0) -> float | None:
    """Seconds of a double binary tree over ``payload`` bytes; None for kinds without one. Formulas, source: above."""
    trips = 2 if kind is Kind.ALL_REDUCE else 1
    if kind is not Kind.ALL_REDUCE and kind not in _FROM_ONE_OR_TO_ONE:
        return None
    return trips * (log2(ranks) * latency_s + payload / bytes_per_s) if ranks > 1 else 0.0


def communication_of(
    session: Session,
    costs: Sequence[OpCost | Uncosted],
    bounds: Sequence[Bound | None],
    link_bytes_per_s: float | None,
    link_latency_s: float = 0.0,
) -> Communication:
    """What a session's collectives send, need and took. ``costs`` and ``bounds`` go with its signatures; the speed of
    the link is per direction, None where it is unknown.
    """
    is_collective = np.array([kind_of(op.name) is not None for op in session.signatures], dtype=bool)
    signature = session.columns.signature
    records = np.flatnonzero(session.counted & is_collective[signature]) if len(is_collective) else np.empty(0, int)
    if not len(records):
        return Communication()
    times = _times(session, records)
    rows: dict[tuple[Kind, RankGroup], list[int]] = {}
    keys: dict[int, tuple[Kind, RankGroup]] = {}
    for position, number in enumerate(signature[records].tolist()):
        key = keys.get(number) or keys.setdefault(number, _key(session.signatures[number]))
        rows.setdefault(key, []).append(position)
    collectives = [
        _collective(
            key, signature[records[where]], session.signatures, costs, _Times.of(times, where),
            link_bytes_per_s, link_latency_s,
        )
        for key, where in rows.items()
    ]  # fmt: skip
    timed = np.isfinite(times.measured_s)
    op_bounds = [bounds[number] for number in signature[records[timed]].tolist()]
    return Communication(
        collectives=tuple(
            sorted(collectives, key=lambda c: (-(c.measured_s or 0.0), -(c.bound_s or 0.0), c.kind.value))
        ),
        measured_s=_total(times.measured_s, timed),
        exposed_s=_total(times.exposed_s, timed),
        overlapped_s=_total(times.measured_s - times.exposed_s, timed),
        exposed_step_s=times.exposed_step_s,
        op_bound_s=sum(bound.time_s for bound in op_bounds if bound),
        untimed_calls=int((~timed).sum()) if session.measurement is not None else 0,
    )


def _key(op: OpSignature) -> tuple[Kind, RankGroup]:
    kind, size, ranks = kind_of(op.name), op.attribute("group_size"), op.attribute("group_ranks", ())
    assert kind is not None
    group = RankGroup(
        size=size if isinstance(size, int) else 0,
        ranks=ranks if isinstance(ranks, tuple) else (),
        description=str(op.attribute("group_description", "")),
    )
    return kind, group


@dataclass(frozen=True, slots=True)
class _Times:
    """Of each collective its median time and the part that was exposed, NaN where unknown."""

    measured_s: Float64
    exposed_s: Float64
    exposed_step_s: float | None = None

    @staticmethod
    def of(times: _Times, where: Sequence[int]) -> _Times:
        return _Times(times.measured_s[where], times.exposed_s[where])


def _times(session: Session, records: Int64 | NDArray[np.intp]) -> _Times:
    measurement = session.measurement
    unknown = np.full(len(records), np.nan)
    if measurement is None or not len(measurement.op_samples_s):
        return _Times(unknown, unknown)
    measured = measurement.op_s[records]
    if not len(measurement.op_starts_s):
        return _Times(measured, unknown)
    computing = _computing(session)
    exposed = np.zeros(len(records))
    lasted = np.zeros(len(records))
    steps = []
    for starts, seconds in zip(measurement.op_starts_s, measurement.op_samples_s, strict=True):
        busy = Intervals.union(starts[computing], seconds[computing])
        own, took = starts[records], seconds[records]
        exposed += took - busy.overlap(own, took)
        lasted += took
        known = np.isfinite(own) & np.isfinite(took)
        together = Intervals.union(own[known], took[known])
        steps.append(float((together.lengths - busy.overlap(together.starts, together.lengths)).sum()))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(lasted > 0, exposed / lasted, np.where(lasted == 0, 0.0, np.nan))
    known_s = measured * np.clip(share, 0.0, 1.0)
    return _Times(measured, known_s, float(np.median(steps)) if np.isfinite(known_s).any() else None)


def _computing(session: Session) -> NDArray[np.bool_]:
    """The records that compute: not collectives, nor waits for them, nor records that others stand for."""
    idle = np.array([kind_of(op.name) is not None or waits(op.name) for op in session.signatures], dtype=bool)
    found = ~idle[session.columns.signature]
    parents = session.columns.parent[session.columns.parent != NO_PARENT]
    found[parents] = False
    return np.asarray(found, dtype=bool)


def _collective(
    key: tuple[Kind, RankGroup],
    numbers: NDArray[np.int32],
    signatures: Sequence[OpSignature],
    costs: Sequence[OpCost | Uncosted],
    times: _Times,
    link: float | None,
    latency_s: float,
) -> Collective:
    kind, group = key
    timed = np.isfinite(times.measured_s)
    calls = _counted(numbers)
    timed_calls = _counted(numbers[timed])
    payloads = {number: payload_bytes(signatures[number], max(1, group.size)) for number in calls}
    sent = {number: cost.bytes_sent if isinstance(cost := costs[number], OpCost) else 0 for number in calls}
    known = link is not None and group.size > 0
    trees = [tree_s(kind, group.size, payloads[n], link, latency_s) for n in calls] if link and known else []
    exposed_s = _total(times.exposed_s, timed)
    measured_s = _total(times.measured_s, timed)
    return Collective(
        kind=kind,
        group=group,
        calls=len(numbers),
        bytes_sent=sum(sent[n] * count for n, count in calls.items()),
        payload_bytes=sum(payloads[n] * count for n, count in calls.items()),
        bound_s=sum(sent[n] * count for n, count in calls.items()) / link if link and known else None,
        ring_s=(
            sum(ring_s(kind, group.size, payloads[n], link, latency_s) * count for n, count in calls.items())
            if link and known
            else None
        ),
        tree_s=(
            sum(tree * count for tree, count in zip(trees, calls.values(), strict=True) if tree is not None)
            if trees and None not in trees
            else None
        ),
        timed_calls=int(timed.sum()),
        timed_payload_bytes=sum(payloads[n] * count for n, count in timed_calls.items()),
        timed_bound_s=sum(sent[n] * count for n, count in timed_calls.items()) / link if link and known else None,
        measured_s=measured_s,
        exposed_s=exposed_s,
        overlapped_s=None if exposed_s is None or measured_s is None else measured_s - exposed_s,
    )


def _counted(numbers: NDArray[np.int32]) -> Mapping[int, int]:
    found, counts = np.unique(numbers, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _total(seconds: Float64, timed: NDArray[np.bool_]) -> float | None:
    """The sum over timed calls; None where there are none, or one of them is not known."""
    return float(seconds[timed].sum()) if timed.any() and np.isfinite(seconds[timed]).all() else None
