"""What the estimates of single ops add up to: the predicted time of a module, a phase, a step.

The wall time of a step: a host that issues ops one after the other, and a device that runs them as they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import traits_of
from rooflight.hardware.network.collectives import kind_of
from rooflight.records.document import Fields
from rooflight.records.estimate import Estimate, Source
from rooflight.records.measurement import Float64
from rooflight.records.quantity import count_of
from rooflight.records.record import Direction
from rooflight.records.session import Flags, Int64, Session
from rooflight.records.signature import ON_HOST, OpSignature
from rooflight.roofline.bound import Bound
from rooflight.roofline.fusion.ops import touched_by
from rooflight.roofline.host import IN_THE_OPS, SYNCS, Host, crosses, units_of

_UNSHOWN = "outside of what was measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """``calls`` take ``time_s`` one after the other, nine times in ten between ``low_s`` and ``high_s``.

    ``bound_s`` is of the same calls. Of ``time_s``, ``extrapolated_s`` rests on models asked outside of what they were
    shown, ``typical_s`` on none. The calls that were timed too took ``measured_s``, and are predicted to take
    ``timed_s``.
    """

    calls: int
    time_s: float
    low_s: float
    high_s: float
    bound_s: float
    extrapolated_s: float
    typical_s: float
    timed_s: float | None = None
    measured_s: float | None = None

    @property
    def efficiency(self) -> float | None:
        """op bound / predicted: 1 is as fast as the bound. None for what takes no time."""
        return self.bound_s / self.time_s if self.time_s else None

    @property
    def error(self) -> float | None:
        """predicted / measured − 1, of the calls that have both."""
        return self.timed_s / self.measured_s - 1 if self.timed_s and self.measured_s else None

    @property
    def holds(self) -> bool | None:
        """Whether what was measured lies in the interval, scaled to the calls that were timed."""
        if not self.timed_s or not self.measured_s:
            return None
        return self.low_s <= self.measured_s * (self.time_s / self.timed_s) <= self.high_s


class PredictedFields(Fields, frozen=True, kw_only=True):
    """A predicted time as it stands in every row: with its interval, op bound / predicted, predicted / measured - 1."""

    predicted_s: float | None
    predicted_low_s: float | None
    predicted_high_s: float | None
    predicted_efficiency: float | None
    prediction_error: float | None

    @staticmethod
    def read(found: Predicted | None) -> dict[str, float | None]:
        """The values of these fields; None where nothing is predicted."""
        return {
            "predicted_s": found.time_s if found else None,
            "predicted_low_s": found.low_s if found else None,
            "predicted_high_s": found.high_s if found else None,
            "predicted_efficiency": found.efficiency if found else None,
            "prediction_error": found.error if found else None,
        }


class Estimates:
    """Estimates of the ops of a session, of one call each, in columns. What does nothing takes no time; what has no
    cost, or nothing that bounds it, has no estimate.

    Raises ValueError for another number of estimates than ops.
    """

    def __init__(
        self,
        ops: Sequence[OpSignature],
        costs: Sequence[OpCost | Uncosted],
        bounds: Sequence[Bound | None],
        estimates: Sequence[Estimate | None],
    ) -> None:
        if len(estimates) != len(ops):
            raise ValueError(
                f"{count_of(len(estimates), 'estimate')} for {count_of(len(ops), 'op')}: give one for each, "
                "None where unknown"
            )
        self.of_one_call = tuple(
            None
            if estimate is None or bound is None or not bound.time_s
            else estimate.on_device.with_bound(bound.time_s)
            for estimate, bound in zip(estimates, bounds, strict=True)
        )
        given = self.of_one_call
        self._known = np.array([estimate is not None for estimate in given], dtype=bool) | _idle(costs)
        self._time_s = np.array([estimate.time_s if estimate else 0.0 for estimate in given])
        self._low_s = np.array([estimate.low_s if estimate else 0.0 for estimate in given])
        self._high_s = np.array([estimate.high_s if estimate else 0.0 for estimate in given])
        self._bound_s = np.array([estimate.bound_s if estimate else 0.0 for estimate in given])
        typical = [estimate is not None and estimate.source is Source.TYPICAL for estimate in given]
        extrapolated = [estimate is not None and estimate.extrapolated for estimate in given]
        self._typical = np.array(typical, dtype=bool)
        self._extrapolated = np.array(extrapolated, dtype=bool) & ~self._typical
        kinds: dict[str, int] = {}
        names = [_kind(op, estimate) for op, estimate in zip(ops, given, strict=True)]
        self._kind = np.array([kinds.setdefault(name, len(kinds)) for name in names], dtype=np.int64)
        self._num_kinds = len(kinds)

    @property
    def seconds(self) -> Float64:
        """Seconds of one call of each op; 0 where they are not known."""
        return self._time_s

    @property
    def bounds_s(self) -> Float64:
        """Bounds of one call of each op that has an estimate; 0 elsewhere."""
        return self._bound_s

    @property
    def widths(self) -> Float64:
        """log(high / low) of each op's interval; 0 where its time is not known."""
        return np.asarray(np.log(np.maximum(self._high_s, 1e-30) / np.maximum(self._low_s, 1e-30)))

    def sums(
        self, group: Int64, signature: Int64, calls: Int64, timed: Int64, measured_s: Float64, num_groups: int
    ) -> list[Predicted | None]:
        """By group, what its calls are predicted to take together; None where no estimate is known.

        Entry i of the columns: so many calls of a signature belong to a group; those timed took ``measured_s`` in all.

        Errors of one group of ops (see ``rl.formula``) have one cause, the model, and add up; groups are independent,
        and their squares add up. What was extrapolated, or rests on no model, counts as a group of its own: it may
        have one cause as well, the device say.
        """
        known = self._known[signature] & (calls > 0)
        group, signature, calls, timed, measured_s = (
            column[known] for column in (group, signature, calls, timed, measured_s)
        )
        cell = group * self._num_kinds + self._kind[signature]

        def total(values: Float64 | Int64) -> Float64:
            return np.bincount(group, weights=values, minlength=num_groups).astype(np.float64)

        def joined(widths: Float64) -> Float64:
            by_kind = np.bincount(cell, weights=calls * widths[signature], minlength=num_groups * self._num_kinds)
            return np.asarray(np.sqrt(np.square(by_kind.reshape(num_groups, self._num_kinds)).sum(axis=1)))

        time_s, bound_s = total(calls * self._time_s[signature]), total(calls * self._bound_s[signature])
        low_s = np.clip(time_s - joined(self._time_s - self._low_s), bound_s, time_s)
        high_s = time_s + joined(self._high_s - self._time_s)
        extrapolated_s = total(calls * (self._time_s * self._extrapolated)[signature])
        typical_s = total(calls * (self._time_s * self._typical)[signature])
        compared = np.isfinite(measured_s)
        timed_s = total(np.where(compared, timed * self._time_s[signature], 0.0))
        sums_measured_s, num_compared = total(np.where(compared, measured_s, 0.0)), total(compared.astype(np.int64))
        count = total(calls)
        return [
            Predicted(
                calls=int(count[number]),
                time_s=float(time_s[number]),
                low_s=float(low_s[number]),
                high_s=float(high_s[number]),
                bound_s=float(bound_s[number]),
                extrapolated_s=float(extrapolated_s[number]),
                typical_s=float(typical_s[number]),
                timed_s=float(timed_s[number]) if num_compared[number] else None,
                measured_s=float(sums_measured_s[number]) if num_compared[number] else None,
            )
            if count[number]
            else None
            for number in range(num_groups)
        ]


def _idle(costs: Sequence[OpCost | Uncosted]) -> np.ndarray:
    return np.array([isinstance(cost, OpCost) and cost.does_nothing for cost in costs], dtype=bool)


def _kind(op: OpSignature, estimate: Estimate | None) -> str:
    """Ops whose errors have a cause in common are of one kind."""
    if estimate is None:
        return ""
    if estimate.extrapolated or estimate.source is Source.TYPICAL:
        return _UNSHOWN
    return traits_of(op).error_group


QUEUE: Final = 1024
"""Launches that wait for the device at a time: a host that is further ahead waits too."""
_NOTHING: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedWall:
    """Wall time of a step, nine times in ten between ``low_s`` and ``high_s``.

    The device's ops take ``busy_s``, one after the other; ``sends_s`` of it are collectives, which may run beside the
    others. The host needs ``host_s`` to issue them; ``host`` is the one that was assumed.
    """

    time_s: float
    low_s: float
    high_s: float
    busy_s: float
    sends_s: float
    host_s: float
    host: Host

    @property
    def host_bound(self) -> bool:
        """Whether the host takes longer than the device."""
        return self.host_s > self.busy_s


class WallFields(PredictedFields, frozen=True, kw_only=True):
    """A predicted time of the device, and of the wall with its host; None where nothing is predicted."""

    predicted_wall_s: float | None
    predicted_wall_low_s: float | None
    predicted_wall_high_s: float | None

    @staticmethod
    def read_both(device: Predicted | None, wall: PredictedWall | None) -> dict[str, float | None]:
        """The values of these fields."""
        return {
            "predicted_wall_s": wall.time_s if wall else None,
            "predicted_wall_low_s": wall.low_s if wall else None,
            "predicted_wall_high_s": wall.high_s if wall else None,
            **PredictedFields.read(device),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queue:
    """What a step's ops ask of host and device, in the order in which the host issues them.

    ``units`` [ops] of host time, in that of an eager pointwise op. ``launches`` [ops]: whether the op runs on the
    device. ``sends`` [ops]: whether it runs on the stream of collectives, beside computing ops. ``waits_for`` [ops]:
    the last collective before it whose result it reads, -1 where there is none. ``syncs`` [ops]: the host waits for
    its result.
    """

    units: Float64
    launches: Flags
    sends: Flags
    waits_for: Int64
    syncs: Flags

    def wall_s(self, device_s: Float64, host: Host) -> float:
        """Seconds from the host's first op until host and device have done everything; ``device_s`` [ops].

        The host issues op i when it has issued all before it, and no further ahead of the device than ``QUEUE`` ops.
        The device begins it when it is issued, and the op before it on its stream is done; a collective also waits for
        the computing ops before it. Where the host waits for the device all begins anew: a stretch between two such
        waits takes its longest way from the issue of any op through all after it, unless it is longer than ``QUEUE``.
        """
        starts = np.concatenate([[0], np.flatnonzero(self.syncs[:-1]) + 1])
        if self.sends.any() or host.replayed or len(starts) < 2:
            return self._end_s(device_s, host, host.first_s)
        ends, host_s, busy_s = (
            np.append(starts[1:], len(self.units)),
            self.units * host.launch_s,
            device_s * self.launches,
        )
        issued, after = np.cumsum(host_s), np.append(np.cumsum(busy_s[::-1])[::-1], 0.0)
        before_s, runs = issued[starts] - host_s[starts], np.logical_or.reduceat(self.launches, starts)
        longest_s = np.maximum.reduceat(issued + after[:-1], starts) - before_s - after[ends]
        seconds = np.maximum(issued[ends - 1] - before_s, np.where(runs, longest_s, 0.0))
        for at in np.flatnonzero(ends - starts > QUEUE).tolist():
            here = slice(int(starts[at]), int(ends[at]))
            stretch = Queue(**{name: getattr(self, name)[here] for name in self.__slots__})
            seconds[at] = stretch._end_s(device_s[here], host, 0.0)
        return host.first_s + float(seconds.sum())

    def _end_s(self, device_s: Float64, host: Host, host_at: float) -> float:
        """When host and device have done everything, if the host begins at ``host_at``."""
        host_s = np.zeros_like(self.units) if host.replayed else self.units * host.launch_s
        compute_at, network_at, room_at = 0.0, 0.0, 0.0
        done: dict[int, float] = {}
        busy_s = np.where(self.launches, device_s, 0.0)
        begun: deque[tuple[int, float]] = deque()  # first ops of pieces, and when the device could begin them
        for start, stop, waited, sends, launches, syncs in self._pieces:
            if waited != _NOTHING:
                compute_at = max(compute_at, done[waited])
            while begun and begun[0][0] <= start - QUEUE:
                room_at = begun.popleft()[1]
            issued, seconds, host_at = host_s[start:stop], busy_s[start:stop], max(host_at, room_at)
            begun.append((start, max(host_at + float(issued[0]), compute_at)))
            runs = launches and not sends
            if stop - start > _FEW:
                issued = host_at + np.cumsum(issued)
                host_at = float(issued[-1])
                compute_at = _last_end(issued, seconds, compute_at) if runs else compute_at
            else:  # arrays of few take longer
                for each_s, runs_s in zip(issued.tolist(), seconds.tolist(), strict=True):
                    host_at += each_s
                    compute_at = max(compute_at, host_at) + runs_s if runs else compute_at
            if sends:
                network_at = max(host_at, network_at, compute_at) + float(seconds.sum())
                done[start] = network_at
            if syncs and not host.replayed:
                host_at = max(host_at, compute_at)
        return max(host_at, compute_at, network_at)

    @property
    def _pieces(self) -> Iterator[tuple[int, int, int, bool, bool, bool]]:
        """Ops between which nothing waits: first, end, what the first waits for, whether it sends, whether any of them
        runs on the device, whether the host waits for the last.
        """
        count = len(self.units)
        alone, waits = np.flatnonzero(self.sends), np.flatnonzero(self.waits_for != _NOTHING)
        cuts = [np.arange(0, count, QUEUE), alone, alone + 1, waits, np.flatnonzero(self.syncs) + 1]
        starts = np.unique(np.concatenate(cuts))
        starts = starts[starts < count]
        ends = np.append(starts[1:], count)[: len(starts)]
        launches = np.logical_or.reduceat(self.launches, starts) if count else self.launches
        columns = starts, ends, self.waits_for[starts], self.sends[starts], launches, self.syncs[ends - 1]
        return zip(*(column.tolist() for column in columns), strict=True)


_FEW: Final = 32


def _last_end(issued: Float64, seconds: Float64, free_at: float) -> float:
    """When the last of some ops ends that a device begins no sooner than issued, one after the other from ``free_at``:
    the longest way from the issue of any op through all after it.
    """
    after = np.cumsum(seconds[::-1])[::-1]
    return max(free_at + float(after[0]), float((issued + after).max()))


def predicted_wall(queue: Queue, device_s: Float64, predicted: Predicted, host: Host) -> PredictedWall:
    """The wall time of a queue whose ops take ``device_s`` [ops] on the device, and ``predicted`` in all. Its interval
    is between the walls of a fast host beside a fast device and of a slow one beside a slow one.
    """
    shares = (predicted.low_s / predicted.time_s, predicted.high_s / predicted.time_s) if predicted.time_s else (1, 1)
    time_s = queue.wall_s(device_s, host)
    return PredictedWall(
        time_s=time_s,
        low_s=min(time_s, queue.wall_s(device_s * shares[0], host.scaled(host.low))),
        high_s=max(time_s, queue.wall_s(device_s * shares[1], host.scaled(host.high))),
        busy_s=predicted.time_s,
        sends_s=float(device_s[queue.sends].sum()),
        host_s=host.first_s + (0.0 if host.replayed else float(queue.units.sum()) * host.launch_s),
        host=host,
    )


def without_host(predicted: Predicted) -> PredictedWall:
    """The wall time of a device whose ops are measured together with what launches them."""
    return PredictedWall(
        time_s=predicted.time_s,
        low_s=predicted.low_s,
        high_s=predicted.high_s,
        busy_s=predicted.time_s,
        sends_s=0.0,
        host_s=0.0,
        host=IN_THE_OPS,
    )


def queue_of(session: Session, costs: Sequence[OpCost | Uncosted]) -> Queue:
    """The queue of a session's counted ops; ``costs`` go with its signatures."""
    counted = np.flatnonzero(session.counted)
    signature, direction = session.columns.signature[counted], session.columns.direction[counted]
    table = np.array(
        [[units_of(op, cost, way) for way in Direction] for op, cost in zip(session.signatures, costs, strict=True)]
    ).reshape(-1, len(Direction))
    names = [op.name for op in session.signatures]
    stays = np.array([ON_HOST in op.attributes for op in session.signatures], dtype=bool)
    is_idle = stays | np.array([isinstance(cost, OpCost) and cost.does_nothing for cost in costs], dtype=bool)
    is_send = np.array([kind_of(name) is not None for name in names], dtype=bool)
    is_sync = ~stays & np.array([op.name in SYNCS or _waits_for_copy(op) for op in session.signatures], dtype=bool)
    sends = is_send[signature] if names else np.zeros(0, dtype=bool)
    return Queue(
        units=table[signature, direction],
        launches=~is_idle[signature] if names else sends,
        sends=sends,
        waits_for=_waits(session, counted, sends),
        syncs=is_sync[signature] if names else sends,
    )


def _waits_for_copy(op: OpSignature) -> bool:
    return crosses(op) and not op.attribute("non_blocking")


def _waits(session: Session, counted: Int64, sends: Flags) -> Int64:
    """For each counted op that computes, the last collective before it that wrote what it touches and that no op
    waited for yet.
    """
    found = np.full(len(counted), _NOTHING, dtype=np.int64)
    pending: dict[int, int] = {}  # by storage, the collective that writes it
    if not sends.any():
        return found
    first = int(np.flatnonzero(sends)[0])
    for place, (_, _, reads, writes) in enumerate(touched_by(session, counted[first:]), start=first):
        if sends[place]:
            pending.update(dict.fromkeys(writes, place))
        elif pending:
            touched = [pending[storage] for storage in (*reads, *writes) if storage in pending]
            if touched:
                found[place] = max(touched)
                # collectives run in order: whoever waits for one has waited for those before it
                pending = {storage: number for storage, number in pending.items() if number > found[place]}
    return found
