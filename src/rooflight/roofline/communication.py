"""Communication: how fast links let a session's collectives be, how fast they were, how much of them nothing hid.

Formulas and conventions: ``rooflight.network.collectives``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.network.collectives import CollectiveKind, bus_factor, kind_of, payload_bytes, ring_s, tree_s, waits
from rooflight.network.groups import RankGroup
from rooflight.records.session import NO_PARENT, Float64, Int64, Session
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import Bound
from rooflight.roofline.intervals import Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """All calls of one kind of collective in one group of ranks.

    ``bytes_sent`` is per rank and direction, ``payload_bytes`` the sum of S, ``bound_s``, ``ring_s`` and
    ``tree_s`` sums over all calls, None where the link's speed is unknown or nothing is known to go faster.
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
    rows: dict[tuple[CollectiveKind, RankGroup], list[int]] = {}
    keys: dict[int, tuple[CollectiveKind, RankGroup]] = {}
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


def _key(op: OpSignature) -> tuple[CollectiveKind, RankGroup]:
    kind = kind_of(op.name)
    assert kind is not None
    return kind, replace(RankGroup.of(op), name="")  # groups of the same ranks share a row, whatever torch calls them


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
    key: tuple[CollectiveKind, RankGroup],
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
