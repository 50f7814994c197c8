"""Communication: how fast links let a session's collectives be, how fast they were, how much of them nothing hid.

Formulas and conventions: ``rooflight.hardware.network``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.hardware.network.algorithms import hierarchical_s, least_s, ring_s, tree_s
from rooflight.hardware.network.collectives import CollectiveKind, bus_factor, kind_of, payload_bytes, waits
from rooflight.hardware.network.groups import RankGroup
from rooflight.hardware.network.topology import Interconnect
from rooflight.records.document import Fields
from rooflight.records.measurement import Float64
from rooflight.records.quantity import Quantity
from rooflight.records.report import Table, table
from rooflight.records.session import NO_PARENT, Session
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import Bound


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals that do not touch each other, in order: where each starts and how long it lasts, in seconds."""

    starts: Float64
    lengths: Float64

    @classmethod
    def union(cls, starts: Float64, lengths: Float64) -> Intervals:
        """What at least one of the given intervals covers; those of unknown start or length cover nothing."""
        known = np.isfinite(starts) & np.isfinite(lengths) & (lengths > 0)
        starts, lengths = starts[known], lengths[known]
        if not len(starts):
            return cls(starts, lengths)
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        reached = np.maximum.accumulate(starts + lengths[order])
        begins = np.concatenate([[True], starts[1:] > reached[:-1]])
        ends = np.concatenate([begins[1:], [True]])
        return cls(starts[begins], reached[ends] - starts[begins])

    def overlap(self, starts: Float64, lengths: Float64) -> Float64:
        """Seconds of each given interval that these cover; NaN for one of unknown start or length."""
        covered = self._covered_before(starts + lengths) - self._covered_before(starts)
        return np.asarray(np.clip(covered, 0.0, lengths), dtype=np.float64)

    def _covered_before(self, moments: Float64) -> Float64:
        if not len(self.starts):
            return np.where(np.isfinite(moments), 0.0, np.nan)
        place = np.searchsorted(self.starts, moments, side="right") - 1
        inside = np.maximum(place, 0)
        before = np.concatenate([[0.0], np.cumsum(self.lengths)])[inside]
        into = np.minimum(moments - self.starts[inside], self.lengths[inside])
        return np.where(np.isnan(moments), np.nan, np.where(place < 0, 0.0, before + into))


_MEASURED_NOTE: Final = (
    "Payload and bandwidths as nccl-tests counts them; exposed: no computing op of this rank ran meanwhile. "
    "The wait for slower ranks is part of a collective's time."
)
_NOTE: Final = "Payload as nccl-tests counts it; ring and tree without latency."


class CollectiveFigures(Fields, frozen=True, kw_only=True):
    """All calls of one kind of collective in one group of ranks.

    ``bytes_sent`` is per rank and direction, ``payload_bytes`` the sum of S, ``bound_s``, ``ring_s``, ``tree_s`` and
    ``hierarchical_s`` sums over all calls, None where a speed is unknown or the kind has no such algorithm.
    ``measured_s`` sums the ``timed_calls`` and ends with the data, the wait for slower ranks included; of it,
    ``exposed_s`` passed while no computing op of this rank ran, ``overlapped_s`` is the rest. Of the timed calls:
    ``algorithm_bytes_per_s`` is S / t, ``bus_bytes_per_s`` that × bus factor, what to hold against the speed of a link,
    ``efficiency`` network bound / measured, None where the link's speed is unknown.
    """

    kind: CollectiveKind
    group_size: int
    group_nodes: int
    group_ranks: tuple[int, ...] | None
    group_description: str | None
    calls: int
    timed_calls: int
    bytes_sent: int
    payload_bytes: int
    bound_s: float | None
    ring_s: float | None
    tree_s: float | None
    hierarchical_s: float | None
    measured_s: float | None
    exposed_s: float | None
    overlapped_s: float | None
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    efficiency: float | None


class Collective(CollectiveFigures, frozen=True, kw_only=True):
    """All calls of one kind of collective in one group of ranks."""

    group: RankGroup


class NetworkUsed(Fields, frozen=True, kw_only=True):
    """The network that bounds between nodes assume. Where the device's file has no [network], it is the fastest port
    there is, and ``known`` is false.
    """

    bytes_per_s: float | None
    source: str
    known: bool


class CommunicationFigures(Fields, frozen=True, kw_only=True):
    """The collectives of a step, those that took or must take longest first.

    ``measured_s``, ``exposed_s`` and ``overlapped_s`` are sums over the collectives; of two at a time both count.
    ``exposed_step_s`` is the part of the step during which some collective and no computing op ran, each moment once.
    None: nothing was timed, or it is not known when ops began. ``network`` is None where nothing goes between nodes.
    """

    bytes_sent: int = 0
    measured_s: float | None = None
    exposed_s: float | None = None
    overlapped_s: float | None = None
    exposed_step_s: float | None = None
    untimed_calls: int = 0
    network: NetworkUsed | None = None
    collectives: tuple[CollectiveFigures, ...] = ()


class Communication(CommunicationFigures, frozen=True, kw_only=True):
    """The collectives of a step. ``op_bound_s`` sums the op bounds of the timed calls."""

    collectives: tuple[Collective, ...] = ()
    op_bound_s: float = 0.0


def communication_of(
    session: Session,
    costs: Sequence[OpCost | Uncosted],
    bounds: Sequence[Bound | None],
    interconnect: Interconnect,
) -> Communication:
    """What a session's collectives send, need and took. ``costs`` and ``bounds`` go with its signatures."""
    kinds = {n: kind for n, op in enumerate(session.signatures) if (kind := kind_of(op.name)) is not None}
    records = np.flatnonzero(session.counted & np.isin(session.columns.signature, list(kinds)))
    if not len(records):
        return Communication()
    called = session.columns.signature[records].tolist()
    # groups of the same ranks share a row, whatever torch calls them
    groups = {n: replace(RankGroup.of(session.signatures[n]), name="") for n in set(called)}
    work = {n: _work(session.signatures[n], kinds[n], groups[n], costs[n], interconnect) for n in groups}
    works, (measured_s, exposed_s, exposed_step_s) = np.array([work[n] for n in called]), _times(session, records)
    rows: dict[tuple[CollectiveKind, RankGroup], list[int]] = {}
    for position, number in enumerate(called):
        rows.setdefault((kinds[number], groups[number]), []).append(position)
    found = [_collective(*key, works[where], measured_s[where], exposed_s[where]) for key, where in rows.items()]
    timed = np.isfinite(measured_s)
    op_bounds = [bounds[number] for number, known in zip(called, timed.tolist(), strict=True) if known]
    network = NetworkUsed(
        bytes_per_s=interconnect.network_bytes_per_s,
        source=interconnect.network_source,
        known=interconnect.network_known,
    )
    return Communication(
        bytes_sent=sum(each.bytes_sent for each in found),
        measured_s=_total(measured_s, timed),
        exposed_s=_total(exposed_s, timed),
        overlapped_s=_total(measured_s - exposed_s, timed),
        exposed_step_s=exposed_step_s,
        untimed_calls=int((~timed).sum()) if session.measurement is not None else 0,
        network=network if any(each.group.nodes > 1 for each in found) else None,
        collectives=tuple(sorted(found, key=lambda c: (-(c.measured_s or 0.0), -(c.bound_s or 0.0), c.kind.value))),
        op_bound_s=sum(bound.time_s for bound in op_bounds if bound),
    )


def _work(
    op: OpSignature, kind: CollectiveKind, group: RankGroup, cost: OpCost | Uncosted, interconnect: Interconnect
) -> tuple[float, ...]:
    """One call: payload and sent bytes; least, ring, tree and hierarchical seconds, NaN where a speed is unknown or
    there is no such algorithm.
    """
    payload, topology = payload_bytes(op, max(1, group.size)), interconnect.joining(group)
    # the switches' all-reduce sends less than others: the bound is that of what is sent, as the op's own is
    sent_as = cost.traffic.kind if isinstance(cost, OpCost) and cost.traffic else kind
    sent = cost.bytes_sent if isinstance(cost, OpCost) else 0
    seconds = [algorithm(kind, payload, topology) for algorithm in (ring_s, tree_s, hierarchical_s)]
    known = [float(s) if s is not None and np.isfinite(s) and group.size else np.nan for s in seconds]
    least = np.nan if np.isnan(known[0]) else float(least_s(sent_as, payload, topology))
    return payload, sent, least, *known


def _times(session: Session, records: NDArray[np.intp]) -> tuple[Float64, Float64, float | None]:
    """Of each collective its median time and the part that was exposed, NaN where unknown; and the part of a step that
    collectives alone filled.
    """
    measurement = session.measurement
    unknown = np.full(len(records), np.nan)
    if measurement is None or not len(measurement.op_samples_s):
        return unknown, unknown, None
    measured = measurement.op_s[records]
    if not len(measurement.op_starts_s):
        return measured, unknown, None
    computing = _computing(session)
    exposed, lasted, steps = np.zeros(len(records)), np.zeros(len(records)), []
    for starts, seconds in zip(measurement.op_starts_s, measurement.op_samples_s, strict=True):
        busy = Intervals.union(starts[computing], seconds[computing])
        began, took = starts[records], seconds[records]
        exposed += took - busy.overlap(began, took)
        lasted += took
        together = Intervals.union(began, took)
        steps.append(float((together.lengths - busy.overlap(together.starts, together.lengths)).sum()))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(lasted > 0, exposed / lasted, np.where(lasted == 0, 0.0, np.nan))
    known_s = measured * np.clip(share, 0.0, 1.0)
    return measured, known_s, float(np.median(steps)) if np.isfinite(known_s).any() else None


def _computing(session: Session) -> NDArray[np.bool_]:
    """The records that compute: not collectives, nor waits for them, nor records that others stand for."""
    idle = np.array([kind_of(op.name) is not None or waits(op.name) for op in session.signatures], dtype=bool)
    found = ~idle[session.columns.signature]
    found[session.columns.parent[session.columns.parent != NO_PARENT]] = False
    return np.asarray(found, dtype=bool)


def _collective(
    kind: CollectiveKind, group: RankGroup, work: Float64, measured_s: Float64, exposed_s: Float64
) -> Collective:
    timed = np.isfinite(measured_s)
    measured, exposed = _total(measured_s, timed), _total(exposed_s, timed)
    payload, sent, *seconds = work.sum(axis=0).tolist()
    bound_s, ring, tree, hierarchical = (None if np.isnan(each) else each for each in seconds)
    timed_payload, _, timed_bound_s, *_ = work[timed].sum(axis=0).tolist()
    speed = timed_payload / measured if measured and timed_payload else None
    return Collective(
        kind=kind,
        group=group,
        group_size=group.size,
        group_nodes=group.nodes,
        group_ranks=group.ranks or None,
        group_description=group.description or None,
        calls=len(work),
        timed_calls=int(timed.sum()),
        bytes_sent=int(sent),
        payload_bytes=int(payload),
        bound_s=bound_s,
        ring_s=ring,
        tree_s=tree,
        hierarchical_s=hierarchical,
        measured_s=measured,
        exposed_s=exposed,
        overlapped_s=None if exposed is None or measured is None else measured - exposed,
        algorithm_bytes_per_s=speed,
        # a group of unknown size has no bus factor
        bus_bytes_per_s=speed * float(bus_factor(kind, group.size)) if speed is not None and group.size else None,
        efficiency=timed_bound_s / measured if timed_bound_s > 0 and measured else None,
    )


def _total(seconds: Float64, timed: NDArray[np.bool_]) -> float | None:
    """The sum over timed calls; None where there are none, or one of them is not known."""
    return float(seconds[timed].sum()) if timed.any() and np.isfinite(seconds[timed]).all() else None


def collectives_table(communication: Communication, top: int) -> Table:
    """One row a kind of collective and group of ranks; without times where nothing was measured."""
    measured = communication.measured_s is not None
    times = (
        ("measured", "s", lambda each: each.measured_s),
        ("exposed", "s", lambda each: each.exposed_s),
        ("overlapped", "s", lambda each: each.overlapped_s),
        ("alg bw", "B/s", lambda each: each.algorithm_bytes_per_s),
        ("bus bw", "B/s", lambda each: each.bus_bytes_per_s),
        ("efficiency", "%", lambda each: each.efficiency),
    )
    algorithms = (("ring", "s", lambda each: each.ring_s), ("tree", "s", lambda each: each.tree_s))
    return table(
        "collectives",
        "Collectives",
        communication.collectives,
        ("collective", "", lambda each: each.kind.value),
        ("ranks", "", lambda each: each.group.label),
        ("calls", "", lambda each: each.calls),
        ("payload", "B", lambda each: each.payload_bytes),
        ("sent", "B", lambda each: each.bytes_sent),
        ("network bound", "s", lambda each: each.bound_s),
        *(times if measured else algorithms),
        top=top,
        optional=("calls", "overlapped", "alg bw") if measured else ("calls",),
        note=(_MEASURED_NOTE if measured else _NOTE) + _network_text(communication.network),
    )


def _network_text(network: NetworkUsed | None) -> str:
    if network is None:
        return ""
    if network.bytes_per_s is None:
        return " Collectives between nodes have no bound: the device's file has no [network]."
    speed = Quantity(network.bytes_per_s, "B/s")
    if network.known:
        return f" Between nodes a rank sends {speed}: {network.source}."
    return (
        f" Between nodes a rank sends at most {speed}, {network.source}: "
        "write this cluster's figure as [network] into the device's file."
    )


def exposure_text(communication: Communication) -> str | None:
    """How much of a step's communication nothing hid, in words; None where it is not known."""
    if communication.measured_s is None or communication.exposed_step_s is None:
        return None
    exposed, measured = Quantity(communication.exposed_step_s, "s"), Quantity(communication.measured_s, "s")
    return f"{measured} of collectives, {exposed} of the step with nothing else running"
