"""Communication: how fast links let a session's collectives be, how fast they were, how much of them nothing hid.

Formulas and conventions: ``rooflight.network``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.network.algorithms import hierarchical_s, least_s, ring_s, tree_s
from rooflight.network.collectives import CollectiveKind, bus_factor, kind_of, payload_bytes, waits
from rooflight.network.groups import RankGroup
from rooflight.network.topology import Interconnect
from rooflight.records.session import NO_PARENT, Float64, Int64, Session
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import Bound
from rooflight.roofline.intervals import Intervals

if TYPE_CHECKING:
    from rooflight.network.collectives import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """All calls of one kind of collective in one group of ranks.

    ``bytes_sent`` is per rank and direction, ``payload_bytes`` the sum of S, ``bound_s``, ``ring_s``, ``tree_s`` and
    ``hierarchical_s`` sums over all calls, None where a speed is unknown or the kind has no such algorithm.
    ``measured_s`` sums the ``timed_calls`` and ends with the data, the wait for slower ranks included; of it,
    ``exposed_s`` passed while no computing op of this rank ran, ``overlapped_s`` is the rest.
    """

    kind: CollectiveKind
    group: RankGroup
    calls: int
    bytes_sent: int
    payload_bytes: int
    bound_s: float | None
    ring_s: float | None
    tree_s: float | None
    hierarchical_s: float | None
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
        if speed is None or self.group.size < 1:  # of a group of unknown size
            return None
        return speed * float(bus_factor(self.kind, self.group.size))

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
    ``interconnect`` is what the bounds are of; None without collectives.
    """

    collectives: tuple[Collective, ...] = ()
    interconnect: Interconnect | None = None
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

    @property
    def between_nodes(self) -> bool:
        """Whether some group is known to be on several nodes, so that the network bounds it."""
        return any(collective.group.nodes > 1 for collective in self.collectives)


def communication_of(
    session: Session,
    costs: Sequence[OpCost | Uncosted],
    bounds: Sequence[Bound | None],
    interconnect: Interconnect,
) -> Communication:
    """What a session's collectives send, need and took. ``costs`` and ``bounds`` go with its signatures."""
    is_collective = np.array([kind_of(op.name) is not None for op in session.signatures], dtype=bool)
    signature = session.columns.signature
    records = np.flatnonzero(session.counted & is_collective[signature]) if len(is_collective) else np.empty(0, int)
    if not len(records):
        return Communication()
    called = signature[records]
    calls = {int(n): _Call.of(session.signatures[n], costs[n], interconnect) for n in np.unique(called)}
    times = _times(session, records)
    rows: dict[tuple[CollectiveKind, RankGroup], list[int]] = {}
    for position, number in enumerate(called.tolist()):
        rows.setdefault((calls[number].kind, calls[number].group), []).append(position)
    collectives = [
        _collective([calls[number] for number in called[where].tolist()], _Times.of(times, where))
        for where in rows.values()
    ]
    timed = np.isfinite(times.measured_s)
    op_bounds = [bounds[number] for number in called[timed].tolist()]
    return Communication(
        collectives=tuple(
            sorted(collectives, key=lambda c: (-(c.measured_s or 0.0), -(c.bound_s or 0.0), c.kind.value))
        ),
        interconnect=interconnect,
        measured_s=_total(times.measured_s, timed),
        exposed_s=_total(times.exposed_s, timed),
        overlapped_s=_total(times.measured_s - times.exposed_s, timed),
        exposed_step_s=times.exposed_step_s,
        op_bound_s=sum(bound.time_s for bound in op_bounds if bound),
        untimed_calls=int((~timed).sum()) if session.measurement is not None else 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of a signature; seconds are None where a speed is unknown or there is no such algorithm."""

    kind: CollectiveKind
    group: RankGroup
    payload_bytes: int
    bytes_sent: int
    bound_s: float | None
    ring_s: float | None
    tree_s: float | None
    hierarchical_s: float | None

    @staticmethod
    def of(op: OpSignature, cost: OpCost | Uncosted, interconnect: Interconnect) -> _Call:
        kind, group = kind_of(op.name), RankGroup.of(op)
        assert kind is not None
        payload = payload_bytes(op, max(1, group.size))
        topology = interconnect.joining(group)
        ring, tree, hierarchical = (
            _known(algorithm(kind, payload, topology)) if group.size else None
            for algorithm in (ring_s, tree_s, hierarchical_s)
        )
        # the switches' all-reduce sends less than others: the bound is that of what is sent, as the op's own is
        sent_as = cost.traffic.kind if isinstance(cost, OpCost) and cost.traffic else kind
        return _Call(
            kind=kind,
            group=replace(group, name=""),  # groups of the same ranks share a row, whatever torch calls them
            payload_bytes=payload,
            bytes_sent=cost.bytes_sent if isinstance(cost, OpCost) else 0,
            bound_s=None if ring is None else _known(least_s(sent_as, payload, topology)),
            ring_s=ring,
            tree_s=tree,
            hierarchical_s=hierarchical,
        )


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
        began, took = starts[records], seconds[records]
        exposed += took - busy.overlap(began, took)
        lasted += took
        known = np.isfinite(began) & np.isfinite(took)
        together = Intervals.union(began[known], took[known])
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


def _collective(calls: Sequence[_Call], times: _Times) -> Collective:
    """Calls of one kind in one group, with their times."""
    timed = np.isfinite(times.measured_s)
    timed_calls = [call for call, known in zip(calls, timed, strict=True) if known]
    exposed_s, measured_s = _total(times.exposed_s, timed), _total(times.measured_s, timed)
    return Collective(
        kind=calls[0].kind,
        group=calls[0].group,
        calls=len(calls),
        bytes_sent=sum(call.bytes_sent for call in calls),
        payload_bytes=sum(call.payload_bytes for call in calls),
        bound_s=_sum([call.bound_s for call in calls]),
        ring_s=_sum([call.ring_s for call in calls]),
        tree_s=_sum([call.tree_s for call in calls]),
        hierarchical_s=_sum([call.hierarchical_s for call in calls]),
        timed_calls=len(timed_calls),
        timed_payload_bytes=sum(call.payload_bytes for call in timed_calls),
        timed_bound_s=_sum([call.bound_s for call in timed_calls]),
        measured_s=measured_s,
        exposed_s=exposed_s,
        overlapped_s=None if exposed_s is None or measured_s is None else measured_s - exposed_s,
    )


def _sum(seconds: Sequence[float | None]) -> float | None:
    """The sum; None where one of them is not known."""
    known = [each for each in seconds if each is not None]
    return sum(known) if len(known) == len(seconds) else None


def _known(seconds: Number | None) -> float | None:
    return float(seconds) if seconds is not None and np.isfinite(seconds) else None


def _total(seconds: Float64, timed: NDArray[np.bool_]) -> float | None:
    """The sum over timed calls; None where there are none, or one of them is not known."""
    return float(seconds[timed].sum()) if timed.any() and np.isfinite(seconds[timed]).all() else None
